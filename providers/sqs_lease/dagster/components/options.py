"""Blocks of keys that components share: the queue, the lease, retries, the sensor and the check of the backlog.

The scaffolders are here too: `dg scaffold` writes a ``defs.yaml`` for a component, which can be loaded as it is.
"""

# No postponed annotations here: Dagster reads the annotations of these models.

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import dagster as dg
from pydantic import Field, ValidationInfo, field_validator, model_validator

from sqs_lease.core.specs import POLICIES, resolve_failure_rule, resolve_policy
from sqs_lease.dagster.resource import SqsQueueResource
from sqs_lease.keeper import options
from sqs_lease.sqs.validation import queue_reference

_TEMPLATES: Final = Path(__file__).parent


def scaffolder(template: str) -> type[dg.Scaffolder]:
    """Return the scaffolder of a component, which writes a template, a file beside this one."""

    class TemplateScaffolder(dg.Scaffolder):
        """The scaffolder of a component, by a template."""

        def scaffold(self, request: dg.ScaffoldRequest) -> None:
            """Write the template; in Python format, Dagster's usual text."""
            if request.scaffold_format != "yaml":
                dg.scaffold_component(request, {})
                return
            text = (_TEMPLATES / template).read_text(encoding="utf-8").replace("TYPE", request.type_name)
            file = request.target_path / "defs.yaml"
            before = f"{file.read_text(encoding='utf-8')}---\n" if request.append else ""
            file.write_text(f"{before}{text}", encoding="utf-8")

    return TemplateScaffolder


COMPONENT: Final = "component"


def errors_at_their_keys(schema: dict[str, Any]) -> None:
    """Change the JSON schema of a field with keys of its own, so that errors name the wrong key.

    Dagster also takes a string, a template, for every field. For such a choice a validator can only report that no part
    of it fits, which marks the whole block. So the choice takes any mapping, and the keys are checked beside it.
    """
    (keys,) = (choice for choice in schema["anyOf"] if "$ref" in choice)
    schema["anyOf"].append({"type": "object"})
    schema |= {"if": {"type": "object"}, "then": dict(keys)}


def _at_least(minimum: int) -> Callable[[float | None, ValidationInfo], float | None]:
    """Return the validator of a number, which may be None."""

    def check(number: float | None, info: ValidationInfo) -> float | None:
        # Not a constraint of the field, because Dagster would check that against a template, too.
        # The condition also refuses NaN, which compares false with everything.
        if number is not None and not minimum <= number < math.inf:
            raise ValueError(f"{info.field_name} must be at least {minimum}, not {number}")
        return number

    return check


def errors_at_keys_of_a_queue(schema: dict[str, Any]) -> None:
    """Change the JSON schema of a queue, which is named here or belongs to another component, in the same way."""
    errors_at_their_keys(schema)
    keys = schema["then"]
    schema["then"] = {"allOf": [keys, {"if": {"not": {"required": [COMPONENT]}}, "then": {"required": ["name"]}}]}


class QueueOptions(dg.Model, dg.Resolvable):
    """The access to a queue; missing settings come from boto3's usual places."""

    name: str | None = Field(default=None, description="The queue's name, ARN or URL.")
    component: str | None = Field(
        default=None,
        description="In place of all other keys: the path of a SqsQueueComponent in the defs folder.",
    )
    region_name: str | None = Field(default=None, description="The AWS region.")
    endpoint_url: str | None = Field(default=None, description="The URL of SQS, for a custom endpoint.")
    profile_name: str | None = Field(default=None, description="A profile of the AWS configuration files.")
    role_arn: str | None = Field(default=None, description="A role to assume.")
    role_session_name: str = Field(default="sqs-lease", description="The name of the role's sessions in CloudTrail.")
    use_ssl: bool = Field(default=True, description="Whether to use TLS if endpoint_url has no scheme.")
    verify: bool | None = Field(default=None, description="Whether TLS certificates are verified, as by default.")

    @field_validator("name")
    @classmethod
    def _is_queue(cls, name: str | None) -> str | None:
        if name is not None:
            queue_reference(name)
        return name

    @model_validator(mode="after")
    def _is_here_or_elsewhere(self) -> Self:
        # Compared by value, because Dagster sets all fields, also those that are not in the YAML.
        fields = type(self).model_fields
        given = [key for key in fields if key != COMPONENT and getattr(self, key) != fields[key].default]
        if self.component is None and self.name is None:
            raise ValueError("queue needs name: the queue's name, ARN or URL (or component: a SqsQueueComponent)")
        if self.component is not None and given:
            raise ValueError(f"queue.component has all settings of the queue: remove {', '.join(given)}")
        return self

    def resource(self) -> SqsQueueResource:
        """Return the queue that is named here, as a resource."""
        settings = type(self).model_fields.keys() & SqsQueueResource.model_fields.keys()
        return SqsQueueResource(queue=str(self.name), **{name: getattr(self, name) for name in settings})


class LeaseOptions(dg.Model, dg.Resolvable):
    """The options of the receive and of the leases."""

    max_messages: int = Field(default=options.DEFAULT_MAX_MESSAGES, description="Most messages of one run.")
    wait_seconds: float = Field(
        default=options.DEFAULT_WAIT_SECONDS, description="How long to wait for a first message."
    )
    linger_seconds: float = Field(
        default=options.DEFAULT_LINGER_SECONDS, description="How long to wait for more messages after the first."
    )
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
        description="The rule for failed messages: release (the default), backoff, expire or dead_letter; or a "
        "mapping of its kind and its arguments, such as {kind: backoff, initial: 30}.",
    )

    @field_validator("max_messages", "wait_seconds", "linger_seconds")
    @classmethod
    def _is_an_option(cls, number: float, info: ValidationInfo) -> float:
        # Options are checked one by one, so that the error is at its key.
        option: dict[str, Any] = {str(info.field_name).removesuffix("_seconds"): number}
        options.LeaseOptions.of(**option)
        return number

    @model_validator(mode="after")
    def _can_be_used(self) -> Self:
        for name, check in (
            ("policy", lambda: resolve_policy(self.policy, visibility=self.visibility_seconds)),
            ("on_failure", lambda: resolve_failure_rule(self.on_failure)),
        ):
            try:
                check()
            except (TypeError, ValueError) as error:
                raise ValueError(f"lease.{name}: {error}") from None
        return self

    def arguments(self) -> dict[str, Any]:
        """Return the same as arguments of :meth:`SqsQueueResource.lease`."""
        return {
            "max_messages": self.max_messages,
            "wait": self.wait_seconds,
            "linger": self.linger_seconds,
            "policy": self.policy,
            "visibility": self.visibility_seconds,
            "on_failure": self.on_failure,
        }


class RetryOptions(dg.Model, dg.Resolvable):
    """The retries of a failed step; each receives its messages again."""

    max_retries: int = Field(default=1, description="Most retries.")
    delay_seconds: float | None = Field(default=None, description="How long to wait before a retry.")

    _is_none_or_more = field_validator("max_retries", "delay_seconds")(_at_least(0))


class BacklogSensorOptions(dg.Model, dg.Resolvable):
    """The rules by which a sensor starts runs: see ``build_sqs_backlog_sensor``."""

    min_messages: int = Field(default=1, description="The number of visible messages that starts a run.")
    max_wait_seconds: float | None = Field(
        default=None, description="The time after which fewer messages start a run; never by default."
    )
    max_concurrent_runs: int = Field(default=1, description="Most runs at once.")
    pause_after_failure_seconds: float = Field(
        default=30, description="The pause after a first failed run, which doubles up to 15 minutes; 0 for no pause."
    )
    minimum_interval_seconds: int = Field(default=30, description="Least time between two looks at the queue.")
    running: bool = Field(default=False, description="Whether the sensor runs without being switched on.")

    def arguments(self) -> dict[str, Any]:
        """Return the same as arguments of ``build_sqs_backlog_sensor``."""
        return {
            "min_messages": self.min_messages,
            "max_wait": self.max_wait_seconds,
            "max_concurrent_runs": self.max_concurrent_runs,
            "pause_after_failure": self.pause_after_failure_seconds,
            "minimum_interval_seconds": self.minimum_interval_seconds,
            "default_status": dg.DefaultSensorStatus.RUNNING if self.running else dg.DefaultSensorStatus.STOPPED,
        }

    _is_some = field_validator("min_messages", "max_concurrent_runs", "minimum_interval_seconds")(_at_least(1))
    _is_no_past = field_validator("max_wait_seconds", "pause_after_failure_seconds")(_at_least(0))


class BacklogCheckOptions(dg.Model, dg.Resolvable):
    """The limits of the queue's backlog: see ``build_sqs_backlog_check``."""

    max_visible: int | None = Field(
        default=None, description="How many messages may wait to be received; any number by default."
    )
    max_dead_letters: int = Field(
        default=0, description="How many messages may be in the dead-letter queue; 0 by default."
    )

    _is_none_or_more = field_validator("max_visible", "max_dead_letters")(_at_least(0))
