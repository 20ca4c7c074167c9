"""An asset that is ingested from a queue by Spark, declared in YAML.

Its parts are checked against their schema by ``dg check yaml``, and wholly when they are loaded.
"""

# Dagster reads the annotations of these models, so this module has no postponed ones.

import sys
from collections.abc import Mapping
from typing import Any, Final, Self

import dagster as dg
from pydantic import Field, model_validator

from sqs_lease.blocking import LeasedBatch
from sqs_lease.dagster.components.leased_asset import LeasedAssetComponent
from sqs_lease.dagster.components.options import IngestionScaffolder
from sqs_lease.dagster.spark import ingest_with_spark, storage_kind, table_metadata
from sqs_lease.ingestion.spec import SINKS, SOURCES, VERSION, IngestionSpec, Kind

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


@dg.scaffold_with(IngestionScaffolder)
class SqsIngestionComponent(LeasedAssetComponent):
    """A table as an asset: each materialization ingests a batch of a queue's messages by Spark, each exactly once."""

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

    def get_asset_spec(self) -> dg.AssetSpec:
        """The asset of the YAML, with the table's metadata, and with kinds if it has none."""
        kinds = {"sqs", "pyspark", storage_kind(self.spec())}
        spec = self.asset if self.asset.kinds else self.asset.merge_attributes(kinds=kinds)
        return spec.merge_attributes(metadata={**table_metadata(self.spec()), **spec.metadata})

    def execute(self, context: dg.AssetExecutionContext, batch: LeasedBatch) -> dg.MaterializeResult[Any] | None:
        """Ingest the batch by a job of Spark; see :func:`sqs_lease.dagster.ingest_with_spark`."""
        ingest_with_spark(context, batch, spec=self.spec(), spark=self.spark, python=self.python or sys.executable)
        return None
