"""Calls of a task that does not defer: a transport in a separate thread, whose loop the task's thread waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Self, TypeVar

from sqs_lease.airflow.aws_connection import AwsConnection, make_transport, translate_aws_errors
from sqs_lease.keeper.endings import cancelled_once
from sqs_lease.keeper.loop_thread import LoopThread
from sqs_lease.sqs.move_tasks import RedriveTransport

_T = TypeVar("_T")


class WorkerCalls:
    """A transport for the time of a ``with`` block, used from the task's own thread.

    Args:
        connection: How to reach AWS.
        queue: The queue's URL, name or ARN, for errors.

    Raises:
        SqsError: The client could not be made.
    """

    def __init__(self, connection: AwsConnection, queue: str) -> None:
        with translate_aws_errors(queue):
            # In this thread: Airflow's connections are read through the task's own channel.
            self._transport = make_transport(connection)
        self._thread = LoopThread(f"sqs-lease {queue}")
        self._work: asyncio.Task[object] | None = None
        self._is_cancelled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._thread.run(self._transport.aclose())
        finally:
            self._thread.stop()

    def run(
        self, work: Callable[[RedriveTransport], Coroutine[object, object, _T]], *, even_if_cancelled: bool = False
    ) -> _T:
        """Do some work and wait for its result; an interruption of this thread cancels it and waits for its end.

        Args:
            work: What to do, in the event loop.
            even_if_cancelled: Whether to do it after :meth:`cancel`, too.

        Raises:
            CancelledError: Of ``concurrent.futures``: it was cancelled.
        """

        async def known() -> _T:
            if self._is_cancelled and not even_if_cancelled:
                raise asyncio.CancelledError
            self._work = asyncio.current_task()
            try:
                return await work(self._transport)
            finally:
                self._work = None

        return self._thread.run(known())

    def cancel(self) -> None:
        """Refuse new work, cancel the work under way, and wait for its end; a signal handler may call this."""
        self._is_cancelled = True
        if self._work is not None:
            self._thread.run(cancelled_once(self._work))
