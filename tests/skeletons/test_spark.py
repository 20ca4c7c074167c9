"""The walking skeleton of Spark: one batch, one kill, one redelivery, with a real SQS server and real drivers.

Nothing is timed. The first driver kills itself at its moment. The second one is told to receive after the first one is
dead, and receives until it has all messages: those of the dead one when their visibility timeout has lapsed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from demo.sqs_server import SqsServer
from sqs_lease.spark.ledger import Admitted, Ledger
from tests.spark.samples import named_files, rows, staged_files, stored_ids

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
LAPSES_SOON, LASTS = 1, 300
COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


class Driver:
    """A process of ``spark_driver.py``, which starts its Spark before it is told anything."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        directory.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.skeletons.spark_driver"],
            cwd=directory,
            env={
                **os.environ,
                **environment,
                # The JVM lives for seconds: one compiler, one thread that collects. A killed JVM leaves files.
                "JDK_JAVA_OPTIONS": f'-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "-Djava.io.tmpdir={directory}"',
                "PYTHONPATH": f"{ROOT / 'providers'}{os.pathsep}{ROOT}",
                "TMPDIR": str(directory),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def order(self, root: Path, queue: str, messages: int, *, visibility_seconds: int, dies: bool) -> None:
        order = {
            "root": str(root),
            "queue": queue,
            "messages": messages,
            "visibility_seconds": visibility_seconds,
            "dies": dies,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while not (line := self._process.stdout.readline()).startswith("@"):
            assert line, f"the driver ended with {self._process.wait()}"
        answer: dict[str, Any] = json.loads(line[1:])
        return answer

    def exit_code(self) -> int:
        """Wait for its end."""
        return self._process.wait()

    def stop(self) -> None:
        # It leads a process group of its own, in which its JVM is too.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@dataclass(frozen=True)
class Run:
    """Observations of the one run.

    Attributes:
        table: The table that both drivers ingest into.
        workspace: Their workspace.
        first: The messages of the first batch, by their ids.
        late: The message that was sent while the first driver held its batch.
        broken: The one of then that is not strict JSON.
        exit_code: How the first driver ended.
        admitted: The messages that the ledger had admitted when the first driver was dead.
        stored_at_the_kill: The messages that the table had then.
        receive_counts: The second driver's messages, and how often each had been received by then.
        result: The result of its ingestion.
        counts: How many messages the queue has at the end, by the names of :data:`COUNTS`.
        returned: The messages that can be received at the end.
    """

    table: Path
    workspace: Path
    first: Sequence[str]
    late: str
    broken: str
    exit_code: int
    admitted: Admitted
    stored_at_the_kill: Sequence[str]
    receive_counts: Mapping[str, int]
    result: Mapping[str, Any]
    counts: Mapping[str, int]
    returned: Sequence[str]


def send(sqs: SQSClient, queue: str, body: str) -> str:
    return sqs.send_message(QueueUrl=queue, MessageBody=body)["MessageId"]


def record(number: int) -> str:
    return json.dumps({"id": number, "name": f"n{number}"})


@pytest.fixture(scope="module")
def run(server: SqsServer, tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("spark")
    table = root / "table"
    sqs = server.sqs_client()
    queue = sqs.create_queue(QueueName="skeleton-spark")["QueueUrl"]
    with ExitStack() as exits:
        # Side by side: the second one's Spark starts while the first one works.
        killed, other = (Driver(root / name, server.environment) for name in ("killed", "other"))
        exits.callback(other.stop)
        exits.callback(killed.stop)

        first = [send(sqs, queue, record(number)) for number in (1, 2, 3)]
        killed.order(root, queue, len(first), visibility_seconds=LAPSES_SOON, dies=True)
        assert set(killed.answer()["receive_counts"]) == set(first)
        late, broken = send(sqs, queue, record(4)), send(sqs, queue, "{'id': 5, 'name': 'n5'}")
        exit_code = killed.exit_code()
        admitted = Ledger(f"{table}/_sqs_lease/ledger").open().snapshot().newest()
        assert admitted is not None
        stored_at_the_kill = stored_ids(table)

        other.order(root, queue, len(first) + 2, visibility_seconds=LASTS, dies=False)
        receive_counts, result = other.answer()["receive_counts"], other.answer()

    attributes = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    returned = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages", [])
    return Run(
        table=table,
        workspace=root / "batches",
        first=first,
        late=late,
        broken=broken,
        exit_code=exit_code,
        admitted=admitted,
        stored_at_the_kill=stored_at_the_kill,
        receive_counts=receive_counts,
        result=result,
        counts={name: int(value) for name, value in attributes.items() if name in COUNTS},
        returned=[message["MessageId"] for message in returned],
    )


def test_the_first_driver_is_killed_when_the_ledger_has_its_batch_and_the_table_does_not(run: Run) -> None:
    assert run.exit_code == -signal.SIGKILL
    assert run.admitted.location is not None
    assert run.stored_at_the_kill == []


def test_the_messages_of_the_killed_driver_come_back_to_the_second_one(run: Run) -> None:
    assert set(run.receive_counts) == {*run.first, run.late, run.broken}
    assert all(run.receive_counts[message_id] > 1 for message_id in run.first)


def test_the_second_driver_finishes_the_batch_that_was_admitted(run: Run) -> None:
    batch_ids = {row["_message_id"]: row["_batch_id"] for row in rows(run.table)}

    assert [batch_ids.get(message_id) for message_id in run.first] == [run.admitted.batch_id] * 3
    assert batch_ids.get(run.late) == run.result["batch_id"] != run.admitted.batch_id


def test_each_message_is_in_the_table_once(run: Run) -> None:
    assert stored_ids(run.table) == sorted([*run.first, run.late])
    assert sorted(row["id"] for row in rows(run.table)) == [1, 2, 3, 4]


def test_messages_that_came_back_count_as_duplicates(run: Run) -> None:
    assert (run.result["received"], run.result["ingested"], run.result["rows"]) == (5, 1, 1)
    assert run.result["duplicates"] == 3


def test_a_body_that_is_not_strict_json_is_rejected_with_a_reason_and_goes_back_to_the_queue(run: Run) -> None:
    assert run.result["rejected"].keys() == {run.broken}
    assert run.result["rejected"][run.broken].startswith("not valid JSON")
    assert run.returned == [run.broken]


def test_all_other_messages_are_deleted(run: Run) -> None:
    assert run.counts == dict(zip(COUNTS, (1, 0, 0), strict=True))


def test_neither_driver_leaves_staged_files_or_batches_behind(run: Run) -> None:
    assert staged_files(run.table) == named_files(run.table)
    assert list(run.workspace.iterdir()) == []
