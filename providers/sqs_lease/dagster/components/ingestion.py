"""An asset that is ingested from a queue by Spark, declared in YAML.

``dg check yaml`` checks its parts against their schema; the full checks run when the component is loaded.
"""

# No postponed annotations here: Dagster reads the annotations of these models.

import sys
from collections.abc import Mapping
from typing import Any, Final, Self

import dagster as dg
from pydantic import Field, model_validator

from sqs_lease.blocking import LeasedBatch
from sqs_lease.dagster.components.leased_asset import LeasedAssetComponent
from sqs_lease.dagster.components.options import scaffolder
from sqs_lease.dagster.spark import ingest_with_spark, storage_kind, table_metadata
from sqs_lease.ingestion.spec import SINKS, SOURCES, VERSION, IngestionSpec, Kind

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
        description="The Python of an environment with sqs-lease[spark] and dagster-pipes; this one by default.",
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
