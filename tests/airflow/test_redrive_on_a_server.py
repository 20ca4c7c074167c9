"""Messages moved, and a queue's depth read, over the clients of Airflow's connections, on a real SQS server.

The server has no move tasks: tests/sqs/test_move_tasks.py has those over the same clients.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from airflow.sdk import DAG, PokeReturnValue

from demo.sqs_server import SqsServer
from sqs_lease.airflow import SqsMoveMessagesOperator, SqsQueueDepthSensor
from sqs_lease.keeper import moving
from tests.airflow.scripted_comms import ScriptedComms

if TYPE_CHECKING:
    from types_boto3_sqs.type_defs import MessageTypeDef

pytestmark = pytest.mark.processes


class Queues:
    """A dead-letter queue and a queue that takes what it had."""

    def __init__(self, server: SqsServer, *, fifo: bool) -> None:
        self.sqs = server.sqs_client()
        self.fifo = fifo
        self.dead, self.orders = (self._create(name) for name in ("dead", "orders"))

    def _create(self, name: str) -> str:
        end = ".fifo" if self.fifo else ""
        attributes = {"VisibilityTimeout": "300", **({"FifoQueue": "true"} if self.fifo else {})}
        return self.sqs.create_queue(QueueName=f"{name}-{uuid4()}{end}", Attributes=attributes)["QueueUrl"]  # type: ignore[arg-type]

    def dead_letter(self, body: str, reason: str) -> str:
        more: dict[str, Any] = {"MessageGroupId": "a", "MessageDeduplicationId": body} if self.fifo else {}
        attributes: Any = {
            "sqs_lease_reason": {"DataType": "String", "StringValue": reason},
            "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        }
        sent = self.sqs.send_message(QueueUrl=self.dead, MessageBody=body, MessageAttributes=attributes, **more)
        return sent["MessageId"]

    def visible(self, url: str) -> list[MessageTypeDef]:
        answer = self.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"], MessageAttributeNames=["All"]
        )
        return answer.get("Messages", [])


@pytest.fixture(params=[False, True], ids=["standard", "fifo"])
def queues(request: pytest.FixtureRequest, server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> Queues:
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", server.airflow_connection)
    monkeypatch.setattr(moving, "LAST_LOOK_SECONDS", 0.0)
    return Queues(server, fifo=request.param)


def context() -> dict[str, Any]:
    return {"ti": SimpleNamespace(map_index=-1, try_number=1)}


def test_what_matches_is_moved_whole_and_the_rest_is_given_back(queues: Queues, supervisor: ScriptedComms) -> None:
    ids = [queues.dead_letter(f"order-{n}", "task load failed with builtins.ValueError") for n in range(3)]
    queues.dead_letter("other", "task load ended as failed")
    with DAG("shop", schedule=None):
        operator = SqsMoveMessagesOperator(
            task_id="redrive",
            queue_url=queues.dead,
            destination=queues.orders,
            reason="ValueError",
            deferrable=False,
        )
        sensor = SqsQueueDepthSensor(task_id="moved", queue_url=queues.orders, at_least=3, deferrable=False)
    body = SqsMoveMessagesOperator.execute
    report = getattr(body, "__wrapped__", body)(operator, context())
    assert (report["looked_at"], report["moved"]) == (4, 3)
    found = sensor.poke(context())
    assert isinstance(found, PokeReturnValue)
    moved = queues.visible(queues.orders)
    assert sorted(message["Body"] for message in moved) == ["order-0", "order-1", "order-2"]
    assert moved[0]["MessageAttributes"]["raw"]["BinaryValue"] == b"\x00\xff"
    assert "ValueError" in moved[0]["MessageAttributes"]["sqs_lease_reason"]["StringValue"]
    if queues.fifo:
        attributes = moved[0]["Attributes"]
        assert (attributes["MessageGroupId"], attributes["MessageDeduplicationId"]) == ("a", ids[0])
    assert [message["Body"] for message in queues.visible(queues.dead)] == ["other"]
