"""A trigger that watches the triggerer it runs in, and writes what it saw once a second to a file; one that idles."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic, thread_time, time
from typing import Any

from airflow.sdk.execution_time import task_runner
from airflow.triggers.base import BaseTrigger, TriggerEvent

LOOK_SECONDS = 0.1
"""As often as Airflow's own watchdog looks at the event loop."""


class ProbeTrigger(BaseTrigger):
    """Counts what this process asks of its supervisor, and measures how late its event loop runs.

    Each line of the file is an object: ``at``, ``blocked_seconds`` (longest time that the loop took to come back from
    a sleep of 0.1 s, as Airflow's watchdog measures it), ``busy_seconds`` (the most processor time that the loop's
    thread took meanwhile), ``collecting_seconds`` (Python's longest garbage collection), ``asked`` (requests to the
    supervisor by type), ``longest_answer_seconds``, ``pollers`` (tasks that poll states), ``triggers`` (those
    that run, the probe excepted), ``cpu_seconds``, ``memory_mb``.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path = path

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its argument, for Airflow."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"path": self.path}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch until cancelled."""
        comms: Any = type(task_runner.SUPERVISOR_COMMS)
        ask = comms.asend
        asked: Counter[str] = Counter()
        longest_answer_seconds = 0.0

        async def counted(self: Any, request: Any) -> Any:
            nonlocal longest_answer_seconds
            asked[type(request).__name__] += 1
            began = monotonic()
            try:
                return await ask(self, request)
            finally:
                longest_answer_seconds = max(longest_answer_seconds, monotonic() - began)

        comms.asend = counted
        collecting_since = longest_collection_seconds = 0.0

        def collection(phase: str, info: dict[str, int]) -> None:
            nonlocal collecting_since, longest_collection_seconds
            if phase == "start":
                collecting_since = monotonic()
            else:
                longest_collection_seconds = max(longest_collection_seconds, monotonic() - collecting_since)

        gc.callbacks.append(collection)
        while True:
            blocked_seconds, busy_seconds, second_ends = 0.0, 0.0, monotonic() + 1.0
            while (began := monotonic()) < second_ends:
                busy_since = thread_time()
                await asyncio.sleep(LOOK_SECONDS)
                blocked_seconds = max(blocked_seconds, monotonic() - began)
                busy_seconds = max(busy_seconds, thread_time() - busy_since)
            usage = resource.getrusage(resource.RUSAGE_SELF)
            tasks = [task.get_name() for task in asyncio.all_tasks()]
            seen = {
                "at": time(),
                "blocked_seconds": blocked_seconds,
                "busy_seconds": busy_seconds,
                "collecting_seconds": longest_collection_seconds,
                "asked": dict(asked),
                "longest_answer_seconds": longest_answer_seconds,
                "pollers": sum(name.startswith("sqs-lease task states") for name in tasks),
                # Airflow ends their names so.
                "triggers": sum(" (ID " in name for name in tasks) - 1,
                "cpu_seconds": usage.ru_utime + usage.ru_stime,
                "memory_mb": usage.ru_maxrss / 1024,
            }
            asked.clear()
            longest_answer_seconds = longest_collection_seconds = 0.0
            await asyncio.to_thread(self._write, json.dumps(seen))
        yield TriggerEvent(None)

    def _write(self, line: str) -> None:
        with Path(self.path).open("a") as file:
            file.write(line + "\n")


class IdleTrigger(BaseTrigger):
    """Does nothing, until it is cancelled."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class, for Airflow."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for ever."""
        await asyncio.Event().wait()
        yield TriggerEvent(None)  # type: ignore[no-untyped-call]
