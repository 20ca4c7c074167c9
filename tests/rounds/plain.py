"""The plain hosts: Python processes with `lease` and `async_lease`, on a standard or a FIFO queue."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.rounds.audit import Done
from tests.rounds.crew import Consumers, Ground, consumers
from tests.rounds.draw import Kind, Traits, Work
from tests.rounds.notebook import read_lines
from tests.rounds.stacks import as_json

TRAITS: Final = Traits(
    name="plain",
    workers=3,
    faults=(
        Kind.KILL,
        Kind.STOP,
        Kind.CUT,
        Kind.SILENCE,
        Kind.LOST,
        Kind.ERRORS,
        Kind.THROTTLE,
        Kind.LATENCY,
        Kind.CLOCK,
        Kind.DISK,
        Kind.MEMORY,
    ),
    visibility_seconds=(5, 8, 12),
    messages=(10, 40),
    work_seconds=(0.05, 1.0),
    kinds=("good", "good", "good", "good", "good", "good", "flaky", "poison"),
)


FORMS: Final = ("blocking", "asynchronous", "consumer")
"""The form of each worker, by its number."""

FIFO_TRAITS: Final = replace(TRAITS, name="fifo", groups=4)


@dataclass(frozen=True, slots=True)
class PlainHost:
    """Programs with `lease`, `async_lease` and a `Consumer`, one each, whose table is a file for each message."""

    traits: Traits = TRAITS
    each_once: bool = False
    takeover: None = None
    passed_on_seconds: float = 0.0
    disk_megabytes: int = 1
    start_seconds: float = 60.0

    def crew(self, ground: Ground) -> AbstractContextManager[Consumers]:
        """The consumers."""
        program = [sys.executable, "-m", "tests.rounds.plain_consumer"]
        return consumers(
            ground,
            self.traits,
            lambda number: [*program, FORMS[number], ground.disk],
        )

    def table(self, disk: Path) -> list[Done]:
        """The rows that the processes wrote."""
        return [Done(line["id"], line["at"]) for file in disk.glob("*/*.jsonl") for line in read_lines(file)]

    def forget(self, disk: Path) -> None:
        """Remove the files."""
        for file in disk.glob("*/*.jsonl"):
            file.unlink()

    def body(self, work: Work) -> str:
        """All that is known of the work."""
        return as_json(work)
