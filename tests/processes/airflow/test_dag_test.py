"""`dag.test()` with leases, in a process of its own as a DAG's author starts it, against a real SQS server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demo.airflow_stack import migrated_database
from demo.processes import ROOT
from demo.sqs_server import SqsServer
from tests.processes.airflow.dags_local.local import VISIBILITY_SECONDS, WORK_SECONDS
from tests.second_consumer import SecondConsumer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

DAG_FILE = Path(__file__).parent / "dags_local" / "local.py"
SCRIPT = Path(__file__).parent / "run_dag_tests.py"
BODIES = ("good", "bad", "better")
WITH_MESSAGES = (
    "local_success",
    "local_failure",
    "local_some",
    "local_payload",
    "local_mapped",
    "local_chain",
    "local_skipped",
)
DAGS = (*WITH_MESSAGES, "local_empty", "local_no_queue")


@dataclass(frozen=True)
class Outcome:
    """The outcome of the runs, and of the messages."""

    runs: dict[str, dict[str, Any]]
    left: dict[str, list[str]]
    consumer: SecondConsumer
    payload: Path

    def tasks(self, dag_id: str) -> dict[str, str]:
        tasks = self.runs[dag_id]["tasks"]
        assert isinstance(tasks, dict)
        return tasks


@pytest.fixture(scope="module")
def outcome(server: SqsServer, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    home = tmp_path_factory.mktemp("local")
    shutil.copy(migrated_database(), home / "airflow.db")
    sqs = server.sqs_client()
    urls = {name: sqs.create_queue(QueueName=name)["QueueUrl"] for name in DAGS if name != "local_no_queue"}
    for name in WITH_MESSAGES:
        for body in BODIES:
            sqs.send_message(QueueUrl=urls[name], MessageBody=body)
    consumer = SecondConsumer(server.sqs_client(), urls["local_success"], len(BODIES))
    with consumer.polling():
        ended = subprocess.run(
            [sys.executable, str(SCRIPT), str(DAG_FILE), *DAGS],
            env=environment(home, server),
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    runs = json.loads(ended.stdout.splitlines()[-1])
    return Outcome(runs, {name: visible(sqs, urls[name]) for name in WITH_MESSAGES}, consumer, home / "payload")


def environment(home: Path, server: SqsServer) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "AWS_"))}
    return {
        **inherited,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAG_FILE.parent),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_AWS_DEFAULT": server.airflow_connection,
        "LOCAL_PAYLOAD": str(home / "payload"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "providers"), str(ROOT)]),
    }


def visible(sqs: Any, queue_url: str) -> list[str]:
    """The bodies of the messages that can be received at once."""
    messages = sqs.receive_message(QueueUrl=queue_url, MaxNumberOfMessages=10, VisibilityTimeout=0).get("Messages", [])
    return sorted(message["Body"] for message in messages)


def test_work_that_succeeds_deletes_its_messages(outcome: Outcome) -> None:
    assert outcome.runs["local_success"]["run"] == "success"
    assert outcome.tasks("local_success") == dict.fromkeys(("orders", "succeed", "orders_keeper"), "success")
    assert outcome.left["local_success"] == []


def test_no_other_consumer_gets_a_message_while_the_work_takes_longer_than_its_visibility_timeout(
    outcome: Outcome,
) -> None:
    assert WORK_SECONDS > 2 * VISIBILITY_SECONDS
    assert outcome.consumer.polls > WORK_SECONDS / 4
    assert outcome.consumer.receptions == []


def test_work_that_fails_gives_its_messages_back_at_once(outcome: Outcome) -> None:
    assert outcome.runs["local_failure"]["run"] == "failed"
    assert outcome.tasks("local_failure")["orders_keeper"] == "success"
    assert outcome.left["local_failure"] == sorted(BODIES)


def test_messages_that_a_return_value_names_are_given_back_and_the_others_deleted(outcome: Outcome) -> None:
    assert outcome.runs["local_payload"]["run"] == "success"
    assert outcome.left["local_payload"] == ["bad"]


def test_the_files_of_a_stored_batch_are_removed(outcome: Outcome) -> None:
    assert list(outcome.payload.iterdir()) == []


def test_an_exception_that_names_messages_fails_those_only(outcome: Outcome) -> None:
    assert outcome.tasks("local_some")["fail_some"] == "failed"
    assert outcome.left["local_some"] == ["bad"]


def test_mapped_messages_are_settled_one_by_one(outcome: Outcome) -> None:
    assert sorted(outcome.tasks("local_mapped").values()) == ["failed", *["success"] * 4]
    assert outcome.left["local_mapped"] == ["bad"]


def test_a_chain_is_waited_for_also_where_the_sensor_would_not_defer(outcome: Outcome) -> None:
    assert set(outcome.tasks("local_chain").values()) == {"success"}
    assert outcome.left["local_chain"] == []


def test_a_task_that_skips_itself_keeps_no_message_from_being_deleted(outcome: Outcome) -> None:
    assert outcome.tasks("local_skipped")["skip"] == "skipped"
    assert outcome.left["local_skipped"] == []


def test_without_messages_the_sensor_is_skipped_where_that_was_asked_for(outcome: Outcome) -> None:
    assert set(outcome.tasks("local_empty").values()) == {"skipped"}


def test_a_queue_that_does_not_exist_is_not_a_reason_to_skip(outcome: Outcome) -> None:
    assert outcome.tasks("local_no_queue")["orders"] == "failed"
