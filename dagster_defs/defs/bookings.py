"""A FIFO queue: bookings that must be done in order, account by account.

The account is the message group. When a booking fails, it goes back to the queue, and everything behind it in its group
goes back after it, in order, even if it was done; other accounts go on. While a run holds messages of an account, SQS
does not give out the next ones, so runs that overlap do not overtake one another either.
"""

from datetime import timedelta

import dagster as dg
from pydantic import BaseModel, PositiveFloat

from dagster_defs.queues import bookings_queue as queue
from sqs_lease.dagster import SqsQueueResource, build_sqs_backlog_sensor


class Booking(BaseModel):
    """The body of a message."""

    amount: PositiveFloat


@dg.op
def book(context: dg.OpExecutionContext, bookings_queue: SqsQueueResource) -> None:
    """Receive a batch and do its bookings in order."""
    with bookings_queue.lease(context, max_messages=100, wait=5, linger=2) as batch:
        failed: dict[str | None, str] = {}
        for message in batch:
            account = message.message_group_id
            if account in failed:
                continue  # Behind a failed booking of its account: it comes again after it.
            try:
                booking = Booking.model_validate_json(message.body)
            except ValueError:
                # Only what is wrong with the message itself. An exception of the work would fail the whole batch.
                failed[account] = message.message_id
            else:
                context.log.info("account %s: %.2f", account, booking.amount)
        batch.fail(failed.values(), "not a booking of an amount above zero")


@dg.job
def bookings_in_order() -> None:
    """Do one batch of bookings."""
    book()


# Started by hand or, once it is switched on, when a hundred bookings wait or the first has waited for five minutes.
bookings_backlog = build_sqs_backlog_sensor(
    "bookings_backlog", queue, bookings_in_order, min_messages=100, max_wait=timedelta(minutes=5)
)
