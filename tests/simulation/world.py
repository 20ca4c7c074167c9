"""One virtual time, many event loops: each simulated process has a loop of its own, and so has the service.

A loop that is not run any more is a process that was killed: nothing of it happens again, not even the
``finally`` of a coroutine. A loop that is not run for a while is a process that was frozen: what its timers
and the network had for it comes all at once when it goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from sqs_lease.testing import VirtualClock, VirtualDeadlockError, VirtualLoop


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

    def wall(self) -> float:
        """What the machine believes the calendar's time to be."""
        return self._world.wall() + self.wall_error

    def advance(self, seconds: float) -> None:
        """Only the world moves time."""
        raise NotImplementedError


class WorldLoop(VirtualLoop):
    """An event loop that hands control back instead of waiting."""

    _ready: deque[object]

    def __init__(self, clock: VirtualClock, world: VirtualClock) -> None:
        super().__init__(clock, most_rounds=20_000)
        self.frozen = False
        self.dead = False
        self.idle_until: float | None = 0.0
        self._world = world

    def select(self, timeout: float | None) -> list[object]:
        """Nothing is ready: say until when, and stop."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        self._rounds = 0
        self.idle_until = None if timeout is None else self._world.now() + timeout
        self.stop()
        return []

    @property
    def runnable(self) -> bool:
        """Whether it has something to do now."""
        if self.dead or self.frozen:
            return False
        return bool(self._ready) or (self.idle_until is not None and self.idle_until <= self._world.now())


class World:
    """The time that all share, and the loops.

    Attributes:
        clock: True time, which is the service's.
        service: The loop in which the service, the network and work outside the simulated processes run.
        errors: What went wrong in callbacks and tasks that nobody waited for.
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
            ran = True
            while ran:
                ran = False
                for loop in tuple(self.loops):
                    if loop.runnable:
                        loop.run_forever()
                        ran = True
            times = [loop.idle_until for loop in self.loops if not loop.frozen and loop.idle_until is not None]
            if not times:
                raise VirtualDeadlockError(f"nothing will happen any more at {self.clock.now():g} s")
            now = self.clock.now()
            if min(times) > until:
                self.clock.advance(max(0.0, until - now))
                return
            self.clock.advance(min(times) - now)

    def end(self) -> None:
        """Take everything down without running it."""
        for loop in tuple(self.loops):
            self.kill(loop)


def _ignore(*_: object) -> None:
    """A killed process says nothing."""
