"""An asset that is ingested from a queue by Spark, declared in YAML.

Its parts are checked against their schema by ``dg check yaml``, and wholly when they are loaded.
"""

# Dagster reads the annotation of an asset's context, so this module has no postponed ones.

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import dagster as dg
from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from sqs_lease.core.failure_rules import FailureRule
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.core.specs import POLICIES, resolve_failure_rule, resolve_policy
from sqs_lease.dagster.backlog_sensor import build_sqs_backlog_sensor
from sqs_lease.dagster.checks import build_sqs_backlog_check, build_sqs_lease_check
from sqs_lease.dagster.resource import SqsQueueResource
from sqs_lease.dagster.spark import ingest_with_spark
from sqs_lease.dagster.table_metadata import storage_kind, table_metadata
from sqs_lease.ingestion.spec import SINKS, SOURCES, VERSION, IngestionSpec, Kind
from sqs_lease.sqs.validation import queue_reference

# Dagster reads the annotation of an asset's context, so this module has no postponed ones.


_TEMPLATE: Final = Path(__file__).with_name("ingestion.yaml")


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


def _errors_at_their_keys(schema: dict[str, Any]) -> None:
    """Have the JSON schema of a field with keys of its own say which of them is wrong.

    Dagster also takes a text, a template, for every field. Of such a choice a validator can only say that no part of it
    fits, which marks the whole block. So any mapping fits the choice, and the keys are checked beside it.
    """
    (keys,) = (choice for choice in schema["anyOf"] if "$ref" in choice)
    schema["anyOf"].append({"type": "object"})
    schema |= {"if": {"type": "object"}, "then": dict(keys)}


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
    def _can_be_used(self) -> Self:
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
        return resolve_failure_rule(self.on_failure)


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


class SqsIngestionScaffolder(dg.Scaffolder):
    """Writes a ``defs.yaml`` to be filled in, which can be loaded as it is."""

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        """Write it; for Python, what Dagster writes for every component."""
        if request.scaffold_format != "yaml":
            dg.scaffold_component(request, {})
            return
        text = _TEMPLATE.read_text(encoding="utf-8").replace("TYPE", request.type_name)
        file = request.target_path / "defs.yaml"
        file.write_text(f"{file.read_text(encoding='utf-8')}---\n{text}" if request.append else text, encoding="utf-8")


@dg.scaffold_with(SqsIngestionScaffolder)
class SqsIngestionComponent(dg.Component, dg.Model, dg.Resolvable):
    """A table as an asset: each materialization ingests a batch of a queue's messages by Spark, each exactly once."""

    # The errors say which key is wrong; a password that was put there by mistake is not to be shown.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    queue: QueueOptions = Field(description="The queue.", json_schema_extra=_errors_at_their_keys)
    lease: LeaseOptions = Field(
        default=LeaseOptions(),
        description="How a batch is received and kept.",
        json_schema_extra=_errors_at_their_keys,
    )
    source: dict[str, Any] = Field(
        description="What the messages are: its kind, and the kind's own keys.",
        json_schema_extra=_schema_by_kind(SOURCES),
        examples=[{KIND: "json", "schema": "order_id BIGINT NOT NULL, total DOUBLE"}],
    )
    sink: dict[str, Any] = Field(
        description="The table that the records go to: its kind, and the kind's own keys.",
        json_schema_extra=_schema_by_kind(SINKS),
        examples=[{KIND: "delta", "path": "/data/orders"}],
    )
    rejects: dict[str, Any] | None = Field(
        default=None,
        description="The table for messages that are no records. Without it they are failed, see lease.on_failure.",
        json_schema_extra=_schema_by_kind(SINKS),
        examples=[{KIND: "delta", "path": "/data/rejected_orders"}],
    )
    workspace: str = Field(
        description="Directory for the files of batches under way: an absolute path by which the driver and all "
        "executors reach it."
    )
    spark_conf: dict[str, Any] = Field(default={}, description="Settings of the Spark session.")
    spark: str = Field(
        default="local[2]",
        description="Where Spark runs: local[2] is in the job's process, spark://host:7077 on a standalone cluster, "
        "sc://host:15002 behind a Connect server.",
    )
    python: str | None = Field(
        default=None, description="The Python of an environment with sqs-lease[spark] and dagster-pipes; this one."
    )
    asset: dg.ResolvedAssetSpec = Field(description="The asset.", json_schema_extra=_errors_at_their_keys)
    retries: RetryOptions | None = Field(
        default=None,
        description="Retries of the step; none by default.",
        json_schema_extra=_errors_at_their_keys,
    )
    backlog_check: BacklogCheckOptions | None = Field(
        default=None,
        description="A check of what waits in the queue, beside the one of the leases; none by default.",
        json_schema_extra=_errors_at_their_keys,
    )
    backlog_sensor: BacklogSensorOptions | None = Field(
        default=None,
        description="A sensor that starts runs when messages wait; none by default.",
        json_schema_extra=_errors_at_their_keys,
    )

    @model_validator(mode="after")
    def _can_be_ingested(self) -> Self:
        # Its errors begin with the key that is wrong: source, sink, rejects, workspace or spark_conf.
        IngestionSpec.parse(self.spec())
        return self

    def spec(self) -> dict[str, Any]:
        """What the job is given: see ``sqs_lease/ingestion/spec.py``."""
        spec: dict[str, Any] = {
            "version": VERSION,
            "source": dict(self.source),
            "sink": dict(self.sink),
            "workspace": self.workspace,
            "spark_conf": dict(self.spark_conf),
        }
        return spec if self.rejects is None else {**spec, "rejects": dict(self.rejects)}

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The asset, its checks, and the sensor if there is one."""
        return dg.Definitions(assets=[self._asset()], asset_checks=self._checks(), sensors=self._sensors())

    def _asset(self) -> dg.AssetsDefinition:
        queue, options = self.queue.resource(), self.lease
        kinds = {"sqs", "pyspark", storage_kind(self.spec())}
        spec = self.asset if self.asset.kinds else self.asset.merge_attributes(kinds=kinds)
        spec = spec.merge_attributes(metadata={**table_metadata(self.spec()), **spec.metadata})

        @dg.multi_asset(name=self._name(), specs=[spec], retry_policy=self._retry_policy())
        def ingest(context: dg.AssetExecutionContext) -> Any:
            with queue.lease(
                context,
                max_messages=options.max_messages,
                wait=options.wait_seconds,
                linger=options.linger_seconds,
                policy=options.renewal_policy(),
                on_failure=options.failure_rule(),
            ) as batch:
                ingest_with_spark(
                    context, batch, spec=self.spec(), spark=self.spark, python=self.python or sys.executable
                )
            return dg.MaterializeResult(asset_key=spec.key)

        return ingest

    def _checks(self) -> list[dg.AssetChecksDefinition]:
        checks = [build_sqs_lease_check(self.asset.key)]
        if (options := self.backlog_check) is not None:
            queue, visible, dead_letters = self.queue.resource(), options.max_visible, options.max_dead_letters
            checks.append(
                build_sqs_backlog_check(self.asset.key, queue, max_visible=visible, max_dead_letters=dead_letters)
            )
        return checks

    def _sensors(self) -> list[dg.SensorDefinition]:
        options = self.backlog_sensor
        if options is None:
            return []
        status = dg.DefaultSensorStatus.RUNNING if options.running else dg.DefaultSensorStatus.STOPPED
        sensor = build_sqs_backlog_sensor(
            f"{self._name()}_backlog",
            self.queue.resource(),
            dg.AssetSelection.assets(self.asset.key),
            min_messages=options.min_messages,
            max_wait=options.max_wait_seconds,
            max_concurrent_runs=options.max_concurrent_runs,
            messages_per_run=self.lease.max_messages,
            minimum_interval_seconds=options.minimum_interval_seconds,
            default_status=status,
        )
        return [sensor]

    def _retry_policy(self) -> dg.RetryPolicy | None:
        if self.retries is None:
            return None
        return dg.RetryPolicy(max_retries=self.retries.max_retries, delay=self.retries.delay_seconds)

    def _name(self) -> str:
        return self.asset.key.to_python_identifier()
