"""The time from sending a message until a task works on it, beside the amazon provider's own sensor and trigger.

    python -m benchmarks.latency [--runs 20] [--bursts 20] [--messages 50]

One real Airflow with PostgreSQL and its default settings, one SQS server. Two ways of each package, in turns:

- *a sensor waits*: a run's sensor is deferred when its message is sent (`SqsSensor(deferrable=True)`);
- *events start runs*: bursts of messages are sent, a burst every eleven seconds on average, to an asset with a watcher
  (`MessageQueueTrigger`), with at most four runs at a time, of 100 messages at most. The work takes three seconds.

The stock classes ask the queue every two seconds, which is the default of sqs-lease and not theirs (60 s). They delete
what they read; sqs-lease holds it while the work runs. For sqs-lease, *handed over* is the time from the end of the
sensor's task until the keeper's trigger holds the batch.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from demo.airflow_stack import AirflowStack, airflow_stack, migrated_postgres
from demo.postgres import postgres_server
from demo.processes import ROOT, pause, wait_until
from demo.sqs_server import SqsServer, sqs_server

if TYPE_CHECKING:
    from types_boto3_sqs.type_defs import SendMessageBatchRequestEntryTypeDef

DAGS_FOLDER: Final = ROOT / "benchmarks" / "dags_latency"
SENSORS: Final = ("sensor_of_sqs_lease", "sensor_of_the_provider")
EVENTS: Final = ("events_of_sqs_lease", "events_of_the_provider")
PAUSE_SECONDS: Final = 11.0
LIMIT_SECONDS: Final = 300.0
WAITING: Final = frozenset({"deferred", "up_for_reschedule"})


@dataclass(frozen=True, slots=True)
class Started:
    """A message that a task works on.

    Attributes:
        seconds: The time from its sending to the beginning of the work.
        run_id: The run.
        message_id: The message.
    """

    seconds: float
    run_id: str
    message_id: str


class Latencies:
    """Sends messages, and looks when work on them begins.

    Args:
        stack: Airflow.
        server: The SQS server.
        records: Where the work makes its notes.
    """

    def __init__(self, stack: AirflowStack, server: SqsServer, records: Path) -> None:
        self._stack = stack
        self._sqs = server.sqs_client()
        self._records = records

    def started(self, dag_id: str) -> list[Started]:
        """All messages that the DAG's tasks have begun to work on."""
        file = self._records / dag_id
        found = []
        for line in file.read_text().splitlines() if file.exists() else ():
            sent, began, run_id, message_id = line.split()
            found.append(Started(float(began) - float(sent), run_id, message_id))
        return found

    def waiting_sensor(self, dag_id: str) -> None:
        """Start a run, send its message when its sensor is deferred, and wait for the work."""
        url = self._sqs.create_queue(QueueName=f"{dag_id}-{uuid4().hex}")["QueueUrl"]
        run_id = self._stack.api.trigger(dag_id, {"queue_url": url})
        self._await(lambda: self._is_waiting(dag_id, run_id), f"done with deferring the sensor of {dag_id}")
        # So that the moment within the pace of the stock trigger is drawn.
        pause(self._stack.processes["scheduler"], random.uniform(4, 6))
        self._send(url, 1)
        self._await(
            lambda: any(each.run_id == run_id for each in self.started(dag_id)), f"at work on the message of {dag_id}"
        )
        self._stack.wait_for_run(dag_id, run_id, LIMIT_SECONDS)

    def bursts(self, dag_id: str, bursts: int, messages: int) -> None:
        """Send bursts of messages to the queue of the DAG's watcher, and wait for the work on the last one."""
        url = self._sqs.get_queue_url(QueueName=dag_id)["QueueUrl"]
        # The same pauses for both.
        drawn = random.Random(bursts)
        for _ in range(bursts):
            self._send(url, messages)
            pause(self._stack.processes["scheduler"], drawn.uniform(0, 2 * PAUSE_SECONDS))
        total = bursts * messages
        self._await(
            lambda: len({each.message_id for each in self.started(dag_id)}) == total,
            f"at work on all {total} messages of {dag_id}",
        )
        for run_id in self._stack.api.run_states(dag_id):
            self._stack.wait_for_run(dag_id, run_id, LIMIT_SECONDS)

    def handed_over(self, dag_id: str) -> list[float]:
        """Seconds from the end of each sensor's task until its keeper's trigger held the batch."""
        found = []
        for run_id in self._stack.api.run_states(dag_id):
            tasks = {task.task_id: task for task in self._stack.api.task_states(dag_id, run_id)}
            ended = tasks["receive"].ended_at
            logs = self._stack.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}"
            held = [
                datetime.fromisoformat(event["timestamp"]).timestamp()
                for file in logs.glob("task_id=*/attempt=1.log.trigger.*")
                for event in map(json.loads, file.read_text().splitlines())
                if event["event"].startswith("Keeping ")
            ]
            if ended is not None and held:
                found.append(min(held) - ended)
        return found

    def _is_waiting(self, dag_id: str, run_id: str) -> bool:
        tasks = self._stack.api.task_states(dag_id, run_id)
        return any(task.task_id == "receive" and task.state in WAITING for task in tasks)

    def _send(self, url: str, messages: int) -> None:
        for first in range(0, messages, 10):
            body = json.dumps({"sent": time.time()})
            entries: list[SendMessageBatchRequestEntryTypeDef] = [
                {"Id": str(number), "MessageBody": body} for number in range(min(10, messages - first))
            ]
            self._sqs.send_message_batch(QueueUrl=url, Entries=entries)

    def _await(self, is_so: Callable[[], bool], what: str) -> None:
        wait_until(is_so, processes=[self._stack.processes["scheduler"]], what=what, deadline_seconds=LIMIT_SECONDS)


@contextmanager
def latencies() -> Iterator[Latencies]:
    """Run everything, until the block ends."""
    with ExitStack() as exits:
        home = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        records = home / "records"
        records.mkdir()
        server = exits.enter_context(sqs_server(home))
        urls = [server.sqs_client().create_queue(QueueName=name)["QueueUrl"] for name in EVENTS]
        environment = {
            "AIRFLOW_CONN_AWS_DEFAULT": server.airflow_connection,
            "LATENCY_RECORDS": str(records),
            "LATENCY_QUEUES": urls[0].rpartition("/")[0],
        }
        database = exits.enter_context(postgres_server(migrated_postgres())).url
        stack = exits.enter_context(airflow_stack(home, DAGS_FOLDER, environment, database_url=database))
        for dag_id in (*SENSORS, *EVENTS):
            stack.wait_for_dag(dag_id)
        yield Latencies(stack, server, records)


def show(name: str, seconds: Sequence[float], more: str = "") -> None:
    """Print one line."""
    ordered = sorted(seconds)
    ninety_fifth = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    print(
        f"{name:<24} p50 {statistics.median(ordered):5.1f} s   p95 {ninety_fifth:5.1f} s   "
        f"longest {ordered[-1]:5.1f} s   {more}",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=20, help="of each sensor")
    parser.add_argument("--bursts", type=int, default=20)
    parser.add_argument("--messages", type=int, default=50, help="of a burst")
    given = parser.parse_args()
    with latencies() as running:
        for _ in range(given.runs):
            for dag_id in SENSORS:
                running.waiting_sensor(dag_id)
        for dag_id in SENSORS:
            show(dag_id, [each.seconds for each in running.started(dag_id)])
        show("handed over", running.handed_over(SENSORS[0]))
        for dag_id in EVENTS:
            running.bursts(dag_id, given.bursts, given.messages)
            started = running.started(dag_id)
            again = len(started) - len({each.message_id for each in started})
            runs = len({each.run_id for each in started})
            show(dag_id, [each.seconds for each in started], f"{runs} runs with messages, {again} messages twice")
        show("handed over", running.handed_over(EVENTS[0]))


if __name__ == "__main__":
    main()
