"""Leases of assets on real Dagster processes and a real SQS server, with a second consumer polling all along.

All of `definitions_leases.py` is started at the same time, each piece of work on a queue of its own; while it is under
way, runs are terminated, processes killed and definitions reloaded. The tests then look at what became of each.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from demo.dagster_answers import Event, Run
from demo.dagster_stack import DagsterStack, dagster_postgres, dagster_stack
from demo.postgres import postgres_server
from demo.processes import wait_until
from demo.sqs_server import SqsServer
from sqs_lease.dagster import build_sqs_lease_check
from tests.dagster.evidence import DIRECTORY_VARIABLE, VISIBILITY_SECONDS, WORK_SECONDS, Note, allow_to_end, notes
from tests.form import DAGSTER_DATABASES
from tests.second_consumer import Reception, SecondConsumer

# The first test waits for all the work.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

DEFINITIONS = Path(__file__).parent / "definitions_leases.py"

QUEUE_VISIBILITY_SECONDS = 600
"""Longer than any test: what is received before was released."""

BACK_SECONDS = 30.0
"""Within which others receive what was released at once, however slow they are; else it takes twenty times as long."""

MESSAGES: Mapping[str, Sequence[str]] = {
    "long": ["an order", "another order"],
    "failing": ["an order"],
    "terminated": ["an order"],
    "step_terminated": ["an order"],
    "retried": ["an order"],
    "partial": ["an order", "no order", "another order"],
    "unstored": ["an order"],
    "worker_killed": ["an order"],
    "step_killed": ["an order"],
    "orphaned": ["an order"],
    "outliving": ["an order"],
    "resumed": ["an order"],
}

JOBS = ("step_terminated", "step_killed", "orphaned")
"""Jobs with a process for each step; the others are assets, which the process of their run works on."""

BODIES = {body for bodies in MESSAGES.values() for body in bodies}

NOBODY_ELSE = ("retried", "resumed")
"""Queues without a second consumer, which would take their messages away."""

on_each_database = pytest.mark.parametrize("running", DAGSTER_DATABASES, indirect=True)

DEADLINE_SECONDS = 300.0


class Running:
    """The stack with all the work under way.

    Args:
        stack: Dagster.
        server: The SQS server.
        evidence: Where the work leaves its notes.
        prefix: The beginning of the names of the queues.
    """

    def __init__(self, stack: DagsterStack, server: SqsServer, evidence: Path, prefix: str) -> None:
        self.stack = stack
        self.runs: dict[str, str] = {}
        self.keepers_in_code_server: list[list[str]] = []
        self._evidence = evidence
        self._sqs = server.sqs_client()
        self._urls = {
            name: self._sqs.create_queue(
                QueueName=f"{prefix}-{name}", Attributes={"VisibilityTimeout": str(QUEUE_VISIBILITY_SECONDS)}
            )["QueueUrl"]
            for name in MESSAGES
        }
        self.consumers = {
            name: SecondConsumer(server.sqs_client(), self._urls[name], len(MESSAGES[name]))
            for name in MESSAGES
            if name not in NOBODY_ELSE
        }
        for name, texts in MESSAGES.items():
            for text in texts:
                self._sqs.send_message(QueueUrl=self._urls[name], MessageBody=text)

    def drive(self) -> None:
        """Start all the work, and do to it what its name says."""
        for name in MESSAGES:
            if name != "outliving":
                self.runs[name] = self._launch(name)
        self._let_fail_under_watch("failing", "failing")
        self.await_watched("terminated")
        self.stack.api.terminate(self.runs["terminated"])
        self.await_watched("worker_killed")
        self._kill("worker_killed", self.stack.run_worker(self.runs["worker_killed"]))
        self.await_watched("step_terminated")
        self.stack.api.terminate(self.runs["step_terminated"])
        self.await_watched("step_killed")
        self._kill("step_killed", self.stack.step_processes(self.runs["step_killed"])["killed_step"])
        self.await_watched("orphaned")
        worker = self.stack.run_worker(self.runs["orphaned"])
        assert worker is not None
        os.kill(worker, signal.SIGKILL)
        self._let_fail_under_watch("unstored", "unstored")
        self._let_fail_under_watch("partial", "partial")
        self.ended("resumed")
        self._look_for_keepers_in_code_server()
        self.await_watched("long")
        self.stack.api.reload()
        self._look_for_keepers_in_code_server()
        self.runs["outliving"] = self._launch("outliving")
        self.runs["resumed again"] = self.stack.api.reexecute(self.runs["resumed"], "FROM_FAILURE")
        allow_to_end(self._evidence, "partial_rest")
        for name in self.runs:
            if name != "outliving":
                self.ended(name)
        # Nothing runs any more on the definitions as they were before the reload.
        self.await_that("rid of the former definitions", lambda: len(self.stack.servers_with_definitions()) == 1)
        self.await_watched("outliving")
        self.stack.processes["daemon"].kill()
        self.stack.kill_code_server()
        for component in ("code-server", "daemon"):
            self.stack.start(component)
        self.stack.wait_until_ready()
        began_at = self.note("outliving", "received").at
        self.await_that("past three visibility timeouts", lambda: time.time() > began_at + 3 * VISIBILITY_SECONDS)
        allow_to_end(self._evidence, "outliving")
        allow_to_end(self._evidence, "orphaned")

    def _launch(self, name: str) -> str:
        if name in JOBS:
            return self.stack.api.launch(name)
        return self.stack.api.materialize(*(("prepared", name) if name == "resumed" else (name,)))

    def _let_fail_under_watch(self, name: str, permission: str) -> None:
        self.await_watched(name)
        allow_to_end(self._evidence, permission)

    def _kill(self, name: str, pid: int | None) -> None:
        # The process that works, and no other.
        assert pid == self.note(name, "received").pid
        os.kill(pid, signal.SIGKILL)

    def _look_for_keepers_in_code_server(self) -> None:
        reason = self.stack.api.test_sensor("keepers").skip_reason
        assert reason is not None
        self.keepers_in_code_server.append(json.loads(reason))

    def ended(self, name: str) -> Run:
        """Wait for the end of a run and return it."""
        return self.stack.wait_for_run(self.runs[name], DEADLINE_SECONDS)

    def notes(self, name: str, what: str) -> list[Note]:
        """The work's notes of this kind."""
        return [each for each in notes(self._evidence, name) if each.what == what]

    def note(self, name: str, what: str) -> Note:
        """The one note of this kind."""
        (found,) = self.notes(name, what)
        return found

    def await_note(self, name: str, what: str) -> None:
        """Wait until the work has written this down."""
        self.await_that(f"told by {name}: {what}", lambda: self.notes(name, what) != [])

    def await_watched(self, name: str) -> None:
        """Wait until the work has its messages, and the second consumer has tried to get them."""
        self.await_note(name, "received")
        self.await_that(f"watching {name}", lambda: self.consumers[name].polls > 0)

    def await_reception(self, name: str) -> Reception:
        """Wait until the second consumer gets a message, and return it."""
        self.await_that(f"giving a message of {name} away", lambda: self.consumers[name].receptions != [])
        (reception,) = self.consumers[name].receptions
        return reception

    def await_that(self, what: str, ready: Callable[[], bool]) -> None:
        wait_until(
            ready,
            processes=[self.stack.processes["webserver"]],
            what=what,
            deadline_seconds=DEADLINE_SECONDS,
        )

    def failures(self, name: str) -> list[Event]:
        """The failures of the steps of a run."""
        return [event for event in self.stack.api.events(self.runs[name]) if event.event_type == "STEP_FAILURE"]

    def observed(self, name: str) -> Mapping[str, Any]:
        """The observation of an asset when its step had ended."""
        events = self.stack.api.events(self.runs[name])
        (found,) = (event for event in events if event.event_type == "ASSET_OBSERVATION")
        return found.metadata

    def left(self, name: str) -> tuple[int, int]:
        """How many messages of the queue can be received, and how many are in flight."""
        answer = self._sqs.get_queue_attributes(QueueUrl=self._urls[name], AttributeNames=["All"])["Attributes"]
        return (
            int(answer["ApproximateNumberOfMessages"]),
            int(answer["ApproximateNumberOfMessagesNotVisible"]),
        )


@pytest.fixture(scope="module")
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, server: SqsServer
) -> Iterator[Running]:
    instance = request.param
    evidence = tmp_path_factory.mktemp("evidence")
    prefix = f"leases-{instance}"
    environment = {**server.environment, DIRECTORY_VARIABLE: str(evidence), "QUEUES": prefix}
    with ExitStack() as exits:
        url = None
        if instance == "postgresql":
            url = exits.enter_context(postgres_server(dagster_postgres())).url
        stack = exits.enter_context(
            dagster_stack(
                tmp_path_factory.mktemp("dagster"),
                DEFINITIONS,
                environment,
                database_url=url,
                # No test looks at its stop.
                stop_grace_seconds=0,
            )
        )
        under_way = Running(stack, server, evidence, prefix)
        for consumer in under_way.consumers.values():
            exits.enter_context(consumer.polling())
        under_way.drive()
        yield under_way
        for consumer in under_way.consumers.values():
            consumer.stop()


@on_each_database
def test_no_other_consumer_gets_a_message_while_an_asset_works_for_several_visibility_timeouts(
    running: Running,
) -> None:
    assert running.ended("long").state == "SUCCESS"
    assert running.note("long", "worked").at - running.note("long", "received").at > 3 * VISIBILITY_SECONDS
    assert running.consumers["long"].polls > WORK_SECONDS / 4
    assert running.consumers["long"].receptions == []
    assert running.left("long") == (0, 0)


@on_each_database
def test_an_asset_has_the_numbers_of_its_lease(running: Running) -> None:
    assert running.ended("long").state == "SUCCESS"
    metadata = running.observed("long")
    assert (metadata["sqs/received"], metadata["sqs/deleted"]) == (2, 2)
    assert not metadata.keys() & {"sqs/failed", "sqs/lost", "sqs/late"}
    assert metadata["sqs/extensions"] >= 2
    assert metadata["sqs/oldest_age_seconds"] > WORK_SECONDS


@on_each_database
def test_one_thread_keeps_the_messages_until_the_step_ends_and_not_only_its_block(running: Running) -> None:
    running.ended("long")
    assert len(running.note("long", "received").keepers) == 1
    assert len(running.note("long", "left").keepers) == 1


@on_each_database
def test_a_message_of_a_value_that_could_not_be_stored_is_received_by_others_at_once(running: Running) -> None:
    assert running.ended("unstored").state == "FAILURE"
    reception = running.await_reception("unstored")
    assert 0 <= reception.at - running.note("unstored", "stored").at <= BACK_SECONDS


@on_each_database
def test_a_message_of_a_failed_asset_is_received_by_others_at_once(running: Running) -> None:
    assert running.ended("failing").state == "FAILURE"
    reception = running.await_reception("failing")
    assert 0 <= reception.at - running.note("failing", "failed").at <= BACK_SECONDS
    assert running.stack.api.materializations("failing") == []


@on_each_database
def test_a_message_of_a_terminated_run_is_received_by_others_at_once(running: Running) -> None:
    assert running.ended("terminated").state == "CANCELED"
    reception = running.await_reception("terminated")
    assert 0 <= reception.at - running.note("terminated", "interrupted").at <= BACK_SECONDS


@on_each_database
def test_so_is_one_with_a_step_in_a_process_of_its_own(running: Running) -> None:
    assert running.ended("step_terminated").state == "CANCELED"
    reception = running.await_reception("step_terminated")
    assert 0 <= reception.at - running.note("step_terminated", "interrupted").at <= BACK_SECONDS


@on_each_database
def test_a_step_that_is_retried_receives_its_message_again(running: Running) -> None:
    assert running.ended("retried").state == "SUCCESS"
    assert [note.details["counts"] for note in running.notes("retried", "received")] == [[1], [2]]
    assert running.left("retried") == (0, 0)


@on_each_database
def test_single_messages_can_fail_while_the_others_are_deleted_at_the_end_of_the_step(running: Running) -> None:
    assert running.ended("partial").state == "SUCCESS"
    reception = running.await_reception("partial")
    assert reception.body == "no order"
    assert 0 <= reception.at - running.note("partial", "worked").at <= BACK_SECONDS
    metadata = running.observed("partial")
    assert (metadata["sqs/received"], metadata["sqs/deleted"], metadata["sqs/failed"]) == (3, 2, 1)
    assert running.left("partial") == (0, 1)


@on_each_database
@pytest.mark.parametrize("name", ["worker_killed", "step_killed"])
def test_a_message_of_a_killed_process_comes_back_after_its_visibility_timeout_and_not_before(
    running: Running, name: str
) -> None:
    reception = running.await_reception(name)
    assert reception.at - running.note(name, "receives").at >= VISIBILITY_SECONDS
    assert running.ended(name).state == "FAILURE"
    assert running.left(name) == (0, 1)


@on_each_database
def test_a_check_of_an_asset_says_what_its_killed_process_held(running: Running) -> None:
    assert running.ended("worker_killed").state == "FAILURE"
    check = build_sqs_lease_check("worker_killed")
    with dg.DagsterInstance.from_config(str(running.stack.home)) as instance:
        result = dg.materialize([check], instance=instance, selection=dg.AssetSelection.checks(check))
        (evaluation,) = result.get_asset_check_evaluations()
    assert not evaluation.passed
    assert evaluation.metadata["run"].value == running.runs["worker_killed"]
    assert evaluation.description is not None
    assert evaluation.description.endswith(
        "An attempt that was killed held 1 messages: they come back when their last extension ends."
    )


@on_each_database
def test_a_step_that_outlives_its_killed_run_still_holds_its_messages_and_deletes_them_in_the_end(
    running: Running,
) -> None:
    assert running.ended("orphaned").state == "FAILURE"
    running.await_note("orphaned", "left")
    running.await_that("rid of the message of an orphan", lambda: running.left("orphaned") == (0, 0))
    assert running.note("orphaned", "worked").at - running.note("orphaned", "received").at > 3 * VISIBILITY_SECONDS
    assert running.consumers["orphaned"].receptions == []
    assert running.left("orphaned") == (0, 0)


@on_each_database
def test_a_run_that_is_resumed_from_its_failure_receives_again_where_it_leaves_out_a_step_without_messages(
    running: Running,
) -> None:
    assert running.ended("resumed again").state == "FAILURE"
    (failure,) = running.failures("resumed again")
    assert failure.error is not None
    assert "out of orders" in failure.error
    assert [note.details["counts"] for note in running.notes("resumed", "received")] == [[1], [2]]
    assert running.left("resumed") == (1, 0)


@on_each_database
def test_messages_are_kept_while_daemon_and_code_server_are_killed_and_started_again(running: Running) -> None:
    assert running.ended("outliving").state == "SUCCESS"
    assert running.note("outliving", "worked").at - running.note("outliving", "received").at > 3 * VISIBILITY_SECONDS
    assert running.consumers["outliving"].receptions == []
    assert running.observed("outliving")["sqs/deleted"] == 1
    assert running.left("outliving") == (0, 0)


@on_each_database
def test_the_code_server_keeps_no_messages_before_and_after_a_reload(running: Running) -> None:
    assert running.keepers_in_code_server == [[], []]


@on_each_database
def test_no_message_can_be_read_in_dagster(running: Running) -> None:
    for name in running.runs:
        run = running.ended(name)
        seen = [f"{event.message} {event.error} {event.metadata}" for event in running.stack.api.events(run.run_id)]
        assert not [line for line in [*seen, run.config, str(run.tags)] for body in BODIES if body in line]
