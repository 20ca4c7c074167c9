"""An asset that is ingested from a queue by Spark, declared in YAML."""

# Dagster reads the annotation of an asset's context, so this module has no postponed ones.

import sys
from pathlib import Path
from typing import Any, Final, Self

import dagster as dg
from pydantic import ConfigDict, Field, model_validator

from sqs_lease.dagster.backlog_sensor import build_sqs_backlog_sensor
from sqs_lease.dagster.ingestion_options import (
    BacklogCheckOptions,
    BacklogSensorOptions,
    LeaseOptions,
    QueueOptions,
    RejectsOptions,
    RetryOptions,
    SinkOptions,
    SourceOptions,
)
from sqs_lease.dagster.queue_checks import build_sqs_backlog_check, build_sqs_lease_check
from sqs_lease.dagster.spark_ingestion import ingest_by_job
from sqs_lease.ingestion.spec import VERSION, IngestionSpec

_TEMPLATE: Final = Path(__file__).with_name("ingestion_component.yaml")


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

    queue: QueueOptions = Field(description="The queue.")
    lease: LeaseOptions = Field(default_factory=LeaseOptions, description="How a batch is received and kept.")
    source: SourceOptions
    sink: SinkOptions
    rejects: RejectsOptions | None = None
    workspace: str = Field(
        description="Directory for the files of batches under way: an absolute path by which the driver and all "
        "executors reach it."
    )
    spark_conf: dict[str, Any] = Field(default_factory=dict, description="Settings of the Spark session.")
    spark: str = Field(
        default="local[2]",
        description="Where Spark runs: local[2] is in the job's process, spark://host:7077 on a standalone cluster, "
        "sc://host:15002 behind a Connect server.",
    )
    python: str | None = Field(
        default=None, description="The Python of an environment with sqs-lease[spark] and dagster-pipes; this one."
    )
    asset: dg.ResolvedAssetSpec
    retries: RetryOptions | None = Field(default=None, description="Retries of the step; none by default.")
    backlog_check: BacklogCheckOptions | None = Field(
        default=None, description="A check of what waits in the queue, beside the one of the leases; none by default."
    )
    backlog_sensor: BacklogSensorOptions | None = Field(
        default=None, description="A sensor that starts runs when messages wait; none by default."
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
        spec = self.asset if self.asset.kinds else self.asset.merge_attributes(kinds={"sqs", "pyspark"})

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
                ingest_by_job(context, batch, spec=self.spec(), spark=self.spark, python=self.python or sys.executable)
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
