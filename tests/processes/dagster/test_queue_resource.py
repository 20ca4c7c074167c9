"""A lease in an asset on a real SQS server, which is where the resource says; Dagster runs in this process."""

from _thread import interrupt_main
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from dagster._core.errors import DagsterExecutionInterruptedError

from demo.sqs_server import REGION, SqsServer
from sqs_lease import dead_letter
from sqs_lease.dagster import SqsQueueResource
from tests.processes.dagster.queues import create_queue

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient
else:
    # Dagster reads the annotations of ops and assets, so this module has no postponed ones.
    SQSClient = Any

pytestmark = [pytest.mark.processes]


@pytest.fixture
def sqs(server: SqsServer) -> SQSClient:
    return server.sqs_client()


@pytest.fixture
def queue_url(sqs: SQSClient) -> str:
    return create_queue(sqs, 600)


@pytest.fixture
def queue(server: SqsServer, queue_url: str, monkeypatch: pytest.MonkeyPatch) -> SqsQueueResource:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("ORDERS_QUEUE", queue_url)
    return SqsQueueResource(queue=dg.EnvVar("ORDERS_QUEUE"), endpoint_url=server.endpoint_url, region_name=REGION)


def send(sqs: SQSClient, url: str, *bodies: str) -> None:
    for body in bodies:
        sqs.send_message(QueueUrl=url, MessageBody=body)


def receive(sqs: SQSClient, url: str) -> list[str]:
    """The bodies that can be received now."""
    bodies = []
    while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages"):
        bodies += [message["Body"] for message in messages]
    return sorted(bodies)


def left(sqs: SQSClient, url: str) -> int:
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return int(counts["ApproximateNumberOfMessages"]) + int(counts["ApproximateNumberOfMessagesNotVisible"])


def test_an_asset_deletes_its_messages_and_a_message_that_failed_comes_back(
    queue: SqsQueueResource, sqs: SQSClient, queue_url: str
) -> None:
    send(sqs, queue_url, "good", "bad")

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, max_messages=2, linger=20) as batch:
            batch.fail([message.message_id for message in batch if message.body == "bad"], "it is bad")

    result = dg.materialize([orders], resources={"queue": queue})
    assert receive(sqs, queue_url) == ["bad"]
    assert left(sqs, queue_url) == 1
    (materialization,) = result.asset_materializations_for_node("orders")
    told = {name: value.value for name, value in materialization.metadata.items()}
    assert told["sqs/queue"] == queue_url
    expected = {"received": 2, "failed": 1}
    assert {name: told[f"sqs/{name}"] for name in expected} == expected


def test_an_interrupted_asset_gives_all_back_whatever_the_failure_rule(
    queue: SqsQueueResource, sqs: SQSClient, queue_url: str
) -> None:
    send(sqs, queue_url, "a")

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, on_failure=dead_letter()):
            interrupt_main()

    with pytest.raises((KeyboardInterrupt, DagsterExecutionInterruptedError)):
        dg.materialize([orders], resources={"queue": queue})
    assert receive(sqs, queue_url) == ["a"]
