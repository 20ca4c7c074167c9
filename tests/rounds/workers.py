"""The targets of faults: the processes of a host, above all its consumers, each with a gate to the queue and notes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol

from demo.processes import ROOT, ServerProcess, start_process
from tests.rounds.audit import Block
from tests.rounds.gate import FaultyGate
from tests.rounds.notebook import read_lines

FAKETIME: Final = Path("/usr/lib") / f"{os.uname().machine}-linux-gnu" / "faketime" / "libfaketimeMT.so.1"
"""Debian's package `libfaketime`: it gives a process another calendar, and leaves its monotonic clocks alone."""

LONGEST_NOTE_BYTES: Final = 2**16

SHARED_MEMORY: Final = Path("/dev/shm")


class Worker(Protocol):
    """A place for a process of a host, and for all that it starts."""

    @property
    def name(self) -> str:
        """Its name for gate, notes and findings."""

    @property
    def gate(self) -> FaultyGate:
        """Its way to the queue."""

    @property
    def clock(self) -> Path:
        """The file that says how much later it is for it, in seconds."""

    @property
    def is_running(self) -> bool:
        """Whether it has a process that was not ended by a fault, and did not end by itself."""

    def pids(self) -> list[int]:
        """The process and all that it started."""

    def working_pids(self) -> list[int]:
        """Those of them that do the work with messages."""

    def start(self) -> None:
        """Start a process."""

    def kill(self) -> None:
        """End its process and all that it started, as a crash of the machine would."""

    def found_dead(self) -> str | None:
        """If its process ended by itself since this was asked last: how."""


@dataclass(slots=True)
class Incarnation:
    """One process of a worker, from its start to its end.

    Attributes:
        process: The process.
        notes: The file of its notes.
        ended_at: When it was found dead or was killed; None while it runs.
    """

    process: ServerProcess
    notes: Path
    ended_at: float | None = None


@dataclass(slots=True)
class Consumer:
    """A worker with one process, which consumes: a program that writes notes.

    Attributes:
        name: Its name for gate, notes and findings.
        gate: Its way to the queue.
        command: The program and its arguments, but for the notes' path, which comes last.
        environment: Its environment, but for what makes its clock.
        directory: Where its notes, its log and its clock are.
        has_clock: Whether its calendar can be changed.
        incarnations: Its processes so far.
    """

    name: str
    gate: FaultyGate
    command: Sequence[str | Path]
    environment: Mapping[str, str]
    directory: Path
    has_clock: bool
    incarnations: list[Incarnation] = field(default_factory=list)

    @property
    def clock(self) -> Path:
        """The file that says how much later it is for its processes, in seconds."""
        return self.directory / f"{self.name}.clock"

    @property
    def is_running(self) -> bool:
        """Whether it has a process that was not ended by a fault, and did not end by itself."""
        return bool(self.incarnations) and self.newest.ended_at is None and self.newest.process.is_running

    @property
    def newest(self) -> Incarnation:
        """Its newest process."""
        return self.incarnations[-1]

    def pids(self) -> list[int]:
        """The process and all that it started."""
        return self.newest.process.session_pids()

    def working_pids(self) -> list[int]:
        """The process itself."""
        return [self.newest.process.pid]

    def start(self) -> None:
        """Start a process."""
        notes = self.directory / f"{self.name}-{len(self.incarnations)}.jsonl"
        notes.touch()
        environment = dict(self.environment)
        if self.has_clock:
            self.clock.write_text("+0")
            environment |= {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(self.clock),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
            }
        process = start_process(
            self.name,
            [*self.command, notes],
            log_path=self.directory / f"{self.name}.log",
            environment=environment,
            directory=ROOT,
        )
        self.incarnations.append(Incarnation(process, notes))

    def kill(self) -> None:
        """End its process and all that it started, as a crash of the machine would."""
        if self.incarnations:
            self.newest.ended_at = self.newest.ended_at or monotonic()
            self.newest.process.kill()
            for kind in ("faketime_shm", "sem.faketime_sem"):
                with suppress(FileNotFoundError):
                    (SHARED_MEMORY / f"{kind}_{self.newest.process.pid}").unlink()

    def found_dead(self) -> str | None:
        """If its process ended by itself since this was asked last: how."""
        if not self.incarnations or self.newest.ended_at is not None or self.newest.process.is_running:
            return None
        code = self.newest.process.popen.returncode
        self.newest.ended_at = monotonic()
        self.kill()
        return f"{self.name} ended with exit code {code}"

    def is_idle(self) -> bool:
        """Whether its process is up, and not within a block."""
        with self.newest.notes.open("rb") as file:
            file.seek(max(0, self.newest.notes.stat().st_size - LONGEST_NOTE_BYTES))
            last = file.read().rstrip().rpartition(b"\n")[2]
        return b'"what": "ready"' in last or b'"what": "ended"' in last

    def blocks(self, since: float, now: float) -> Iterator[Block]:
        """The blocks that its processes entered since a moment."""
        for incarnation in self.incarnations:
            yield from blocks_in(incarnation.notes, self.name, since, incarnation.ended_at or now)


def blocks_in(notes: Path, worker: str, since: float, died_at: float) -> Iterator[Block]:
    """The blocks that a process entered since a moment, by its notes.

    Args:
        notes: The file.
        worker: The worker of the process.
        since: Blocks that were entered before are left out.
        died_at: When a block ended that the process did not leave.
    """
    entered: Mapping[str, Any] | None = None
    failed: dict[str, float] = {}
    for note in read_lines(notes):
        match note["what"]:
            case "holds":
                entered, failed = note, {}
            case "fails":
                failed[note["id"]] = note["at"]
            case "ended" if entered is not None:
                if entered["at"] >= since:
                    yield _block(worker, entered, note["at"], failed, is_green=note["error"] is None)
                entered = None
    if entered is not None and entered["at"] >= since:
        yield _block(worker, entered, died_at, failed, is_green=False)


def _block(
    worker: str, entered: Mapping[str, Any], ended_at: float, failed: Mapping[str, float], *, is_green: bool
) -> Block:
    counts = dict(zip(entered["ids"], entered.get("receive_counts", ()), strict=False))
    return Block(worker, frozenset(entered["ids"]), entered["at"], ended_at, is_green, dict(failed), counts)


def python_environment(endpoint_url: str, directory: Path) -> dict[str, str]:
    """The environment of a worker that is a Python program of this checkout."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "providers"), str(ROOT)]),
        "TMPDIR": str(directory),
        "HOME": str(directory),
        "AWS_ENDPOINT_URL": endpoint_url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
    }
