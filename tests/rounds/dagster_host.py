"""The Dagster host: two jobs that take from one queue, started by backlog sensors, on a whole Dagster on PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from time import monotonic, time
from typing import Any, Final, TypeVar

import psycopg

from demo.dagster_answers import Event, Run
from demo.dagster_api import DagsterApiError
from demo.dagster_stack import CODE_SERVER, DAEMON, DagsterStack, dagster_postgres, dagster_stack
from demo.postgres import PostgresServer, postgres_server
from demo.processes import ServerProcess
from demo.sessions import send_signal
from tests.rounds.audit import Block, Done
from tests.rounds.crew import Crew, Ground
from tests.rounds.draw import Kind, Traits, Work
from tests.rounds.gate import FaultyGate
from tests.rounds.notebook import read_lines
from tests.rounds.stacks import as_json
from tests.rounds.workers import Worker, blocks_in

Answer = TypeVar("Answer")

DEFINITIONS: Final = "tests.rounds.dagster_definitions"
VISIBILITY_SECONDS: Final = 18
"""Shorter than the work on most batches."""

GATE_FAULTS: Final = (Kind.CUT, Kind.SILENCE, Kind.LOST, Kind.ERRORS, Kind.THROTTLE, Kind.LATENCY)
NAMES: Final = ("run", "step", CODE_SERVER, DAEMON)
"""The workers. All runs have the same way to the queue."""

TRAITS: Final = Traits(
    name="dagster",
    workers=len(NAMES),
    faults=(*[Kind.KILL] * 4, *[Kind.STOP] * 3, *GATE_FAULTS, Kind.DISK, Kind.MEMORY, Kind.DATABASE),
    visibility_seconds=(VISIBILITY_SECONDS,),
    messages=(4, 12),
    work_seconds=(0.5, 6.0),
    kinds=("good", "good", "good", "good", "good", "good", "flaky", "poison"),
    hits={
        Kind.KILL: (0, 0, 0, 1, 1, 2, 2, 3),
        Kind.STOP: (0, 0, 0, 1, 2, 3),
        Kind.MEMORY: (0, 0, 1),
        **dict.fromkeys(GATE_FAULTS, (0,)),
    },
    latest_start_seconds=25.0,
)

SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    # A run whose start was cut off.
    "run_monitoring": {"enabled": True, "start_timeout_seconds": 30, "poll_interval_seconds": 5},
}

ABANDONED_SECONDS: Final = 15.0
"""How long a run has no process until a user marks it as canceled, as Dagster's users have to."""

LOOK_SECONDS: Final = 2.0
TRIES: Final = 5
FINAL: Final = ("SUCCESS", "FAILURE", "CANCELED")
UNSAFE: Final = ("sqs/lost", "sqs/late", "sqs/uncertain", "sqs/unsettled")
UNFINISHED_RUNS: Final = "SELECT run_id, status FROM runs WHERE status NOT IN ('SUCCESS', 'FAILURE', 'CANCELED')"


@dataclass(slots=True)
class Component:
    """The code server or the daemon."""

    name: str
    gate: FaultyGate
    clock: Path
    stack: DagsterStack
    _is_ended: bool = False

    @property
    def is_running(self) -> bool:
        """Whether it has a process that was not ended by a fault, and did not end by itself."""
        return not self._is_ended and self._process is not None and self._process.is_running

    @property
    def _process(self) -> ServerProcess | None:
        return self.stack.processes.get(self.name)

    def pids(self) -> list[int]:
        """The process, and of the code server the one with the definitions; not its runs."""
        if self._process is None:
            return []
        servers = self.stack.servers_with_definitions() if self.name == CODE_SERVER else []
        return [self._process.pid, *servers]

    def working_pids(self) -> list[int]:
        """The same."""
        return [] if self._process is None else [self._process.pid]

    def start(self) -> None:
        """Start a process."""
        self.stack.start(self.name)
        self._is_ended = False

    def kill(self) -> None:
        """End its process at once; runs go on."""
        self._is_ended = True
        if self.name == CODE_SERVER:
            self.stack.kill_code_server()
        elif self._process is not None:
            self._process.kill()

    def found_dead(self) -> str | None:
        """If its process ended by itself since this was asked last: how."""
        if self._is_ended or self._process is None or self._process.is_running:
            return None
        code = self._process.popen.returncode
        self.kill()
        return f"{self.name} ended with exit code {code}"


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of the processes that work: each file names the job, the run, and who holds the messages."""

    directory: Path

    def files(self) -> list[Path]:
        """All files, the newest last."""
        return sorted(self.directory.iterdir(), key=lambda path: path.stat().st_mtime)

    def holder(self, path: Path) -> int:
        """The process that holds the messages."""
        return int(path.name.split(".")[2])

    def worker(self, path: Path) -> int:
        """The process that works on them."""
        return int(path.name.split(".")[3])


@dataclass(frozen=True, slots=True)
class AtWork:
    """The process that holds messages of the newest run, or the one that works on them."""

    name: str
    gate: FaultyGate
    clock: Path
    notes: Notes
    pid_of: Callable[[Path], int]
    is_of_stack: Callable[[int], bool]

    @property
    def is_running(self) -> bool:
        """Whether there is one."""
        return bool(self.pids())

    def pids(self) -> list[int]:
        """The process."""
        for path in reversed(self.notes.files()):
            pid = self.pid_of(path)
            if self.is_of_stack(pid):
                return [pid]
        return []

    def working_pids(self) -> list[int]:
        """The same."""
        return self.pids()

    def start(self) -> None:
        """Do nothing: Dagster starts runs."""

    def kill(self) -> None:
        """End it at once."""
        send_signal(self.pids(), SIGKILL)

    def found_dead(self) -> str | None:
        """Nothing: runs end by themselves."""


@dataclass(slots=True)
class DagsterCrew:
    """A running Dagster."""

    workers: Sequence[Worker]
    stack: DagsterStack
    database: PostgresServer
    notes: Notes
    is_of_stack: Callable[[int], bool]
    _died_at: dict[int, float] = field(default_factory=dict)
    _alone_since: dict[str, float] = field(default_factory=dict)
    _looks_at: float = 0.0

    def is_idle(self) -> bool:
        """Whether all processes are there, and no run is under way."""
        for path in self.notes.files():
            pid = self.notes.holder(path)
            if pid not in self._died_at and not self.is_of_stack(pid):
                self._died_at[pid] = monotonic()
        if not all(worker.is_running for worker in self.workers if isinstance(worker, Component)):
            return False
        try:
            with psycopg.connect(self.database.url.replace("+psycopg2", ""), connect_timeout=5) as connection:
                unfinished = connection.execute(UNFINISHED_RUNS).fetchall()
        except psycopg.Error:
            return False
        if monotonic() >= self._looks_at:
            self._looks_at = monotonic() + LOOK_SECONDS
            self._clean_up([run_id for run_id, state in unfinished if state in {"STARTED", "CANCELING"}])
        return not unfinished

    def blocks(self, since: float) -> list[Block]:
        """The leases that were taken since a moment, by the notes of those who worked, and Dagster's word."""
        found: list[Block] = []
        parts: dict[str, list[Block]] = {}
        for path in self.notes.files():
            kind, run_id, *_ = path.name.split(".")
            died_at = self._died_at.get(self.notes.holder(path), monotonic())
            for block in blocks_in(path, f"{kind} {run_id}", since, died_at):
                if kind == "alone":
                    found.append(block)
                else:
                    parts.setdefault(run_id, []).append(block)
        to_monotonic = monotonic() - time()
        for run_id, blocks in parts.items():
            run, events = _asked(self.stack.api.run, run_id), _asked(self.stack.api.events, run_id)
            found.append(block_of_run(run, events, blocks, to_monotonic))
        return found

    def restart_database(self) -> None:
        """End PostgreSQL at once, and start it again."""
        self.database.crash()

    def _clean_up(self, started: Sequence[str]) -> None:
        """Mark runs as canceled that Dagster takes for running, and that have no process any more."""
        self._alone_since = {run_id: since for run_id, since in self._alone_since.items() if run_id in started}
        with suppress(DagsterApiError):
            for run_id in started:
                if self.stack.run_worker(run_id) is not None:
                    self._alone_since.pop(run_id, None)
                elif monotonic() - self._alone_since.setdefault(run_id, monotonic()) > ABANDONED_SECONDS:
                    self.stack.api.terminate(run_id, mark_as_canceled=True)


def _asked(question: Callable[[str], Answer], run_id: str) -> Answer:
    """Ask the web server: after a restart of the database it finds out by an error that its connections are gone."""
    for _ in range(TRIES - 1):
        with suppress(DagsterApiError):
            return question(run_id)
    return question(run_id)


def block_of_run(run: Run, events: Sequence[Event], parts: Sequence[Block], to_monotonic: float) -> Block:
    """The lease of a run worker as a block, from what its steps note and what Dagster says.

    Args:
        run: The run.
        events: Its events, whose metadata tell what became of the messages.
        parts: The work of its steps; a step that no note ends counts until its run worker died.
        to_monotonic: What to add to seconds since the epoch.
    """
    first = min(parts, key=lambda part: part.began_at)
    ends = [part.ended_at for part in parts]
    if run.ended_at is not None:
        ends.append(run.ended_at + to_monotonic)
    unsafe = sum(int(event.metadata.get(name, 0)) for event in events for name in UNSAFE)
    return Block(
        worker=first.worker,
        ids=first.ids,
        began_at=first.began_at,
        ended_at=min(ends),
        is_green=run.state == "SUCCESS" and unsafe == 0,
        failed={message_id: at for part in parts for message_id, at in part.failed.items()},
        receive_counts=first.receive_counts,
    )


PASSED_ON_SECONDS: Final = 300.0
"""For how long a run's batch is extended for the run that repeats it."""


@dataclass(frozen=True, slots=True)
class DagsterHost:
    """Code server, web server, daemon, PostgreSQL, and runs in processes."""

    traits: Traits = TRAITS
    each_once: bool = False
    takeover: None = None
    passed_on_seconds: float = PASSED_ON_SECONDS
    disk_megabytes: int = 8
    start_seconds: float = 180.0

    def crew(self, ground: Ground) -> AbstractContextManager[Crew]:
        """Start Dagster."""
        return _crew(ground)

    def table(self, disk: Path) -> list[Done]:
        """The rows that the runs wrote."""
        return [Done(line["id"], line["at"]) for file in disk.glob("table/*.jsonl") for line in read_lines(file)]

    def forget(self, disk: Path) -> None:
        """Remove the files."""
        for file in disk.glob("table/*.jsonl"):
            file.unlink()

    def body(self, work: Work) -> str:
        """All that is known of the work."""
        return as_json(work)


@contextmanager
def _crew(ground: Ground) -> Iterator[DagsterCrew]:
    table, workspace, notes = ground.disk / "table", ground.disk / "workspace", Notes(ground.directory / "notes")
    for directory in (table, workspace, notes.directory):
        directory.mkdir()
    gate = ground.gate(NAMES[0], 0)
    environment = {
        "AWS_ENDPOINT_URL": gate.endpoint_url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": ground.server.secret,
        **ground.recorded,
        "ROUNDS_QUEUE": ground.queue,
        "ROUNDS_TABLE": str(table),
        "ROUNDS_NOTES": str(notes.directory),
        "ROUNDS_WORKSPACE": str(workspace),
        "ROUNDS_VISIBILITY_SECONDS": str(VISIBILITY_SECONDS),
    }
    with (
        postgres_server(dagster_postgres()) as database,
        dagster_stack(
            ground.directory / "dagster",
            DEFINITIONS,
            environment,
            database_url=database.url,
            settings=SETTINGS,
            stop_grace_seconds=3.0,
        ) as stack,
    ):
        sessions = {stack.processes[CODE_SERVER].pid}

        def is_of_stack(pid: int) -> bool:
            # The sessions of former code servers have runs, too.
            with suppress(KeyError):
                sessions.add(stack.processes[CODE_SERVER].pid)
            with suppress(OSError):
                return os.getsid(pid) in sessions and not _is_zombie(pid)
            return False

        components = [
            Component(name, gate, ground.directory / f"{name}.clock", stack) for name in (CODE_SERVER, DAEMON)
        ]
        at_work = [
            AtWork(name, gate, ground.directory / f"{name}.clock", notes, pid_of, is_of_stack)
            for name, pid_of in zip(NAMES, (notes.holder, notes.worker), strict=False)
        ]
        yield DagsterCrew([*at_work, *components], stack, database, notes, is_of_stack)


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
