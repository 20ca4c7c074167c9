"""One task over the whole batch that fails some of its messages: only those go back to the queue.

`MessageFailed` names them, and the task shows as failed. With retries left the task is tried again, over the whole
batch. To show as successful, a task names them by its return value instead, like an AWS Lambda function:
`return {"batchItemFailures": [{"itemIdentifier": message_id}, ...]}`.
"""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk import dag, task

from sqs_lease.airflow import MessageFailed, sqs_lease


@dag(schedule=None, max_active_runs=1)
def orders_with_partial_failures() -> None:
    """Receive a batch, and fail the orders that cannot be booked."""

    @task
    def book(messages: Any) -> None:
        failed = []
        for message in messages:
            try:
                order = json.loads(message["Body"])
                print(f"booking order {order['order_id']} over {order['total']:.2f}")
            except (ValueError, KeyError) as error:
                # Only the type is printed, because an error's text may quote the message.
                print(f"message {message['MessageId']} cannot be booked: {type(error).__name__}")
                failed.append(message["MessageId"])
        if failed:
            raise MessageFailed(failed)

    with sqs_lease(
        "orders", queue_url="orders-with-partial-failures", max_messages=100, linger=2, timeout=60, soft_fail=True
    ) as messages:
        book(messages)


orders_with_partial_failures()
