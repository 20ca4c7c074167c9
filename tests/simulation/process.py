"""A simulated consumer process: the real receiver, keeper and ledger, on a loop, a clock and a wire of its own.

Around them is the least that a host does, after the Airflow pair: runs are written down in the store, work is
watched by looking at its state now and then, a settlement is written down before it is begun, and only the
run's owner settles.

A batch goes from one process to the next in one way only, whatever the reason: its holder calls ``pass_on``, writes
the text of the result into the store and forgets the batch; the next one reads the text and adopts it. After a crash,
what the dead process wrote last is read.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from sqs_lease.core.events import Lapsed, LeaseEvent, Lost, Outcome, Settled
from sqs_lease.core.failure_rules import Delete, Release, Settlement
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.core.policies import LastExtension, Never, RenewalPolicy
from sqs_lease.keeper.batch import Batch, KeeperClosedError
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.keeper.plain_leases import WrittenBatch
from sqs_lease.keeper.receiver import Receiver, Reception
from sqs_lease.sqs.errors import SqsError
from sqs_lease.testing import FaultRule, MemorySqs
from tests.simulation.journal import Holding, Journal
from tests.simulation.leftovers import leftovers
from tests.simulation.passing_checks import (
    CLOCK_ERROR_SECONDS,
    check_extended,
    check_read,
    check_written,
    optimism_of,
)
from tests.simulation.plan import Plan, QueuePlan, Size, Writing
from tests.simulation.plug_ins import Failing, FailingMeter, RecordingRule, with_failures
from tests.simulation.store import Run, Store, Work
from tests.simulation.wire import Wire
from tests.simulation.world import ProcessClock, World, WorldLoop

HEARTBEAT_SECONDS = 5.0
PRESUMED_DEAD_SECONDS = 20.0
WAIT_SECONDS = 6.0
WATCH_SECONDS = 5.0
MOST_RUNS = {Size.SMALL: 3, Size.CROWDED: 3, Size.LARGE: 4}


@dataclass(frozen=True, slots=True)
class Setting:
    """The surroundings that the processes of one schedule share."""

    plan: Plan
    world: World
    sqs: MemorySqs
    store: Store
    journal: Journal
    faults: FaultRule
    queue_urls: Mapping[str, str]
    die: Callable[[ConsumerProcess], None]
    """Has a process killed."""

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong any more."""
        return self.world.clock.now() >= self.plan.calm_at


@dataclass(slots=True, eq=False)
class Watched:
    """A run that this process holds.

    Attributes:
        asked: The receipts that the failure rule will be asked about, in order.
        ended: How leases ended, as the batch's listener heard it; by message id, for the newest reception.
        lapses: How many lapses it heard of.
    """

    run: Run
    batch: Batch
    policy: RenewalPolicy
    asked: list[Receipt]
    ended: dict[str, tuple[Receipt, Outcome]] = field(default_factory=dict)
    lapses: int = 0


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
        self._wire = Wire(
            self.name, self.loop, world, setting.sqs, setting.store, setting.journal, faults=setting.faults
        )
        self._receivers: list[Receiver] = []
        self._watched: dict[int, Watched] = {}
        self._leaving = False
        self._passing: dict[asyncio.Task[None], None] = {}
        # Kept, because the event loop itself holds tasks only weakly.
        self._tasks: list[asyncio.Task[None]] = []
        self._consumers: list[asyncio.Task[None]] = []
        self._keeper = Keeper(
            self._wire,
            clock=self.clock,
            random=Random(f"keeper {self.name} of {self._plan.seed}"),
            call_timeout_seconds=self._plan.call_timeout_seconds,
            meter=FailingMeter(self._failing("meter", self._plan.plug_ins.meter)),
            quiet_after_stall_seconds=self._plan.quiet_after_stall_seconds,
        )
        self.loop.create_task(self._main())

    def kill(self) -> None:
        """End it here and now."""
        if not self.gone:
            self.gone = True
            self._journal.say(self.name, "is killed")
            self._setting.world.kill(self.loop)

    @property
    def idle(self) -> bool:
        """Whether it holds no run, and no lease of one that it is still receiving."""
        return not self._watched and not self._passing and not self._keeper.holdings()

    @property
    def is_calling(self) -> bool:
        """Whether calls about leases are under way."""
        return any(driver._calls for driver in self._keeper._drivers.values())

    def shut_down(self, leaving: Leaving) -> None:
        """Ask it to stop."""
        if not self._leaving:
            self._leaving = True
            self.loop.call_soon(lambda: self.loop.create_task(self._leave(leaving)))

    def reopen(self, *, adopts_first: bool) -> None:
        """Have its host put all leases into new batches."""
        self.loop.call_soon(lambda: self._reopen(adopts_first=adopts_first))

    def pass_batches_on(self, writing: Writing, hand: Callable[[Run], None]) -> None:
        """Have its host pass all batches on; ``hand`` is told of each that is written."""

        def begin() -> None:
            for watched in self._ours():
                self._start_passing(self._pass_on(watched, writing, hand))

        self.loop.call_soon(begin)

    def take_over(self, run: Run) -> None:
        """Have its host take up a run that was passed on, unless another process has it by then."""

        def begin() -> None:
            if not self._leaving and run.owner is None and not run.done:
                self._adopt(run)

        self.loop.call_soon(begin)

    def check_leftovers(self, *, at_end: bool) -> None:
        """Nothing is kept of leases that ended."""
        for what in leftovers(self._keeper, at_end=at_end):
            self._journal.violated("1 nothing of an ended lease stays", f"{self.name}: {what}")

    async def _main(self) -> None:
        self._start(self._beat())
        if not self._plan.hosted:
            self._start(self._adopt_orphans())
        self._consumers = [self._start(self._consume(queue)) for queue in self._plan.queues]

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(coroutine)
        self._tasks.append(task)
        return task

    def _failing(self, what: str, share: float) -> Failing:
        return Failing(share, Random(f"{what} {self.name} of {self._plan.seed}"), self._world_now)

    def _world_now(self) -> float:
        return self._setting.world.clock.now()

    async def _beat(self) -> None:
        while True:
            self._store.heartbeats[self.name] = self._world_now()
            self.check_leftovers(at_end=False)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    # Receiving

    async def _consume(self, queue: QueuePlan) -> None:
        queue_url = self._setting.queue_urls[queue.name]
        receivers = [
            Receiver(
                self._wire,
                queue_url,
                visibility_seconds=queue.policy.visibility_seconds,
                clock=self.clock,
                random=Random(f"receiver {number} {self.name} {queue.name} of {self._plan.seed}"),
            )
            for number in range(queue.receivers)
        ]
        self._receivers += receivers
        while not self._leaving:
            if len(self._watched) >= MOST_RUNS[self._plan.size]:
                await asyncio.sleep(self._random.uniform(1, 5))
                continue
            watched = self._hold(self._new_run(queue, queue_url))
            collections = [self._collect(receiver, queue, watched) for receiver in receivers]
            if not all(await asyncio.gather(*collections)):
                await asyncio.sleep(self._random.uniform(0.5, 3))
            run = watched.run
            if run.messages:
                self._watched[run.number] = watched
                self._begin_work(run)
                self._start(self._watch(watched))
            else:
                self._keeper.drop(watched.batch)
                await asyncio.sleep(self._random.uniform(0, 2 * queue.policy.visibility_seconds))

    async def _collect(self, receiver: Receiver, queue: QueuePlan, watched: Watched) -> bool:
        """Whether it could be asked for messages."""
        try:
            await receiver.collect(
                queue.batch_size,
                wait=WAIT_SECONDS,
                linger=queue.linger_seconds,
                on_received=partial(self._received, watched),
            )
        except SqsError as error:
            self._journal.say(self.name, "cannot receive:", type(error).__name__)
            return False
        return True

    def _new_run(self, queue: QueuePlan, queue_url: str) -> Run:
        return Run(
            number=len(self._store.runs),
            queue_url=queue_url,
            policy=queue.policy,
            rule=queue.rule,
            hosted=self._plan.hosted,
            messages={},
            arrived={},
            owners=[(self._world_now(), self.name)],
            settle_within_seconds=queue.settle_within_seconds,
        )

    def _hold(self, run: Run) -> Watched:
        asked: list[Receipt] = []
        plug_ins = self._plan.plug_ins
        number = len(self._tasks)
        listener = self._failing(f"listener {number}", plug_ins.listener)
        source = self._failing(f"source {number}", plug_ins.source)

        def happened(event: LeaseEvent) -> None:
            self._journal.heard(self.name, event)
            if isinstance(event, Settled | Lost):
                outcome = event.outcome if isinstance(event, Settled) else Outcome.LOST
                message_id = event.receipt.message_id
                if run.messages[message_id].receipt == event.receipt:
                    # After a loss, the rest is up to the process that received it, or will.
                    run.settled.add(message_id)
                    if outcome not in (Outcome.DELETED, Outcome.DEAD_LETTERED):
                        run.gone_back.add(message_id)
                watched.ended[message_id] = (event.receipt, outcome)
            watched.lapses += isinstance(event, Lapsed)
            listener.maybe()

        async def messages(ids: Sequence[str]) -> Mapping[str, Message]:
            if not self._setting.calm:
                await asyncio.sleep(plug_ins.source_seconds * source.random.random())
                source.maybe()
            return {message_id: run.messages[message_id] for message_id in ids}

        policy = with_failures(run.policy, self._failing(f"policy {number}", plug_ins.policy))
        batch = self._keeper.open_batch(
            run.queue_url,
            policy=policy,
            on_failure=RecordingRule(run.rule, asked, self._begun, self._failing(f"rule {number}", plug_ins.rule)),
            on_event=happened,
            message_source=messages,
        )
        watched = Watched(run, batch, policy, asked)
        return watched

    def _received(self, watched: Watched, reception: Reception) -> None:
        run = watched.run
        now = self._world_now()
        if not run.messages:
            run.number = len(self._store.runs)
            run.owners = [(now, self.name)]
            self._store.runs.append(run)
        for message in reception.messages:
            known = run.messages.get(message.message_id)
            run.take_in(message)
            if known is not None and run.messages[message.message_id] is message:
                self._journal.lease(self.name, known.receipt).forgotten_at.append(now)
            run.arrived[message.receipt.handle] = now
            self._store.by_handle[message.receipt.handle] = run
        if self._plan.drops_contents:
            watched.batch.adopt(leases_of(reception, watched.policy))
        else:
            watched.batch.add(reception.messages, received_at=reception.received_at, sent_at=reception.sent_at)
        received = {message.receipt for message in reception.messages}
        self._note_holdings(watched, [lease for lease in watched.batch.leases() if lease.receipt in received])
        self._write_down(watched)
        self._journal.say(self.name, run, "receives", *received)

    def _note_holdings(
        self,
        watched: Watched,
        leases: Collection[Lease],
        *,
        adopted: bool = False,
        policy: RenewalPolicy | None = None,
        optimism: float = 0.0,
    ) -> None:
        for lease in leases:
            record = self._journal.lease(self.name, lease.receipt)
            record.queue_url = watched.run.queue_url
            held = record.holdings[-1] if record.holdings and not record.is_forgotten else None
            renewed_at = lease.received_at if lease.renewed_at is None else lease.renewed_at
            record.holdings.append(
                Holding(
                    self._world_now(),
                    self.clock.world_time(lease.received_at),
                    self.clock.world_time(renewed_at),
                    self.clock.world_time(lease.deadline),
                    lease.doubtful,
                    adopted if held is None else held.adopted,
                    optimism if held is None else held.optimism,
                    watched.policy if policy is None else policy,
                    len(record.forgotten_at),
                    sum(call.ended_at is not None for call in record.calls),
                )
            )

    def _write_down(self, watched: Watched) -> None:
        batch = watched.batch
        self._write(watched.run, WrittenBatch.of(batch.batch_id, batch.leases(), self.clock))

    def _write(self, run: Run, written: WrittenBatch) -> None:
        run.written = written.encode()
        run.written_at = self._world_now()
        run.written_with_error = self.clock.wall_error
        run.doubted = False

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
        while not self._leaving:
            await asyncio.sleep(self._random.uniform(1, WATCH_SECONDS))
            if self._watched.get(run.number) is not watched:
                return
            if run.owner != self.name:
                self._forget(watched)
                return
            if self._random.random() < 0.3:
                self._write_down(watched)
            self._settle_what_is_finished(watched)
            if run.done:
                self._drop(watched)
                return

    def _forget(self, watched: Watched) -> None:
        self._journal.say(self.name, "forgets", watched.run)
        self._drop(watched)

    def _drop(self, watched: Watched) -> None:
        self._note_end(watched, watched.batch.leases())
        self._keeper.drop(watched.batch)
        if self._watched.get(watched.run.number) is watched:
            del self._watched[watched.run.number]

    def _note_end(self, watched: Watched, left: Collection[Lease], *, passed_on: bool = False) -> None:
        """The process stops holding what is left of a batch."""
        for lease in left:
            self._journal.lease(self.name, lease.receipt).forgotten_at.append(self._world_now())
        report = watched.batch.report()
        newest = {lease.receipt.message_id for lease in left}
        held = 0 if passed_on else len(newest)
        ended = Counter(outcome for message_id, (_, outcome) in watched.ended.items() if message_id not in newest)
        counted = {outcome: getattr(report, outcome.name.lower()) for outcome in Outcome}
        told = {outcome: ended[outcome] for outcome in Outcome}
        if counted != told or report.held != held or report.late != watched.lapses:
            self._journal.violated(
                "5 a report adds up", f"{watched.run} of {self.name}: {report}; told: {told}, {watched.lapses} lapses"
            )
        if report.received != len(newest) + sum(counted.values()):
            self._journal.violated("5 a report adds up", f"{watched.run} of {self.name}: {report}")

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
        succeeded: dict[Receipt, Settlement] = {
            run.messages[message_id].receipt: Release() if self._is_behind_unclear(run, message_id) else Delete()
            for message_id, work in finished.items()
            if work is Work.SUCCEEDED
        }
        failed = [run.messages[message_id].receipt for message_id, work in finished.items() if work is Work.FAILED]
        match self._random.choice(["succeeded first", "failed first", "together"]):
            case "succeeded first":
                self._start(self._settle(watched, succeeded))
                self._start(self._fail(watched, failed))
            case "failed first":
                self._start(self._fail(watched, failed))
                self._start(self._settle(watched, succeeded))
            case _:
                self._start(self._settle(watched, succeeded, failed))

    @staticmethod
    def _is_behind_unclear(run: Run, message_id: str) -> bool:
        """Whether an earlier message of its group may have gone back to the queue: then this one goes back, too."""
        return any(earlier in run.unclear for earlier in run.earlier_in_group(message_id))

    async def _settle(
        self, watched: Watched, settlements: Mapping[Receipt, Settlement], failed: Sequence[Receipt] = ()
    ) -> None:
        for receipt, settlement in settlements.items():
            self._begun(receipt, settlement)
        watched.asked.extend(failed)
        self._journal.say(self.name, watched.run, "settles", settlements, "fails with", failed)
        try:
            together = {**settlements, **watched.batch.failing("it did not work", failed)}
            within_seconds = watched.run.settle_within_seconds
            if self._random.random() < 0.2:
                watched.batch.begin(together, within_seconds=within_seconds)
            else:
                await watched.batch.settle(together, within_seconds=within_seconds)
        except KeeperClosedError:
            return

    async def _fail(self, watched: Watched, receipts: list[Receipt]) -> None:
        self._journal.say(self.name, watched.run, "fails with", *receipts)
        watched.asked.extend(receipts)
        try:
            await watched.batch.fail("it did not work", receipts)
        except KeeperClosedError:
            return

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
        elapsed = self._world_now() - run.written_at
        behind = run.written_with_error - self.clock.wall_error
        run.optimism += math.inf if run.doubted else optimism_of(elapsed, behind=behind)
        run.doubted |= abs(behind) > CLOCK_ERROR_SECONDS
        self._take_up(run, WrittenBatch.decode(run.written), elapsed=elapsed, behind=behind)

    def _take_up(self, run: Run, written: WrittenBatch, *, elapsed: float = 0.0, behind: float = 0.0) -> None:
        """Hold the leases of a run that no other process holds.

        Args:
            run: The run.
            written: The batch that was written of it.
            elapsed: How long ago that was.
            behind: By how much this process' calendar is behind that of the writer.
        """
        # A settlement that another process began is not touched: the message may be another consumer's by now.
        run.unclear.update(run.intents.keys() - run.settled, run.gone_back)
        run.settled.update(run.intents)
        left = tuple(lease for lease in written.leases if lease.receipt.message_id not in run.settled)
        watched = self._hold(run)
        self._journal.say(self.name, "adopts", run, *(lease.receipt for lease in left))
        watched.batch.adopt(replace(written, leases=left))
        held = watched.batch.leases()
        if watched.batch.batch_id != written.batch_id:
            self._journal.violated("2 a batch keeps its identity", f"{run} of {self.name}")
        what = f"of {run} by {self.name}"
        check_read(self._journal, what, self.clock.now(), replace(written, leases=left), held, elapsed, behind)
        self._note_holdings(watched, held, adopted=True, optimism=run.optimism)
        self._watched[run.number] = watched
        self._start(self._watch(watched))

    def _reopen(self, *, adopts_first: bool) -> None:
        for watched in () if self._leaving else self._ours():
            self._journal.say(self.name, "reopens", watched.run)
            leases = watched.batch.leases()
            if not adopts_first:
                self._start_passing(self._pass_on(watched, Writing.DONE, self._adopt))
                continue
            again = self._hold(watched.run)
            again.batch.adopt(leases)
            self._note_holdings(again, again.batch.leases(), adopted=True)
            self._keeper.drop(watched.batch)
            self._watched[watched.run.number] = again
            self._start(self._watch(again))

    # Passing on

    def _ours(self) -> list[Watched]:
        return [watched for watched in self._watched.values() if watched.run.owner == self.name]

    def _start_passing(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._start(coroutine)
        self._passing[task] = None
        task.add_done_callback(self._passing.pop)
        return task

    async def _pass_on(self, watched: Watched, writing: Writing, hand: Callable[[Run], None]) -> None:
        """Stop holding a run; ``hand`` is told of it once it is written down."""
        run = watched.run
        seconds = self._plan.handoff_seconds
        self._journal.say(self.name, "passes on", run)
        del self._watched[run.number]
        now = self._world_now()
        # A lease that is never extended is not extended by its holder's leaving either, at least not in time.
        is_never = isinstance(run.policy, Never)
        last = run.policy if is_never else LastExtension.of(watched.policy, until=now + seconds, since=now)
        self._note_holdings(watched, watched.batch.leases(), policy=last)
        written = await watched.batch.pass_on(seconds)
        if not is_never and self._world_now() < now + self._plan.call_timeout_seconds:
            receipts = [lease.receipt for lease in written.leases]
            check_extended(self._journal, self.name, receipts, now, seconds)
        check_written(self._journal, self.name, self.clock, written)
        self._note_end(watched, written.leases, passed_on=True)
        self._keeper.drop(watched.batch)
        if run.owner != self.name:
            return  # it stood still meanwhile, and another process took the run over
        self._journal.say(self.name, "has passed on", run, "; the write:", writing.value)
        match writing:
            case Writing.FAILS:
                self._take_up(run, written)
                return
            case Writing.KILLED_BEFORE:
                self._setting.die(self)
                return
        self._write(run, written)
        self._store.new_owner(run, None, self._world_now())
        if writing is Writing.KILLED_AFTER:
            self._setting.die(self)
        else:
            hand(run)

    # Leaving

    async def _leave(self, leaving: Leaving) -> None:
        self._journal.say(self.name, "shuts down:", leaving.value)
        for receiver in self._receivers:
            receiver.stop()
        # Consumers end by themselves; watchers and settlements under way too, or when the keeper closes.
        await asyncio.wait(self._consumers)
        while self._passing:
            await asyncio.wait(self._passing)
        ours = self._ours()
        for watched in tuple(self._watched.values()):
            if watched not in ours:
                self._forget(watched)
        if leaving is Leaving.EXTEND:
            for watched in ours:
                self._start_passing(self._pass_on(watched, Writing.DONE, lambda run: None))
            while self._passing:
                await asyncio.wait(self._passing)
            await self._keeper.close(Leaving.NOTHING)
            self.kill()
            return
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


def leases_of(reception: Reception, policy: RenewalPolicy) -> list[Lease]:
    """The leases of messages that were received with a policy's visibility timeout, without the contents."""
    deadline = reception.sent_at + policy.visibility_seconds
    return [
        Lease(one.receipt, reception.received_at, deadline, one.receive_count, one.message_group_id)
        for one in reception.messages
    ]
