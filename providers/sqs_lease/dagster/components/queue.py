"""A queue that is declared in YAML once, for Python code and other components; and a sensor of a queue's backlog."""

# No postponed annotations here: Dagster reads the annotations of these models.

from typing import Self

import dagster as dg
from pydantic import ConfigDict, Field, model_validator

from sqs_lease.dagster._internals import component_at
from sqs_lease.dagster.backlog_sensor import build_sqs_backlog_sensor
from sqs_lease.dagster.components.options import (
    BacklogSensorOptions,
    QueueOptions,
    errors_at_keys_of_a_queue,
    scaffolder,
)
from sqs_lease.dagster.resource import SqsQueueResource


@dg.scaffold_with(scaffolder("queue.yaml"))
class SqsQueueComponent(dg.Component, dg.Model, dg.Resolvable):
    """A queue that assets, jobs, sensors and other components share.

    A subclass may override :meth:`get_resource`, to reach AWS in another way: the components that name this one use it.
    """

    model_config = ConfigDict(extra="forbid")

    resource_key: str = Field(description="The key of the resource, which assets and ops of Python code use.")
    queue: QueueOptions = Field(description="The queue.", json_schema_extra=errors_at_keys_of_a_queue)

    @model_validator(mode="after")
    def _is_a_queue_of_its_own(self) -> Self:
        if self.queue.component is not None:
            raise ValueError("queue.component is for components that use a queue: give the queue's name here")
        return self

    def get_resource(self) -> SqsQueueResource:
        """Return the queue as a resource."""
        return self.queue.resource()

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the resource."""
        return dg.Definitions(resources={self.resource_key: self.get_resource()})


def resource_of(queue: QueueOptions, context: dg.ComponentLoadContext) -> SqsQueueResource:
    """Return the resource of a queue that a component names, by its settings or by another component.

    Raises:
        ValueError: There is nothing at ``queue.component``.
        TypeError: There is another component.
    """
    if queue.component is None:
        return queue.resource()
    try:
        found = component_at(context, queue.component)
    except Exception as error:
        raise ValueError(f"queue.component: there is no component at {queue.component!r}: {error}") from error
    if not isinstance(found, SqsQueueComponent):
        raise TypeError(f"queue.component: {queue.component!r} is a {type(found).__name__}, not a SqsQueueComponent")
    return found.get_resource()


@dg.scaffold_with(scaffolder("backlog_sensor.yaml"))
class SqsBacklogSensorComponent(dg.Component, BacklogSensorOptions):
    """A sensor that starts runs of assets when messages wait; the runs receive. See ``build_sqs_backlog_sensor``."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="The sensor's name.")
    queue: QueueOptions = Field(description="The queue.", json_schema_extra=errors_at_keys_of_a_queue)
    target: str = Field(description="The assets to run, as a selection: orders, group:shop, key:shop/*.")
    messages_per_run: int | None = Field(
        default=None, description="How many messages one run takes; needed with more than one concurrent run."
    )
    run_tags: dict[str, str] = Field(default={}, description="Tags of the runs.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the sensor."""
        sensor = build_sqs_backlog_sensor(
            self.name,
            resource_of(self.queue, context),
            self.target,
            messages_per_run=self.messages_per_run,
            run_tags=self.run_tags,
            **self.arguments(),
        )
        return dg.Definitions(sensors=[sensor])
