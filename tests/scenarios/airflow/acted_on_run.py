"""One run, drawn from a seed: what users, triggerers and the scheduler do to it at random times, in virtual time.

It does with the sensor, the keeper and the work what Airflow does: a task that begins loses its XComs, a trigger of a
process that died begins in another one half a minute later, and a trigger is told late that a user acted. Another
consumer polls the queue beside it. :meth:`ActedOnRun.problems` says what must never happen and did.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any, Final

from airflow.triggers.base import BaseTrigger, TaskSuccessEvent

from sqs_lease.airflow.airflow_api.requests import RunOfTask
from sqs_lease.airflow.handover import HANDED_KEY, LEASE_KEY, HandedLease
from sqs_lease.airflow.settlement.rules import WorkTask
from sqs_lease.airflow.worker import release_handed
from sqs_lease.core.policies import Fixed, Growing, RenewalPolicy
from sqs_lease.keeper.keeper import Leaving
from sqs_lease.testing import AuditEntry, AuditKind, MemoryTransport, MessageState
from tests.airflow.leased_messages import LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import (
    CHECK,
    KEEP,
    LOAD,
    RECEIVE,
    RUN_ID,
    USER_ACTION,
    RunningTrigger,
    VirtualTriggerer,
    keeper_trigger,
    receive_trigger,
)

POLICIES: Final = (Growing(visibility=120.0), Fixed(visibility=120.0, every=5.0), Fixed(visibility=120.0, every=40.0))
HANDOFF_SECONDS: Final = 900.0
"""Longer than any other extension, so that these can be told apart."""

ACTING_SECONDS: Final = 300.0
"""How long users act and triggerers die."""

QUIET_STEPS: Final = 150
"""After that, of 20 s each: longer than the work, the hand-off timeout and the longest extension together."""

OTHER: Final = "another consumer"
_LOOK_SECONDS: Final = 0.25
_ENDED: Final = frozenset({"success", "failed", "upstream_failed", "skipped"})


class ActedOnRun:
    """A run and its messages.

    Args:
        supervisor: The supervisor that the triggers talk to.
        seed: The seed that everything is drawn from.
    """

    def __init__(self, supervisor: ScriptedComms, seed: int) -> None:
        self._random = Random(seed)
        self.world = LeasedMessages(supervisor)
        self.history: list[str] = []
        self._supervisor = supervisor
        self._states = self.world.states
        self._states.clear()
        self._policy: RenewalPolicy = self._random.choice(POLICIES)
        self._work: WorkTask = self._random.choice((LOAD, CHECK))
        self._work_keys = [LOAD.task_id] if self._work is LOAD else [f"{CHECK.task_id}_{n}" for n in range(3)]
        self._triggerers: list[VirtualTriggerer] = []
        self._dead: set[VirtualTriggerer] = set()
        self._began = dict.fromkeys((RECEIVE.task_id, KEEP.task_id, *self._work_keys), 0)
        self._tries = dict.fromkeys((RECEIVE.task_id, KEEP.task_id), 0)
        self._running: dict[str, tuple[VirtualTriggerer, RunningTrigger]] = {}
        self._moves: set[str] = set()
        self._succeeded: set[tuple[str, str]] = set()  # receipts whose work succeeded
        self._starting = asyncio.Lock()
        self._lives: asyncio.TaskGroup
        self._telling: set[asyncio.Task[None]] = set()
        self._undisturbed_until = math.inf

    def play(self) -> None:
        """Let everything happen."""
        self.world.run(self._play)

    def problems(self) -> list[str]:
        """List the events that must never happen."""
        found: list[str] = []
        entries = self.world.sqs.trail().entries()
        held_by: dict[str, AuditEntry] = {}
        changed_at: dict[str, float] = {}
        lapsed: set[tuple[str, str]] = set()
        for entry in entries:
            ours = entry.caller not in (OTHER, "")
            if entry.kind is AuditKind.RECEIVED:
                held_by[entry.message_id] = entry
            if entry.kind is AuditKind.EXPIRED:
                lapsed.add((entry.message_id, entry.handle))
            # A lease that has lapsed may be extended on a standard queue, and its holder says so.
            touched = ours and entry.stale and (entry.message_id, entry.handle) not in lapsed
            if touched and entry.kind in (AuditKind.CHANGED, AuditKind.RELEASED):
                found.append(f"it touched a message that another consumer had received: {entry}")
            if ours and entry.kind is AuditKind.DELETED and (entry.message_id, entry.handle) not in self._succeeded:
                found.append(f"it deleted a message whose work did not succeed: {entry}")
            if entry.kind is AuditKind.CHANGED:
                changed_at[entry.message_id] = entry.at
            held = entry.at - changed_at.get(entry.message_id, 0.0) > 60.0  # and not given back with a delay
            was_ours = entry.kind is AuditKind.EXPIRED and held_by[entry.message_id].caller != OTHER
            # The price of a hand-over that no keeper takes: a keeper that was marked before it began, say.
            was_handed_on = entry.at - changed_at.get(entry.message_id, 0.0) > HANDOFF_SECONDS - 1.0
            if was_ours and held and not was_handed_on and entry.at < self._undisturbed_until:
                found.append(f"a lease ended by itself: {entry}")
        found += [f"it is held for ever: {held_by[message_id]}" for message_id in self._held()]
        if (state := self._states.get(KEEP.task_id)) not in (*_ENDED, None):
            found.append(f"the keeper never ended: {state}")
        return found

    async def _play(self) -> None:
        self._triggerers = [self.world.triggerer(f"triggerer {number}") for number in range(3)]
        async with asyncio.TaskGroup() as self._lives:
            consuming = self._lives.create_task(self._consume())
            self._begin(RECEIVE.task_id, self._live_of_sensor)
            for at in sorted(self._random.uniform(0.0, ACTING_SECONDS) for _ in range(self._random.randint(1, 5))):
                # Several within seconds, half of the time.
                if self._random.random() < 0.5:
                    await asyncio.sleep(max(0.0, at - self.world.clock.now()))
                else:
                    await asyncio.sleep(self._random.choice((0.1, 0.5, 1.0, 3.0, 6.0)) * self._random.random())
                await self._act()
            for _ in range(QUIET_STEPS):
                if self._is_over():
                    break
                await asyncio.sleep(20.0)
            await asyncio.sleep(20.0)
            consuming.cancel()
        for triggerer in self._triggerers:
            await self._kill(triggerer)

    def _is_over(self) -> bool:
        states = [self._states.get(key) for key in (RECEIVE.task_id, KEEP.task_id, *self._work_keys)]
        return all(state in _ENDED for state in states) and not self._telling and not self._held()

    def _held(self) -> list[str]:
        """The messages that are in flight, and not by the other consumer."""
        contents = self.world.sqs.contents(self.world.url)
        received = self.world.events(AuditKind.RECEIVED)
        by = {entry.message_id: entry.caller for entry in received}
        return [
            message_id
            for message_id, state in contents.items()
            if state is MessageState.IN_FLIGHT and by[message_id] != OTHER
        ]

    async def _consume(self) -> None:
        transport = MemoryTransport(self.world.sqs, name=OTHER)
        await asyncio.sleep(self._random.choice((3.0, 60.0, 200.0)))
        while True:
            await transport.receive(
                self.world.url,
                max_messages=self._random.randint(1, 3),
                wait_seconds=self._random.choice((0, 20)),
                visibility_seconds=self._random.choice((20, 200)),
            )
            await asyncio.sleep(self._random.choice((0.0, 5.0, 30.0)))

    # Actions on the run

    async def _act(self) -> None:
        action = self._random.choice(
            (
                self._clear_keeper,
                self._clear_keeper,
                self._mark_keeper,
                self._clear_run,
                self._end_work,
                self._clear_work,
                self._kill_a_triggerer,
                self._stop_a_triggerer,
                self._move_a_trigger,
                self._be_silent,
            )
        )
        self._say(action.__name__.strip("_"))
        await action()

    async def _clear_keeper(self) -> None:
        if KEEP.task_id in self._states and self._states.get(RECEIVE.task_id) == "success":
            self._states[KEEP.task_id] = None
            self._begin(KEEP.task_id, self._live_of_keeper)

    async def _mark_keeper(self) -> None:
        if self._states.get(KEEP.task_id, "success") not in _ENDED:
            self._began[KEEP.task_id] += 1
            self._states[KEEP.task_id] = self._random.choice(("success", "failed"))

    async def _clear_run(self) -> None:
        if RECEIVE.task_id not in self._states:
            return
        self._states.update({RECEIVE.task_id: None, KEEP.task_id: None})
        for key in self._work_keys:
            self._began[key] += 1
            self._states[key] = "restarting" if self._states.get(key) == "running" else None
        self._began[KEEP.task_id] += 1
        self._begin(RECEIVE.task_id, self._live_of_sensor)

    async def _end_work(self) -> None:
        key = self._random.choice(self._work_keys)
        if self._states.get(key) == "running":
            self._began[key] += 1
            self._end(key, self._random.choice(("success", "failed")))

    async def _clear_work(self) -> None:
        key = self._random.choice(self._work_keys)
        if self._states.get(key) is not None and self._states.get(RECEIVE.task_id) == "success":
            self._states[key] = None
            self._begin(key, lambda: self._live_of_work(key))

    async def _kill_a_triggerer(self) -> None:
        await self._lose_a_triggerer(self._kill)

    async def _stop_a_triggerer(self) -> None:
        async def stop(triggerer: VirtualTriggerer) -> None:
            for at, running in self._running.values():
                if at is triggerer and not running.task.done():
                    await running.cancel()
            await self._kill(triggerer)

        await self._lose_a_triggerer(stop)

    async def _lose_a_triggerer(self, end: Callable[[VirtualTriggerer], Coroutine[Any, Any, None]]) -> None:
        used = [triggerer for triggerer, running in self._running.values() if not running.task.done()]
        triggerer = self._random.choice(used or self._alive())
        if triggerer not in self._dead:
            self._dead.add(triggerer)
            self._disturb()
            self._triggerers.append(self.world.triggerer(f"triggerer {len(self._triggerers)}"))
            self._say(f"{self._triggerers.index(triggerer)} ends")
            await end(triggerer)

    async def _kill(self, triggerer: VirtualTriggerer) -> None:
        with suppress(Exception):
            await triggerer.kill()
        for shared_keeper in list(triggerer.keepers._keepers.values()):
            await shared_keeper.keeper.close(Leaving.NOTHING)

    async def _move_a_trigger(self) -> None:
        self._moves.update(task_id for task_id, (_, running) in self._running.items() if not running.task.done())

    async def _be_silent(self) -> None:
        self._disturb()
        self._supervisor.silent = True
        await asyncio.sleep(self._random.choice((1.0, 5.0, 20.0)))
        self._supervisor.silent = False

    def _disturb(self) -> None:
        """From now on leases may end by themselves: their holder died, or was not told what became of its task."""
        self._undisturbed_until = min(self._undisturbed_until, self.world.clock.now())

    # Actions of Airflow

    def _begin(self, task_id: str, live: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._began[task_id] += 1
        self._lives.create_task(live())

    async def _live_of_sensor(self) -> None:
        task_id, this = RECEIVE.task_id, self._began[RECEIVE.task_id]
        self._states.update({task_id: None, KEEP.task_id: None})
        # The scheduler and a worker need a second at least: by then a trigger that was publishing has done so.
        await asyncio.sleep(0.5)
        await self._pause(1.0)
        if self._began[task_id] != this:
            return
        self._tries[task_id] += 1
        self._forget(task_id)
        self._states[task_id] = "deferred"
        number = self._tries[task_id]
        trigger = receive_trigger(
            "orders",
            self.world.clock,
            policy=self._policy,
            batch_id=f"batch {number}",
            timeout_seconds=60.0,
            handoff_timeout_seconds=HANDOFF_SECONDS,
        )
        await self._give_back_of_earlier_try()
        running = await self._tend(RECEIVE, trigger)
        if running is None:
            return
        self._say(f"{task_id}: {running.events}")
        if not isinstance(running.events[0], TaskSuccessEvent):
            self._states.update(dict.fromkeys(self._work_keys, "upstream_failed"))
            self._states.update({task_id: "failed", KEEP.task_id: "upstream_failed"})
            return
        self._states[task_id] = "success"
        self._begin(KEEP.task_id, self._live_of_keeper)
        for key in self._work_keys:
            self._states[key] = None
            self._begin(key, lambda key=key: self._live_of_work(key))  # type: ignore[misc]

    async def _give_back_of_earlier_try(self) -> None:
        """Give the messages back as the sensor's worker does when a try of it begins that is not the first."""
        lease = self._supervisor.xcoms.pop((RUN_ID, KEEP.task_id, -1, HANDED_KEY), None)
        if lease is not None:
            transport = MemoryTransport(self.world.sqs, name="worker")
            await release_handed(HandedLease.decode(lease, RECEIVE), transport, self.world.clock)

    async def _live_of_keeper(self) -> None:
        task_id, this = KEEP.task_id, self._began[KEEP.task_id]
        await asyncio.sleep(self._random.choice((0.1, 0.5, 1.0, 1.0, 2.0, 20.0, 700.0 if this > 2 else 1.0)))
        if self._began[task_id] != this:
            return
        self._tries[task_id] += 1
        self._states[task_id] = "running"
        self._forget(task_id)
        lease = self._supervisor.xcoms.get((RUN_ID, RECEIVE.task_id, -1, LEASE_KEY))
        if lease is None:
            self._states[task_id] = "failed"
            return
        trigger = keeper_trigger(
            self._supervisor,
            [self._work],
            tried_before=self._tries[task_id] > 1,
            handoff_timeout_seconds=HANDOFF_SECONDS,
        )
        await self._pause(1.5)
        if self._began[task_id] != this:
            return
        if self._random.random() < 0.2:
            # A triggerer that is full has no room before the trigger of the try before has ended.
            await asyncio.sleep(2 * _LOOK_SECONDS)
            await asyncio.gather(*self._telling)
            if self._began[task_id] != this:
                return
            self._states[task_id] = "deferred"
            self._say("no triggerer has room")
            await self._pause(150.0)
            if self._began[task_id] != this:
                return
        self._states[task_id] = "deferred"
        running = await self._tend(KEEP, trigger)
        if running is not None:
            self._say(f"{task_id}: {running.events}")
            self._states[task_id] = "success" if isinstance(running.events[0], TaskSuccessEvent) else "failed"

    async def _live_of_work(self, key: str) -> None:
        this = self._began[key]
        await asyncio.sleep(self._random.choice((0.3, 1.0, 3.0, 30.0)))
        if self._began[key] != this:
            return
        self._states[key] = "running"
        await asyncio.sleep(self._random.choice((0.5, 5.0, 60.0, 200.0, 600.0)) * (0.5 + self._random.random()))
        if self._began[key] == this:
            self._end(key, self._random.choice(("success", "success", "failed")))

    def _end(self, key: str, state: str) -> None:
        self._say(f"{key} {state}")
        if state == "success":
            lease = self._supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY]
            receipts = [one.receipt for one in HandedLease.decode(lease, RECEIVE).leases]
            if self._work is CHECK:
                index = int(key.rpartition("_")[2])
                receipts = receipts[index : index + 1]
            self._succeeded.update((receipt.message_id, receipt.handle) for receipt in receipts)
        self._states[key] = state

    async def _tend(self, task: RunOfTask, trigger: BaseTrigger) -> RunningTrigger | None:
        """Have a trigger run until it ends its task; None if the task was cleared or marked before."""
        task_id = task.task_id
        this = self._began[task_id]
        before: VirtualTriggerer | None = None
        await self._pause(1.0)
        while self._began[task_id] == this:
            # A process starts no trigger that it runs already.
            triggerer = self._random.choice([one for one in self._alive() if one is not before])
            before = triggerer
            running = await self._start(triggerer, trigger, task)
            while True:
                await asyncio.sleep(_LOOK_SECONDS)
                if self._began[task_id] != this:
                    self._will_tell(triggerer, running)
                    return None
                if triggerer in self._dead:
                    await asyncio.sleep(self._random.choice((1.0, 5.0, 25.0)))
                    break
                if running.task.done():
                    running.task.result()
                    await self._pause(1.0)
                    return running if self._began[task_id] == this else None
                if task_id in self._moves:
                    self._moves.discard(task_id)
                    self._will_tell(triggerer, running)
                    break
        return None

    def _will_tell(self, triggerer: VirtualTriggerer, running: RunningTrigger) -> None:
        telling = self._lives.create_task(self._tell(triggerer, running))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    async def _tell(self, triggerer: VirtualTriggerer, running: RunningTrigger) -> None:
        """Tell a trigger that a user acted, at once or seconds later, when the next try has begun perhaps."""
        await asyncio.sleep(self._random.choice((0.0, 0.5, 1.0, 2.0, 3.0)))
        if triggerer not in self._dead and not running.task.done():
            await running.cancel(USER_ACTION)

    async def _start(self, triggerer: VirtualTriggerer, trigger: BaseTrigger, task: RunOfTask) -> RunningTrigger:
        async with self._starting:
            running = triggerer.start(trigger, task)
            await asyncio.sleep(0.0)  # it finds out which process it is in
            await asyncio.sleep(0.0)
        self._running[task.task_id] = triggerer, running
        self._say(f"{task.task_id} runs in {self._triggerers.index(triggerer)}")
        return running

    def _alive(self) -> list[VirtualTriggerer]:
        return [triggerer for triggerer in self._triggerers if triggerer not in self._dead]

    def _forget(self, task_id: str) -> None:
        for place in [place for place in self._supervisor.xcoms if place[1] == task_id]:
            del self._supervisor.xcoms[place]

    async def _pause(self, longest_seconds: float) -> None:
        await asyncio.sleep(self._random.uniform(0.0, longest_seconds))

    def _say(self, what: str) -> None:
        self.history.append(f"{self.world.clock.now():9.2f} {what}")
