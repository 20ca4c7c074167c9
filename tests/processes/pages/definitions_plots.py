"""A leased asset with checks that fails some messages; Dagster reads annotations, so there are no postponed ones."""

import dagster as dg

from sqs_lease.dagster import SqsQueueResource, build_sqs_backlog_check, build_sqs_lease_check

ORDERS_QUEUE = SqsQueueResource(queue="dagster-orders")


@dg.asset
def orders(context: dg.AssetExecutionContext, orders_queue: SqsQueueResource) -> None:
    """The orders of one batch."""
    with orders_queue.lease(context, max_messages=100, wait=1, linger=0.5) as batch:
        for message in batch:
            if message.body.startswith("bad"):
                batch.fail(message, "this message can never be processed")


CHECKS = [
    build_sqs_lease_check(orders, max_failed=2),
    build_sqs_backlog_check(orders, ORDERS_QUEUE, max_visible=1_000),
]

definitions = dg.Definitions(assets=[orders], asset_checks=CHECKS, resources={"orders_queue": ORDERS_QUEUE})
