"""The effect of each fault on a worker, on its way to the queue, or on things that all share; and how it is undone."""

from __future__ import annotations

import math
import resource
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.peers.proxy import Proxy
from demo.sessions import send_signal
from tests.rounds import disks
from tests.rounds.draw import Fault, Kind
from tests.rounds.workers import FAKETIME, Worker

MEGABYTE: Final = 2**20
SHORTEST_STEP_SECONDS: Final = 10.0
LONGEST_STEP_SECONDS: Final = 100_000.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where faults happen.

    Attributes:
        workers: The workers that are hit, by number.
        proxy: The proxy that their gates belong to.
        disk: The disk that the table is on.
        restart_database: Ends the database at once and starts it again; does nothing where there is none.
    """

    workers: Sequence[Worker]
    proxy: Proxy
    disk: Path
    restart_database: Callable[[], object] = lambda: None


def impossible_here() -> dict[Kind, str]:
    """The faults that this machine does not allow, and why."""
    missing = {}
    if not disks.can_mount():
        missing[Kind.DISK] = "a small disk takes root"
    if not FAKETIME.exists():
        missing[Kind.CLOCK] = "another clock for a process takes Debian's package faketime"
    return missing


def begin(place: Place, fault: Fault) -> Callable[[], None]:
    """Begin a fault.

    Returns:
        A function that ends it; may be called in any order with those of other faults.
    """
    worker = place.workers[fault.worker]
    gate, strength = worker.gate, fault.strength

    match fault.kind:
        case Kind.KILL:
            worker.kill()
            return lambda: None if worker.is_running else worker.start()
        case Kind.STOP:
            stopped = worker.pids()
            send_signal(stopped, signal.SIGSTOP)
            # One that was being started meanwhile was stopped, too, or was not.
            return lambda: send_signal([*{*stopped, *worker.pids()}], signal.SIGCONT)
        case Kind.CUT:
            place.proxy.cut(gate)
            return lambda: place.proxy.mend(gate)
        case Kind.SILENCE:
            gate.is_silent = True
            return lambda: setattr(gate, "is_silent", False)
        case Kind.LOST:
            gate.lost_share = 0.3 + 0.7 * strength
            return lambda: setattr(gate, "lost_share", 0.0)
        case Kind.ERRORS:
            gate.error_share = 0.3 + 0.7 * strength
            return lambda: setattr(gate, "error_share", 0.0)
        case Kind.THROTTLE:
            gate.calls_a_second = _between(0.2, 3.0, strength)
            return lambda: setattr(gate, "calls_a_second", None)
        case Kind.LATENCY:
            gate.latency_seconds = _between(0.3, 3.0, strength)
            return lambda: setattr(gate, "latency_seconds", 0.0)
        case Kind.CLOCK:
            far = 2 * strength - 1
            seconds = math.copysign(_between(SHORTEST_STEP_SECONDS, LONGEST_STEP_SECONDS, abs(far)), far)
            worker.clock.write_text(f"{seconds:+.0f}")
            return lambda: _set_right(worker)
        case Kind.DISK:
            disks.fill(place.disk)
            return lambda: disks.clear(place.disk)
        case Kind.MEMORY:
            narrow = worker.working_pids()
            _narrow(narrow, int(strength * 4 * MEGABYTE))
            return lambda: _widen(narrow)
        case Kind.DATABASE:
            place.restart_database()
            return lambda: None


def _between(least: float, most: float, strength: float) -> float:
    """As many small values as large ones."""
    return float(least * (most / least) ** strength)


def _set_right(worker: Worker) -> None:
    worker.clock.write_text("+0")


def _narrow(pids: Sequence[int], spare_bytes: int) -> None:
    """Let processes have hardly more memory than they have."""
    for pid in pids:
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            has = psutil.Process(pid).memory_info().vms
            resource.prlimit(pid, resource.RLIMIT_AS, (has + spare_bytes, resource.RLIM_INFINITY))


def _widen(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
