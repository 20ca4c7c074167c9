"""Leases on real Airflow processes and a real SQS server, with a second consumer polling all along.

All DAGs of `dags/` run at the same time, each on a queue of its own; the tests then look at each: first those of
`leases.py`, then those of `receiving.py` (stored batches, sensors that poke, filters).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from demo.airflow_stack import AirflowStack, airflow_stack, migrated_postgres
from demo.postgres import postgres_server
from demo.processes import ProcessFailedError, wait_until
from demo.sqs_server import SqsServer, sqs_server
from tests.processes.airflow.dags import leases, receiving
from tests.processes.airflow.otlp_receiver import OtlpReceiver, otlp_receiver
from tests.second_consumer import SecondConsumer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

DAGS_FOLDER = Path(__file__).parent / "dags"
ORDER, REFUND = '{"kind": "order"}', '{"kind": "refund"}'
BODIES = {
    "first": ["good"],
    "per_message": ["good", "flaky", "poison", "better"],
    "never_extended": ["good"],
    "whole_batch": ["good", "bad", "better"],
    "no_messages_fail": [],
    "no_messages_skip": [],
    "stored": [*(f"order {number}" for number in range(receiving.STORED_MESSAGES - 1)), "bad"],
    "poking": ["good", "bad", "better"],
    "filtering": [ORDER, REFUND, ORDER, "not even JSON"],
    "denied_payload": ["good"],
}
WITHOUT_QUEUES = ["no_such_queue", "no_queue_to_skip"]
CONSUMED = ["per_message", "never_extended", "whole_batch", "stored", "poking"]
"""The queues that a second consumer polls."""
RUN_SECONDS = 240.0


class Running:
    """The stack with a run of each DAG under way.

    Args:
        stack: Airflow.
        server: The SQS server.
        metrics: Where Airflow reports its metrics.
        payload: Where messages are stored.
    """

    def __init__(self, stack: AirflowStack, server: SqsServer, metrics: OtlpReceiver, payload: Path) -> None:
        self.stack = stack
        self.metrics = metrics
        self.payload = payload
        self.sqs = server.sqs_client()
        self.urls = {name: self.sqs.create_queue(QueueName=name)["QueueUrl"] for name in BODIES}
        self.consumers = {
            name: SecondConsumer(server.sqs_client(), self.urls[name], len(BODIES[name])) for name in CONSUMED
        }
        for name, bodies in BODIES.items():
            for start in range(0, len(bodies), 10):
                some = enumerate(bodies[start : start + 10])
                self.sqs.send_message_batch(
                    QueueUrl=self.urls[name], Entries=[{"Id": str(at), "MessageBody": body} for at, body in some]
                )
        self.runs: dict[str, str] = {}

    def start(self) -> None:
        """Trigger a run of each DAG."""
        for dag_id in [*BODIES, *WITHOUT_QUEUES]:
            self.stack.wait_for_dag(dag_id)
            self.runs[dag_id] = self.stack.api.trigger(dag_id)
            if dag_id == "first":
                self.ended(dag_id)

    def ended(self, dag_id: str) -> str:
        """Wait for the end of the DAG's run and return its state."""
        return self.stack.wait_for_run(dag_id, self.runs[dag_id], RUN_SECONDS)

    def task_states(self, dag_id: str) -> dict[tuple[str, int], tuple[str | None, int]]:
        """State and number of tries by task and map index."""
        return {
            (task.task_id, task.map_index): (task.state, task.try_number)
            for task in self.stack.api.task_states(dag_id, self.runs[dag_id])
        }

    def xcom(self, dag_id: str, task_id: str, key: str = "return_value") -> Any:
        """Read the XCom of a task of the DAG's run."""
        return self.stack.api.xcom(dag_id, self.runs[dag_id], task_id, key)

    def report(self, dag_id: str) -> dict[str, Any]:
        """The keeper's lease report."""
        report = self.xcom(dag_id, "orders_keeper", "lease_report")
        assert isinstance(report, dict)
        return report

    def messages(self, dag_id: str) -> list[dict[str, Any]]:
        """The messages that the sensor gave to the work."""
        messages = self.xcom(dag_id, "orders")
        assert isinstance(messages, list)
        return messages

    def work_ended_at(self, dag_id: str, task_id: str, body: str | None = None) -> float:
        """When the work (on the message with a body) ended, in seconds since the epoch."""
        bodies = [message["Body"] for message in self.messages(dag_id)]
        index = -1 if body is None else bodies.index(body)
        return float(self.stack.api.xcom(dag_id, self.runs[dag_id], task_id, "ended_at", map_index=index))

    def left(self, dag_id: str) -> int:
        """How many messages the queue still has, in flight or not."""
        answer = self.sqs.get_queue_attributes(QueueUrl=self.urls[dag_id], AttributeNames=["All"])["Attributes"]
        return int(answer["ApproximateNumberOfMessages"]) + int(answer["ApproximateNumberOfMessagesNotVisible"])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("airflow")
    with ExitStack() as exits:
        server = exits.enter_context(sqs_server(home))
        metrics = exits.enter_context(otlp_receiver())
        payload = tmp_path_factory.mktemp("payload")
        environment = {
            "AIRFLOW_CONN_AWS_DEFAULT": server.airflow_connection,
            "AIRFLOW_VAR_PAYLOAD": str(payload),
            **metrics.environment,
        }
        # Not SQLite: runs that are triggered while tasks of others start can hold up Airflow there for a minute.
        metadata = exits.enter_context(postgres_server(migrated_postgres()))
        stack = exits.enter_context(airflow_stack(home, DAGS_FOLDER, environment, database_url=metadata.url))
        under_way = Running(stack, server, metrics, payload)
        for consumer in under_way.consumers.values():
            exits.enter_context(consumer.polling())
        under_way.start()
        yield under_way


def test_messages_are_settled_one_by_one(running: Running) -> None:
    assert running.ended("per_message") == "failed"
    states = running.task_states("per_message")
    bodies = [message["Body"] for message in running.messages("per_message")]
    assert sorted(bodies) == sorted(BODIES["per_message"])
    assert {body: states["check", index] for index, body in enumerate(bodies)} == {
        "good": ("success", 1),
        "better": ("success", 1),
        "flaky": ("success", 2),
        "poison": ("failed", 1),
    }
    assert states["orders_keeper", -1][0] == "success"
    ids = {message["Body"]: message["MessageId"] for message in running.messages("per_message")}
    report = running.report("per_message")
    assert {name: report[name] for name in ("received", "deleted", "released", "lost", "failed", "late", "held")} == {
        "received": 4,
        "deleted": 3,
        "released": 1,
        "lost": 0,
        "failed": 0,
        "late": 0,
        "held": 0,
    }
    assert report["messages"]["released"] == [ids["poison"]]
    assert sorted(report["messages"]["deleted"]) == sorted([ids["good"], ids["better"], ids["flaky"]])
    assert running.left("per_message") == 1


def test_no_other_consumer_gets_a_message_while_the_work_takes_several_visibility_timeouts(running: Running) -> None:
    running.ended("per_message")
    consumer = running.consumers["per_message"]
    assert leases.WORK_SECONDS > 3 * leases.VISIBILITY_SECONDS
    assert consumer.polls > leases.WORK_SECONDS / 4
    assert [reception.body for reception in consumer.received(1)] == ["poison"]


def test_a_failed_message_is_received_by_others_within_ten_seconds_and_not_before(running: Running) -> None:
    running.ended("per_message")
    failed_at = running.work_ended_at("per_message", "check", "poison")
    (reception,) = running.consumers["per_message"].received(1)
    assert 0 <= reception.at - failed_at <= 10


def test_without_extensions_another_consumer_does_get_the_message_while_the_work_runs(running: Running) -> None:
    running.ended("never_extended")
    (reception,) = running.consumers["never_extended"].received(1)
    assert reception.at < running.work_ended_at("never_extended", "check", "good")
    report = running.report("never_extended")
    assert (report["deleted"], report["extensions"], report["late"]) == (0, 0, 1)


def test_a_batch_is_settled_by_what_its_task_returns(running: Running) -> None:
    assert running.ended("whole_batch") == "success"
    ended_at = running.work_ended_at("whole_batch", "load")
    (reception,) = running.consumers["whole_batch"].received(1)
    report = running.report("whole_batch")
    assert (report["deleted"], report["released"], report["extension_calls"] > 0) == (2, 1, True)
    assert reception.body == "bad"
    assert reception.at >= ended_at
    assert running.left("whole_batch") == 1


def test_a_sensor_that_times_out_fails_without_being_tried_again(running: Running) -> None:
    assert running.ended("no_messages_fail") == "failed"
    states = running.task_states("no_messages_fail")
    state, tries = states["orders", -1]
    assert state == "failed"
    assert states["orders_keeper", -1][0] == "upstream_failed"
    # On a busy machine Airflow may count a try that was not the sensor's: at a load of 20 a second one was seen without
    # any record of a first; and a scheduler may hear too late of the end of the deferring process.
    assert tries <= leases.NO_MESSAGES_RETRIES, "the time-out ended it, not the number of tries"
    log = running.stack.api.log("no_messages_fail", running.runs["no_messages_fail"], "orders", tries)
    assert "task 'orders' of DAG 'no_messages_fail': no message of no_messages_fail came in time" in log


def test_a_sensor_that_may_be_skipped_skips_the_work_when_it_times_out(running: Running) -> None:
    assert running.ended("no_messages_skip") == "success"
    states = running.task_states("no_messages_skip")
    assert {task_id: state for (task_id, _), (state, _) in states.items()} == {
        "orders": "skipped",
        "load": "skipped",
        "orders_keeper": "skipped",
    }


def test_a_queue_that_does_not_exist_fails_the_run_with_a_remedy_and_without_retries(running: Running) -> None:
    assert running.ended("no_such_queue") == "failed"
    assert running.task_states("no_such_queue")["orders", -1] == ("failed", 1)
    log = running.stack.api.log("no_such_queue", running.runs["no_such_queue"], "orders")
    assert "task 'orders' of DAG 'no_such_queue': GetQueueUrl on queue no_such_queue" in log
    assert "Check its name, account and region" in log


def test_no_receipt_handle_can_be_seen_in_airflow(running: Running) -> None:
    running.ended("per_message")
    assert all("ReceiptHandle" not in message for message in running.messages("per_message"))
    lease = running.xcom("per_message", "orders", "lease")
    assert lease["messages"] == 4
    # A text that Airflow's own Fernet key encrypted begins with this version byte.
    assert lease["sealed"].startswith("gAAAAA")


def test_the_metrics_reach_an_opentelemetry_collector(running: Running) -> None:
    running.ended("per_message")

    expected = {
        "extended": running.report("per_message")["extensions"],
        "settled.deleted": 3,
        "settled.released": 1,
        "release_latency": 1,
        "held": 0,
        "batches": 0,
        "oldest_lease": 0,
    }

    def reported() -> dict[str, float | None]:
        return {name: running.metrics.value(f"airflow.sqs_lease.{name}", "per_message") for name in expected}

    # All of them: what one report has was not measured at one moment.
    with suppress(ProcessFailedError):
        wait_until(
            lambda: reported() == expected,
            processes=[running.stack.processes["triggerer"]],
            what="done with reporting the end of the batch",
            deadline_seconds=60,
        )
    assert reported() == expected


def test_airflow_lists_the_provider(running: Running) -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "airflow", "providers", "list", "--output", "json"],
        env=dict(running.stack.environment),
        capture_output=True,
        text=True,
        check=True,
    )
    # Airflow may log to its standard output before.
    assert "sqs-lease" in {provider["package_name"] for provider in json.loads(listed.stdout.splitlines()[-1])}


def test_a_stored_batch_is_worked_on_and_settled_while_airflow_holds_references_only(running: Running) -> None:
    assert running.ended("stored") == "success"
    report = running.report("stored")
    sent = receiving.STORED_MESSAGES
    assert (report["received"], report["deleted"], report["released"]) == (sent, sent - 1, 1)
    assert (report["lost"], report["late"]) == (0, 0)
    assert running.left("stored") == 1
    lease, messages = running.xcom("stored", "orders", "lease"), running.xcom("stored", "orders")
    assert len(json.dumps(lease)) < 2000
    assert (messages.keys(), messages["messages"]) == ({"sqs_lease_manifests", "messages"}, sent)


def test_the_files_of_a_stored_batch_are_removed_when_it_was_settled(running: Running) -> None:
    running.ended("stored")
    assert list(running.payload.iterdir()) == []


def test_no_other_consumer_gets_a_message_of_a_stored_batch_but_the_one_that_failed(running: Running) -> None:
    running.ended("stored")
    consumer = running.consumers["stored"]
    assert consumer.polls > 5
    assert {reception.body for reception in consumer.receptions} <= {"bad"}


def test_messages_that_a_sensor_received_in_its_own_process_are_kept_and_settled(running: Running) -> None:
    assert running.ended("poking") == "success"
    report = running.report("poking")
    assert (report["received"], report["deleted"], report["released"], report["late"]) == (3, 2, 1, 0)
    assert running.left("poking") == 1


def test_no_other_consumer_gets_a_message_between_the_worker_and_the_keeper(running: Running) -> None:
    running.ended("poking")
    consumer = running.consumers["poking"]
    assert receiving.WORK_SECONDS > 2 * receiving.VISIBILITY_SECONDS
    assert consumer.polls > receiving.WORK_SECONDS / 4
    assert [reception.body for reception in consumer.receptions] in ([], ["bad"])


def test_only_what_matches_is_worked_on(running: Running) -> None:
    assert running.ended("filtering") == "success"
    bodies = [message["Body"] for message in running.messages("filtering")]
    assert set(bodies) == {ORDER}
    assert running.report("filtering")["deleted"] == len(bodies)
    assert running.left("filtering") == 2 - len(bodies)


def test_with_soft_fail_a_queue_that_does_not_exist_fails_the_run(running: Running) -> None:
    assert running.ended("no_queue_to_skip") == "failed"
    assert running.task_states("no_queue_to_skip")["orders", -1][0] == "failed"


def test_messages_that_cannot_be_stored_are_visible_again_and_the_log_has_the_remedy(running: Running) -> None:
    assert running.ended("denied_payload") == "failed"
    assert running.task_states("denied_payload")["orders", -1][0] == "failed"
    log = running.stack.api.log("denied_payload", running.runs["denied_payload"], "orders")
    assert "cannot be stored at payload=" in log
    assert "Check that the path exists" in log
    answer = running.sqs.receive_message(QueueUrl=running.urls["denied_payload"], VisibilityTimeout=0)
    assert [message["Body"] for message in answer["Messages"]] == ["good"]
