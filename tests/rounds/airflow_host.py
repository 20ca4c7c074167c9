"""The Airflow host: three DAGs that take from one queue, on a whole Airflow with two triggerers on PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from signal import SIGKILL
from time import monotonic, time
from typing import Any, Final

import psycopg

from demo.airflow_stack import SECOND_TRIGGERER, AirflowStack, airflow_stack, migrated_postgres
from demo.postgres import PostgresServer, postgres_server
from demo.processes import ServerProcess
from demo.sessions import send_signal
from tests.rounds.audit import Block, Done, Takeover
from tests.rounds.crew import Crew, Ground
from tests.rounds.draw import Kind, Traits, Work
from tests.rounds.gate import FaultyGate
from tests.rounds.notebook import read_lines
from tests.rounds.stacks import as_json
from tests.rounds.workers import Worker

DAGS_FOLDER: Final = Path(__file__).with_name("airflow_dags")
WAITING: Final = ("mapped", "whole")
"""The DAGs that always have a run, whose sensor waits for messages."""

DAGS: Final = (*WAITING, "started")

SHORT_SECONDS: Final = 20
"""The shorter visibility timeout of the DAGs; the longer one is the default, which follows from the next figure."""

THRESHOLD_SECONDS: Final = 12
"""How long a triggerer says nothing until its triggers are given to another one. On an idle machine the first answer
of a new triggerer takes 4 s, in which it says nothing."""

MARGIN_SECONDS: Final = 30.0
"""How long a takeover may take from then on: what the package reckons with, in its default visibility timeout."""

SETTINGS: Final[Mapping[str, str]] = {
    "AIRFLOW__CORE__PARALLELISM": "16",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": str(THRESHOLD_SECONDS),
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "12",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
}

TRIGGERERS: Final = ("triggerer", SECOND_TRIGGERER)
COMPONENTS: Final = (*TRIGGERERS, "scheduler", "api-server", "dag-processor")
"""The first workers; the last two are a running task, and one with its supervisor."""

RECEIVING: Final = (0, 1, 2)
"""The triggerers, and the scheduler for its tasks: a sensor receives in a task, too."""

GATE_FAULTS: Final = (Kind.CUT, Kind.SILENCE, Kind.LOST, Kind.ERRORS, Kind.THROTTLE, Kind.LATENCY)

TRAITS: Final = Traits(
    name="airflow",
    workers=len(COMPONENTS) + 2,
    faults=(*[Kind.KILL] * 5, *[Kind.STOP] * 3, *GATE_FAULTS, Kind.DISK, Kind.MEMORY, Kind.DATABASE),
    visibility_seconds=(SHORT_SECONDS,),
    messages=(4, 12),
    work_seconds=(0.5, 8.0),
    kinds=("good", "good", "good", "good", "good", "good", "flaky", "poison"),
    hits={
        Kind.KILL: (0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 5, 6),
        Kind.STOP: (0, 0, 1, 1, 2, 3, 4, 5),
        Kind.MEMORY: (0, 1, 5),
        **dict.fromkeys(GATE_FAULTS, RECEIVING),
    },
    latest_start_seconds=25.0,
)

TAKEOVER: Final = Takeover(THRESHOLD_SECONDS - 2, THRESHOLD_SECONDS + MARGIN_SECONDS)
"""A triggerer sends a sign of life a second, so two less may be missed."""

PASSED_ON_SECONDS: Final = 300.0
"""The default of ``handoff_timeout``."""

FRESH_SECONDS: Final = 4.0
ENDED: Final = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})

UNFINISHED_RUNS: Final = """
    SELECT r.dag_id, t.task_id, t.state, g.triggerer_id
    FROM dag_run r LEFT JOIN task_instance t USING (dag_id, run_id) LEFT JOIN trigger g ON g.id = t.trigger_id
    WHERE r.state IN ('queued', 'running')"""

LIVING_JOBS: Final = """
    SELECT job_type, id FROM job
    WHERE state = 'running' AND latest_heartbeat > now() - make_interval(secs => %s)
    AND latest_heartbeat > start_date + interval '0.5 s'"""

RECEIVED: Final = """
    SELECT t.dag_id, t.run_id, t.end_date, x.value
    FROM task_instance t JOIN xcom x USING (dag_id, run_id, task_id)
    WHERE t.task_id = 'orders' AND t.state = 'success' AND t.end_date > %s AND x.key = 'return_value'"""

WORKED: Final = """
    SELECT t.task_id, t.map_index, t.state, t.end_date, x.value
    FROM task_instance t LEFT JOIN xcom x
    ON (x.dag_id, x.run_id, x.task_id, x.map_index) = (t.dag_id, t.run_id, t.task_id, t.map_index)
    AND x.key = 'return_value'
    WHERE t.dag_id = %s AND t.run_id = %s AND t.task_id <> 'orders'"""


@dataclass(slots=True)
class Component:
    """One of Airflow's processes, with all that it started."""

    name: str
    gate: FaultyGate
    clock: Path
    stack: AirflowStack
    environment: Mapping[str, str]
    _is_ended: bool = False

    @property
    def is_running(self) -> bool:
        """Whether it has a process that was not ended by a fault, and did not end by itself."""
        return not self._is_ended and self._process.is_running

    @property
    def _process(self) -> ServerProcess:
        return self.stack.processes[self.name]

    def pids(self) -> list[int]:
        """The process and all that it started."""
        return self._process.session_pids()

    def working_pids(self) -> list[int]:
        """The process, and of a triggerer the one with the triggers."""
        pid = self._process.pid
        if self.name not in TRIGGERERS:
            return [pid]
        with suppress(OSError):
            return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        return [pid]

    def start(self) -> None:
        """Start a process."""
        self.stack.start(self.name, environment=self.environment)
        self._is_ended = False

    def kill(self) -> None:
        """End its process and all that it started, as a crash of the machine would."""
        self._is_ended = True
        self._process.kill()

    def found_dead(self) -> str | None:
        """If its process ended by itself since this was asked last: how."""
        if self._is_ended or self._process.is_running:
            return None
        code = self._process.popen.returncode
        self.kill()
        return f"{self.name} ended with exit code {code}"


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A process that works on messages now, if there is one, alone or with its supervisor."""

    name: str
    gate: FaultyGate
    clock: Path
    scheduler: Component
    processes: Path
    with_supervisor: bool

    @property
    def is_running(self) -> bool:
        """Whether any task runs."""
        return bool(self.pids())

    def pids(self) -> list[int]:
        """The process of the task that began last."""
        session = set(self.scheduler.pids())
        told = sorted(self.processes.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in told:
            pid, supervisor = (int(part) for part in path.name.split("."))
            if pid in session:
                return [supervisor, pid] if self.with_supervisor and supervisor in session else [pid]
        return []

    def working_pids(self) -> list[int]:
        """The same."""
        return self.pids()

    def start(self) -> None:
        """Do nothing: Airflow starts tasks."""

    def kill(self) -> None:
        """End it at once; its supervisor first, which could tell Airflow of it."""
        send_signal(self.pids(), SIGKILL)

    def found_dead(self) -> str | None:
        """Nothing: tasks end by themselves."""


@dataclass(slots=True)
class AirflowCrew:
    """A running Airflow, seen through its database: the API server may be away."""

    workers: Sequence[Worker]
    database: PostgresServer

    def is_idle(self) -> bool:
        """Whether all processes are at work, and nothing runs but sensors that wait."""
        if not all(worker.is_running for worker in self.workers if isinstance(worker, Component)):
            return False
        try:
            jobs = self._ask(LIVING_JOBS, FRESH_SECONDS)
            tasks = self._ask(UNFINISHED_RUNS)
        except psycopg.Error:
            return False
        triggerers = {number for kind, number in jobs if kind == "TriggererJob"}
        waiting = [dag_id for dag_id, task_id, state, holder in tasks if state == "deferred" and holder in triggerers]
        busy = [dag_id for dag_id, task_id, state, _ in tasks if not _rests(dag_id, task_id, state)]
        return (
            len(triggerers) == len(TRIGGERERS)
            and any(kind == "SchedulerJob" for kind, _ in jobs)
            and sorted(waiting) == sorted(WAITING)
            and not busy
        )

    def blocks(self, since: float) -> list[Block]:
        """The runs that got messages since a moment, by what Airflow says became of them."""
        to_monotonic = monotonic() - time()
        began = datetime.fromtimestamp(since - to_monotonic).astimezone()
        found = []
        for dag_id, run_id, received_at, value in self._ask(RECEIVED, began):
            worked = self._ask(WORKED, dag_id, run_id)
            found.append(block_of_run(f"{dag_id} {run_id}", received_at, _plain(value), worked, to_monotonic))
        return found

    def restart_database(self) -> None:
        """End PostgreSQL at once, and start it again."""
        self.database.crash()

    def _ask(self, query: str, *arguments: object) -> list[Any]:
        with psycopg.connect(self.database.url.replace("+psycopg2", ""), connect_timeout=5) as connection:
            return connection.execute(query.encode(), arguments).fetchall()


def _rests(dag_id: str, task_id: str | None, state: str | None) -> bool:
    """Whether a task instance of a run that is not over is one of a sensor that waits, or waits for that sensor."""
    return dag_id in WAITING and (state == "deferred" if task_id == "orders" else state is None)


def block_of_run(
    name: str, received_at: datetime, messages: Sequence[Mapping[str, Any]], worked: Sequence[Any], to_monotonic: float
) -> Block:
    """A run as a block, from the reception of its messages to the end of their keeper.

    Args:
        name: Its name in findings.
        received_at: When the messages were handed on.
        messages: The messages, as the tasks got them.
        worked: The other tasks of the run: id, map index, state, when they ended, and what they returned.
        to_monotonic: What to add to seconds since the epoch.
    """
    ids = [message["MessageId"] for message in messages]
    now = monotonic()
    ended_at, is_green = now, False
    failed: dict[str, float] = {}
    for task_id, map_index, state, task_ended_at, value in worked:
        at = now if task_ended_at is None else task_ended_at.timestamp() + to_monotonic
        if task_id == "orders_keeper":
            ended_at, is_green = (at if state in ENDED else now), state == "success"
        elif state == "success":
            returned = _plain(value) or {}
            failed |= {each["itemIdentifier"]: at for each in returned.get("batchItemFailures", ())}
        elif state in ENDED:
            failed |= dict.fromkeys(ids if map_index < 0 else ids[map_index : map_index + 1], at)
    return Block(
        worker=name,
        ids=frozenset(ids),
        began_at=received_at.timestamp() + to_monotonic,
        ended_at=ended_at,
        is_green=is_green,
        failed=failed,
        receive_counts={
            message["MessageId"]: int(message["Attributes"]["ApproximateReceiveCount"]) for message in messages
        },
    )


def _plain(value: Any) -> Any:
    """A value as it was returned, of what Airflow's database has for it."""
    return json.loads(value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class AirflowHost:
    """Scheduler, API server, DAG processor, two triggerers, PostgreSQL and the LocalExecutor."""

    traits: Traits = TRAITS
    each_once: bool = False
    takeover: Takeover = TAKEOVER
    passed_on_seconds: float = PASSED_ON_SECONDS
    disk_megabytes: int = 1
    start_seconds: float = 300.0

    def crew(self, ground: Ground) -> AbstractContextManager[Crew]:
        """Start Airflow."""
        return _crew(ground)

    def table(self, disk: Path) -> list[Done]:
        """The rows that the tasks wrote."""
        return [Done(line["id"], line["at"]) for file in disk.glob("*/*.jsonl") for line in read_lines(file)]

    def forget(self, disk: Path) -> None:
        """Remove the files."""
        for file in disk.glob("*/*.jsonl"):
            file.unlink()

    def body(self, work: Work) -> str:
        """All that is known of the work."""
        return as_json(work)


@contextmanager
def _crew(ground: Ground) -> Iterator[AirflowCrew]:
    table, processes = ground.disk / "table", ground.directory / "processes"
    for directory in (table, processes):
        directory.mkdir()
    environment = {
        **SETTINGS,
        **ground.recorded,
        "ROUNDS_QUEUE": ground.queue,
        "ROUNDS_SHORT_SECONDS": str(SHORT_SECONDS),
        "ROUNDS_TABLE": str(table),
        "ROUNDS_PROCESSES": str(processes),
        # The runs of the DAGs are not what is looked at.
        "PYTHONWARNINGS": "ignore",
    }
    gates = {name: ground.gate(name, number) for number, name in enumerate(COMPONENTS)}
    own = {
        name: {"AIRFLOW_CONN_AWS_DEFAULT": replace(ground.server, endpoint_url=gate.endpoint_url).airflow_connection}
        for name, gate in gates.items()
    }
    with (
        postgres_server(migrated_postgres()) as database,
        airflow_stack(
            ground.directory / "airflow",
            DAGS_FOLDER,
            # Tasks have the scheduler's: a sensor receives there, too.
            environment | own["scheduler"],
            database_url=database.url,
            components=("api-server", "scheduler", "dag-processor"),
            stop_grace_seconds=3.0,
        ) as stack,
    ):
        for dag_id in DAGS:
            stack.wait_for_dag(dag_id)
        components = [
            Component(name, gate, ground.directory / f"{name}.clock", stack, own[name]) for name, gate in gates.items()
        ]
        for triggerer in components[: len(TRIGGERERS)]:
            triggerer.start()
        scheduler = components[COMPONENTS.index("scheduler")]
        tasks = [
            RunningTask(name, scheduler.gate, scheduler.clock, scheduler, processes, with_supervisor)
            for name, with_supervisor in (("task", False), ("task and supervisor", True))
        ]
        yield AirflowCrew([*components, *tasks], database)
