"""The definitions of Dagster's walking skeleton: the README's pattern, with work that ends when the test allows it.

Dagster reads the annotations of assets, so this module has no postponed ones.
"""

import os

import dagster as dg

from sqs_lease.dagster import SqsQueueResource, build_sqs_backlog_sensor
from tests.dagster.evidence import note, wait_until_allowed_to_end

queue = SqsQueueResource(queue=dg.EnvVar("ORDERS_QUEUE"))


@dg.asset
def orders(context: dg.AssetExecutionContext, orders_queue: SqsQueueResource) -> None:
    """Fails the poison when that is allowed, and holds the rest until it may end."""
    # The messages wait already. By default, it would wait for 20 s.
    with orders_queue.lease(context, visibility=float(os.environ["VISIBILITY_SECONDS"]), wait=1) as batch:
        note("orders", "received", run_id=context.run_id)
        wait_until_allowed_to_end("poison")
        note("orders", "fails the poison")
        batch.fail([message for message in batch if message.body == "poison"], "not understood")
        wait_until_allowed_to_end("orders")
        note("orders", "worked")


defs = dg.Definitions(
    assets=[orders],
    resources={"orders_queue": queue},
    # Dagster's daemon makes it five seconds; the default is 30.
    sensors=[build_sqs_backlog_sensor("orders_backlog", queue, orders, minimum_interval_seconds=1)],
    # The process of the run does the work; one more for the step would cost as much again.
    executor=dg.in_process_executor,
)
