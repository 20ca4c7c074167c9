"""Messages that stay with their work also while Dagster repeats whole runs: up to 20 deliveries a run.

A run picks the goods and hands them to the carrier. If that fails, Dagster repeats the run *from its failure*: nothing
is picked twice, so the messages have to be the same. Here a sensor receives them, starts a run for them, and holds them
until that run, or the last one that repeats it, has ended.

The instance must repeat runs: `run_retries: {enabled: true}` in `dagster.yaml`. Where it is enough to repeat steps, a
lease in the asset or op (`flights.py`) or the executor (`orders.py`) is the better choice: they hold messages in the
process that works on them.
"""

import json

import dagster as dg

from dagster_defs.queues import deliveries_queue as queue
from dagster_defs.settings import LAKE
from sqs_lease.dagster import SqsQueueResource, build_sqs_lease_sensor


@dg.op
def picked(context: dg.OpExecutionContext, deliveries_queue: SqsQueueResource) -> None:
    """Take the goods out of stock."""
    with deliveries_queue.lease(context) as batch:
        for message in batch:
            context.log.info("picked %s", json.loads(message.body)["item"])


@dg.op(ins={"goods": dg.In(dg.Nothing)})
def shipped(context: dg.OpExecutionContext, deliveries_queue: SqsQueueResource) -> None:
    """Hand the goods over to the carrier; fails while the carrier's directory is not there."""
    with deliveries_queue.lease(context) as batch:
        for message in batch:
            (LAKE / "carrier" / f"{message.message_id}.json").write_text(message.body)


@dg.job(tags={"dagster/max_retries": "3"})
def deliveries() -> None:
    """Pick a batch of deliveries, then ship it."""
    shipped(picked())


deliveries_lease = build_sqs_lease_sensor(
    "deliveries_lease", queue, deliveries, workspace=str(LAKE / "leases"), max_messages=20
)
