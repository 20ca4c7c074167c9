"""Runs that messages start, on real Airflow processes and a real SQS server.

All DAGs of `dags_events/events.py` work at the same time, each on a queue of its own; one of them is paused until
its watcher is gone. Then the triggerer is killed, a message comes, and the triggerer is started again. The tests look
at what was seen.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from demo.airflow_api import FINAL_RUN_STATES
from demo.airflow_stack import AirflowStack, airflow_stack, migrated_postgres
from demo.postgres import postgres_server
from demo.processes import wait_until
from demo.sessions import send_signal
from demo.sqs_server import SqsServer, sqs_server
from tests.processes.airflow.dags_events.events import LONG_WORK_SECONDS, VISIBILITY_SECONDS
from tests.second_consumer import SecondConsumer

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

DAGS_FOLDER = Path(__file__).parent / "dags_events"
DAGS = ["started", "together", "failing", "paused", "survivor", "reader_a", "reader_b"]
BODIES = {
    "started": ["a", "b", "c"],
    "together": ["a", "b", "c"],
    "failing": ["poison"],
    "paused": ["a", "b"],
    "shared": ["a", "b", "c", "d"],
    "survivor": ["a"],
}
LIMIT_SECONDS = 240.0
FAILING_RUNS = 3
HEALTH_CHECK_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Run:
    """A run that is over, as it was seen.

    Attributes:
        state: Its state.
        messages: The messages that its first task published; None when that was skipped.
        report: The keeper's report; None when there is none.
        worked_on: The bodies that the work was given; None when there was none.
    """

    state: str
    messages: list[dict[str, Any]] | None
    report: dict[str, Any] | None
    worked_on: list[str] | None


@dataclass(slots=True)
class Seen:
    """Observations of all DAGs."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    runs_while_paused: int = 0
    consumer: SecondConsumer | None = None

    def worked_on(self, *dag_ids: str) -> list[str]:
        """The bodies that the work of some DAGs was given, in order."""
        return sorted(body for dag_id in dag_ids for run in self.runs[dag_id] for body in run.worked_on or ())


class Stage:
    """The stack with the queues.

    Args:
        stack: Airflow.
        sqs: A client of the SQS server.
        urls: The queues.
    """

    def __init__(self, stack: AirflowStack, sqs: SQSClient, urls: dict[str, str]) -> None:
        self.stack = stack
        self.sqs = sqs
        self.urls = urls

    def send(self, name: str, bodies: Sequence[str] | None = None) -> None:
        """Send a queue's messages, or some of them, at one moment."""
        self.sqs.send_message_batch(
            QueueUrl=self.urls[name],
            Entries=[{"Id": body, "MessageBody": body} for body in (BODIES[name] if bodies is None else bodies)],
        )

    def counts(self, name: str) -> tuple[int, int]:
        """How many messages of a queue are visible, and how many are not."""
        answer = self.sqs.get_queue_attributes(QueueUrl=self.urls[name], AttributeNames=["All"])["Attributes"]
        return int(answer["ApproximateNumberOfMessages"]), int(answer["ApproximateNumberOfMessagesNotVisible"])

    def left(self, name: str) -> int:
        """How many messages a queue has, in flight or not."""
        return sum(self.counts(name))

    def over(self, dag_id: str) -> list[str]:
        """The ids of the runs of a DAG that are over, oldest first."""
        states = self.stack.api.run_states(dag_id)
        return sorted(run_id for run_id, state in states.items() if state in FINAL_RUN_STATES)

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until something is so."""
        processes = list(self.stack.processes.values())
        wait_until(condition, processes=processes, what=what, deadline_seconds=LIMIT_SECONDS)

    def wait_until_empty(self, name: str) -> None:
        """Wait until a queue has no messages."""
        self.wait(f"done with the messages of {name}", lambda: self.left(name) == 0)

    def wait_until_over(self, dag_id: str) -> None:
        """Wait until a DAG had runs, and all are over."""

        def all_over() -> bool:
            states = self.stack.api.run_states(dag_id).values()
            return bool(states) and all(state in FINAL_RUN_STATES for state in states)

        self.wait(f"done with the runs of {dag_id}", all_over)

    def runs(self, dag_id: str) -> list[Run]:
        """The runs of a DAG that are over, oldest first."""
        api = self.stack.api
        return [
            Run(
                api.run_state(dag_id, run_id),
                api.xcom(dag_id, run_id, "orders"),
                api.xcom(dag_id, run_id, "orders_keeper", "lease_report"),
                api.xcom(dag_id, run_id, "load", "bodies"),
            )
            for run_id in self.over(dag_id)
        ]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    home = tmp_path_factory.mktemp("airflow")
    with ExitStack() as exits:
        server = exits.enter_context(sqs_server(home))
        environment = {
            "AIRFLOW_CONN_AWS_DEFAULT": server.airflow_connection,
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": str(HEALTH_CHECK_SECONDS),
            # As often does Airflow see that a DAG was paused, and removes its watcher.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "10",
        }
        sqs = server.sqs_client()
        urls = {name: sqs.create_queue(QueueName=name)["QueueUrl"] for name in BODIES}
        # Not SQLite: so many triggers and runs at once keep one another from writing there for a minute and more.
        database = exits.enter_context(postgres_server(migrated_postgres()))
        stack = airflow_stack(home, DAGS_FOLDER, environment, database_url=database.url)
        stage = Stage(exits.enter_context(stack), sqs, urls)
        what_was_seen = Seen()
        _work_on_everything(stage, server, what_was_seen)
        _kill_the_triggerer(stage)
        what_was_seen.runs = {dag_id: stage.runs(dag_id) for dag_id in DAGS}
        what_was_seen.left = {name: stage.left(name) for name in BODIES}
        yield what_was_seen


def _work_on_everything(stage: Stage, server: SqsServer, seen: Seen) -> None:
    api = stage.stack.api
    for dag_id in DAGS:
        stage.stack.wait_for_dag(dag_id)
    # It polls once the run has received: until then messages are there for any consumer.
    seen.consumer = SecondConsumer(server.sqs_client(), stage.urls["started"], len(BODIES["started"]))
    with seen.consumer.polling():
        _send_while_no_run_can_begin(stage, "together")
        for name in ("started", "failing", "shared"):
            stage.send(name)
        _pause_while_messages_wait(stage, "paused")
        seen.runs_while_paused = len(api.run_states("paused"))
        api.unpause("paused")
        stage.wait_until_over("started")
    for name, dag_ids in {"together": ["together"], "paused": ["paused"], "shared": ["reader_a", "reader_b"]}.items():
        stage.wait_until_empty(name)
        for dag_id in dag_ids:
            stage.wait_until_over(dag_id)
    stage.wait(f"failing for the {FAILING_RUNS}rd time", lambda: len(stage.over("failing")) >= FAILING_RUNS)
    api.pause("failing")


def _send_while_no_run_can_begin(stage: Stage, name: str) -> None:
    """Send a message, have Airflow told of it while it makes no runs, and send the others."""
    first, *others = BODIES[name]
    scheduler = stage.stack.processes["scheduler"]
    send_signal([scheduler.pid], signal.SIGSTOP)
    try:
        stage.send(name, [first])
        stage.wait(f"told of {name}", lambda: stage.stack.api.asset_events(name) > 0)
        stage.send(name, others)
    finally:
        send_signal([scheduler.pid], signal.SIGCONT)


def _pause_while_messages_wait(stage: Stage, name: str) -> None:
    """Pause a DAG, have its trigger fire all the same, and wait until Airflow took that away."""
    # The watcher, which is there like those of the other DAGs of this file, is removed when the file is read next: not
    # before it has fired.
    dag_processor = stage.stack.processes["dag-processor"]
    send_signal([dag_processor.pid], signal.SIGSTOP)
    try:
        stage.stack.api.pause(name)
        stage.send(name)
        stage.wait(f"told of {name}", lambda: stage.stack.api.asset_events(name) > 0)
    finally:
        send_signal([dag_processor.pid], signal.SIGCONT)
    before = stage.stack.api.parsed_at(name)
    stage.wait(f"without the watcher of {name}", lambda: stage.stack.api.parsed_at(name) > before)
    assert stage.counts(name) == (len(BODIES[name]), 0)


def _kill_the_triggerer(stage: Stage) -> None:
    stage.stack.processes["triggerer"].kill()
    stage.send("survivor")
    stage.stack.start("triggerer")
    stage.wait_until_over("survivor")
    stage.wait_until_empty("survivor")


def test_a_message_starts_a_run_that_deletes_it_after_work_longer_than_the_visibility_timeout(seen: Seen) -> None:
    assert LONG_WORK_SECONDS > 3 * VISIBILITY_SECONDS
    (run,) = [run for run in seen.runs["started"] if run.worked_on]
    assert run.state == "success"
    assert run.report is not None
    counts = {name: run.report[name] for name in ("received", "deleted", "released", "lost", "late")}
    assert counts == {"received": 3, "deleted": 3, "released": 0, "lost": 0, "late": 0}
    assert seen.left["started"] == 0


def test_no_other_consumer_gets_a_message_between_its_receive_and_the_end_of_the_work(seen: Seen) -> None:
    assert seen.consumer is not None
    assert seen.consumer.polls > LONG_WORK_SECONDS / 4
    assert seen.consumer.receptions == []


def test_messages_that_came_before_a_run_began_are_taken_together_by_the_next(seen: Seen) -> None:
    (run,) = [run for run in seen.runs["together"] if run.worked_on]
    assert sorted(run.worked_on or ()) == BODIES["together"]
    assert run.report is not None
    assert (run.report["deleted"], run.report["late"]) == (3, 0)


def test_a_failing_message_comes_back_without_a_storm_of_runs(seen: Seen) -> None:
    runs = seen.runs["failing"]
    counts = [int(message["Attributes"]["ApproximateReceiveCount"]) for run in runs for message in run.messages or ()]
    assert len(counts) >= FAILING_RUNS - 1
    # A run for each time that it came, and hardly any that found nothing.
    assert counts == list(range(1, len(counts) + 1))
    assert len(runs) - len(counts) <= 1
    assert seen.left["failing"] == 1


def test_a_paused_dag_loses_nothing_and_raises_no_receive_counts(seen: Seen) -> None:
    assert seen.runs_while_paused == 0
    assert seen.worked_on("paused") == BODIES["paused"]
    messages = [message for run in seen.runs["paused"] for message in run.messages or ()]
    assert {message["Attributes"]["ApproximateReceiveCount"] for message in messages} == {"1"}


def test_with_two_dags_on_one_queue_each_message_is_worked_on_once(seen: Seen) -> None:
    assert seen.worked_on("reader_a", "reader_b") == BODIES["shared"]
    runs = [run for dag_id in ("reader_a", "reader_b") for run in seen.runs[dag_id]]
    assert all(run.state == "success" for run in runs)


def test_a_message_that_comes_while_no_triggerer_runs_starts_a_run_afterwards(seen: Seen) -> None:
    assert seen.worked_on("survivor") == ["a"]
    (message,) = [message for run in seen.runs["survivor"] for message in run.messages or ()]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
