"""One virtual time, many event loops: each simulated process has a loop of its own, and so has the service.

A loop that is not run any more is a process that was killed: nothing of it happens again, not even the
``finally`` of a coroutine. A loop that is not run for a while is a process that was frozen: what its timers
and the network had for it comes all at once when it goes on.
"""

from __future__ import annotations

import math
from asyncio import Handle, TimerHandle, events
from collections import deque
from collections.abc import Callable
from heapq import heappop
from typing import Any

from sqs_lease.testing import VirtualClock, VirtualDeadlockError, VirtualLivelockError, VirtualLoop


class ProcessClock(VirtualClock):
    """A machine's clocks: ``now`` counts from another moment, ``wall`` may be wrong."""

    def __init__(self, world: VirtualClock, *, booted_at: int, wall_error: float) -> None:
        super().__init__()
        self._world = world
        self._booted_at = booted_at
        self.wall_error = wall_error

    def now(self) -> float:
        """Seconds since the machine was booted."""
        return self._world.now() - self._booted_at

    def world_time(self, at: float) -> float:
        """The world's time, at a time of this clock."""
        return at + self._booted_at

    def wall(self) -> float:
        """The calendar's time as the machine believes it."""
        return self._world.wall() + self.wall_error

    def advance(self, seconds: float) -> None:
        """Only the world moves time."""
        raise NotImplementedError


class WorldLoop(VirtualLoop):
    """An event loop that hands control back instead of waiting.

    Attributes:
        idle_until: When it has something to do by itself next, in the world's time; infinite for never.
    """

    _ready: deque[Handle]
    _scheduled: list[TimerHandle]

    def __init__(self, clock: VirtualClock, world: VirtualClock) -> None:
        super().__init__(clock, most_rounds=20_000)
        self.frozen = False
        self.dead = False
        self.idle_until = 0.0
        self._world = world

    def runnable(self, now: float) -> bool:
        """Whether it has something to do at this time of the world."""
        return (bool(self._ready) or self.idle_until <= now) and not self.frozen and not self.dead

    def run_until_idle(self) -> None:
        """Run what is ready and what is due at this moment, and all that becomes ready by it.

        In the order of asyncio's own ``run_forever``, which is made to be entered once: here it would take a fifth
        of a schedule's time.
        """
        now = self.time()
        ready, scheduled = self._ready, self._scheduled
        events._set_running_loop(self)
        try:
            for _ in range(self._most_rounds):
                while scheduled and (scheduled[0]._cancelled or scheduled[0].when() <= now):
                    timer = heappop(scheduled)
                    if not timer._cancelled:
                        ready.append(timer)
                if not ready:
                    break
                for _ in range(len(ready)):
                    handle = ready.popleft()
                    if not handle._cancelled:
                        handle._run()
            else:
                raise VirtualLivelockError(
                    f"{self._most_rounds} rounds of callbacks ran at {now:g} s.\n{self._where_tasks_wait()}"
                )
        finally:
            events._set_running_loop(None)
        self.idle_until = self._world.now() + (scheduled[0].when() - now) if scheduled else math.inf


class World:
    """The time that all share, and the loops.

    Attributes:
        clock: True time, which is the service's.
        service: The loop in which the service, the network and work outside the simulated processes run.
        errors: The errors in callbacks and tasks without a reader of their result.
    """

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.loops: list[WorldLoop] = []
        self.errors: list[dict[str, Any]] = []
        self.service = self.new_loop(self.clock)

    def new_loop(self, clock: VirtualClock) -> WorldLoop:
        """A loop for one more process."""
        loop = WorldLoop(clock, self.clock)
        loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self.loops.append(loop)
        return loop

    def kill(self, loop: WorldLoop) -> None:
        """Never run a loop again."""
        loop.dead = True
        loop.set_exception_handler(_ignore)
        self.loops.remove(loop)

    def run(self, *, until: float, stop: Callable[[], bool]) -> None:
        """Let things happen until a time, or until ``stop`` says so.

        Raises:
            VirtualDeadlockError: Nothing will ever happen again, before that time.
        """
        while not stop():
            now = self.clock.now()
            ran = True
            while ran:
                ran = False
                for loop in tuple(self.loops):
                    if loop.runnable(now):
                        loop.run_until_idle()
                        ran = True
            next_at = min((loop.idle_until for loop in self.loops if not loop.frozen), default=math.inf)
            if next_at == math.inf:
                raise VirtualDeadlockError(f"nothing will happen any more at {now:g} s")
            if next_at > until:
                self.clock.advance(max(0.0, until - now))
                return
            self.clock.advance(next_at - now)

    def end(self) -> None:
        """Take everything down without running it."""
        for loop in tuple(self.loops):
            self.kill(loop)


def _ignore(*_: object) -> None:
    """A killed process says nothing."""
