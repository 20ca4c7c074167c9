"""What holds the batches of one lease sensor: a keeper in the code server's process, and the files it is resumed from.

A code server evaluates a sensor in threads of one process, and lives on between two evaluations. The host is a thread
of it with an event loop of its own. It is started by the sensor's first evaluation, and

- extends the leases of the batches (:class:`sqs_lease.keeper.keeper.Keeper`);
- looks up their runs every two seconds, whether or not the sensor is evaluated, and settles batches whose work is over;
- adopts batches that it finds in the sensor's directory, which another process held before it;
- ends when another process has taken the directory over, or when it holds nothing and nobody evaluates the sensor;
- settles what is decided and extends the rest once more when its process ends.

**One owner.** After a reload the former code server lives until its last run is over, and its host with it. So the
newest host writes itself into the directory's ``owner.json``. The others look there once a second, and drop what they
hold, without a call. To extend a lease from two processes does no harm meanwhile. To *settle* one while another still
extends it would: what was given back would be hidden again. So a host that took over settles nothing for
:data:`FENCE_SECONDS <sqs_lease.dagster.lease_sensor.settings.FENCE_SECONDS>`.

**Crashes.** A batch's messages and leases are written before a run is asked for, the leases last. A batch without
leases was never told to anybody, and is removed; its messages come back by themselves. A batch with leases and without
a run has its run asked for again, by the same run key, for which Dagster starts no second run. A batch whose settlement
had begun is deleted as far as it was to be deleted, and otherwise left alone (``lease_files.py``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias, TypeVar
from uuid import uuid4

import dagster as dg

from sqs_lease.clock import Clock, SystemClock
from sqs_lease.core.events import LeaseEvent, Outcome
from sqs_lease.core.failure_rules import Delete, Settlement
from sqs_lease.core.group_order import hold_back
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.core.policies import RenewalPolicy, with_visibility
from sqs_lease.dagster._internals import dispose
from sqs_lease.dagster.lease_sensor.dispatch import (
    Destination,
    Dispatcher,
    Part,
    RecordedRun,
    Undispatched,
    divided,
    read_run,
    undispatched_text,
    write_run,
)
from sqs_lease.dagster.lease_sensor.runs import Decision, Fate
from sqs_lease.dagster.lease_sensor.settings import HostSettings, Request, Tick
from sqs_lease.dagster.lease_sensor.settler import BatchSettler, KeptBatch
from sqs_lease.dagster.metadata import lease_summary
from sqs_lease.dagster.run_batch.folder import BatchFolder, listed
from sqs_lease.dagster.run_batch.lease_files import RecordedLeases, read_leases, write_held_until, write_leases
from sqs_lease.dagster.run_batch.ownership import Ownership
from sqs_lease.dagster.run_batch.run_folders import workspace_path
from sqs_lease.dagster.targets import MOST_RUNS_AT_ONCE
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.keeper.loop_thread import LoopThread
from sqs_lease.keeper.plain_leases import from_wall_time, to_wall_time
from sqs_lease.keeper.receiver import Receiver
from sqs_lease.keeper.telemetry import open_telemetry_meter
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import Transport
from sqs_lease.sqs.validation import FIFO_SUFFIX

logger = logging.getLogger(__name__)

TAKEOVER_SECONDS: Final = 60.0
"""For how long nobody may extend a lease while a code server is started again, and its sensor evaluated by it.

A code server was ready after 12 to 16 s where that was measured; the daemon notices and evaluates within another 10 s.
The rest is for slower machines and for containers that are started elsewhere.
"""

IDLE_SECONDS: Final = 60.0
"""After how long without evaluation a host that holds nothing ends."""

_MOST_NEWS: Final = 100
_BATCH_ID: Final = re.compile("[0-9a-f]{32}")

LAST_SECONDS: Final = 8.0
"""How long the last calls of a process that ends may take: it may be killed soon after it was told to end."""

TICK_SECONDS: Final = 50.0
"""How long an evaluation may take: the daemon gives it up after 60 s, and what it received would be nobody's."""

_Question = TypeVar("_Question")
_Answer = TypeVar("_Answer")

OpenTransport: TypeAlias = Callable[[], Transport]


class HostIsOverError(RuntimeError):
    """The host has ended meanwhile: another one is to be started."""


class LeaseHost:
    """Holds the batches of one sensor, in a thread of its own, from now on.

    Args:
        settings: What it does.
        instance: The instance in which it looks up runs.
        open_transport: Reaches SQS.
        clock: Source of time; the machine's by default.
        disposes: Whether the instance is its own, to be disposed of when it ends; it is by default.

    Raises:
        ForeignOwnerError: The sensor's directory belongs to another Dagster instance.
        OSError: The directory cannot be read or written.
    """

    def __init__(
        self,
        settings: HostSettings,
        instance: dg.DagsterInstance,
        open_transport: OpenTransport,
        *,
        clock: Clock | None = None,
        disposes: bool = True,
    ) -> None:
        self.is_over = False
        self._disposes = disposes
        self._transport = open_transport()
        self._settings = settings
        self._instance = instance
        self._clock: Clock = SystemClock() if clock is None else clock
        self._directory = workspace_path(settings.uri)
        self._ownership = Ownership(self._directory, settings.deployment)
        former = self._ownership.take()
        fence = 0.0 if former is None else settings.fence_seconds
        self._settles_from = self._clock.now() + fence
        self._ticked_at = self._clock.now()
        self._settler = BatchSettler(
            instance, self._ownership, self._clock, run_deadline_seconds=settings.run_deadline_seconds
        )
        self._batches: dict[str, KeptBatch] = {}
        self._news: deque[str] = deque(maxlen=_MOST_NEWS)
        self._failures: deque[str] = deque(maxlen=_MOST_NEWS)
        self._settling: set[asyncio.Task[None]] = set()
        self._unreachable_since: float | None = None
        self._asking = ThreadPoolExecutor(1, f"sqs-lease dispatch {settings.sensor}")
        self._gate = threading.Lock()
        self._queue: tuple[str, RenewalPolicy] | None = None
        self._thread = LoopThread(f"sqs-lease sensor {settings.sensor}")
        self._thread.run(self._open())
        whose = "" if former is None else f", taken over from process {former.pid} on {former.host}"
        self._say(f"The keeper of sensor {settings.sensor} began in process {os.getpid()}{whose}")

    def tick(self, dispatcher: Dispatcher | None = None) -> Tick | None:
        """Take in what is to be taken in: batches that nobody holds, and new messages. It blocks.

        Args:
            dispatcher: Says which runs messages go to, and whether there can be such runs; None where all that is
                received together goes to one run. It is called in a thread of its own.

        Returns:
            What was found; None where another evaluation is under way still.

        Raises:
            HostIsOverError: It has ended.
            sqs_lease.sqs.errors.SqsError: The queue cannot be used; the text names it and says what to do.
            OSError: The directory cannot be read or written.
            RunConfigError: The configuration that all runs have does not fit; what was received is visible again.
            TimeoutError: It took too long; what was received is visible again.
        """
        if not self._gate.acquire(blocking=False):
            return None
        try:
            if self.is_over:
                raise HostIsOverError
            return self._thread.run(self._tick(dispatcher))
        except SqsError:
            self._unreachable_since = self._unreachable_since or self._clock.now()
            raise
        finally:
            self._gate.release()

    def unreachable_seconds(self) -> float:
        """For how long each evaluation has failed by an error of SQS."""
        return 0.0 if self._unreachable_since is None else self._clock.now() - self._unreachable_since

    def end(self) -> None:
        """Hold nothing any more, without a call, and end the thread. It blocks."""
        with self._gate:
            self._end()

    def leave(self) -> None:
        """End with the process: settle what is decided, and extend the rest once, so that another has time to come.

        It blocks for twice :data:`LAST_SECONDS` at most. An evaluation that is under way for longer is left alone.
        """
        if not self._gate.acquire(timeout=LAST_SECONDS):
            return
        try:
            if not self.is_over:
                self._thread.run(self._last_calls())
            self._end()
        finally:
            self._gate.release()

    def _end(self) -> None:
        if self._thread.is_stopped:
            return
        self.is_over = True
        self._thread.run(self._close())
        self._thread.stop()
        with suppress(Exception):
            # Each store has errors of its own. Who takes it next waits a moment longer if this fails.
            self._ownership.leave()
        if self._disposes:
            dispose(self._instance)

    async def _last_calls(self) -> None:
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self._look_at_runs()
                settling = [batch.settling for batch in self._batches.values() if batch.settling is not None]
                settling += self._settling
                if settling:
                    await asyncio.wait(settling)
                await asyncio.gather(*(batch.held.extend_now() for batch in self._batches.values()))
                await self._save_deadlines()
        except TimeoutError:
            logger.warning("The last calls of sensor %s were not answered in time", self._settings.sensor)
        logger.info("The keeper of sensor %s ends with its process", self._settings.sensor)

    async def _open(self) -> None:
        self._keeper = Keeper(self._transport, clock=self._clock, meter=open_telemetry_meter())
        self._looking = asyncio.Lock()
        loop = asyncio.get_running_loop()
        self._watchers = [loop.create_task(self._watch_owner()), loop.create_task(self._watch_runs())]

    async def _close(self) -> None:
        for task in [
            *self._watchers,
            *self._settling,
            *(batch.settling for batch in self._batches.values() if batch.settling),
        ]:
            task.cancel()
        await self._keeper.close(Leaving.NOTHING)
        await self._transport.aclose()
        self._asking.shutdown(wait=False, cancel_futures=True)

    # An evaluation of the sensor

    async def _tick(self, dispatcher: Dispatcher | None) -> Tick:
        self._ticked_at = self._clock.now()
        try:
            async with asyncio.timeout(TICK_SECONDS) as limit:
                await self._adopt_what_nobody_holds()
                await self._refuse_what_cannot_run(dispatcher)
                await self._look_at_runs()
                received = 0
                if len(self._batches) < self._settings.max_batches:
                    received = await self._receive(dispatcher)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(
                f"the evaluation of sensor {self._settings.sensor} on {self._settings.queue} took longer than "
                f"{TICK_SECONDS:g} s, so it was given up, and what it received is visible again. Check that the "
                "sensor's functions, its workspace and SQS answer in time"
            ) from None
        self._unreachable_since = None
        batches = [batch for batch in self._batches.values() if batch.settling is None]
        requested = self._to_be_asked_for(batches)
        for batch in requested:
            batch.asked += 1
        news, failures = list(self._news), list(self._failures)
        self._news.clear()
        if not requested:
            self._failures.clear()
        return Tick(
            [Request(batch.batch_id, batch.uri, batch.held.count_held(), batch.destination) for batch in requested],
            [f"batch {batch.batch_id}: {batch.decision.reason}" for batch in batches if batch not in requested],
            received,
            news,
            failures,
        )

    def _to_be_asked_for(self, batches: Sequence[KeptBatch]) -> list[KeptBatch]:
        """The batches to ask for runs for; one at most that has been asked for in vain, and last.

        Dagster gives up an evaluation at the first run that it cannot make: that one must not hold up the others.
        """
        ready = [
            batch for batch in batches if batch.decision.fate is Fate.REQUESTED and not (batch.waits or batch.refused)
        ]
        fresh = [batch for batch in ready if not batch.asked]
        in_vain = sorted((batch for batch in ready if batch.asked), key=lambda batch: batch.asked)
        return [*fresh[: MOST_RUNS_AT_ONCE - bool(in_vain)], *in_vain[:1]]

    async def _refuse_what_cannot_run(self, dispatcher: Dispatcher | None) -> None:
        """Give back what there can be no run for: definitions or sensor have changed since it was received."""
        for batch in list(self._batches.values()):
            if dispatcher is None or batch.settling is not None or batch.decision.fate is not Fate.REQUESTED:
                continue
            batch.refused = ""
            if batch.destination is not None:
                batch.refused = await self._asked(dispatcher, dispatcher.why_not, batch.destination)
            elif dispatcher.dispatch.is_by_message:
                batch.refused = "the sensor had no functions of a message when it was received"

    async def _asked(
        self, dispatcher: Dispatcher, function: Callable[[_Question], _Answer], question: _Question
    ) -> _Answer:
        """Call what calls a user's functions: in a thread of its own, so that one that hangs holds up nothing else."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._asking, partial(dispatcher.variables.run, function, question))

    def _fail(self, text: str) -> None:
        """Say what went wrong, and have an evaluation fail by it that asks for no run: Dagster can alert of that."""
        self._say(text)
        self._failures.append(text)

    def _say(self, text: str) -> None:
        """Say something in this process's log, and in that of the next evaluation, where people look for it."""
        logger.info(text)
        self._news.append(text)

    async def _receive(self, dispatcher: Dispatcher | None) -> int:
        """Receive messages, and write them down as a batch for each run that they go to."""
        options = self._settings.options
        queue_url, policy = await self._resolved_queue()
        receiver = Receiver(self._transport, queue_url, visibility_seconds=policy.visibility_seconds, clock=self._clock)
        first = self._new_batch(uuid4().hex, queue_url, policy)
        held = first.held
        batches: list[KeptBatch] = []
        try:
            collected = await receiver.collect(
                options.max_messages,
                wait=options.wait_seconds,
                linger=options.linger_seconds,
                on_received=lambda reception: held.add(
                    reception.messages, received_at=reception.received_at, sent_at=reception.sent_at
                ),
            )
            if collected.error is not None and collected.messages:
                logger.warning("Took %d messages only: %s", len(collected.messages), collected.error)
            messages = held.messages()
            if not messages:
                self._keeper.drop(held)
                return 0
            failed: dict[Receipt, Settlement] = {}
            if dispatcher is None or not dispatcher.dispatch.is_by_message:
                batches = [first]
                await asyncio.to_thread(self._write, first, messages, to_wall_time(held.leases(), self._clock))
            else:
                answers = await self._asked(dispatcher, dispatcher.ask, messages)
                failed = self._failed(held, messages, answers)
                chosen = [
                    (message, answer)
                    for message, answer in zip(messages, answers, strict=True)
                    if isinstance(answer, Destination) and message.receipt not in failed
                ]
                parts = divided(chosen, is_fifo=queue_url.endswith(FIFO_SUFFIX))
                # The first one has the leases already. Others take them over, which costs a call to extend them.
                alone = len(parts) == 1 and not failed
                batches = [first] if alone else [self._new_batch(uuid4().hex, queue_url, policy) for _ in parts]
                await self._write_parts(batches, parts, held)
            if self.is_over or not await asyncio.to_thread(self._ownership.is_ours):
                raise HostIsOverError  # noqa: TRY301 - what was received is given back below
        except BaseException:
            # Nobody was told of them, so nobody else could.
            await held.release_all()
            for batch in {id(batch): batch for batch in (first, *batches)}.values():
                self._keeper.drop(batch.held)
                await asyncio.to_thread(self._remove, batch)
            raise
        self._hold(first, batches)
        if first not in batches:
            task = asyncio.get_running_loop().create_task(self._settle_failed(held, failed))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)
        return len(messages)

    async def _settle_failed(self, held: Batch, failed: Mapping[Receipt, Settlement]) -> None:
        try:
            await held.settle(failed)
            self._tell_of_unsettled(held, "that no run can work on")
        finally:
            self._keeper.drop(held)

    def _hold(self, first: KeptBatch, batches: Sequence[KeptBatch]) -> None:
        """Have batches from now on; others than the one that has received take their leases over from it."""
        leases = {lease.receipt.message_id: lease for lease in first.held.leases()}
        for batch in batches:
            if batch is not first:
                batch.held.adopt([leases[each] for each in batch.received if each in leases])
            batch.received = ()
            batch.held.drop_contents()
            self._batches[batch.batch_id] = batch
        for batch in batches:
            self._waits(batch)

    def _failed(
        self, held: Batch, messages: Sequence[Message], answers: Sequence[Destination | Undispatched]
    ) -> dict[Receipt, Settlement]:
        """What becomes of messages that cannot be given to a run, and of what is behind them in their groups."""
        alike: dict[Undispatched, list[Receipt]] = {}
        for message, answer in zip(messages, answers, strict=True):
            if isinstance(answer, Undispatched):
                alike.setdefault(answer, []).append(message.receipt)
        failed: dict[Receipt, Settlement] = {}
        for why, receipts in alike.items():
            failed |= held.failing(why.reason, receipts, errors=why.errors)
            self._fail(undispatched_text(why, receipts, failed))
        if failed and held.queue_url.endswith(FIFO_SUFFIX):
            whole = {message.receipt: failed.get(message.receipt, Delete()) for message in messages}
            carried_out = hold_back(whole, held.leases(), lambda _: None)
            failed |= {receipt: one for receipt, one in carried_out.items() if one != whole[receipt]}
        return failed

    async def _write_parts(self, batches: Sequence[KeptBatch], parts: Sequence[Part], held: Batch) -> None:
        leases = {lease.receipt.message_id: lease for lease in to_wall_time(held.leases(), self._clock)}
        for batch, part in zip(batches, parts, strict=True):
            batch.destination = part.destination
            batch.after = frozenset(batches[place].batch_id for place in part.after)
            batch.received = tuple(message.message_id for message in part.messages)
            mine = [leases[each] for each in batch.received if each in leases]
            await asyncio.to_thread(self._write, batch, part.messages, mine)

    async def _resolved_queue(self) -> tuple[str, RenewalPolicy]:
        """The queue's URL, and the policy with its visibility timeout; asked for once."""
        if self._queue is None:
            url = await self._transport.queue_url(self._settings.queue)
            policy = self._settings.options.policy
            if policy.visibility is None:
                attributes = await self._transport.queue_attributes(url)
                policy = with_visibility(policy, TAKEOVER_SECONDS, attributes.visibility_seconds)
            self._queue = url, policy
        return self._queue

    def _write(self, batch: KeptBatch, messages: Sequence[Message], leases: Sequence[Lease]) -> None:
        queue_url = batch.held.queue_url
        batch.folder.create(batch_id=batch.batch_id, queue_url=queue_url, messages=messages)
        if batch.destination is not None:
            write_run(batch.folder, batch.destination, batch.after)
        write_leases(batch.folder, batch.batch_id, queue_url, leases)

    def _remove(self, batch: KeptBatch) -> None:
        try:
            batch.folder.remove()
        except Exception as error:  # noqa: BLE001 - each store has errors of its own
            logger.warning(
                "%s cannot be removed (%s: %s); the next evaluation looks at it again",
                batch.folder,
                type(error).__name__,
                error,
            )

    def _new_batch(
        self,
        batch_id: str,
        queue_url: str,
        policy: RenewalPolicy,
        on_event: Callable[[LeaseEvent], None] | None = None,
    ) -> KeptBatch:
        folder = BatchFolder(self._directory / batch_id)
        held = self._keeper.open_batch(
            queue_url,
            policy=policy,
            on_failure=self._settings.options.on_failure,
            on_event=on_event,
            message_source=partial(_messages_of, folder),
        )
        return KeptBatch(batch_id, f"{self._settings.uri}/{batch_id}", folder, held, self._clock.now())

    # Batches of a process that is gone

    async def _adopt_what_nobody_holds(self) -> None:
        # Nobody looks at some of them while others, for which they wait, are yet to be found.
        async with self._looking:
            for folder in await asyncio.to_thread(self._found):
                if self.is_over:
                    return
                kept = await asyncio.to_thread(read_leases, folder)
                if kept is None:
                    await asyncio.to_thread(folder.remove)
                else:
                    await self._adopt(kept, await asyncio.to_thread(read_run, folder))

    def _found(self) -> list[BatchFolder]:
        """The directories of batches that are not held here."""
        return [
            BatchFolder(path)
            for path in listed(self._directory)
            if path.name not in self._batches and _BATCH_ID.fullmatch(path.name)
        ]

    async def _adopt(self, kept: RecordedLeases, run: RecordedRun | None) -> None:
        _, policy = await self._resolved_queue()
        leases = from_wall_time(kept.leases, self._clock)
        if kept.deleting is None:
            batch = self._new_batch(kept.batch_id, kept.queue_url, policy)
            batch.held.adopt(leases)
            # As long as it has no run, it has waited for one since then.
            batch.changed_at = max((lease.received_at for lease in leases), default=batch.changed_at)
            self._say(f"Took over {len(leases)} messages of {kept.queue_url} (batch {kept.batch_id})")
        else:
            # Most of them are deleted already; that the service says so is no loss.
            batch = self._new_batch(kept.batch_id, kept.queue_url, policy, on_event=_unheard)
            batch.held.adopt([lease for lease in leases if lease.receipt.message_id in kept.deleting])
            batch.is_partial = len(kept.deleting) < len(leases)
            batch.settling = asyncio.get_running_loop().create_task(self._delete_again(batch))
        if run is not None:
            batch.destination, batch.after = run.destination, frozenset(run.after)
        self._batches[kept.batch_id] = batch

    async def _delete_again(self, batch: KeptBatch) -> None:
        await batch.held.succeed()
        await self._finish(batch)

    # The watch

    async def _watch_owner(self) -> None:
        while not self.is_over:
            await asyncio.sleep(self._settings.look_seconds)
            try:
                ours = await asyncio.to_thread(self._ownership.is_ours)
            except Exception as error:  # noqa: BLE001 - each store has errors of its own
                # It goes on extending, which does no harm; it settles nothing without knowing.
                logger.warning("Who owns %s cannot be read (%s: %s)", self._settings.uri, type(error).__name__, error)
                continue
            idle = not self._batches and self._clock.now() - self._ticked_at > IDLE_SECONDS
            if not ours or idle:
                self._give_up("nobody evaluates it" if ours else "another process has taken over")

    def _give_up(self, why: str) -> None:
        logger.info("The keeper of sensor %s ends: %s", self._settings.sensor, why)
        self.is_over = True
        for batch in self._batches.values():
            if batch.settling is not None:
                batch.settling.cancel()
            self._keeper.drop(batch.held)
        self._batches.clear()
        # From a thread of its own: this one is to end, and an evaluation may be under way.
        threading.Thread(target=self.end, name="sqs-lease end", daemon=True).start()

    async def _watch_runs(self) -> None:
        while not self.is_over:
            await asyncio.sleep(2 * self._settings.look_seconds)
            try:
                await self._look_at_runs()
                await self._save_deadlines()
                self._tell_of_lost_leases()
            except Exception:
                # Whatever the instance's database or the directory's store does, it may work again later.
                logger.exception("The runs of sensor %s cannot be looked up; trying again", self._settings.sensor)

    async def _look_at_runs(self) -> None:
        """Look up the runs of all batches, and begin to settle those that are decided."""
        async with self._looking:
            for batch in list(self._batches.values()):
                if batch.settling is not None or self._waits(batch):
                    continue
                batch.decision = await self._settler.decision(batch)
                if batch.decision.is_final and self._clock.now() >= self._settles_from and not self.is_over:
                    batch.settling = asyncio.get_running_loop().create_task(self._settle(batch, batch.decision))

    def _waits(self, batch: KeptBatch) -> bool:
        """Whether a batch waits for others that have earlier messages of its message groups."""
        batch.waits = bool(batch.after & self._batches.keys())
        if batch.waits:
            batch.decision = Decision(Fate.REQUESTED, "waits until earlier messages of its message groups are done")
            batch.changed_at = self._clock.now()
        elif batch.after:
            # One that was done would have been taken out.
            batch.refused = "earlier messages of its message groups came back"
        return batch.waits

    async def _save_deadlines(self) -> None:
        for batch in list(self._batches.values()):
            until = batch.held.certain_until()
            if until is not None and batch.settling is None and until - batch.saved_until > 1.0:
                await asyncio.to_thread(write_held_until, batch.folder, until + self._clock.wall() - self._clock.now())
                batch.saved_until = until

    def _tell_of_lost_leases(self) -> None:
        for batch in self._batches.values():
            lost = batch.held.report().lost
            if lost > batch.lost and batch.settling is None:
                self._fail(
                    f"{lost - batch.lost} messages of batch {batch.batch_id} were lost while it was held: they were "
                    "deleted, others have received them, or SQS refuses to extend them"
                )
                batch.lost = lost

    # Settling

    async def _settle(self, batch: KeptBatch, decision: Decision) -> None:
        try:
            if await self._settler.settle(batch, decision):
                await self._finish(batch)
                self._say(f"Batch {batch.batch_id} is over, because {decision.reason}. {lease_summary(batch.held)}")
                self._tell_of_unsettled(batch.held, f"of batch {batch.batch_id}")
                return
        except Exception:
            if self.is_over:
                return
            # What was settled stays so; the rest is settled when it works again.
            logger.exception("Batch %s cannot be settled; trying again", batch.batch_id)
        batch.settling = None

    def _tell_of_unsettled(self, held: Batch, which: str) -> None:
        ends = held.outcomes().values()
        if details := [end.detail for end in ends if end.outcome is Outcome.FAILED]:
            why = "; ".join(dict.fromkeys(details))
            self._fail(
                f"{len(details)} messages {which} could not be settled, so they are received again "
                f"when their visibility timeout ends: {why}"
            )

    async def _finish(self, batch: KeptBatch) -> None:
        if batch.is_done():
            for later in [each for each in self._batches.values() if batch.batch_id in each.after]:
                after = later.after - {batch.batch_id}
                if later.destination is not None:
                    await asyncio.to_thread(write_run, later.folder, later.destination, after)
                later.after = after
        await asyncio.to_thread(self._remove, batch)
        self._keeper.drop(batch.held)
        self._batches.pop(batch.batch_id, None)


def _messages_of(folder: BatchFolder, message_ids: Sequence[str]) -> Awaitable[Mapping[str, Message]]:
    """Read messages of a batch, to dead-letter them."""

    def read() -> dict[str, Message]:
        wanted = set(message_ids)
        return {each.message_id: each for each in folder.manifest().messages if each.message_id in wanted}

    return asyncio.to_thread(read)


def _unheard(event: LeaseEvent) -> None:
    """Nothing is said of it."""
