"""One queue for many partitions: deliveries, each to the run of its carrier, which Dagster may repeat.

A router receives, reads each message, and starts a run for each carrier, which hands the goods over. If that fails, the
next try of the step has the same deliveries, and so has the run that repeats it. Other consumers do not get them
meanwhile.
"""

import json

import dagster as dg

from dagster_defs.queues import deliveries_queue as queue
from dagster_defs.settings import LAKE
from sqs_lease import Message
from sqs_lease.dagster import SqsQueueResource, build_sqs_router


@dg.op(retry_policy=dg.RetryPolicy(max_retries=3, delay=2))
def shipped(context: dg.OpExecutionContext, deliveries_queue: SqsQueueResource) -> None:
    """Hand the goods over to the carrier; fail if the carrier's directory does not exist."""
    with deliveries_queue.lease(context) as batch:
        for message in batch:
            (LAKE / "carrier" / f"{message.message_id}.json").write_text(message.body)


@dg.job(tags={"dagster/max_retries": "3"})
def deliveries() -> None:
    """Ship the deliveries of one carrier."""
    shipped()


def carrier(message: Message) -> dict[str, str]:
    """Return the tags of the run for a delivery."""
    return {"carrier": str(json.loads(message.body).get("carrier", "any"))}


deliveries_router = build_sqs_router(
    "deliveries_router", queue, deliveries, workspace=str(LAKE / "routed"), max_messages=20, run_tags=carrier
)
