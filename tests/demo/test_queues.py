"""The demo's queues on a real server: publishing, counting, and reading dead letters back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demo.flights import Body
from demo.queues import MAX_RECEIVE_COUNT, Counts, Queues
from demo.sqs_server import SqsServer

pytestmark = pytest.mark.processes


@pytest.fixture
def queues(server: SqsServer) -> Iterator[Queues]:
    made = Queues(server)
    yield made
    client = server.sqs_client()
    for url in (made.url, made.dead_letter_url):
        client.delete_queue(QueueUrl=url)


def test_published_messages_are_counted_and_told_apart(queues: Queues) -> None:
    published = queues.publish([Body(f"message {number}", is_malformed=number % 5 == 0) for number in range(25)])

    assert len(published.flights) == 20
    assert len(published.malformed) == 5
    assert queues.counts() == Counts(visible=25, in_flight=0, delayed=0)
    assert queues.dead_letters() == 0


def test_messages_that_were_given_back_too_often_are_read_from_the_dead_letter_queue(
    queues: Queues, server: SqsServer
) -> None:
    published = queues.publish([Body(f"message {number}", is_malformed=True) for number in range(15)])
    client = server.sqs_client()
    for _ in range(MAX_RECEIVE_COUNT + 1):
        handles: list[str] = []
        while messages := client.receive_message(QueueUrl=queues.url, MaxNumberOfMessages=10).get("Messages"):
            handles += [message["ReceiptHandle"] for message in messages]
        for handle in handles:
            client.change_message_visibility(QueueUrl=queues.url, ReceiptHandle=handle, VisibilityTimeout=0)

    assert queues.receive_dead_letters() == published.malformed
    assert queues.receive_dead_letters() == published.malformed, "they are visible again after the first look"
    assert queues.counts().total == 0
