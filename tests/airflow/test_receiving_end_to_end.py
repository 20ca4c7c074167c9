"""The receiving side on real Airflow processes and a real SQS server: stored batches, sensors that poke, filters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from demo.airflow_stack import AirflowStack, airflow_stack
from demo.sqs_server import SqsServer, sqs_server
from tests.airflow.dags_receiving.receiving import STORED_MESSAGES, VISIBILITY_SECONDS, WORK_SECONDS
from tests.second_consumer import SecondConsumer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

DAGS_FOLDER = Path(__file__).parent / "dags_receiving"
ORDER, REFUND = '{"kind": "order"}', '{"kind": "refund"}'
BODIES = {
    "stored": [*(f"order {number}" for number in range(STORED_MESSAGES - 1)), "bad"],
    "poking": ["good", "bad", "better"],
    "filtering": [ORDER, REFUND, ORDER, "not even JSON"],
    "denied_payload": ["good"],
}
RUN_SECONDS = 240.0


class Running:
    """The stack with a run of each DAG under way."""

    def __init__(self, stack: AirflowStack, server: SqsServer, payload: Path) -> None:
        self.stack = stack
        self.payload = payload
        self.sqs = server.sqs_client()
        self.urls = {name: self.sqs.create_queue(QueueName=name)["QueueUrl"] for name in BODIES}
        for name, bodies in BODIES.items():
            for start in range(0, len(bodies), 10):
                some = enumerate(bodies[start : start + 10])
                self.sqs.send_message_batch(
                    QueueUrl=self.urls[name], Entries=[{"Id": str(at), "MessageBody": body} for at, body in some]
                )
        self.consumers = {
            name: SecondConsumer(server.sqs_client(), self.urls[name], len(BODIES[name]))
            for name in ("stored", "poking")
        }
        self.runs: dict[str, str] = {}

    def start(self) -> None:
        for dag_id in [*BODIES, "no_such_queue"]:
            self.stack.wait_for_dag(dag_id)
            self.runs[dag_id] = self.stack.api.trigger(dag_id)

    def ended(self, dag_id: str) -> str:
        return self.stack.wait_for_run(dag_id, self.runs[dag_id], RUN_SECONDS)

    def task_states(self, dag_id: str) -> dict[str, str | None]:
        return {one.task_id: one.state for one in self.stack.api.task_states(dag_id, self.runs[dag_id])}

    def xcom(self, dag_id: str, task_id: str, key: str = "return_value") -> Any:
        return self.stack.api.xcom(dag_id, self.runs[dag_id], task_id, key)

    def report(self, dag_id: str) -> dict[str, Any]:
        report = self.xcom(dag_id, "orders_keeper", "lease_report")
        assert isinstance(report, dict)
        return report

    def left(self, dag_id: str) -> int:
        answer = self.sqs.get_queue_attributes(QueueUrl=self.urls[dag_id], AttributeNames=["All"])["Attributes"]
        return int(answer["ApproximateNumberOfMessages"]) + int(answer["ApproximateNumberOfMessagesNotVisible"])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("airflow")
    payload = tmp_path_factory.mktemp("payload")
    with ExitStack() as exits:
        server = exits.enter_context(sqs_server(home))
        environment = {"AIRFLOW_CONN_AWS_DEFAULT": server.airflow_connection, "AIRFLOW_VAR_PAYLOAD": str(payload)}
        stack = exits.enter_context(airflow_stack(home, DAGS_FOLDER, environment))
        under_way = Running(stack, server, payload)
        for consumer in under_way.consumers.values():
            exits.enter_context(consumer.polling())
        under_way.start()
        yield under_way


def test_a_stored_batch_is_worked_on_and_settled_while_airflow_holds_references_only(running: Running) -> None:
    assert running.ended("stored") == "success"
    report = running.report("stored")
    assert (report["received"], report["deleted"], report["released"]) == (STORED_MESSAGES, STORED_MESSAGES - 1, 1)
    assert (report["lost"], report["late"]) == (0, 0)
    assert running.left("stored") == 1
    lease, messages = running.xcom("stored", "orders", "lease"), running.xcom("stored", "orders")
    assert len(json.dumps(lease)) < 1000
    assert messages == {"sqs_lease_manifests": [lease["manifest_uri"]], "messages": STORED_MESSAGES}


def test_the_files_of_a_stored_batch_are_removed_when_it_was_settled(running: Running) -> None:
    running.ended("stored")
    assert list(running.payload.iterdir()) == []


def test_nobody_else_gets_a_message_of_a_stored_batch_but_the_one_that_failed(running: Running) -> None:
    running.ended("stored")
    consumer = running.consumers["stored"]
    assert consumer.polls > 5
    assert {reception.body for reception in consumer.receptions} <= {"bad"}


def test_what_a_sensor_received_in_its_own_process_is_kept_and_settled(running: Running) -> None:
    assert running.ended("poking") == "success"
    report = running.report("poking")
    assert (report["received"], report["deleted"], report["released"], report["late"]) == (3, 2, 1, 0)
    assert report["extensions"] > 0
    assert running.left("poking") == 1


def test_nobody_else_gets_a_message_between_the_worker_and_the_keeper(running: Running) -> None:
    running.ended("poking")
    consumer = running.consumers["poking"]
    assert WORK_SECONDS > 2 * VISIBILITY_SECONDS
    assert consumer.polls > WORK_SECONDS / 4
    assert [reception.body for reception in consumer.receptions] in ([], ["bad"])


def test_only_what_matches_is_worked_on(running: Running) -> None:
    assert running.ended("filtering") == "success"
    bodies = [message["Body"] for message in running.xcom("filtering", "orders")]
    assert set(bodies) == {ORDER}
    assert running.report("filtering")["deleted"] == len(bodies)
    assert running.left("filtering") == 2 - len(bodies)


def test_with_soft_fail_a_queue_that_does_not_exist_fails_the_run(running: Running) -> None:
    assert running.ended("no_such_queue") == "failed"
    assert running.task_states("no_such_queue")["orders"] == "failed"


def test_messages_that_cannot_be_stored_are_visible_again_and_the_log_has_the_remedy(running: Running) -> None:
    assert running.ended("denied_payload") == "failed"
    assert running.task_states("denied_payload")["orders"] == "failed"
    log = running.stack.api.log("denied_payload", running.runs["denied_payload"], "orders")
    assert "cannot be stored at payload=" in log
    assert "Check that the path exists" in log
    answer = running.sqs.receive_message(QueueUrl=running.urls["denied_payload"], VisibilityTimeout=0)
    assert [message["Body"] for message in answer["Messages"]] == ["good"]
