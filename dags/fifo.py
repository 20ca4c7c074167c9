"""A FIFO queue: bookings that must be done in order, account by account.

The account is the message group. When a booking fails, it goes back to the queue, and everything behind it in its group
goes back after it, in order, even if it was done; other accounts go on. Runs must not overtake one another, so there is
one at a time.
"""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk import dag, task

from sqs_lease.airflow import MessageFailed, sqs_lease


@dag(schedule=None, max_active_runs=1)
def bookings_in_order() -> None:
    """Receive a batch and do its bookings in order."""

    @task
    def book(messages: Any) -> None:
        failed: dict[str, str] = {}
        for message in messages:
            account = message["Attributes"]["MessageGroupId"]
            if account in failed:
                continue  # Behind a failed booking of its account: it comes again after it.
            booking = json.loads(message["Body"])
            if booking["amount"] <= 0:
                failed[account] = message["MessageId"]
            else:
                print(f"account {account}: {booking['amount']:.2f}")
        if failed:
            raise MessageFailed(failed.values())

    with sqs_lease(
        "bookings", queue_url="bookings-in-order.fifo", max_messages=100, linger=2, timeout=60, soft_fail=True
    ) as messages:
        book(messages)


bookings_in_order()
