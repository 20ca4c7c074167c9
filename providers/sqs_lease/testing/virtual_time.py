"""Virtual time: a clock that only moves when told to, and an asyncio event loop that jumps to the next timer.

A test that works for an hour of virtual time takes milliseconds, and goes the same way every time::

    clock = VirtualClock()

    async def work() -> float:
        await asyncio.sleep(3600)
        return clock.now()

    assert run_virtual(work, clock=clock) == 3600.0

The rules:

- Time stands still while anything is ready to run. When nothing is, it jumps to the next timer.
- If nothing is ready and no timer is left, the program would wait for ever: :class:`VirtualDeadlockError` says
  which tasks wait where. Endless callbacks at one moment raise :class:`VirtualLivelockError`.
- Times are multiples of 2^-30 s, a little less than a nanosecond; timers are rounded up to them. Beyond 97 days the
  ticks are the steps of a float: a quarter of a microsecond at the seconds since the epoch. Sums and differences of
  such times are exact, so a sleep until ``t`` never ends a rounding error before ``t``.
- Time has no end: a clock may start at the seconds since the epoch and run for years.
- The loop does no I/O. Work in threads (``asyncio.to_thread``) is waited for in real time while virtual
  time stands still.
"""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from asyncio import events
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar

_T = TypeVar("_T")
_TICKS_A_SECOND = 2.0**30
_DEFAULT_WALL_START = 1_767_225_600.0


class VirtualDeadlockError(RuntimeError):
    """Error of a program that would wait for ever: nothing is ready and no timer is set."""


class VirtualLivelockError(RuntimeError):
    """Error of a program with endless callbacks at one moment."""


class VirtualClock:
    """A :class:`sqs_lease.clock.Clock` that tests, or :func:`run_virtual`, move.

    Args:
        start: First reading of :meth:`now`, in seconds.
        wall_start: First reading of :meth:`wall`, in seconds since the epoch; 2026-01-01 00:00 UTC by default.
    """

    def __init__(self, start: float = 0.0, *, wall_start: float = _DEFAULT_WALL_START) -> None:
        self._now = _rounded_up(start)
        self._wall_offset = wall_start - self._now

    def now(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        return self._now

    def wall(self) -> float:
        """Seconds since the epoch; moves with :meth:`now`, and by :meth:`set_wall_back_or_forth`."""
        return self._now + self._wall_offset

    def advance(self, seconds: float) -> None:
        """Let time pass. Within :func:`run_virtual`, timers that were due meanwhile fire late, at the new time.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if not seconds >= 0:
            raise ValueError(f"time cannot go back: seconds must be at least 0, not {seconds!r}")
        self._now = _rounded_up(self._now + seconds)

    def set_wall_back_or_forth(self, seconds: float) -> None:
        """Set the calendar's time, as an administrator or a time server does; :meth:`now` does not notice."""
        self._wall_offset += seconds


class VirtualLoop(asyncio.BaseEventLoop):
    """The event loop behind :func:`run_virtual`, for tests that drive a loop themselves.

    Args:
        clock: The clock of the loop, which it reads and moves.
        most_rounds: How many rounds of callbacks may run at one moment before that counts as a livelock.
    """

    def __init__(self, clock: VirtualClock, *, most_rounds: int = 1_000_000) -> None:
        super().__init__()
        self.clock = clock
        self._most_rounds = most_rounds
        self._rounds = 0
        self._threads_under_way = 0
        self._woken_by_thread = threading.Event()
        # BaseEventLoop asks its selector for I/O when it has nothing else to do; here that moves time.
        self._selector: VirtualLoop | None = self
        # Sets of tasks and futures are iterated in this order, not in that of their addresses.
        self._created = 0
        self._tasks: weakref.WeakSet[_OrderedTask[Any]] = weakref.WeakSet()
        self.set_task_factory(self._new_task)  # type: ignore[arg-type]

    def time(self) -> float:
        """The clock's :meth:`VirtualClock.now`."""
        return self.clock.now()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back at a time of the clock, rounded up to the next tick."""
        return super().call_at(_rounded_up(when), callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back after a delay. Time moves on by at least one step of a float, even for a tiny delay."""
        now = self.time()
        when = now + delay
        if delay > 0 and when == now:
            when = math.nextafter(now, math.inf)
        return self.call_at(when, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """Make a future that has the same place in a set in each run."""
        self._created += 1
        return _OrderedFuture(self, self._created)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        """Run in a thread; virtual time stands still until it is done."""
        future = super().run_in_executor(executor, func, *args)
        self._threads_under_way += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """Wait for the threads of the default executor to end."""
        self._threads_under_way += 1
        try:
            await super().shutdown_default_executor(*args, **kwargs)
        finally:
            self._threads_under_way -= 1

    def waiting_tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that are not done, in the order in which they were created."""
        return sorted((task for task in self._tasks if not task.done()), key=hash)

    def select(self, timeout: float | None) -> list[object]:
        """Let time pass when nothing is ready; asyncio calls this in place of a selector's method."""
        self._let_time_pass(timeout)
        # asyncio runs the timers before `time() + _clock_resolution`. That sum must be the next float: with a shorter
        # resolution it is `time()` again and timers are never due, with a longer one they come too early.
        self._clock_resolution = math.ulp(self.clock.now())
        return []

    def close(self) -> None:
        """Close the loop."""
        super().close()
        self._selector = None

    def _let_time_pass(self, timeout: float | None) -> None:
        if timeout is not None and timeout <= 0:
            self._rounds += 1
            if self._rounds > self._most_rounds:
                self._rounds = 0
                raise VirtualLivelockError(
                    f"{self._most_rounds} rounds of callbacks ran at {self.clock.now():g} s without time moving "
                    f"on: something is scheduled again and again.\n{self._where_tasks_wait()}"
                )
            return
        self._rounds = 0
        if self._threads_under_way:
            self._woken_by_thread.wait()
            self._woken_by_thread.clear()
        elif timeout is None:
            raise VirtualDeadlockError(
                f"nothing is ready and no timer is set at {self.clock.now():g} s: this would wait for ever.\n"
                + self._where_tasks_wait()
            )
        else:
            self.clock.advance(timeout)

    def _where_tasks_wait(self) -> str:
        lines = ["Tasks that are not done:"]
        for task in self.waiting_tasks():
            stack = task.get_stack(limit=1)
            where = f" at {stack[-1].f_code.co_filename}:{stack[-1].f_lineno}" if stack else ""
            name = getattr(task.get_coro(), "__qualname__", task.get_coro())
            lines.append(f"  {task.get_name()}: {name}{where}")
        return "\n".join(lines)

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, _T], **kwargs: Any
    ) -> asyncio.Future[_T]:
        self._created += 1
        task = _OrderedTask(coro, loop=loop, number=self._created, **kwargs)
        self._tasks.add(task)
        return task

    def _thread_done(self, future: asyncio.Future[Any]) -> None:
        self._threads_under_way -= 1

    def _process_events(self, event_list: list[object]) -> None:
        """Do nothing, because there is no I/O."""

    def _write_to_self(self) -> None:
        self._woken_by_thread.set()


class _OrderedFuture(asyncio.Future[Any]):
    """A future with its number of creation as its hash."""

    def __init__(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        super().__init__(loop=loop)
        self._number = number

    def __hash__(self) -> int:
        return self._number


class _OrderedTask(asyncio.Task[_T]):
    """A task with its number of creation as its hash."""

    def __init__(self, coro: Coroutine[Any, Any, _T], *, number: int, **kwargs: Any) -> None:
        # Set first, because asyncio puts the task into a set while it is being made.
        self._number = number
        super().__init__(coro, **kwargs)

    def __hash__(self) -> int:
        return self._number


def run_virtual(
    main: Callable[[], Coroutine[Any, Any, _T]] | Coroutine[Any, Any, _T], *, clock: VirtualClock | None = None
) -> _T:
    """Run a coroutine on virtual time to its end, as ``asyncio.run`` does on real time.

    Args:
        main: An ``async def`` function without arguments, or a coroutine.
        clock: The clock to run by; a new one that starts at 0 by default.

    Returns:
        The result of the coroutine. Tasks that it leaves behind are cancelled.

    Raises:
        VirtualDeadlockError: The coroutine, or a task that does not end on cancellation, waits for something
            that can no longer happen.
        VirtualLivelockError: Callbacks follow one another without end while time stands still.
        RuntimeError: An event loop runs already in this thread.
    """
    # Checked first, because later the coroutine would be left un-awaited.
    if events._get_running_loop() is not None:  # noqa: SLF001
        if asyncio.iscoroutine(main):
            main.close()
        raise RuntimeError("run_virtual() cannot be called while an event loop runs in the same thread")
    loop = VirtualLoop(VirtualClock() if clock is None else clock)
    try:
        asyncio.set_event_loop(loop)
        coroutine = main if asyncio.iscoroutine(main) else main()
        return loop.run_until_complete(coroutine)
    finally:
        try:
            _cancel_what_is_left(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _cancel_what_is_left(loop: VirtualLoop) -> None:
    left = loop.waiting_tasks()
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    for task in left:
        if not task.cancelled() and (error := task.exception()) is not None:
            loop.call_exception_handler(
                {"message": "a task failed while run_virtual() was ending", "exception": error, "task": task}
            )
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())


def _rounded_up(seconds: float) -> float:
    return math.ceil(seconds * _TICKS_A_SECOND) / _TICKS_A_SECOND
