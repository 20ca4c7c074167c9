"""Dead letters: those that a retry cannot mend are set aside, and SQS moves the others back.

SQS can only move all visible messages of a dead-letter queue. So the messages to leave out are first received, sent to
another queue and deleted; the lease deletes a message only after it was sent, and gives back the others.
"""

from __future__ import annotations

from typing import Any

import boto3
from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowFailException

from sqs_lease import lease

REASON = "JSONDecodeError"


def url_of(queue: str) -> str:
    return boto3.client("sqs").get_queue_url(QueueName=queue)["QueueUrl"]


def arn_of(queue: str) -> str:
    asked = boto3.client("sqs").get_queue_attributes(QueueUrl=url_of(queue), AttributeNames=["QueueArn"])
    return asked["Attributes"]["QueueArn"]


@dag(schedule=None, max_active_runs=1)
def orders_redriven() -> None:
    """Sort the dead letters, and move back those that may succeed now."""

    @task
    def set_aside() -> int:
        sqs, aside, sent = boto3.client("sqs"), url_of("orders-to-look-at"), 0
        with lease("orders-dead-letters", max_messages=10_000, wait=5, linger=5) as batch:
            for message in batch:
                reason = message.message_attributes.get("sqs_lease_reason", {}).get("StringValue", "")
                if REASON not in reason:
                    batch.release(message)
                    continue
                attributes: Any = message.message_attributes
                sqs.send_message(QueueUrl=aside, MessageBody=message.body, MessageAttributes=attributes)
                batch.succeed(message)
                sent += 1
        return sent

    @task
    def start() -> None:
        boto3.client("sqs").start_message_move_task(
            SourceArn=arn_of("orders-dead-letters"), DestinationArn=arn_of("orders"), MaxNumberOfMessagesPerSecond=50
        )

    @task.sensor(mode="reschedule", poke_interval=30, timeout=3600)
    def moved() -> bool:
        newest = boto3.client("sqs").list_message_move_tasks(SourceArn=arn_of("orders-dead-letters"))["Results"][0]
        if newest["Status"] in ("FAILED", "CANCELLED"):
            raise AirflowFailException(f"{newest['Status']}: {newest.get('FailureReason')}")
        return newest["Status"] == "COMPLETED"

    set_aside() >> start() >> moved()


orders_redriven()
