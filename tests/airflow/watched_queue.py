"""A queue that asset watchers count, the triggerers that run them, and the runs that Airflow makes, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, cast

from airflow.triggers.base import BaseTrigger, TriggerEvent
from airflow.triggers.shared_stream import SharedStreamManager

from sqs_lease.airflow.triggers.shared import install
from sqs_lease.airflow.triggers.watch import SqsLeaseTrigger
from sqs_lease.core.calls import VisibilityChange
from sqs_lease.core.messages import Message
from sqs_lease.testing import (
    AuditKind,
    Fault,
    MemorySqs,
    MemoryTransport,
    Operation,
    TransportCall,
    VirtualClock,
    run_virtual,
)
from tests.airflow.virtual_triggerer import RunningTrigger, VirtualTriggerer

LOOK_SECONDS = 0.1


class WatchingTriggerer(VirtualTriggerer):
    """A triggerer process that runs the triggers of asset watchers, whose polls are shared as in Airflow's."""

    def __init__(self, sqs: MemorySqs, clock: VirtualClock, name: str = "triggerer") -> None:
        super().__init__(sqs, clock, name)
        self.asked: list[TransportCall] = []
        self._streams = SharedStreamManager()
        self._ids = 0

    def watch(self, trigger: SqsLeaseTrigger) -> RunningTrigger:
        """Start the trigger of an asset's watcher, made from what Airflow would have stored of it."""
        install(self.keepers)
        self._ids += 1
        made = SqsLeaseTrigger(**trigger.serialize()[1])
        running = RunningTrigger(cast("BaseTrigger", _SharingTrigger(made, self._ids, self._streams)))
        self._running.append(running)
        return running

    async def kill(self) -> None:
        """End the process."""
        await super().kill()
        await self._streams.stop_all()

    def count(self, operation: Operation) -> int:
        """How many calls of one kind its triggers made."""
        return sum(call.operation is operation for call in self.asked)

    def _fault(self, call: TransportCall) -> Fault:
        self.asked.append(call)
        return super()._fault(call)


class _SharingTrigger:
    """A watcher as the triggerer runs it: it is given what a shared poll counts."""

    def __init__(self, trigger: SqsLeaseTrigger, trigger_id: int, streams: SharedStreamManager) -> None:
        self._trigger = trigger
        self._id = trigger_id
        self._streams = streams

    async def run(self) -> AsyncIterator[TriggerEvent]:
        stream = self._streams.subscribe(
            trigger_id=self._id, trigger=self._trigger, key=self._trigger.shared_stream_key()
        )
        async for event in self._trigger.filter_shared_stream(stream):
            yield event

    async def on_kill(self) -> None:
        await self._trigger.on_kill()

    async def cleanup(self) -> None:
        await self._streams.unsubscribe(self._id, self._trigger.shared_stream_key())
        await self._trigger.cleanup()


class WatchedQueue:
    """The queue and the triggerers of its watchers."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.sqs = MemorySqs(self.clock)
        self.url = self.sqs.create_queue("orders", visibility_seconds=600)

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a scenario in virtual time."""
        run_virtual(scenario, clock=self.clock)

    def send(self, *bodies: str) -> None:
        """Send messages."""
        for body in bodies:
            self.sqs.send(self.url, body)

    def triggerer(self, name: str = "triggerer") -> WatchingTriggerer:
        """Start a triggerer process."""
        return WatchingTriggerer(self.sqs, self.clock, name)

    def watch(self, triggerer: WatchingTriggerer | None = None, **options: Any) -> RunningTrigger:
        """Start a watcher's trigger."""
        return (triggerer or self.triggerer()).watch(SqsLeaseTrigger("orders", **options))

    async def fired(self, running: RunningTrigger, number: int = 1, within: float = 60.0) -> list[Any]:
        """Wait until so many events were fired, and return what all of them say."""
        async with asyncio.timeout(within):
            while len(running.events) < number:  # noqa: ASYNC110 - in virtual time, for a list that Airflow would fill
                await asyncio.sleep(LOOK_SECONDS)
        return [event.payload for event in running.events]

    def count(self, *kinds: AuditKind) -> int:
        """How often these things happened at the service."""
        return sum(entry.kind in kinds for entry in self.sqs.trail().entries())


class EventRuns:
    """Makes runs of events, as Airflow does, whose sensors take what is visible by then.

    While no more runs may be made, Airflow makes one of all events that come.

    Args:
        queue: The queue.
        watcher: The trigger that fires the events.
        slots: How many tasks can run side by side.
        max_active_runs: How many runs can be active.
        max_messages: How many messages a run takes at most.
        start_seconds: From the event until the run's sensor receives, where a slot is free.
        work_seconds: How long the work of a run takes. It has a slot meanwhile.
        fails: Whether the work on a message fails, so that it is visible again at once.

    Attributes:
        taken: How many messages each run took, in the order of their receives.
        waited: How long each message waited until it was received, in seconds.
    """

    def __init__(
        self,
        queue: WatchedQueue,
        watcher: RunningTrigger,
        *,
        slots: int = 100,
        max_active_runs: int = 16,
        max_messages: int = 100,
        start_seconds: float = 3.0,
        work_seconds: float = 3.0,
        fails: Callable[[Message], bool] = lambda _: False,
    ) -> None:
        self.taken: list[int] = []
        self.waited: list[float] = []
        self._queue = queue
        self._watcher = watcher
        self.slots = asyncio.Semaphore(slots)
        self._max_active_runs = max_active_runs
        self._max_messages = max_messages
        self._start_seconds = start_seconds
        self._work_seconds = work_seconds
        self._fails = fails
        self._transport = MemoryTransport(queue.sqs, name="runs")
        self._active: set[asyncio.Task[None]] = set()
        self._seen = 0
        self._serving = asyncio.get_running_loop().create_task(self._serve())

    @property
    def empty(self) -> int:
        """How many runs found nothing."""
        return self.taken.count(0)

    async def close(self) -> None:
        """Make no more runs, and end those under way."""
        ending = [self._serving, *self._active]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _serve(self) -> None:
        while True:
            if len(self._watcher.events) > self._seen and len(self._active) < self._max_active_runs:
                self._seen = len(self._watcher.events)
                run = asyncio.get_running_loop().create_task(self._run())
                self._active.add(run)
                run.add_done_callback(self._active.discard)
            await asyncio.sleep(LOOK_SECONDS)

    async def _run(self) -> None:
        async with self.slots:
            await asyncio.sleep(self._start_seconds)
            messages = await self._receive()
            self.taken.append(len(messages))
            if messages:
                await asyncio.sleep(self._work_seconds)
            for message in messages:
                if self._fails(message):
                    await self._transport.change_visibility(self._queue.url, [VisibilityChange(message.receipt, 0)])
                else:
                    await self._transport.delete(self._queue.url, [message.receipt])

    async def _receive(self) -> Sequence[Message]:
        found: list[Message] = []
        while len(found) < self._max_messages:
            some = await self._transport.receive(
                self._queue.url,
                max_messages=min(10, self._max_messages - len(found)),
                wait_seconds=0,
                visibility_seconds=43_200,
            )
            if not some:
                break
            found += some
        now = self._queue.clock.wall()
        self.waited += [now - int(message.attributes["SentTimestamp"]) / 1000 for message in found]
        return found
