"""One batch over a job of several steps, in several processes: up to 500 orders a run.

The steps lease messages like any other op. The executor makes them share one batch: the run worker receives before the
first step and holds the messages until the last one is over, retries of steps included. A message is deleted when all
steps succeeded and no step failed it. If a step fails for good, all go back to the queue at once.
"""

import json
from typing import Any

import dagster as dg
from pydantic import BaseModel

from dagster_defs.queues import orders_queue as queue
from dagster_defs.settings import LAKE
from sqs_lease.dagster import SqsQueueResource, sqs_lease_executor

Orders = dict[str, dict[str, Any]]


class Order(BaseModel, extra="allow"):
    """The body of a message."""

    order_id: int
    total: float = 0


@dg.op
def checked(context: dg.OpExecutionContext, orders_queue: SqsQueueResource) -> Orders:
    """Return the orders by the ids of their messages; only messages that are not orders go back to the queue."""
    orders = {}
    with orders_queue.lease(context) as batch:
        for message in batch:
            try:
                orders[message.message_id] = Order.model_validate_json(message.body).model_dump()
            except ValueError:
                batch.fail(message, "not an order")
    return orders


@dg.op(retry_policy=dg.RetryPolicy(max_retries=2))
def stored(context: dg.OpExecutionContext, orders: Orders) -> None:
    """Write the orders to a file."""
    # Named after the run: another try writes the same file again, so nothing is stored twice.
    path = LAKE / "orders" / f"{context.run_id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(order)}\n" for order in orders.values()))


@dg.op
def invoiced(context: dg.OpExecutionContext, orders: Orders, orders_queue: SqsQueueResource) -> None:
    """Send an invoice for each order, at the same time; an order without a total goes back to the queue."""
    with orders_queue.lease(context) as batch:
        for message_id, order in orders.items():
            if order["total"] > 0:
                context.log.info("invoice for order %s: %.2f", order["order_id"], order["total"])
            else:
                batch.fail(message_id, "the total is not above zero")


@dg.job(executor_def=sqs_lease_executor(queue, workspace=str(LAKE / "leases" / "orders"), max_messages=500))
def orders_in_steps() -> None:
    """Check a batch of orders, then store them and send the invoices."""
    orders = checked()
    stored(orders)
    invoiced(orders)
