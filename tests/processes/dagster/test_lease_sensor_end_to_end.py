"""Lease sensors on a real daemon and code server and a real SQS server, with a second consumer polling all along.

All of `definitions_lease_sensor.py` is started at once, each sensor on a queue of its own. While the runs work,
the definitions are reloaded, runs and processes are ended in several ways, and the tests look at what became of each.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from demo.dagster_answers import Run
from demo.dagster_stack import CODE_SERVER, DAEMON, DagsterStack, dagster_postgres, dagster_stack
from demo.postgres import postgres_server
from demo.processes import wait_until
from demo.sqs_server import SqsServer
from tests.dagster.evidence import (
    DIRECTORY_VARIABLE,
    SENSOR_VISIBILITY_SECONDS,
    SHORT_SENSOR_VISIBILITY_SECONDS,
    Note,
    allow_to_end,
    notes,
)
from tests.form import DAGSTER_DATABASES
from tests.second_consumer import Reception, SecondConsumer

# The first test waits for all the work.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

DEFINITIONS = Path(__file__).parent / "definitions_lease_sensor.py"

QUEUE_VISIBILITY_SECONDS = 600
"""Longer than any test: what is received before was released."""

BODIES: Mapping[str, Sequence[str]] = {
    "retried": ["an order", "no order"],
    "failing": ["an order"],
    "canceled": ["an order"],
    "killed": ["an order"],
    "stopped": ["an order"],
    "outliving": ["an order"],
    "tried": ["an order"],
}
"""The messages by sensor."""

WORKING = ("failing", "canceled", "killed", "stopped", "outliving")

TAKEN_OVER = ("failing", "canceled", "killed", "outliving", "retried")
"""The sensors that the new process evaluates after a reload."""

BACK_SECONDS = SENSOR_VISIBILITY_SECONDS / 2
"""Within which others receive what was given back, however slow they are; else it takes nearly twice as long."""

DEADLINE_SECONDS = 300.0


class Running:
    """The stack with all runs under way.

    Args:
        stack: Dagster.
        server: The SQS server.
        evidence: Where the work leaves its notes.
        workspace: Where the batches are.
        prefix: What the names of the queues begin with.
    """

    def __init__(self, stack: DagsterStack, server: SqsServer, evidence: Path, workspace: Path, prefix: str) -> None:
        self.stack = stack
        self.ended: dict[str, float] = {}
        self.keepers: list[list[str]] = []
        self.owners: list[int] = []
        self.trial: str | None = None
        self._evidence = evidence
        self._workspace = workspace
        self._sqs = server.sqs_client()
        self._urls = {name: self._sqs.get_queue_url(QueueName=f"{prefix}-{name}")["QueueUrl"] for name in BODIES}
        self.consumers = {
            name: SecondConsumer(server.sqs_client(), url, len(BODIES[name]))
            for name, url in self._urls.items()
            if name != "tried"
        }

    def drive(self) -> None:
        """Do to each run what the name of its sensor says."""
        self.trial = self.stack.api.test_sensor("tried").skip_reason
        for name in WORKING:
            self.await_watched(name, "received")
        self.await_watched("retried", "second part")
        self._look_for_keepers(len(WORKING) + 1)
        self._stop("stopped", ticking="outliving")
        self.stack.api.reload()
        self._await("of one keeper for each sensor but the stopped one", self._is_taken_over)
        self._look_for_keepers(len(TAKEN_OVER))
        self._await("rid of the former keepers", lambda: all(map(self.has_given_way, TAKEN_OVER)))
        allow_to_end(self._evidence, "retried_first")
        self._await("repeating the run", lambda: len(self.notes("retried", "second part")) == 2)

        # No sensor is evaluated from here on: it might receive what is given back, before the second consumer does.
        self.stack.processes[DAEMON].kill()
        allow_to_end(self._evidence, "failing")
        allow_to_end(self._evidence, "stopped")
        self.stack.api.terminate(self.run("canceled").run_id)
        worker = self.stack.run_worker(self.run("killed").run_id)
        assert worker is not None
        os.kill(worker, signal.SIGKILL)
        for name in ("failing", "stopped", "canceled", "killed"):
            self.await_reception(name)
        self._await_held_for("retried", "first part", SHORT_SENSOR_VISIBILITY_SECONDS)
        allow_to_end(self._evidence, "retried")
        self._await("done with all of the batch", lambda: self.batches("retried") == [])
        self.await_reception("retried")

        self.stack.kill_code_server()
        self.owners.append(self.owner("outliving"))
        for component in (CODE_SERVER, DAEMON):
            self.stack.start(component)
        self.stack.wait_until_ready()
        self._await("taking over", lambda: self.owner("outliving") != self.owners[0])
        self.owners.append(self.owner("outliving"))
        self._await_held_for("outliving", "received", SENSOR_VISIBILITY_SECONDS)
        allow_to_end(self._evidence, "outliving")
        self._await("done with all of the batch", lambda: self.batches("outliving") == [])

    def run(self, name: str) -> Run:
        """The one run, or the newest one, of a sensor."""
        return self.stack.api.runs(tags={"dagster/sensor_name": name})[0]

    def owner(self, name: str) -> int:
        """The process that keeps the batches of a sensor."""
        return int(json.loads((self._workspace / name / "owner.json").read_text())["pid"])

    def has_given_way(self, name: str) -> bool:
        """Whether a process has said that it keeps the batches of a sensor no longer, because another one does."""
        said = f"The keeper of sensor {name} ends: another process has taken over"
        return said in self.stack.processes[CODE_SERVER].log_path.read_text()

    def batches(self, name: str) -> list[str]:
        """The batches of a sensor that are not settled."""
        return [path.name for path in (self._workspace / name).iterdir() if path.is_dir()]

    def notes(self, name: str, what: str) -> list[Note]:
        """What the work wrote down of this kind."""
        return [each for each in notes(self._evidence, name) if each.what == what]

    def await_watched(self, name: str, what: str) -> None:
        """Wait until the work has begun, and the second consumer has tried to get its messages."""
        self._await(f"told by {name}: {what}", lambda: self.notes(name, what) != [])
        self._await(f"watching {name}", lambda: self.consumers[name].polls > 0)

    def await_reception(self, name: str) -> Reception:
        """Wait until the second consumer gets a message, and return it."""
        self._await(f"giving a message of {name} away", lambda: self.consumers[name].receptions != [])
        (reception,) = self.consumers[name].receptions
        return reception

    def left(self, name: str) -> tuple[int, int]:
        """How many messages of the queue can be received, and how many are in flight."""
        answer = self._sqs.get_queue_attributes(QueueUrl=self._urls[name], AttributeNames=["All"])["Attributes"]
        return (
            int(answer["ApproximateNumberOfMessages"]),
            int(answer["ApproximateNumberOfMessagesNotVisible"]),
        )

    def _stop(self, name: str, *, ticking: str) -> None:
        """Stop a sensor, and wait until it stays so, which another one tells by its ticks.

        An evaluation that is under way writes back the state that it read, with which Dagster forgets a stop. And its
        daemon looks which sensors run, then queues their evaluations: of three rounds that the other sensor had since
        the stop, the last one knew of it, and those before have begun.
        """
        api = self.stack.api
        ticks_before = 0

        def stays_stopped() -> bool:
            nonlocal ticks_before
            if api.is_sensor_running(name):
                api.stop_sensor(name)
                ticks_before = len(api.ticks(ticking))
                return False
            has_ended = all(tick.status != "STARTED" for tick in api.ticks(name))
            return has_ended and len(api.ticks(ticking)) >= ticks_before + 3

        self._await(f"leaving {name} stopped", stays_stopped)

    def _is_taken_over(self) -> bool:
        began: dict[float, int] = {}
        for pid in self.stack.servers_with_definitions():
            with suppress(psutil.NoSuchProcess):  # A process that starts a run looks like the server for a moment.
                began[psutil.Process(pid).create_time()] = pid
        return bool(began) and {self.owner(name) for name in TAKEN_OVER} == {began[max(began)]}

    def _look_for_keepers(self, expected: int) -> None:
        """Note which keepers the process of the code server has, once all are there: they begin one by one."""
        found: list[str] = []

        def all_are_there() -> bool:
            reason = self.stack.api.test_sensor("keepers").skip_reason
            assert reason is not None
            found[:] = [name for name in json.loads(reason) if name.startswith("sqs-lease sensor ")]
            return len(found) >= expected

        self._await("keeping all batches", all_are_there)
        self.keepers.append(found)

    def _await_held_for(self, name: str, what: str, seconds: float) -> None:
        """Wait until the work has had its messages for so long, since it wrote this down."""
        (began,) = self.notes(name, what)
        self._await(f"past {seconds} s of {name}", lambda: time.time() > began.at + seconds)

    def _await(self, what: str, ready: Callable[[], bool]) -> None:
        wait_until(
            ready,
            processes=[self.stack.processes["webserver"]],
            what=what,
            deadline_seconds=DEADLINE_SECONDS,
        )


@pytest.fixture(scope="module", params=DAGSTER_DATABASES)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, server: SqsServer
) -> Iterator[Running]:
    evidence, workspace = tmp_path_factory.mktemp("evidence"), tmp_path_factory.mktemp("workspace")
    prefix = f"lease-sensor-{request.param}"
    environment = {
        **server.environment,
        DIRECTORY_VARIABLE: str(evidence),
        "QUEUES": prefix,
        "WORKSPACE": str(workspace),
    }
    sqs = server.sqs_client()
    for name, bodies in BODIES.items():
        url = sqs.create_queue(
            QueueName=f"{prefix}-{name}", Attributes={"VisibilityTimeout": str(QUEUE_VISIBILITY_SECONDS)}
        )["QueueUrl"]
        for body in bodies:
            sqs.send_message(QueueUrl=url, MessageBody=body)
    with ExitStack() as exits:
        database_url = None
        if request.param == "postgresql":
            database_url = exits.enter_context(postgres_server(dagster_postgres())).url
        stack = exits.enter_context(
            dagster_stack(
                tmp_path_factory.mktemp("dagster"),
                DEFINITIONS,
                environment,
                database_url=database_url,
                settings={"run_retries": {"enabled": True, "max_retries": 0}},
                stop_grace_seconds=0,
            )
        )
        under_way = Running(stack, server, evidence, workspace, prefix)
        for consumer in under_way.consumers.values():
            exits.enter_context(consumer.polling())
        under_way.drive()
        yield under_way


def test_a_run_that_dagster_repeats_from_its_failure_keeps_its_batch_and_nobody_else_gets_it(running: Running) -> None:
    first, second = running.notes("retried", "second part")
    (part,) = running.notes("retried", "first part")
    assert first.details["run_id"] != second.details["run_id"]
    assert part.details["ids"] == first.details["ids"] == second.details["ids"]
    assert len(first.details["ids"]) == 2
    (ended,) = running.notes("retried", "ended")
    assert ended.at - part.at > SHORT_SENSOR_VISIBILITY_SECONDS
    received_after = [(each.body, each.at > ended.at) for each in running.consumers["retried"].receptions]
    # The other one is deleted; this one failed in a step that was not executed again.
    assert received_after == [("no order", True)]
    assert sum(running.left("retried")) == 1


@pytest.mark.parametrize("name", ["failing", "stopped"])
def test_messages_of_a_failed_run_are_received_by_others_within_seconds_even_if_its_sensor_was_stopped(
    running: Running, name: str
) -> None:
    assert running.run(name).state == "FAILURE"
    (ended,) = running.notes(name, "ended")
    assert 0 <= running.await_reception(name).at - ended.at <= BACK_SECONDS


@pytest.mark.parametrize(("name", "state"), [("canceled", "CANCELED"), ("killed", "FAILURE")])
def test_messages_of_a_run_that_was_ended_are_received_by_others_within_seconds(
    running: Running, name: str, state: str
) -> None:
    run = running.run(name)
    assert run.state == state
    assert run.ended_at is not None
    assert running.await_reception(name).at - run.ended_at <= BACK_SECONDS


def test_a_test_in_the_web_ui_takes_nothing(running: Running) -> None:
    assert running.trial is not None
    assert "nothing was received" in running.trial
    assert running.left("tried") == (1, 0)


def test_the_process_of_the_code_server_that_is_evaluated_has_one_keeper_for_each_sensor(running: Running) -> None:
    before, after = running.keepers
    assert before == [f"sqs-lease sensor {name}" for name in sorted((*WORKING, "retried"))]
    assert after == [name for name in before if not name.endswith(" stopped")]


def test_after_a_reload_the_former_process_keeps_nothing_that_the_new_one_took_over(running: Running) -> None:
    assert {name for name in (*WORKING, "retried") if running.has_given_way(name)} == set(TAKEN_OVER)


def test_messages_are_kept_while_code_server_and_daemon_are_killed_and_started_again(running: Running) -> None:
    assert running.owners[0] != running.owners[1]
    assert running.run("outliving").state == "SUCCESS"
    assert running.consumers["outliving"].receptions == []
    assert running.left("outliving") == (0, 0)
    (received,), (ended,) = running.notes("outliving", "received"), running.notes("outliving", "ended")
    assert ended.at - received.at > SENSOR_VISIBILITY_SECONDS


def test_no_message_and_no_receipt_handle_can_be_read_in_dagster(running: Running) -> None:
    for run in running.stack.api.runs():
        events = running.stack.api.events(run.run_id)
        seen = [run.config, str(run.tags), *(f"{event.message} {event.error} {event.metadata}" for event in events)]
        assert not [line for line in seen if "order" in line.replace("out of orders", "").replace("no order", "order")]
