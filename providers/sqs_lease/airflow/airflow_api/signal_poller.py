"""Looks for the signals of failed work tasks for all keepers of a triggerer, by one request for all of them.

Signals that were acted upon are deleted. Airflow may confirm that and do nothing, as with the variables of a team, so a
signal counts as deleted when it is not found any more. One that stays is left alone for longer and longer.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Final, TypeAlias

from sqs_lease.airflow.airflow_api.requests import CommsError
from sqs_lease.airflow.airflow_api.signals import SIGNALS_PREFIX
from sqs_lease.airflow.airflow_api.variables import delete_variable, variable_keys

logger = logging.getLogger(__name__)

SIGNAL_SECONDS: Final = 0.4
"""Pause between two requests while tasks fail: with it a failure is known here after 0.2 s on average."""

QUIET_SIGNAL_SECONDS: Final = 0.8
"""The same while none fails: each request costs Airflow's database two statements, also where nothing ever fails."""

QUIET_AFTER_SECONDS: Final = 60.0
"""After so long without a new signal none fails. Failures seldom come alone, so only the first one waits longer."""

ORPHANED_SECONDS: Final = 3600.0
"""A signal that no keeper of this triggerer took for so long came when its keeper had ended: it is deleted."""

DELETES_AT_ONCE: Final = 10
"""Signals deleted between two requests for new ones; each takes the supervisor about 20 ms."""

FIRST_PAUSE_SECONDS: Final = 60.0
"""When a signal that is still there is deleted again; each pause after that is twice as long."""

LONGEST_PAUSE_SECONDS: Final = 3600.0

FetchKeys: TypeAlias = Callable[[str], Awaitable[Iterable[str]]]
DeleteKey: TypeAlias = Callable[[str], Awaitable[None]]
Listener: TypeAlias = Callable[[frozenset[str]], None]


@dataclass(slots=True)
class _Deletion:
    """A signal that is to be gone: how often that was tried, and when to try it again, by the loop's clock."""

    attempts: int = 0
    due_at: float = 0.0


class SignalPoller:
    """Asks for signals while anybody listens, and tells each listener about its own.

    Args:
        fetch: How to ask for the keys with a prefix; by default Airflow's supervisor is asked.
        delete: How to delete one.
    """

    def __init__(self, fetch: FetchKeys = variable_keys, delete: DeleteKey = delete_variable) -> None:
        self._fetch = fetch
        self._delete = delete
        self._listeners: dict[str, list[Listener]] = {}
        self._finished: dict[str, float] = {}
        self._newly_finished = False
        self._deletions: dict[str, _Deletion] = {}
        self._told_of_stuck = False
        self._seen_at: dict[str, float] = {}
        self._news_at = -math.inf
        self._task: asyncio.Task[None] | None = None
        self._answered = True

    @contextmanager
    def listen(self, prefix: str, listener: Listener) -> Iterator[None]:
        """Listen to the signals whose keys begin with a prefix, which ends with a full stop, until the context ends."""
        self._listeners.setdefault(prefix, []).append(listener)
        self._finished.pop(prefix, None)
        if self._task is None or self._task.done():
            # In a context of its own: what it logs belongs to no single trigger.
            self._task = asyncio.get_running_loop().create_task(
                self._poll(), name="sqs-lease failure signals", context=Context()
            )
        try:
            yield
        finally:
            self._listeners[prefix].remove(listener)
            if not self._listeners[prefix]:
                del self._listeners[prefix]

    def done_with(self, keys: Iterable[str]) -> None:
        """Have signals deleted that were acted upon."""
        for key in keys:
            self._deletions.setdefault(key, _Deletion())

    def finished(self, prefix: str) -> None:
        """Have all further signals with a prefix deleted: their keeper settled everything."""
        self._finished[prefix] = asyncio.get_running_loop().time()
        self._newly_finished = True

    async def _poll(self) -> None:
        while self._listeners or self._newly_finished or any(not one.attempts for one in self._deletions.values()):
            self._newly_finished = False
            await self._ask()
            now = asyncio.get_running_loop().time()
            due = [key for key, deletion in self._deletions.items() if deletion.due_at <= now]
            for key in due[:DELETES_AT_ONCE]:
                await self._delete_signal(key, self._deletions[key])
            quiet = asyncio.get_running_loop().time() - self._news_at >= QUIET_AFTER_SECONDS
            await asyncio.sleep(QUIET_SIGNAL_SECONDS if quiet else SIGNAL_SECONDS)

    async def _ask(self) -> None:
        try:
            keys = frozenset(await self._fetch(SIGNALS_PREFIX))
        except CommsError as error:
            if self._answered:
                logger.warning("Signals of failed tasks cannot be read; their states are still looked at: %s", error)
            self._answered = False
            return
        self._answered = True
        by_prefix: dict[str, set[str]] = {}
        now = asyncio.get_running_loop().time()
        if not keys <= self._seen_at.keys():
            self._news_at = now
        self._seen_at = {key: self._seen_at.get(key, now) for key in keys}
        self._finished = {prefix: at for prefix, at in self._finished.items() if now - at < ORPHANED_SECONDS}
        self._deletions = {key: deletion for key, deletion in self._deletions.items() if key in keys}
        for key in keys - self._deletions.keys():
            prefix = key[: key.index(".", len(SIGNALS_PREFIX)) + 1] if "." in key[len(SIGNALS_PREFIX) :] else ""
            if prefix in self._listeners:
                by_prefix.setdefault(prefix, set()).add(key)
            elif prefix in self._finished or now - self._seen_at[key] > ORPHANED_SECONDS:
                self._deletions[key] = _Deletion()
        for prefix, found in by_prefix.items():
            for listener in self._listeners[prefix]:
                listener(frozenset(found))

    async def _delete_signal(self, key: str, deletion: _Deletion) -> None:
        if deletion.attempts and not self._told_of_stuck:
            self._told_of_stuck = True
            logger.warning(
                "This triggerer cannot delete signals of failed tasks (Airflow variables that begin with %s). That "
                "does no harm, but they pile up: delete them by hand, or set [sqs_lease] report_failures to False",
                SIGNALS_PREFIX,
            )
        pause = min(FIRST_PAUSE_SECONDS * 2**deletion.attempts, LONGEST_PAUSE_SECONDS)
        deletion.attempts += 1
        deletion.due_at = asyncio.get_running_loop().time() + pause
        try:
            await self._delete(key)
        except CommsError as error:
            logger.info("The signal %s cannot be deleted yet: %s", key, error)
