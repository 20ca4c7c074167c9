"""The option ``on_lost``: the action when leases are lost, lapse or near their end, and the calls of the callback.

An ``AsyncCallback`` is called in the triggerer, within about a second. Leases that are lost together make one call. It
is called with its own ``kwargs`` and, as Airflow calls such callbacks, with ``context``:

    {"dag_id": ..., "run_id": ..., "task_id": ...,        the keeper's task
     "queue_url": ...,
     "lease_event": "lost" | "lapsed" | "ending",
     "message_ids": [...]}

It must be a notifier with an ``async_notify``, or an ``async`` function with a parameter ``context``. Other functions
(``os.system``, ``asyncio.create_subprocess_shell``) are refused when the DAG is parsed, and again by the triggerer,
because a user may have changed the stored arguments. The triggerer must be able to import its module, so that is not
the DAG file itself, nor a module beside it: a triggerer has no DAG bundles. If it cannot import the module, the
keeper's log says so at once. An exception of a callback is logged, and changes nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from pkgutil import resolve_name
from typing import Any, Final, Literal, TypeAlias

from airflow.sdk.bases.notifier import BaseNotifier
from airflow.sdk.definitions.callback import AsyncCallback

from sqs_lease.airflow.airflow_api.requests import DAG_FILE_MODULE, RunOfTask
from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Outcome, Settled
from sqs_lease.daemon_threads import DaemonThreads

logger = logging.getLogger(__name__)

WARN: Final = "warn"
RAISE: Final = "raise"

OnLost: TypeAlias = Literal["warn", "raise"] | AsyncCallback
"""The action when a lease is lost, lapses or nears its end."""

GATHERING_SECONDS: Final = 0.5
"""How long events of one kind are gathered for one call: leases taken together end together."""

CALLBACK_SECONDS: Final = 60.0
"""How long a callback may take."""

_KINDS: Final[Mapping[type, str]] = {Lost: "lost", Lapsed: "lapsed", Ending: "ending"}


def encode_on_lost(on_lost: object) -> str | dict[str, Any]:
    """Return it as plain values, as the trigger takes it.

    Raises:
        ValueError: It is an unknown word, or the callback cannot be used.
        TypeError: It is not a word or a callback, or the callback's arguments are not plain values.
    """
    if isinstance(on_lost, str) and on_lost in (WARN, RAISE):
        return on_lost
    if not isinstance(on_lost, AsyncCallback):
        kind = ValueError if isinstance(on_lost, str) else TypeError
        raise kind(f"on_lost must be 'warn', 'raise' or an AsyncCallback of airflow.sdk, not {on_lost!r}")
    if on_lost.path.startswith(DAG_FILE_MODULE):
        raise ValueError(f"the callback of on_lost, {on_lost.path}, is defined in a DAG file: move it to a module")
    try:
        json.dumps(on_lost.kwargs)
    except TypeError as error:
        raise TypeError(f"the kwargs of on_lost's callback must be plain values (JSON): {error}") from error
    function = _imported(on_lost.path)
    try:
        inspect.signature(function).bind(**on_lost.kwargs, **{_CONTEXT: {}})
    except TypeError as error:
        raise TypeError(
            f"the callback of on_lost, {on_lost.path}, cannot be called with its kwargs and {_CONTEXT}=...: {error}"
        ) from error
    return {"path": on_lost.path, "kwargs": dict(on_lost.kwargs)}


def _imported(path: str) -> Callable[..., Any]:
    """Import a callback, wherever its path comes from.

    Raises:
        ValueError: It cannot be imported, or was not written as a callback.
    """
    try:
        function: Any = resolve_name(path)
    except (Exception, SystemExit) as error:
        # The import runs a module of the user's, which may raise anything.
        raise ValueError(
            f"the callback of on_lost, {path}, cannot be imported ({type(error).__name__}: {error}): install its "
            "module as a package, or put it into Airflow's plugins folder"
        ) from error
    if inspect.isclass(function) and issubclass(function, BaseNotifier):
        if (
            inspect.iscoroutinefunction(function.async_notify)
            and function.async_notify is not BaseNotifier.async_notify
        ):
            return function
        raise ValueError(
            f"the callback of on_lost, {path}, is a notifier without an async_notify of its own, and notify() is not "
            f"called in a triggerer: write async def async_notify(self, {_CONTEXT})"
        )
    if inspect.iscoroutinefunction(function) and _CONTEXT in inspect.signature(function).parameters:
        return function  # type: ignore[no-any-return]
    raise ValueError(
        f"the callback of on_lost, {path}, is neither a notifier nor an async function with a parameter {_CONTEXT!r}: "
        f"write async def {path.rpartition('.')[2]}({_CONTEXT}, ...)"
    )


_CONTEXT: Final = "context"


class LostLeases:
    """The calls of the callback. It is imported at once, so that a failure is logged before a lease is lost.

    Args:
        callback: The callback, as :func:`encode_on_lost` returned it.
        task: The keeper's task.
        queue_url: The queue.
    """

    def __init__(self, callback: Mapping[str, Any], task: RunOfTask, queue_url: str) -> None:
        self._callback = callback
        self._task = task
        self._queue_url = queue_url
        self._gathered: dict[str, list[str]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._function = asyncio.get_running_loop().create_task(self._import())

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

    async def _import(self) -> Callable[..., Any] | None:
        try:
            # In a thread, because the import runs a module of the user's.
            return await DaemonThreads(1, "sqs-lease on_lost").run(_imported, self._callback["path"])
        except ValueError as error:
            logger.warning("In this triggerer the on_lost callback will not be called: %s", error)
            return None

    async def _call(self, kind: str) -> None:
        path = self._callback["path"]
        await asyncio.sleep(GATHERING_SECONDS)
        context = {
            "dag_id": self._task.dag_id,
            "run_id": self._task.run_id,
            "task_id": self._task.task_id,
            "queue_url": self._queue_url,
            "lease_event": kind,
            "message_ids": self._gathered.pop(kind),
        }
        if (function := await self._function) is None:
            return
        try:
            async with asyncio.timeout(CALLBACK_SECONDS):
                await function(**self._callback["kwargs"], **{_CONTEXT: context})
        except TimeoutError:
            logger.warning("The on_lost callback %s was ended after %g s", path, CALLBACK_SECONDS)
        except Exception:
            logger.exception("The on_lost callback %s failed", path)
