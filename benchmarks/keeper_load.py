"""Puts load on one keeper of the `sqs_lease` that Python imports, and prints what it costs as one JSON object.

    python -m benchmarks.keeper_load {calls,cpu,pauses,memory} [--leases 100000] [--collector frozen]

`benchmarks.cost` runs it on two versions of the package and shows them side by side. It measures the keeper itself on
asyncio's own event loop; what the keeper talks to is a transport in memory that answers after 5 ms.

Time is the machine's, but idle time is skipped: when nothing is ready to run, the clock jumps to the next timer. So a
minute of holding takes as long as its work does, and the keeper finds the same delays between its calls as it would in
a real minute. Nothing is stretched: while Python works, the clock goes on as fast as the machine's.

The measurements:

* ``calls``: API calls to receive, hold for an hour and delete 1 000 messages, by policy.
* ``cpu``: CPU milliseconds of the process per 1 000 leases and minute, transport included. `Fixed` extends each lease
  three times a minute; the leases' times are spread evenly, as on a queue that is received from all the time.
* ``pauses``: the longest pauses of the event loop in some moments, in CPU milliseconds, which leave out what other
  processes do meanwhile. A *step* is the time between two yields: one callback, or one task until it awaits. In a
  *round* the loop runs all that is ready; only then does it look at sockets and timers again. So a round is what
  everything else in the process waits for, and a host that makes a thousand tasks ready at once makes it long. The
  *collector*'s pauses, which are part of the steps, are those of Python's garbage collector.
* ``memory``: bytes that one lease takes once it was extended, with id and receipt handle but without its content.

Leases are put in without the messages' contents, as a keeper in a triggerer has them: ten at a time as a receive brings
them, with a turn for the event loop in between, into batches of a hundred.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import selectors
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from random import Random
from typing import Any, Final, TypeAlias, cast

from benchmarks.ledger import calls_in_an_hour
from sqs_lease.core.calls import EntryAnswer, Verdict, VisibilityChange
from sqs_lease.core.limits import MAX_BATCH_ENTRIES
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import Buffered, Fixed, Growing, RenewalPolicy, Threshold
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.sqs.transport import Transport

QUEUE_URL: Final = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"
ANSWER_SECONDS: Final = 0.005
PERIOD_SECONDS: Final = 20
POLICY: Final = Fixed(visibility=30, every=PERIOD_SECONDS)
UNHURRIED: Final = Fixed(visibility=600, every=400)
"""For all but ``cpu``: no lease lapses, however busy the machine, and however much tracing slows Python down."""

LEASES_OF_A_BATCH: Final = 100
HANDLE_CHARACTERS: Final = 180
"""As long as SQS's receipt handles are at least."""

CPU_LEASES: Final = 20_000
"""With fewer leases more periods are measured, until so many leases were extended."""

LOADED_OBJECTS: Final = 250_000
"""Airflow and the AWS client's model of the service are about as many objects that the garbage collector looks at."""

COLLECTORS: Final = ("frozen", "plain")
"""The garbage collector passes over what was loaded before the keeper, as in a triggerer; or it looks at that too."""


Figures: TypeAlias = Mapping[str, float]


class IdleSkippingClock:
    """The machine's monotonic time, and all idle time that was skipped."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def now(self) -> float:
        return time.monotonic() + self._skipped

    def wall(self) -> float:
        return time.time() + self._skipped

    def skip(self, seconds: float) -> None:
        self._skipped += seconds


class IdleSkippingSelector(selectors.SelectSelector):
    """Is asked once a round of the event loop: skips the time that the loop would wait, and times the rounds."""

    def __init__(self, clock: IdleSkippingClock) -> None:
        super().__init__()
        self._clock = clock
        self._began = time.thread_time()
        self.longest_round = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.longest_round = max(self.longest_round, time.thread_time() - self._began)
        ready = super().select(timeout if timeout is None else 0)
        if not ready and timeout is not None and timeout > 0:
            self._clock.skip(timeout)
        self._began = time.thread_time()
        return ready


class IdleSkippingLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop on a clock that skips idle time."""

    def __init__(self) -> None:
        self.clock = IdleSkippingClock()
        self.selector = IdleSkippingSelector(self.clock)
        super().__init__(self.selector)

    def time(self) -> float:
        return self.clock.now()


class TimedLoop(IdleSkippingLoop):
    """Times each step as well, which costs it some CPU."""

    longest_step = 0.0

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(self._time, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when, self._time, callback, *args, context=context)

    def _time(self, callback: Callable[..., object], *args: Any) -> None:
        began = time.thread_time()
        callback(*args)
        self.longest_step = max(self.longest_step, time.thread_time() - began)


class CollectorPauses:
    """The longest pause of Python's garbage collector, in CPU seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._began = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        gc.callbacks.append(self._note)
        try:
            yield
        finally:
            gc.callbacks.remove(self._note)

    def _note(self, phase: str, _info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.longest = max(self.longest, time.thread_time() - self._began)


class AnsweringTransport:
    """Answers each call after 5 ms: it did what was asked."""

    def __init__(self) -> None:
        self.calls = 0

    async def change_visibility(self, _queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        self.calls += 1
        await asyncio.sleep(ANSWER_SECONDS)
        return [EntryAnswer(change.receipt, Verdict.DONE) for change in changes]

    async def delete(self, _queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
        self.calls += 1
        await asyncio.sleep(ANSWER_SECONDS)
        return [EntryAnswer(receipt, Verdict.DONE) for receipt in receipts]


class Load:
    """One keeper with some batches.

    Args:
        clock: Its event loop's.
        policy: When it extends.
    """

    def __init__(self, clock: IdleSkippingClock, policy: RenewalPolicy = POLICY) -> None:
        self.clock = clock
        self.policy = policy
        self.transport = AnsweringTransport()
        self.keeper = Keeper(cast("Transport", self.transport), clock=clock, random=Random(1))
        self.batches: list[Any] = []

    def open_batch(self) -> Any:
        """Open a batch; the method had another name in versions that this one is compared with."""
        keeper: Any = self.keeper
        batch = (keeper.open_batch if hasattr(keeper, "open_batch") else keeper.hold)(QUEUE_URL, policy=self.policy)
        self.batches.append(batch)
        return batch

    async def receive(self, leases: int, *, spread_seconds: float = 0, batch_of: int = LEASES_OF_A_BATCH) -> None:
        """Put received messages in.

        Args:
            leases: How many.
            spread_seconds: Over how many seconds before now they were received; 0: all at one moment.
            batch_of: How many of them are a batch.
        """
        now = self.clock.now()
        for first in range(0, leases, batch_of):
            batch = self.open_batch()
            for number in range(first, min(first + batch_of, leases), MAX_BATCH_ENTRIES):
                received_at = now - spread_seconds * number / leases
                deadline = received_at + self.policy.visibility_seconds
                numbers = range(number, min(number + MAX_BATCH_ENTRIES, leases))
                batch.adopt([Lease(receipt(one), received_at, deadline) for one in numbers])
                await asyncio.sleep(0)

    async def adopt(self, leases: int) -> None:
        """Put leases in that another process held, a batch at a time."""
        now = self.clock.now()
        deadline = now + self.policy.visibility_seconds
        for first in range(0, leases, LEASES_OF_A_BATCH):
            numbers = range(first, min(first + LEASES_OF_A_BATCH, leases))
            self.open_batch().adopt([Lease(receipt(number), now, deadline) for number in numbers])
            await asyncio.sleep(0)

    async def extended(self, extensions: int) -> None:
        """Wait until so many extensions were confirmed.

        Raises:
            TimeoutError: They were not within the policy's visibility timeout.
        """
        deadline = self.clock.now() + self.policy.visibility_seconds
        while self.clock.now() < deadline:
            if self.extensions() >= extensions:
                return
            await asyncio.sleep(1)
        raise TimeoutError(f"only {self.extensions()} of {extensions} leases were extended in time")

    def extensions(self) -> int:
        return sum(batch.extensions for batch in self.batches)

    async def settle(self) -> None:
        """All batches' work succeeds at the same moment."""
        await asyncio.gather(*(batch.succeed() for batch in self.batches))


def receipt(number: int) -> Receipt:
    return Receipt(f"00000000-0000-4000-8000-{number:012d}", f"{number:0{HANDLE_CHARACTERS}d}")


# Measurements


def calls(leases: int) -> Figures:
    """API calls to receive, hold for an hour and delete messages, by policy."""
    policies: list[RenewalPolicy] = [
        Growing(visibility=30),
        Threshold(visibility=30),
        Buffered(visibility=30),
        Fixed(visibility=30, every=15),
    ]
    return {type(policy).__name__: calls_in_an_hour(policy, leases) for policy in policies}


def cpu(leases: int) -> Figures:
    """CPU milliseconds per 1 000 leases and minute; calls and extensions a minute; how many leases lapsed."""
    loop = IdleSkippingLoop()

    async def work() -> Figures:
        load = Load(loop.clock)
        await load.receive(leases, spread_seconds=PERIOD_SECONDS)
        await asyncio.sleep(PERIOD_SECONDS)
        made, extensions = load.transport.calls, load.extensions()
        began, used = loop.time(), time.process_time()
        await asyncio.sleep(PERIOD_SECONDS * max(1, CPU_LEASES // leases))
        used = time.process_time() - used
        minutes = (loop.time() - began) / 60
        figures = {
            "milliseconds": used * 1e3 / (leases / 1_000) / minutes,
            "calls": (load.transport.calls - made) / minutes,
            "extensions": (load.extensions() - extensions) / minutes,
            "lapsed": float(sum(batch.report().late for batch in load.batches)),
        }
        await load.keeper.close(Leaving.NOTHING)
        return figures

    return _run(loop, work)


def pauses(leases: int) -> Figures:
    """The longest step, round and pause of the garbage collector in each of some moments, in CPU milliseconds."""
    loop = TimedLoop()
    collector = CollectorPauses()
    figures: dict[str, float] = {}

    @asynccontextmanager
    async def moment(name: str) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        loop.longest_step = loop.selector.longest_round = collector.longest = 0.0
        yield
        await asyncio.sleep(0)
        figures[f"step: {name}"] = loop.longest_step * 1e3
        figures[f"round: {name}"] = loop.selector.longest_round * 1e3
        figures[f"collector: {name}"] = collector.longest * 1e3

    async def work() -> Figures:
        load = Load(loop.clock, UNHURRIED)
        async with moment("receive, ten at a time"):
            await load.receive(leases)
        async with moment("all renewals fall due at once"):
            await load.extended(leases)
        async with moment("settle, all batches at once"):
            await load.settle()
        await load.keeper.close()

        load = Load(loop.clock, UNHURRIED)
        async with moment("adopt, a batch at a time"):
            await load.adopt(leases)
            await load.extended(leases)
        async with moment("close, with a last extension"):
            await load.keeper.close()

        load = Load(loop.clock, UNHURRIED)
        await load.receive(leases, batch_of=leases)
        async with moment("settle, one batch of all"):
            await load.settle()
        await load.keeper.close()
        return figures

    with collector.watched():
        return _run(loop, work)


def memory(leases: int) -> Figures:
    """Bytes a lease, once all were extended."""
    loop = IdleSkippingLoop()

    async def work() -> Figures:
        gc.collect()
        tracemalloc.start()
        load = Load(loop.clock, UNHURRIED)
        await load.receive(leases)
        await load.extended(leases)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await load.keeper.close(Leaving.NOTHING)
        return {"bytes": held / leases}

    return _run(loop, work)


def _run(loop: IdleSkippingLoop, work: Callable[[], Coroutine[Any, Any, Figures]]) -> Figures:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work())


MEASURES: Final[Mapping[str, Callable[[int], Figures]]] = {
    "calls": calls,
    "cpu": cpu,
    "pauses": pauses,
    "memory": memory,
}


def main() -> None:
    """Measure one thing and print it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("--leases", type=int, default=100_000)
    parser.add_argument("--collector", choices=COLLECTORS, default=COLLECTORS[0])
    options = parser.parse_args()
    logging.disable()  # a line for each lease that lapses would cost more than the lease; the figures tell
    loaded = [{"number": [number]} for number in range(LOADED_OBJECTS // 2)]
    if options.collector == "frozen":
        gc.freeze()
    figures = MEASURES[options.measure](options.leases)
    loaded.clear()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
