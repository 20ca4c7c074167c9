"""What a user wants to happen when leases are lost, lapse or near their end: as a value, and the callback's calls.

An ``AsyncCallback`` is called in the triggerer, within about a second. Leases that are lost together make one call. It
is called with its own ``kwargs``, and, as Airflow calls such callbacks, with ``context`` if it takes that (or
``**kwargs``):

    {"dag_id": ..., "run_id": ..., "task_id": ...,        the keeper's task
     "queue_url": ...,
     "lease_event": "lost" | "lapsed" | "ending",
     "message_ids": [...]}

It must be a function, or a notifier with an ``async_notify``, of a module that the triggerer can import, so not
of the DAG file itself, nor of a module beside it: a triggerer has no DAG bundles. Where it cannot import the module,
the keeper's log says so at once. What a callback raises is logged, and changes nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Coroutine, Mapping
from pkgutil import resolve_name
from typing import Any, Final, Literal, TypeAlias

from airflow.sdk.definitions.callback import AsyncCallback

from sqs_lease.airflow.airflow_api.requests import DAG_FILE_MODULE, RunOfTask
from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Outcome, Settled
from sqs_lease.daemon_threads import DaemonThreads

logger = logging.getLogger(__name__)

WARN: Final = "warn"
FAIL: Final = "fail"

OnLost: TypeAlias = Literal["warn", "fail"] | AsyncCallback
"""What happens when a lease is lost, lapses or nears its end."""

GATHERING_SECONDS: Final = 0.5
"""How long events of one kind are gathered for one call: leases taken together end together."""

CALLBACK_SECONDS: Final = 60.0
"""How long a callback may take."""

_KINDS: Final[Mapping[type, str]] = {Lost: "lost", Lapsed: "lapsed", Ending: "ending"}


def encode_on_lost(on_lost: object) -> str | dict[str, Any]:
    """Return it as plain values, as the trigger takes it.

    Raises:
        ValueError: It is an unknown word.
        TypeError: It is not a word or a callback, or the callback's arguments are not plain values.
    """
    if on_lost in (WARN, FAIL):
        return str(on_lost)
    if not isinstance(on_lost, AsyncCallback):
        kind = ValueError if isinstance(on_lost, str) else TypeError
        raise kind(f"on_lost must be 'warn', 'fail' or an AsyncCallback of airflow.sdk, not {on_lost!r}")
    if on_lost.path.startswith(DAG_FILE_MODULE):
        raise ValueError(f"the callback of on_lost, {on_lost.path}, is defined in a DAG file: move it to a module")
    try:
        json.dumps(on_lost.kwargs)
    except TypeError as error:
        raise TypeError(f"the kwargs of on_lost's callback must be plain values (JSON): {error}") from error
    return {"path": on_lost.path, "kwargs": dict(on_lost.kwargs)}


class LostLeases:
    """Calls the callback.

    Args:
        callback: What :func:`encode_on_lost` returned for it.
        task: The keeper's task.
        queue_url: The queue.
    """

    def __init__(self, callback: Mapping[str, Any], task: RunOfTask, queue_url: str) -> None:
        self._callback = callback
        self._task = task
        self._queue_url = queue_url
        self._gathered: dict[str, list[str]] = {}
        self._calls: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Say now whether this triggerer cannot import the callback, and not only when a lease is lost."""
        self._start(self._import(self._callback["path"]))

    def happened(self, event: LeaseEvent) -> None:
        """Take in what happened to one of the leases."""
        lost = isinstance(event, Settled) and event.outcome is Outcome.LOST
        kind = _KINDS[Lost] if lost else _KINDS.get(type(event))
        if kind is None:
            return
        if kind not in self._gathered:
            self._gathered[kind] = []
            self._start(self._call(kind))
        self._gathered[kind].append(event.receipt.message_id)

    async def told(self) -> None:
        """Wait until the callback was called about all that happened."""
        if self._calls:
            await asyncio.wait(self._calls)

    def _start(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _import(self, path: str) -> None:
        try:
            # In a thread, because the import runs a module of the user's.
            await DaemonThreads(1, "sqs-lease on_lost").run(resolve_name, path)
        except Exception as error:  # noqa: BLE001 - a module may raise anything
            logger.warning(
                "The on_lost callback %s cannot be imported in this triggerer (%s: %s), so it will not be called: "
                "install its module as a package, or put it into Airflow's plugins folder",
                path,
                type(error).__name__,
                error,
            )

    async def _call(self, kind: str) -> None:
        callback = self._callback
        await asyncio.sleep(GATHERING_SECONDS)
        context = {
            "dag_id": self._task.dag_id,
            "run_id": self._task.run_id,
            "task_id": self._task.task_id,
            "queue_url": self._queue_url,
            "lease_event": kind,
            "message_ids": self._gathered.pop(kind),
        }
        try:
            function = resolve_name(callback["path"])
            arguments = dict(callback["kwargs"])
            if _takes_context(function):
                arguments["context"] = context
            async with asyncio.timeout(CALLBACK_SECONDS):
                await function(**arguments)
        except TimeoutError:
            logger.warning("The on_lost callback %s was ended after %g s", callback["path"], CALLBACK_SECONDS)
        except Exception:
            logger.exception("The on_lost callback %s failed", callback["path"])


def _takes_context(function: Any) -> bool:
    parameters = inspect.signature(function).parameters
    return "context" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
