"""The parts of an ingestion as YAML has them: checked against their schema by ``dg check yaml``, wholly when loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

import dagster as dg
from pydantic import Field, ValidationInfo, field_validator, model_validator

from sqs_lease.core.failure_rules import FailureRule
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.core.specs import FAILURE_RULES, POLICIES, decode_failure_rule, resolve_policy
from sqs_lease.dagster.queue_resource import SqsQueueResource
from sqs_lease.ingestion.spec import SINKS, SOURCES, Kind
from sqs_lease.sqs.validation import queue_reference

KIND: Final = "kind"


def _schema_by_kind(kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """A JSON schema that tells by the kind which keys are missing or unknown; a text, a template, passes."""
    return {
        "allOf": [
            {
                "if": {"type": "object"},
                "then": {"required": [KIND], "properties": {KIND: {"enum": list(kinds)}}},
            },
            *(
                {
                    "if": {"type": "object", "required": [KIND], "properties": {KIND: {"const": name}}},
                    "then": {
                        "required": list(kind.required),
                        "properties": {key: {} for key in (KIND, *kind.required, *kind.optional)},
                        "additionalProperties": False,
                    },
                }
                for name, kind in kinds.items()
            ),
        ]
    }


SourceOptions: TypeAlias = Annotated[
    dict[str, Any],
    dg.Resolver.default(
        description="What the messages are: its kind, and the kind's own keys.",
        json_schema_extra=_schema_by_kind(SOURCES),
        examples=[{KIND: "json", "schema": "order_id BIGINT NOT NULL, total DOUBLE"}],
    ),
]
SinkOptions: TypeAlias = Annotated[
    dict[str, Any],
    dg.Resolver.default(
        description="The table that the records go to: its kind, and the kind's own keys.",
        json_schema_extra=_schema_by_kind(SINKS),
        examples=[{KIND: "delta", "path": "/data/orders"}],
    ),
]
RejectsOptions: TypeAlias = Annotated[
    dict[str, Any],
    dg.Resolver.default(
        description="The table for messages that are no records. Without it they are failed, see lease.on_failure.",
        json_schema_extra=_schema_by_kind(SINKS),
        examples=[{KIND: "delta", "path": "/data/rejected_orders"}],
    ),
]


def _at_least(minimum: int, number: float | None, info: ValidationInfo) -> float | None:
    # Not a constraint of the field: Dagster has those checked where a template stands yet.
    if number is not None and number < minimum:
        raise ValueError(f"{info.field_name} must be at least {minimum}, not {number}")
    return number


class QueueOptions(dg.Model, dg.Resolvable):
    """How a queue is reached; what is not given is boto3's usual."""

    name: str = Field(description="The queue's name, ARN or URL.")
    region_name: str | None = Field(default=None, description="The AWS region.")
    endpoint_url: str | None = Field(default=None, description="The URL of SQS, for a custom endpoint.")
    profile_name: str | None = Field(default=None, description="A profile of the AWS configuration files.")
    role_arn: str | None = Field(default=None, description="A role to assume.")

    @field_validator("name")
    @classmethod
    def _is_queue(cls, name: str) -> str:
        queue_reference(name)
        return name

    def resource(self) -> SqsQueueResource:
        """The queue as a resource."""
        return SqsQueueResource(
            queue=self.name,
            region_name=self.region_name,
            endpoint_url=self.endpoint_url,
            profile_name=self.profile_name,
            role_arn=self.role_arn,
        )


class LeaseOptions(dg.Model, dg.Resolvable):
    """How a batch is received and kept."""

    max_messages: int = Field(default=1000, description="Most messages of one run.")
    wait_seconds: float = Field(default=20.0, description="How long to wait for a first message.")
    linger_seconds: float = Field(default=5.0, description="How long to wait for more once one came.")
    visibility_seconds: float | None = Field(
        default=None, description="The visibility timeout to receive with; the queue's own by default."
    )
    policy: str | None = Field(
        default=None,
        description="When to extend: growing (the default), threshold, buffered or never.",
        json_schema_extra={"examples": list(POLICIES)},
    )
    on_failure: str | dict[str, Any] = Field(
        default="release",
        description="What becomes of failed messages: release (the default), backoff, expire or dead_letter; or a "
        "mapping of its kind and its arguments, such as {kind: backoff, initial: 30}.",
    )

    @field_validator("max_messages")
    @classmethod
    def _is_some(cls, number: int, info: ValidationInfo) -> float | None:
        return _at_least(1, number, info)

    @field_validator("wait_seconds", "linger_seconds")
    @classmethod
    def _is_no_past(cls, number: float, info: ValidationInfo) -> float | None:
        return _at_least(0, number, info)

    @model_validator(mode="after")
    def _can_be_used(self) -> LeaseOptions:
        for name, make in (("policy", self.renewal_policy), ("on_failure", self.failure_rule)):
            try:
                make()
            except (TypeError, ValueError) as error:
                raise ValueError(f"lease.{name}: {error}") from None
        return self

    def renewal_policy(self) -> RenewalPolicy:
        """The policy with its visibility timeout.

        Raises:
            ValueError: There is no such policy, or the visibility timeout is out of range.
            TypeError: The policy takes arguments.
        """
        return resolve_policy(self.policy, visibility=self.visibility_seconds)

    def failure_rule(self) -> FailureRule:
        """What becomes of failed messages.

        Raises:
            ValueError: There is no such rule, or an argument is out of range.
            TypeError: An argument is unknown.
        """
        given = {KIND: self.on_failure} if isinstance(self.on_failure, str) else dict(self.on_failure)
        kind = given.pop(KIND, None)
        if kind not in FAILURE_RULES:
            raise ValueError(f"it must be one of {', '.join(FAILURE_RULES)}, not {kind!r}")
        return decode_failure_rule({"on_failure": kind, **given})


class RetryOptions(dg.Model, dg.Resolvable):
    """How often a step that failed is tried again, each time with messages that it receives anew."""

    max_retries: int = Field(default=1, description="How often at most.")
    delay_seconds: float | None = Field(default=None, description="How long to wait before.")

    @field_validator("max_retries", "delay_seconds")
    @classmethod
    def _is_none_or_more(cls, number: float | None, info: ValidationInfo) -> float | None:
        return _at_least(0, number, info)


class BacklogSensorOptions(dg.Model, dg.Resolvable):
    """When a sensor starts runs: see ``build_sqs_backlog_sensor``."""

    min_messages: int = Field(default=1, description="From how many visible messages on.")
    max_wait_seconds: float | None = Field(default=None, description="After what time for fewer; never by default.")
    max_concurrent_runs: int = Field(default=1, description="Most runs at once.")
    minimum_interval_seconds: int = Field(default=30, description="Least time between two looks at the queue.")
    running: bool = Field(default=False, description="Whether it runs without being switched on.")

    @field_validator("min_messages", "max_concurrent_runs", "minimum_interval_seconds")
    @classmethod
    def _is_some(cls, number: int, info: ValidationInfo) -> float | None:
        return _at_least(1, number, info)

    @field_validator("max_wait_seconds")
    @classmethod
    def _is_no_past(cls, number: float | None, info: ValidationInfo) -> float | None:
        return _at_least(0, number, info)


class BacklogCheckOptions(dg.Model, dg.Resolvable):
    """When the queue's backlog is a warning: see ``build_sqs_backlog_check``."""

    max_visible: int | None = Field(
        default=None, description="How many messages may wait to be received; any number by default."
    )
    max_dead_letters: int = Field(
        default=0, description="How many messages may be in the dead-letter queue; none by default."
    )

    @field_validator("max_visible", "max_dead_letters")
    @classmethod
    def _is_none_or_more(cls, number: int | None, info: ValidationInfo) -> float | None:
        return _at_least(0, number, info)
