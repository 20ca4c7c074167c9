"""A simulated consumer process: the real receiver, keeper and ledger, on a loop, a clock and a wire of its own.

Around them is the least that a host does, after the Airflow pair: runs are written down in the store, work is
watched by looking at its state now and then, a settlement is written down before it is begun, and only the
run's owner settles, not sooner than 5 s after it took the run over or stood still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from sqs_lease.core.events import LeaseEvent, Lost
from sqs_lease.core.failure_rules import Delete, FailureRule, Release, Settlement
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.keeper.batch import Batch, KeeperClosedError
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.keeper.receiver import Receiver, Reception
from sqs_lease.sqs.errors import SqsError
from sqs_lease.testing import FaultRule, MemorySqs
from tests.simulation.journal import Journal
from tests.simulation.plan import Plan, QueuePlan
from tests.simulation.store import Run, Store, Work
from tests.simulation.wire import Wire
from tests.simulation.world import ProcessClock, World, WorldLoop

HEARTBEAT_SECONDS = 5.0
PRESUMED_DEAD_SECONDS = 20.0
STALL_SECONDS = 10.0
TAKEOVER_SECONDS = 5.0
MOST_RUNS = 3


@dataclass(frozen=True, slots=True)
class Setting:
    """What the processes of one schedule share."""

    plan: Plan
    world: World
    sqs: MemorySqs
    store: Store
    journal: Journal
    faults: FaultRule
    queue_urls: Mapping[str, str]

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong any more."""
        return self.world.clock.now() >= self.plan.calm_at


@dataclass(frozen=True, slots=True)
class RecordingRule(FailureRule):
    """A failure rule that tells what it decides for the receipts that it is asked about in order."""

    inner: FailureRule
    asked: list[Receipt]
    decided: Callable[[Receipt, Settlement], None]

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Settlement:
        """What the rule decides."""
        settlement = self.inner.settlement(receive_count=receive_count, reason=reason, random=random)
        self.decided(self.asked.pop(0), settlement)
        return settlement


@dataclass(slots=True, eq=False)
class Watched:
    """A run that this process holds."""

    run: Run
    batch: Batch
    asked: list[Receipt]
    settle_after: float


class ConsumerProcess:
    """One process; it lives until it is killed, or has shut down."""

    def __init__(self, setting: Setting, number: int, *, wall_error: float) -> None:
        self.name = f"p{number}"
        self.gone = False
        self._setting = setting
        self._plan = setting.plan
        self._journal = setting.journal
        self._store = setting.store
        self._random = Random(f"process {number} of {setting.plan.seed}")
        world = setting.world
        self.clock = ProcessClock(world.clock, booted_at=-self._random.randrange(100_000), wall_error=wall_error)
        self.loop: WorldLoop = world.new_loop(self.clock)
        wire = Wire(
            self.name,
            self.loop,
            world,
            setting.sqs,
            setting.journal,
            faults=setting.faults,
        )
        self._wire = wire
        self._keeper: Keeper
        self._receivers: list[Receiver] = []
        self._watched: dict[int, Watched] = {}
        self._leaving = False
        # Kept, because the event loop itself holds tasks only weakly.
        self._tasks: list[asyncio.Task[None]] = []
        self._consumers: list[asyncio.Task[None]] = []
        self.loop.create_task(self._main())

    def kill(self) -> None:
        """End it here and now."""
        if not self.gone:
            self.gone = True
            self._journal.say(self.name, "is killed")
            self._setting.world.kill(self.loop)

    @property
    def idle(self) -> bool:
        """Whether it holds no run."""
        return not self._watched

    def shut_down(self, leaving: Leaving) -> None:
        """Ask it to stop."""
        if not self._leaving:
            self._leaving = True
            self.loop.call_soon(lambda: self.loop.create_task(self._leave(leaving)))

    async def _main(self) -> None:
        self._keeper = Keeper(
            self._wire,
            clock=self.clock,
            random=Random(f"keeper {self.name} of {self._plan.seed}"),
            call_timeout_seconds=self._plan.call_timeout_seconds,
        )
        self._start(self._beat())
        if not self._plan.hosted:
            self._start(self._adopt_orphans())
        self._consumers = [self._start(self._consume(queue)) for queue in self._plan.queues]

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(coroutine)
        self._tasks.append(task)
        return task

    def _world_now(self) -> float:
        return self._setting.world.clock.now()

    async def _beat(self) -> None:
        while True:
            self._store.heartbeats[self.name] = self._world_now()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    # Receiving

    async def _consume(self, queue: QueuePlan) -> None:
        queue_url = self._setting.queue_urls[queue.name]
        receiver = Receiver(
            self._wire,
            queue_url,
            visibility_seconds=queue.visibility_seconds,
            clock=self.clock,
            random=Random(f"receiver {self.name} {queue.name} of {self._plan.seed}"),
        )
        self._receivers.append(receiver)
        while not self._leaving:
            if len(self._watched) >= MOST_RUNS:
                await asyncio.sleep(self._random.uniform(1, 5))
                continue
            run = self._new_run(queue, queue_url)
            watched = self._hold(run)
            try:
                await receiver.collect(
                    queue.batch_size,
                    wait=20,
                    linger=queue.linger_seconds,
                    on_received=partial(self._received, watched),
                )
            except SqsError as error:
                self._journal.say(self.name, "cannot receive:", type(error).__name__)
                await asyncio.sleep(self._random.uniform(0.5, 3))
            if run.messages:
                self._watched[run.number] = watched
                self._begin_work(run)
                self._start(self._watch(watched))
            else:
                self._keeper.drop(watched.batch)
                await asyncio.sleep(self._random.uniform(0, 2 * queue.visibility_seconds))

    def _new_run(self, queue: QueuePlan, queue_url: str) -> Run:
        return Run(
            number=len(self._store.runs),
            queue_url=queue_url,
            policy=queue.policy,
            rule=queue.rule,
            hosted=self._plan.hosted,
            created_at=self._world_now(),
            messages={},
            arrived={},
            leases={},
            owners=[(self._world_now(), self.name)],
        )

    def _hold(self, run: Run, *, settle_after: float = 0.0) -> Watched:
        asked: list[Receipt] = []

        def happened(event: LeaseEvent) -> None:
            self._journal.heard(self.name, event)
            if isinstance(event, Lost):
                # The rest is up to whoever received it, or will.
                run.settled.add(event.receipt.message_id)

        async def messages(ids: Sequence[str]) -> Mapping[str, Message]:
            return {message_id: run.messages[message_id] for message_id in ids}

        batch = self._keeper.open_batch(
            run.queue_url,
            policy=run.policy,
            on_failure=RecordingRule(run.rule, asked, self._begun),
            on_event=happened,
            message_source=messages,
        )
        return Watched(run, batch, asked, settle_after)

    def _received(self, watched: Watched, reception: Reception) -> None:
        run = watched.run
        if not run.messages:
            run.number = len(self._store.runs)
            run.created_at = self._world_now()
            run.owners = [(self._world_now(), self.name)]
            self._store.runs.append(run)
        for message in reception.messages:
            run.messages[message.message_id] = message
            # An earlier reception of it may have been lost while the batch was still being filled.
            run.settled.discard(message.message_id)
            run.arrived[message.receipt.handle] = self._world_now()
            self._store.by_handle[message.receipt.handle] = run
        watched.batch.add(reception.messages, received_at=reception.received_at, sent_at=reception.sent_at)
        self._write_down(watched)
        self._journal.say(self.name, run, "receives", *(message.receipt for message in reception.messages))

    def _write_down(self, watched: Watched) -> None:
        watched.run.written_with_error = self.clock.wall_error
        ahead = self.clock.wall() - self.clock.now()
        watched.run.leases.update((lease.receipt.message_id, lease.shifted(ahead)) for lease in watched.batch.leases())

    # Work

    def _begin_work(self, run: Run) -> None:
        random = Random(f"work {run.number} of {self._plan.seed}")
        together = random.random() < self._plan.work.together
        parts = [list(run.messages)] if together else [[message_id] for message_id in run.messages]
        loop = self.loop if run.hosted else self._setting.world.service
        for part in parts:
            for message_id in part:
                run.work[message_id] = Work.WORKING
            loop.create_task(self._work(run, part, Random(random.getrandbits(64))))

    async def _work(self, run: Run, message_ids: list[str], random: Random) -> None:
        work = self._plan.work
        for attempt in range(work.retries + 1):
            calm = self._setting.calm
            await asyncio.sleep(1.0 if calm else random.uniform(work.shortest_seconds, work.longest_seconds))
            if run.work[message_ids[0]] is Work.ABANDONED:
                return
            if calm or random.random() < work.success:
                for message_id in message_ids:
                    self._store.table.commit(message_id, self._world_now())
                # A host may learn of a success later than the table has it.
                await asyncio.sleep(random.choice([0.0, 0.5]))
                self._finish(run, message_ids, Work.SUCCEEDED)
                return
            self._journal.say("work", run, message_ids, "failed at try", attempt + 1)
        self._finish(run, message_ids, Work.FAILED)

    def _finish(self, run: Run, message_ids: list[str], how: Work) -> None:
        for message_id in message_ids:
            if run.work[message_id] is Work.WORKING:
                run.work[message_id] = how
        self._journal.say("work", run, message_ids, how.value)

    # Watching and settling

    async def _watch(self, watched: Watched) -> None:
        run = watched.run
        asked_at = self.clock.now()
        while not self._leaving:
            await asyncio.sleep(self._random.uniform(1, 5))
            now = self.clock.now()
            if now - asked_at > STALL_SECONDS:
                watched.settle_after = now + TAKEOVER_SECONDS
            asked_at = now
            if self._watched.get(run.number) is not watched:
                return
            if run.owner != self.name:
                self._forget(watched)
                return
            if self._random.random() < 0.3:
                self._write_down(watched)
            if now >= watched.settle_after:
                self._settle_what_is_finished(watched)
            if run.done:
                self._drop(watched)
                return

    def _forget(self, watched: Watched) -> None:
        self._journal.say(self.name, "forgets", watched.run)
        for lease in watched.batch.leases():
            self._journal.lease(self.name, lease.receipt).forgotten_at = self._world_now()
        self._drop(watched)

    def _drop(self, watched: Watched) -> None:
        self._keeper.drop(watched.batch)
        if self._watched.get(watched.run.number) is watched:
            del self._watched[watched.run.number]

    def _settle_what_is_finished(self, watched: Watched) -> None:
        run = watched.run
        finished = {
            message_id: work
            for message_id, work in run.work.items()
            if work is not Work.WORKING and message_id not in run.intents and message_id not in run.settled
        }
        if not finished:
            return
        run.intents.update(dict.fromkeys(finished, self._world_now()))
        receipts = {message_id: run.messages[message_id].receipt for message_id in finished}
        succeeded = [receipts[message_id] for message_id, work in finished.items() if work is Work.SUCCEEDED]
        failed = [receipts[message_id] for message_id, work in finished.items() if work is Work.FAILED]
        if succeeded:
            self._start(self._succeed(watched, succeeded))
        if failed:
            self._start(self._fail(watched, failed))

    async def _succeed(self, watched: Watched, receipts: list[Receipt]) -> None:
        for receipt in receipts:
            self._begun(receipt, Delete())
        self._journal.say(self.name, watched.run, "succeeds with", *receipts)
        try:
            await watched.batch.succeed(receipts)
        except KeeperClosedError:
            return
        watched.run.settled.update(receipt.message_id for receipt in receipts)

    async def _fail(self, watched: Watched, receipts: list[Receipt]) -> None:
        self._journal.say(self.name, watched.run, "fails with", *receipts)
        watched.asked.extend(receipts)
        try:
            await watched.batch.fail("it did not work", receipts)
        except KeeperClosedError:
            return
        watched.run.settled.update(receipt.message_id for receipt in receipts)

    def _begun(self, receipt: Receipt, settlement: Settlement) -> None:
        record = self._journal.lease(self.name, receipt)
        if record.began is None:
            record.began = settlement
            record.began_at = self._world_now()

    # Taking over

    async def _adopt_orphans(self) -> None:
        while not self._leaving:
            await asyncio.sleep(self._random.uniform(3, 9))
            if self._leaving:
                return
            for run in self._store.runs:
                if not run.done and run.work and run.owner != self.name and self._is_orphan(run):
                    self._adopt(run)

    def _is_orphan(self, run: Run) -> bool:
        if run.owner is None:
            return True
        return self._world_now() - self._store.heartbeats.get(run.owner, 0.0) > PRESUMED_DEAD_SECONDS

    def _adopt(self, run: Run) -> None:
        if (known := self._watched.get(run.number)) is not None:
            # It stood still, another process took the run over, and went as well.
            self._forget(known)
        self._store.new_owner(run, self.name, self._world_now())
        watched = self._hold(run, settle_after=self.clock.now() + TAKEOVER_SECONDS)
        # What somebody began to settle is not touched again: it may be another consumer's by now.
        run.settled.update(run.intents)
        leases = [lease for message_id, lease in run.leases.items() if message_id not in run.settled]
        run.calendar_error += abs(self.clock.wall_error - run.written_with_error)
        behind = self.clock.now() - self.clock.wall()
        for lease in leases:
            self._journal.lease(self.name, lease.receipt).forgotten_at = None
        self._journal.say(self.name, "adopts", run, *(lease.receipt for lease in leases))
        watched.batch.adopt([lease.shifted(behind) for lease in leases])
        self._watched[run.number] = watched
        self._start(self._watch(watched))

    # Leaving

    async def _leave(self, leaving: Leaving) -> None:
        self._journal.say(self.name, "shuts down:", leaving.value)
        for receiver in self._receivers:
            receiver.stop()
        # Consumers end by themselves; watchers and settlements under way too, or when the keeper closes.
        await asyncio.wait(self._consumers)
        ours = [watched for watched in self._watched.values() if watched.run.owner == self.name]
        for watched in tuple(self._watched.values()):
            if watched not in ours:
                self._forget(watched)
        for watched in ours:
            if leaving is Leaving.RELEASE:
                self._abandon(watched)
            self._write_down(watched)
        await self._keeper.close(leaving)
        for watched in ours:
            if watched.run.owner == self.name:
                self._store.new_owner(watched.run, None, self._world_now())
        self.kill()

    def _abandon(self, watched: Watched) -> None:
        """Stop the work, and write down that the messages are released."""
        run = watched.run
        for message_id in run.messages:
            if message_id not in run.intents:
                run.work[message_id] = Work.ABANDONED
                run.intents[message_id] = self._world_now()
        for lease in watched.batch.leases():
            self._begun(lease.receipt, Release())
