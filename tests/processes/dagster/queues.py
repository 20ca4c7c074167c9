"""Queues for the tests on real processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient


def create_queue(sqs: SQSClient, visibility_seconds: int) -> str:
    """Create a queue with a dead-letter queue, and return its URL."""
    name = f"queue-{uuid4()}"
    dead = sqs.create_queue(QueueName=f"{name}-dead-letters")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "10"})
    return sqs.create_queue(
        QueueName=name, Attributes={"VisibilityTimeout": str(visibility_seconds), "RedrivePolicy": redrive}
    )["QueueUrl"]
