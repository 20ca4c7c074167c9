"""``with lease(...)`` keeps messages from others while synchronous work runs, in real time on a real SQS server."""

from __future__ import annotations

from uuid import uuid4

import pytest

from demo.sqs_server import SqsServer
from sqs_lease import LeaseReport, lease
from sqs_lease.sqs.client import client_config

pytestmark = pytest.mark.processes


def test_no_other_consumer_receives_during_work_longer_than_the_visibility_timeout_and_then_the_messages_are_gone(
    server: SqsServer,
) -> None:
    sqs = server.sqs_client(client_config())
    # The extension is due after 8 s, when 4 s are left.
    queue = sqs.create_queue(QueueName=f"queue-{uuid4()}", Attributes={"VisibilityTimeout": "12"})["QueueUrl"]
    for number in range(3):
        sqs.send_message(QueueUrl=queue, MessageBody=f"message {number}")
    with lease(queue, max_messages=3, linger=60, client=server.sqs_client(client_config())) as batch:
        assert sorted(message.body for message in batch) == ["message 0", "message 1", "message 2"]
        others = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=18, MaxNumberOfMessages=10)
        assert "Messages" not in others, "the work takes 18 s, the visibility timeout is 12 s"
        report: LeaseReport = batch.report()
        assert report.extensions >= 3
        assert report.late == 0
    counts = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert int(counts["ApproximateNumberOfMessages"]) + int(counts["ApproximateNumberOfMessagesNotVisible"]) == 0
