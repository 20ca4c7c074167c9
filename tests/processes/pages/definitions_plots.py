"""A leased asset that fails some messages of each batch; Dagster reads annotations, so there are no postponed ones."""

import dagster as dg

from sqs_lease.dagster import SqsQueueResource


@dg.asset
def orders(context: dg.AssetExecutionContext, orders_queue: SqsQueueResource) -> None:
    """The orders of one batch."""
    with orders_queue.lease(context, max_messages=100, wait=1, linger=0.5) as batch:
        for message in batch:
            if message.body.startswith("bad"):
                batch.fail(message, "this message can never be processed")


definitions = dg.Definitions(assets=[orders], resources={"orders_queue": SqsQueueResource(queue="dagster-orders")})
