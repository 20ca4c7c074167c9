"""A sensor that starts runs when messages wait in a queue, declared in YAML."""

# Dagster reads the annotations of these models, so this module has no postponed ones.

import dagster as dg
from pydantic import ConfigDict, Field

from sqs_lease.dagster.backlog_sensor import build_sqs_backlog_sensor
from sqs_lease.dagster.components.options import BacklogSensorOptions, QueueOptions, errors_at_keys_of_a_queue
from sqs_lease.dagster.components.queue import resource_of
from sqs_lease.dagster.components.scaffolding import BacklogSensorScaffolder


@dg.scaffold_with(BacklogSensorScaffolder)
class SqsBacklogSensorComponent(dg.Component, BacklogSensorOptions):
    """Starts runs of assets when messages wait; it receives none. See ``build_sqs_backlog_sensor``."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="The sensor's name.")
    queue: QueueOptions = Field(description="The queue.", json_schema_extra=errors_at_keys_of_a_queue)
    target: str = Field(description="The assets to run, as a selection: orders, group:shop, key:shop/*.")
    messages_per_run: int | None = Field(
        default=None, description="How many messages one run takes; needed with more than one concurrent run."
    )
    run_tags: dict[str, str] = Field(default={}, description="Tags of the runs.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The sensor."""
        sensor = build_sqs_backlog_sensor(
            self.name,
            resource_of(self.queue, context),
            self.target,
            messages_per_run=self.messages_per_run,
            run_tags=self.run_tags,
            **self.arguments(),
        )
        return dg.Definitions(sensors=[sensor])
