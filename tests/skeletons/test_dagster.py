"""Dagster's walking skeleton: one run on real processes, beside a second consumer that polls all along.

No figure here is a time that a busy machine could miss. The asset goes on when the test allows it, and the test allows
it when it has seen what must come before. It lets one deadline pass, the service's own: the end of the visibility
timeout that the messages were received with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

import pytest

from demo.dagster_answers import Run, Tick
from demo.dagster_stack import CODE_SERVER, DAEMON, WEB_SERVER, DagsterStack, dagster_stack
from demo.processes import wait_until
from demo.sqs_server import SqsServer
from tests.dagster.evidence import DIRECTORY_VARIABLE, Note, allow_to_end, notes
from tests.second_consumer import SecondConsumer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1800)]

DEFINITIONS = Path(__file__).parent / "definitions_dagster.py"
ASSET = "orders"
SENSOR = "orders_backlog"
QUEUE = "dagster-skeleton"
GOOD = ["first", "second", "third"]
POISON = "poison"
BODIES = [*GOOD, POISON]

QUEUE_VISIBILITY_SECONDS = 3600
"""Longer than the test: what others receive was released, or was no longer extended."""

VISIBILITY_SECONDS = 120
"""Its visibility timeout. The first extension is due after two thirds of it: a busy machine may be 40 s late."""

LIMIT_SECONDS = 600.0
"""How long to wait for one thing at most."""


@dataclass(frozen=True, slots=True)
class Record:
    """Observations of the run, and its results.

    Attributes:
        evaluations: The sensor's evaluations while all messages were in flight.
        received_early: The second consumer's messages before the asset was allowed to end, and its step with it.
        received: The second consumer's messages altogether.
        done: The work that the asset had done in the end.
        run_id: The run in which it did it.
        runs: All runs.
        metadata: The observation of the asset when its step had ended.
        left: How many messages of the queue can be received, and how many are in flight.
    """

    evaluations: list[Tick]
    received_early: list[str]
    received: list[str]
    done: list[str]
    run_id: str
    runs: list[Run]
    metadata: list[Mapping[str, Any]]
    left: tuple[int, int]


class Skeleton:
    """Dagster with the asset and its sensor, beside a queue with messages and a second consumer of it.

    Args:
        stack: Dagster.
        server: The SQS server.
        queue_url: The queue.
        evidence: Where the asset notes what it does, and looks whether it may go on.
    """

    def __init__(self, stack: DagsterStack, server: SqsServer, queue_url: str, evidence: Path) -> None:
        self.stack = stack
        self.evidence = evidence
        self.sqs = server.sqs_client()
        self.queue_url = queue_url
        self.consumer = SecondConsumer(server.sqs_client(), queue_url, len(BODIES))

    def run(self) -> Record:
        """Let the sensor start the run, and the run end piece by piece."""
        for body in BODIES:
            self.sqs.send_message(QueueUrl=self.queue_url, MessageBody=body)
        self.stack.api.start_sensor(SENSOR)
        with self.consumer.polling():
            self.wait_until(lambda: self.notes() != [], "done with receiving the messages")
            (receiving,) = self.notes()
            self.wait_until(lambda: self.evaluations_after(receiving) != [], "done with looking at the queue again")
            evaluations = self.evaluations_after(receiving)
            # No sensor is evaluated from here on: it might start a run for the poison.
            self.stack.processes[DAEMON].kill()

            allow_to_end(self.evidence, POISON)
            self.wait_until(lambda: len(self.notes()) > 1, "done with failing the poison")
            self.wait_until(lambda: time() > receiving.at + VISIBILITY_SECONDS, "past the first visibility timeout")
            self.wait_for_a_whole_poll()
            received_early = self.received()
            allow_to_end(self.evidence, ASSET)
            self.wait_until(lambda: POISON in self.received(), "done with giving the poison back")
            self.stack.wait_for_run(receiving.details["run_id"], LIMIT_SECONDS)
            self.wait_for_a_whole_poll()
            return Record(
                evaluations=evaluations,
                received_early=received_early,
                received=self.received(),
                done=self.done(),
                run_id=receiving.details["run_id"],
                runs=self.stack.api.runs(),
                metadata=[
                    event.metadata
                    for event in self.stack.api.events(receiving.details["run_id"])
                    if event.event_type == "ASSET_OBSERVATION"
                ],
                left=self.left(),
            )

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until something is the case, while Dagster's processes run."""
        processes = [self.stack.processes[name] for name in (CODE_SERVER, WEB_SERVER)]
        wait_until(is_so, processes=processes, what=what, deadline_seconds=LIMIT_SECONDS)

    def wait_for_a_whole_poll(self) -> None:
        """Wait until the second consumer has made a poll that began after this call."""
        # The first one that ends from now on may have begun before.
        enough = self.consumer.polls + 2
        self.wait_until(lambda: self.consumer.polls >= enough, "beside a second consumer that polls")

    def notes(self) -> list[Note]:
        """The asset's notes so far."""
        return notes(self.evidence, ASSET)

    def done(self) -> list[str]:
        """The asset's work so far."""
        return [note.what for note in self.notes()]

    def received(self) -> list[str]:
        """The bodies that the second consumer was given so far."""
        return [reception.body for reception in self.consumer.receptions]

    def evaluations_after(self, note: Note) -> list[Tick]:
        """The sensor's evaluations that began after a note, and came to a decision."""
        ticks = self.stack.api.ticks(SENSOR)
        return [tick for tick in ticks if tick.at > note.at and tick.status in ("SKIPPED", "SUCCESS")]

    def left(self) -> tuple[int, int]:
        """How many messages of the queue can be received, and how many are in flight."""
        answer = self.sqs.get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=["All"])["Attributes"]
        return int(answer["ApproximateNumberOfMessages"]), int(answer["ApproximateNumberOfMessagesNotVisible"])


@pytest.fixture(scope="module")
def record(server: SqsServer, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The record of the one run. Dagster has ended before the tests look at it."""
    home, evidence = tmp_path_factory.mktemp("dagster"), tmp_path_factory.mktemp("evidence")
    queue_url = server.sqs_client().create_queue(
        QueueName=QUEUE, Attributes={"VisibilityTimeout": str(QUEUE_VISIBILITY_SECONDS)}
    )["QueueUrl"]
    environment = {
        **server.environment,
        "ORDERS_QUEUE": queue_url,
        "VISIBILITY_SECONDS": str(VISIBILITY_SECONDS),
        DIRECTORY_VARIABLE: str(evidence),
    }
    with dagster_stack(home, DEFINITIONS, environment, stop_grace_seconds=0) as stack:
        return Skeleton(stack, server, queue_url, evidence).run()


def test_a_sensor_starts_one_run_when_messages_wait(record: Record) -> None:
    (run,) = record.runs
    assert (run.run_id, run.state) == (record.run_id, "SUCCESS")
    assert run.tags["dagster/sensor_name"] == SENSOR


def test_it_starts_no_run_for_messages_in_flight(record: Record) -> None:
    assert {(tick.status, tuple(tick.run_ids)) for tick in record.evaluations} == {("SKIPPED", ())}


def test_no_other_consumer_gets_a_message_while_the_asset_works_past_the_first_visibility_timeout(
    record: Record,
) -> None:
    assert record.received_early == []
    # The same message twice would still be the same one: the second consumer does not hold it for ever.
    assert set(record.received) == {POISON}


def test_the_asset_goes_on_with_the_rest_after_it_failed_a_message(record: Record) -> None:
    assert record.done == ["received", "fails the poison", "worked"]


def test_the_rest_is_deleted_in_the_end_and_the_failed_message_stays_with_its_next_receiver(record: Record) -> None:
    assert record.left == (0, 1)


def test_an_observation_of_the_asset_counts_what_became_of_each_message_and_no_lease_that_was_lost_or_late(
    record: Record,
) -> None:
    (metadata,) = record.metadata
    names = ("received", "deleted", "released", "failed")
    assert {name: metadata[f"sqs/{name}"] for name in names} == {
        "received": 4,
        "deleted": 3,
        "released": 1,
        "failed": 1,
    }
    assert not metadata.keys() & {"sqs/lost", "sqs/late", "sqs/unsettled"}
    assert metadata["sqs/extensions"] >= len(GOOD)
