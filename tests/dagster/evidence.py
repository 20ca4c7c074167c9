"""Shared by the end-to-end tests and their work: how long the work takes, and its notes of what it did."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VISIBILITY_SECONDS = 12
"""The visibility timeout of work that is to be longer, or whose messages are to lapse.

A third of it is left for an extension that a busy machine delays.
"""

WORK_SECONDS = 37.0
"""How long the longest work takes."""

DIRECTORY_VARIABLE = "EVIDENCE"
"""The environment variable that says where the notes are."""


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that the work did.

    Attributes:
        what: The thing's name.
        at: When, in seconds since the epoch.
        pid: In which process.
        keepers: The names of that process's threads that extend leases.
        details: More, in JSON's types.
    """

    what: str
    at: float
    pid: int
    keepers: list[str]
    details: dict[str, Any]


def keeper_threads() -> list[str]:
    """The names of this process's threads that extend leases, which have the name of the queue in theirs."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("sqs-lease "))


def note(name: str, what: str, **details: Any) -> None:
    """Write down that a piece of work did something, in the directory that the environment names."""
    line = {"what": what, "at": time.time(), "pid": os.getpid(), "keepers": keeper_threads(), "details": details}
    with _file(Path(os.environ[DIRECTORY_VARIABLE]), name).open("a") as file:
        file.write(json.dumps(line) + "\n")


def notes(directory: Path, name: str) -> list[Note]:
    """Read the notes of a piece of work so far, the oldest first."""
    file = _file(directory, name)
    # A line that is just being written has no end yet.
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [Note(**json.loads(line)) for line in lines if line.endswith("\n")]


def allow_to_end(directory: Path, name: str) -> None:
    """Let a piece of work end that waits for :func:`wait_until_allowed_to_end`."""
    (directory / f"{name}.end").touch()


def wait_until_allowed_to_end(name: str) -> None:
    """Go on working until the test has seen enough."""
    while not (Path(os.environ[DIRECTORY_VARIABLE]) / f"{name}.end").exists():
        time.sleep(0.1)


def _file(directory: Path, name: str) -> Path:
    return directory / f"{name}.jsonl"
