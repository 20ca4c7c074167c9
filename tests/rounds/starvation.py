"""When the machine lets a worker wait for a processor: a lease that lapses then says nothing about the package.

Linux tells how long each thread could run and did not. That does not excuse a process that keeps itself busy, or
waits for a lock of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Final

from tests.rounds.audit import Window
from tests.rounds.workers import Worker

LOOK_SECONDS: Final = 0.25
STARVED_SHARE: Final = 0.5
"""A process was away if its threads together waited for this share of the time."""


@contextmanager
def starvation(workers: Sequence[Worker], server_pid: int, proxy_thread: int | None) -> Iterator[list[Window]]:
    """Note when a worker or the server waited for a processor, until the block ends.

    Args:
        workers: Each is noted for itself.
        server_pid: The server's process, which all need.
        proxy_thread: The thread of this process that all calls go through.
    """
    windows: list[Window] = []
    stopped = threading.Event()

    def look() -> dict[tuple[str | None, Path], float]:
        tasks = [(worker.name, _task(pid)) for worker in workers if worker.is_running for pid in worker.working_pids()]
        threads = [(name, thread) for name, task in [*tasks, (None, _task(server_pid))] for thread in _threads(task)]
        return {
            (name, thread): _waited(thread)
            for name, thread in [*threads, (None, Path("/proc/self/task", str(proxy_thread)))]
        }

    def watch() -> None:
        looked_at, before = monotonic(), look()
        while not stopped.wait(LOOK_SECONDS):
            now, waited = monotonic(), look()
            seconds: dict[str | None, float] = {}
            for (name, thread), each in waited.items():
                seconds[name] = seconds.get(name, 0.0) + each - before.get((name, thread), 0.0)
            away = {name for name, each in seconds.items() if each > STARVED_SHARE * (now - looked_at)}
            if now - looked_at > 2 * LOOK_SECONDS:
                away.add(None)
            windows.extend(Window(None, name, looked_at, now) for name in away)
            looked_at, before = now, waited

    watcher = threading.Thread(target=watch, name="starvation", daemon=True)
    watcher.start()
    try:
        yield windows
    finally:
        stopped.set()
        watcher.join()


def _task(pid: int) -> Path:
    return Path("/proc", str(pid), "task")


def _threads(task: Path) -> list[Path]:
    with suppress(OSError):
        return list(task.iterdir())
    return []


def _waited(thread: Path) -> float:
    """How long a thread has waited for a processor so far, in seconds."""
    with suppress(OSError, ValueError, IndexError):
        return int((thread / "schedstat").read_text().split()[1]) / 1e9
    return 0.0
