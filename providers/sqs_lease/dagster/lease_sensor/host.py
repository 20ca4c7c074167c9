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
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias
from uuid import uuid4

import dagster as dg

from sqs_lease.clock import Clock, SystemClock
from sqs_lease.core.events import LeaseEvent
from sqs_lease.core.messages import Lease, Message
from sqs_lease.core.policies import RenewalPolicy, with_visibility
from sqs_lease.dagster._internals import dispose
from sqs_lease.dagster.lease_sensor.runs import Decision, Fate
from sqs_lease.dagster.lease_sensor.settings import HostSettings, Request, Tick
from sqs_lease.dagster.lease_sensor.settler import BatchSettler, KeptBatch
from sqs_lease.dagster.metadata import lease_summary
from sqs_lease.dagster.run_batch.folder import BatchFolder, listed
from sqs_lease.dagster.run_batch.lease_files import RecordedLeases, read_leases, write_held_until, write_leases
from sqs_lease.dagster.run_batch.ownership import Ownership
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.keeper.loop_thread import LoopThread
from sqs_lease.keeper.plain_leases import from_wall_time, to_wall_time
from sqs_lease.keeper.receiver import Receiver
from sqs_lease.sqs.transport import Transport

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
        self._ownership = Ownership(settings.directory, settings.deployment)
        former = self._ownership.take()
        fence = 0.0 if former is None else settings.fence_seconds
        self._settles_from = self._clock.now() + fence
        self._ticked_at = self._clock.now()
        self._settler = BatchSettler(
            instance, self._ownership, self._clock, run_deadline_seconds=settings.run_deadline_seconds
        )
        self._batches: dict[str, KeptBatch] = {}
        self._news: deque[str] = deque(maxlen=_MOST_NEWS)
        self._gate = threading.Lock()
        self._queue: tuple[str, RenewalPolicy] | None = None
        self._thread = LoopThread(f"sqs-lease sensor {settings.sensor}")
        self._thread.run(self._open())
        whose = "" if former is None else f", taken over from process {former.pid} on {former.host}"
        self._say(f"The keeper of sensor {settings.sensor} began in process {os.getpid()}{whose}")

    def tick(self) -> Tick | None:
        """Take in what is to be taken in: batches that nobody holds, and new messages. It blocks.

        Returns:
            What was found; None where another evaluation is under way still.

        Raises:
            HostIsOverError: It has ended.
            sqs_lease.sqs.errors.SqsError: The queue cannot be used; the text names it and says what to do.
            OSError: The directory cannot be read or written.
        """
        if not self._gate.acquire(blocking=False):
            return None
        try:
            if self.is_over:
                raise HostIsOverError
            return self._thread.run(self._tick())
        finally:
            self._gate.release()

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
                if settling:
                    await asyncio.wait(settling)
                await asyncio.gather(*(batch.held.extend_now() for batch in self._batches.values()))
                await self._save_deadlines()
        except TimeoutError:
            logger.warning("The last calls of sensor %s were not answered in time", self._settings.sensor)
        logger.info("The keeper of sensor %s ends with its process", self._settings.sensor)

    async def _open(self) -> None:
        self._keeper = Keeper(self._transport, clock=self._clock)
        self._looking = asyncio.Lock()
        loop = asyncio.get_running_loop()
        self._watchers = [loop.create_task(self._watch_owner()), loop.create_task(self._watch_runs())]

    async def _close(self) -> None:
        for task in [*self._watchers, *(batch.settling for batch in self._batches.values() if batch.settling)]:
            task.cancel()
        await self._keeper.close(Leaving.NOTHING)
        await self._transport.aclose()

    # An evaluation of the sensor

    async def _tick(self) -> Tick:
        self._ticked_at = self._clock.now()
        async with asyncio.timeout(TICK_SECONDS):
            await self._adopt_what_nobody_holds()
            await self._look_at_runs()
            received = 0
            if len(self._batches) < self._settings.max_batches:
                received = await self._receive()
        batches = [batch for batch in self._batches.values() if batch.settling is None]
        requested = [batch for batch in batches if batch.decision.fate is Fate.REQUESTED]
        news = list(self._news)
        self._news.clear()
        return Tick(
            [Request(batch.batch_id, batch.uri, batch.held.count_held()) for batch in requested],
            [f"batch {batch.batch_id}: {batch.decision.reason}" for batch in batches if batch not in requested],
            received,
            news,
        )

    def _say(self, text: str) -> None:
        """Say something in this process's log, and in that of the next evaluation, where people look for it."""
        logger.info(text)
        self._news.append(text)

    async def _receive(self) -> int:
        """Receive a batch and write it down."""
        queue_url, policy = await self._resolved_queue()
        receiver = Receiver(self._transport, queue_url, visibility_seconds=policy.visibility_seconds, clock=self._clock)
        batch_id = uuid4().hex
        batch = self._new_batch(batch_id, queue_url, policy)
        held = batch.held
        try:
            collected = await receiver.collect(
                self._settings.max_messages,
                wait=self._settings.wait_seconds,
                linger=self._settings.linger_seconds,
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
            await asyncio.to_thread(self._write, batch, messages, to_wall_time(held.leases(), self._clock))
            if self.is_over or not await asyncio.to_thread(self._ownership.is_ours):
                raise HostIsOverError  # noqa: TRY301 - what was received is given back below
        except BaseException:
            # Nobody was told of them, so nobody else could.
            await held.release_all()
            self._keeper.drop(held)
            await asyncio.to_thread(self._remove, batch)
            raise
        held.drop_contents()
        self._batches[batch_id] = batch
        return len(messages)

    async def _resolved_queue(self) -> tuple[str, RenewalPolicy]:
        """The queue's URL, and the policy with its visibility timeout; asked for once."""
        if self._queue is None:
            url = await self._transport.queue_url(self._settings.queue)
            policy = self._settings.policy
            if policy.visibility is None:
                attributes = await self._transport.queue_attributes(url)
                policy = with_visibility(policy, TAKEOVER_SECONDS, attributes.visibility_seconds)
            self._queue = url, policy
        return self._queue

    def _write(self, batch: KeptBatch, messages: Sequence[Message], leases: Sequence[Lease]) -> None:
        queue_url = batch.held.queue_url
        batch.folder.create(batch_id=batch.batch_id, queue_url=queue_url, messages=messages)
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
        folder = BatchFolder(self._settings.directory / batch_id)
        held = self._keeper.open_batch(
            queue_url,
            policy=policy,
            on_failure=self._settings.on_failure,
            on_event=on_event,
            message_source=partial(_messages_of, folder),
        )
        return KeptBatch(batch_id, f"{self._settings.uri}/{batch_id}", folder, held, self._clock.now())

    # Batches of a process that is gone

    async def _adopt_what_nobody_holds(self) -> None:
        for folder in await asyncio.to_thread(self._found):
            if self.is_over:
                return
            kept = await asyncio.to_thread(read_leases, folder)
            if kept is None:
                await asyncio.to_thread(folder.remove)
            else:
                await self._adopt(kept)

    def _found(self) -> list[BatchFolder]:
        """The directories of batches that are not held here."""
        return [
            BatchFolder(path)
            for path in listed(self._settings.directory)
            if path.name not in self._batches and _BATCH_ID.fullmatch(path.name)
        ]

    async def _adopt(self, kept: RecordedLeases) -> None:
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
            batch.settling = asyncio.get_running_loop().create_task(self._delete_again(batch))
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
                if batch.settling is not None:
                    continue
                batch.decision = await self._settler.decision(batch)
                if batch.decision.is_final and self._clock.now() >= self._settles_from and not self.is_over:
                    batch.settling = asyncio.get_running_loop().create_task(self._settle(batch, batch.decision))

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
                self._say(
                    f"{lost - batch.lost} messages of batch {batch.batch_id} were lost while it was held: they were "
                    "deleted, or others have received them"
                )
                batch.lost = lost

    # Settling

    async def _settle(self, batch: KeptBatch, decision: Decision) -> None:
        try:
            if await self._settler.settle(batch, decision):
                await self._finish(batch)
                self._say(f"Batch {batch.batch_id} is over, because {decision.reason}. {lease_summary(batch.held)}")
                return
        except Exception:
            if self.is_over:
                return
            # What was settled stays so; the rest is settled when it works again.
            logger.exception("Batch %s cannot be settled; trying again", batch.batch_id)
        batch.settling = None

    async def _finish(self, batch: KeptBatch) -> None:
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
