"""The proxy of the peers' benchmark: it counts calls by operation, knows each message, and can cut a consumer off."""

from __future__ import annotations

from collections.abc import Iterator

import botocore.exceptions
import pytest
from botocore.config import Config
from types_boto3_sqs import SQSClient

from benchmarks.peers.proxy import Proxy
from demo.sqs_server import SqsServer, sqs_server

pytestmark = pytest.mark.processes

ONE_TRY = Config(retries={"total_max_attempts": 1})


@pytest.fixture(scope="module")
def server() -> Iterator[SqsServer]:
    with sqs_server() as running:
        yield running


@pytest.fixture
def proxy(server: SqsServer) -> Iterator[Proxy]:
    with Proxy(server.endpoint_url).running() as running:
        yield running


def behind(server: SqsServer, endpoint_url: str) -> SQSClient:
    return SqsServer(endpoint_url, server.process).sqs_client(ONE_TRY)


def test_each_gate_counts_what_its_own_consumer_asked_and_was_given(server: SqsServer, proxy: Proxy) -> None:
    gate, other_gate = proxy.gate(), proxy.gate()
    sqs, other = behind(server, gate.endpoint_url), behind(server, other_gate.endpoint_url)
    queue_url = server.sqs_client().create_queue(QueueName="counted")["QueueUrl"]
    server.sqs_client().send_message(QueueUrl=queue_url, MessageBody="{}")

    (message,) = sqs.receive_message(QueueUrl=queue_url)["Messages"]
    other.receive_message(QueueUrl=queue_url)
    sqs.delete_message_batch(QueueUrl=queue_url, Entries=[{"Id": "0", "ReceiptHandle": message["ReceiptHandle"]}])

    assert gate.calls == {"ReceiveMessage": 1, "DeleteMessageBatch": 1}
    assert gate.received_ids == {message["MessageId"]} == set(gate.deleted)
    assert (other_gate.calls, other_gate.empty_receives) == ({"ReceiveMessage": 1}, 1)


def test_a_gate_that_is_cut_lets_no_call_through_until_it_is_mended(server: SqsServer, proxy: Proxy) -> None:
    gate = proxy.gate()
    sqs = behind(server, gate.endpoint_url)
    queue_url = server.sqs_client().create_queue(QueueName="cut")["QueueUrl"]
    sqs.receive_message(QueueUrl=queue_url)

    proxy.cut(gate)
    with pytest.raises(botocore.exceptions.HTTPClientError):
        sqs.receive_message(QueueUrl=queue_url)
    proxy.mend(gate)
    sqs.receive_message(QueueUrl=queue_url)

    assert gate.calls == {"ReceiveMessage": 2}
