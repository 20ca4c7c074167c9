"""Assets with materializations that work on a batch of messages each: by a Python function, by Spark, or by a subclass.

``dg check yaml`` checks the parts of an ingestion by Spark against their schema; the full checks run when the component
is loaded.
"""

# No postponed annotations here: Dagster reads the annotations of these models.

import inspect
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any, Final, Self

import dagster as dg
from pydantic import ConfigDict, Field, field_validator, model_validator

from sqs_lease.blocking import LeasedBatch
from sqs_lease.core.functions import is_async, yields
from sqs_lease.dagster.backlog_sensor import build_sqs_backlog_sensor
from sqs_lease.dagster.checks import build_sqs_backlog_check, build_sqs_lease_check
from sqs_lease.dagster.components.options import (
    BacklogCheckOptions,
    BacklogSensorOptions,
    LeaseOptions,
    QueueOptions,
    RetryOptions,
    errors_at_keys_of_a_queue,
    errors_at_their_keys,
    scaffolder,
)
from sqs_lease.dagster.components.queue import resource_of
from sqs_lease.dagster.resource import SqsQueueResource
from sqs_lease.dagster.spark import ingest_with_spark, storage_kind, table_metadata
from sqs_lease.ingestion.spec import SINKS, SOURCES, VERSION, IngestionSpec, Kind


class LeasedAssetComponent(dg.Component, dg.Model, dg.Resolvable):
    """An asset that is materialized from a batch of messages, with its checks, and a sensor if it is declared.

    A base class: :meth:`execute` is the work, and :meth:`get_asset_spec` the asset.
    """

    # Errors name the wrong key, but not its value, which may be a password by mistake.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    queue: QueueOptions = Field(description="The queue.", json_schema_extra=errors_at_keys_of_a_queue)
    lease: LeaseOptions = Field(
        default=LeaseOptions(),
        description="Options of the receive and of the leases.",
        json_schema_extra=errors_at_their_keys,
    )
    asset: dg.ResolvedAssetSpec = Field(description="The asset.", json_schema_extra=errors_at_their_keys)
    retries: RetryOptions | None = Field(
        default=None,
        description="Retries of the step; no retries by default.",
        json_schema_extra=errors_at_their_keys,
    )
    backlog_check: BacklogCheckOptions | None = Field(
        default=None,
        description="A check of the queue's backlog, beside the one of the leases; no check by default.",
        json_schema_extra=errors_at_their_keys,
    )
    backlog_sensor: BacklogSensorOptions | None = Field(
        default=None,
        description="A sensor that starts runs when messages wait; no sensor by default.",
        json_schema_extra=errors_at_their_keys,
    )

    @abstractmethod
    def execute(self, context: dg.AssetExecutionContext, batch: LeasedBatch) -> dg.MaterializeResult[Any] | None:
        """Work on a batch. When its step has succeeded the messages are deleted; if it raises they are given back.

        Args:
            context: The context of the asset.
            batch: The messages; there may be none.

        Returns:
            A value, metadata, check results, tags and a data version for the materialization; None adds nothing.
        """

    def get_asset_spec(self) -> dg.AssetSpec:
        """Return the asset as Dagster shows it: that of the YAML, by default."""
        return self.asset

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the asset, its checks, and the sensor if there is one."""
        queue, spec = resource_of(self.queue, context), self.get_asset_spec()
        return dg.Definitions(
            assets=[self._asset(queue, spec)],
            asset_checks=self._checks(queue, spec),
            sensors=self._sensors(queue, spec),
        )

    def _asset(self, queue: SqsQueueResource, spec: dg.AssetSpec) -> dg.AssetsDefinition:
        arguments = self.lease.arguments()
        retry_policy = (
            None
            if self.retries is None
            else dg.RetryPolicy(max_retries=self.retries.max_retries, delay=self.retries.delay_seconds)
        )

        @dg.multi_asset(name=spec.key.to_python_identifier(), specs=[spec], retry_policy=retry_policy)
        def work(context: dg.AssetExecutionContext) -> Any:
            with queue.lease(context, **arguments) as batch:
                return _result(self.execute(context, batch), spec.key)

        return work

    def _checks(self, queue: SqsQueueResource, spec: dg.AssetSpec) -> list[dg.AssetChecksDefinition]:
        checks = [build_sqs_lease_check(spec.key)]
        if (options := self.backlog_check) is not None:
            visible, dead_letters = options.max_visible, options.max_dead_letters
            checks.append(build_sqs_backlog_check(spec.key, queue, max_visible=visible, max_dead_letters=dead_letters))
        return checks

    def _sensors(self, queue: SqsQueueResource, spec: dg.AssetSpec) -> list[dg.SensorDefinition]:
        if (options := self.backlog_sensor) is None:
            return []
        sensor = build_sqs_backlog_sensor(
            f"{spec.key.to_python_identifier()}_backlog",
            queue,
            dg.AssetSelection.assets(spec.key),
            messages_per_run=self.lease.max_messages,
            **options.arguments(),
        )
        return [sensor]


def _result(returned: object, key: dg.AssetKey) -> dg.MaterializeResult[Any]:
    """Return the materialization for a result of the work.

    Raises:
        TypeError: The work returned another type.
    """
    if returned is None:
        return dg.MaterializeResult(asset_key=key)
    if not isinstance(returned, dg.MaterializeResult):
        raise TypeError(
            f"the work on a batch for {key.to_user_string()} must return None or a MaterializeResult, not "
            f"{type(returned).__name__}: give a value as dg.MaterializeResult(value=...)"
        )
    return returned


_CONTEXT: Final = "context"


@dg.scaffold_with(scaffolder("function.yaml"))
class SqsFunctionComponent(LeasedAssetComponent):
    """An asset: each materialization calls a Python function with a batch of messages.

    ::

        def load(messages: LeasedBatch) -> None:
            for message in messages:
                store(message.body)

    The function is not called when no message came. If its first parameter is ``context``, it gets the context of the
    asset before the messages.
    """

    function: str = Field(
        description="The dotted path of the function, such as shop.orders.load. It takes the messages of a batch, "
        "returns None or a MaterializeResult, and raises if it could not work on them."
    )

    @field_validator("function")
    @classmethod
    def _can_be_called(cls, path: str) -> str:
        _function(path)
        return path

    def execute(self, context: dg.AssetExecutionContext, batch: LeasedBatch) -> dg.MaterializeResult[Any] | None:
        """Call the function, if there are messages."""
        if not len(batch):
            return None
        function = _function(self.function)
        # The caller checks the type of the result.
        return function(context, batch) if _takes_context(function) else function(batch)  # type: ignore[no-any-return]


def _function(path: str) -> Callable[..., Any]:
    """Import the function.

    Raises:
        ValueError: It cannot be imported, or called with messages.
    """
    try:
        function = resolve_name(path)
    except Exception as error:
        kind = type(error).__name__
        raise ValueError(
            f"function: {path!r} cannot be imported ({kind}: {error}): give the path of a function of an installed "
            "module, package.module.function"
        ) from error
    if not callable(function) or inspect.isclass(function):
        raise ValueError(f"function: {path!r} is not a function")
    if is_async(function) or yields(function):
        raise ValueError(f"function: {path!r} is a generator or asynchronous, so its work would not be done")
    arguments = ["context", "messages"] if _takes_context(function) else ["messages"]
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ValueError(f"function: {path!r} cannot be called with the messages of a batch: {error}") from None
    return function  # type: ignore[no-any-return]  # resolve_name() returns Any


def _takes_context(function: Callable[..., Any]) -> bool:
    return next(iter(inspect.signature(function).parameters), "") == _CONTEXT


KIND: Final = "kind"


def _schema_by_kind(kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """Return a JSON schema that finds missing and unknown keys by the kind; a string, a template, passes."""
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


@dg.scaffold_with(scaffolder("ingestion.yaml"))
class SqsIngestionComponent(LeasedAssetComponent):
    """A table as an asset: each materialization ingests a batch of a queue's messages by Spark, each exactly once."""

    source: dict[str, Any] = Field(
        description="The form of the messages: its kind, and the kind's own keys.",
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
        description="Table for rejected messages. If unset, they fail (see lease.on_failure).",
        json_schema_extra=_schema_by_kind(SINKS),
        examples=[{KIND: "delta", "path": "/data/rejected_orders"}],
    )
    workspace: str = Field(
        description="Directory for the files of batches under way: an absolute path that the driver and all executors "
        "reach."
    )
    spark_conf: dict[str, Any] = Field(default={}, description="Settings of the Spark session.")
    spark: str = Field(
        default="local[2]",
        description="Where Spark runs: local[2] is in the job's process, spark://host:7077 on a standalone cluster, "
        "sc://host:15002 behind a Connect server.",
    )
    python: str | None = Field(
        default=None,
        description="The Python of an environment with sqs-lease[spark]; this one by default.",
    )

    @model_validator(mode="after")
    def _can_be_ingested(self) -> Self:
        # The errors begin with the wrong key: source, sink, rejects, workspace or spark_conf.
        IngestionSpec.parse(self.spec())
        return self

    def spec(self) -> dict[str, Any]:
        """Return the spec of the job, see ``sqs_lease/ingestion/spec.py``."""
        spec: dict[str, Any] = {
            "version": VERSION,
            "source": dict(self.source),
            "sink": dict(self.sink),
            "workspace": self.workspace,
            "spark_conf": dict(self.spark_conf),
        }
        return spec if self.rejects is None else {**spec, "rejects": dict(self.rejects)}

    def get_asset_spec(self) -> dg.AssetSpec:
        """Return the asset of the YAML, with the table's metadata, and with kinds if it does not have its own."""
        kinds = {"sqs", "pyspark", storage_kind(self.spec())}
        spec = self.asset if self.asset.kinds else self.asset.merge_attributes(kinds=kinds)
        return spec.merge_attributes(metadata={**table_metadata(self.spec()), **spec.metadata})

    def execute(self, context: dg.AssetExecutionContext, batch: LeasedBatch) -> dg.MaterializeResult[Any] | None:
        """Ingest the batch by a job of Spark; see :func:`sqs_lease.dagster.ingest_with_spark`."""
        ingest_with_spark(context, batch, spec=self.spec(), spark=self.spark, python=self.python or sys.executable)
        return None
