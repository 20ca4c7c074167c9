"""The batches of one event trigger from their event until they are settled; it is the trigger that gives them to runs.

A batch goes through the stages of :class:`~sqs_lease.airflow.batches.protocol.Stage`:

    waiting    It is held here. A run's claim gives it away; without one its event is fired again now and then, and it
               is released when the hand-off timeout ends.
    claimed    It is held by the :class:`~sqs_lease.airflow.transfer.handoff.HandOff` until the run's keeper has it, and
               released when that will never come.
    at work    Its keeper extends and settles it. Only its end is waited for, because it counts as unsettled.

Everything that another process must know is in the registry (``protocol.py``) before it matters: a batch before its
event is fired, a claim before the run may know of it. A trigger that takes over reads it, holds what waits and
hands on what was claimed. Each start of a trigger writes its name there, and stops when it finds another name.

An event is fired again where no run claims its batch, because Airflow makes one run of all events up to the one that
queued it. An event that comes while a run is queued, but not made yet (``max_active_runs``, a busy scheduler), belongs
neither to that run nor to a later one, until another event comes; and so does one that was fired while the DAG was
paused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from sqs_lease.airflow.airflow_api.assets import PATIENCE_SECONDS, AssetState
from sqs_lease.airflow.airflow_api.requests import CommsError, task_states
from sqs_lease.airflow.aws_connection import AwsConnection
from sqs_lease.airflow.batches.protocol import BatchEvent, BatchRegistry, Claim, Claimant, Place, RegisteredBatch, Stage
from sqs_lease.airflow.runtime import SharedBatch, SharedKeeper, TriggererKeepers
from sqs_lease.airflow.transfer.handoff import HandOff, adopt, held_by
from sqs_lease.airflow.transfer.lease import HandedLease
from sqs_lease.airflow.transfer.payload import (
    INLINE_BYTES,
    PayloadError,
    find_refused,
    in_thread,
    load_lease,
    messages_of,
    publishable,
    published_bytes,
    remove_files,
)
from sqs_lease.core.events import LeaseEvent
from sqs_lease.core.messages import Lease, Message
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.keeper.keeper import Leaving
from sqs_lease.keeper.plain_leases import from_wall_time, to_wall_time

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Pause between two looks for a claim, each of which is one request while any batch waits, and none otherwise."""

WORK_LOOK_SECONDS: Final = 5.0
"""Pause between two looks at the keepers that have batches: one request a DAG."""

STALL_SECONDS: Final = 10.0
"""After a longer gap between two looks another process may have taken over: the registry is asked first."""

REFRESH_SECONDS: Final = 10.0
"""How often the stored deadlines of a waiting batch are written again at most, and only when they were moved."""

MARGIN_SECONDS: Final = 2.0
"""A lease that is taken over from the registry must last so long, or somebody else may have the message."""

_ENDED: Final = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})


MISSED_SECONDS: Final = 10.0
"""So long after a claim the event of an older batch that was not claimed with it is fired again."""

FIRST_REMINDER_SECONDS: Final = 60.0
"""So long after its event a batch that nobody claimed gets it fired again; then after twice as long, and so on."""

LONGEST_REMINDER_SECONDS: Final = 300.0
"""The longest pause between two such events: within it, a DAG that was unpaused sees the batches that wait."""

FIRST_PAUSE_SECONDS: Final = 30.0
"""How long nothing is received after a batch came back unused; twice as long each time, until a keeper takes one."""

LONGEST_PAUSE_SECONDS: Final = 900.0
"""The longest such pause."""


@dataclass(slots=True)
class ReceivePause:
    """How long nothing is received because batches came back unused: each receive counts for the redrive policy."""

    times: int = 0
    ends_at: float = 0.0

    def unused(self, now: float) -> float:
        """A batch came back unused: return for how many seconds nothing is received."""
        seconds = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self.times, 30), LONGEST_PAUSE_SECONDS)
        self.times += 1
        self.ends_at = max(self.ends_at, now + seconds)
        return seconds

    def used(self) -> None:
        """A keeper took a batch."""
        self.times = 0


@dataclass(slots=True)
class Reminder:
    """When the event of one waiting batch is due again. Times are of the keeper's clock."""

    due_at: float
    pause_seconds: float = FIRST_REMINDER_SECONDS

    @classmethod
    def from_now(cls, now: float) -> Reminder:
        """The reminder of an event that is fired now."""
        return cls(now + FIRST_REMINDER_SECONDS)

    def missed(self, now: float) -> None:
        """A run claimed other batches, but not this one."""
        self.due_at = min(self.due_at, now + MISSED_SECONDS)

    def reminded(self, now: float) -> None:
        """It, or the event of another batch of the same trigger, was fired again: a run takes all that wait."""
        self.pause_seconds = min(self.pause_seconds * 2, LONGEST_REMINDER_SECONDS)
        self.due_at = now + self.pause_seconds


class ReplacedError(RuntimeError):
    """Another start of the trigger keeps the registry now."""


@dataclass(frozen=True, slots=True)
class _Held:
    """The leases of an open batch that this process holds, and how."""

    shared: SharedBatch
    policy: RenewalPolicy


@dataclass(slots=True, eq=False)
class _OpenBatch:
    """An open batch with what only this process knows of it. Without ``held`` its keeper has it."""

    entry: RegisteredBatch
    held: _Held | None
    lease: dict[str, Any]
    reminder: Reminder
    handoff: asyncio.Task[None] | None = None
    given_up: bool = False
    inline_bytes: int = 0  # what its messages add to the value of the run that takes it; 0 in files
    stored_messages: int = 0
    stored_deadline: float = 0.0
    stored_at: float = 0.0


@dataclass(slots=True, eq=False)
class OpenBatches:
    """The open batches of one trigger. All methods are called from the event loop.

    Args:
        place: Where the registry is.
        owner: The name that this start of the trigger gave itself.
        queue_url: The queue.
        connection: How AWS is reached.
        keepers: What the triggers of this process share.
        shared_keeper: The keeper that extends.
        payload: Where messages and leases are stored (``transfer/payload.py``); None for the state store itself.
        limit: Most open batches.
        handoff_timeout_seconds: How long a batch waits for a claim, and then for the keeper.
        fire: Fires an event.
        happened: Told of what happens to leases while their batch waits.
    """

    place: Place
    owner: str
    queue_url: str
    connection: AwsConnection
    keepers: TriggererKeepers
    shared_keeper: SharedKeeper
    payload: str | None
    limit: int
    handoff_timeout_seconds: float
    fire: Callable[[BatchEvent], None]
    happened: Callable[[LeaseEvent], None]
    polling: bool = field(init=False, default=False)
    """Whether a poll is under way, which would receive at once what is released: the trigger sets it."""
    _state: AssetState = field(init=False)
    _open: dict[str, _OpenBatch] = field(init=False, default_factory=dict)
    _fewer: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _showing: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _shown: dict[str, Any] | None = field(init=False, default=None)
    _to_delete: list[str] = field(init=False, default_factory=list)
    _pause: ReceivePause = field(init=False, default_factory=ReceivePause)
    _looked_at: float = field(init=False)
    _work_looked_at: float = field(init=False)
    _in_trouble: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._state = AssetState(self.place.asset)
        self._looked_at = self._work_looked_at = self.keepers.clock.now()

    def __str__(self) -> str:
        return f"{self.queue_url} at asset {self.place.asset!r}"

    # Taking in

    async def resume(self) -> None:
        """Take over the registry, and what is in it.

        Raises:
            CommsError: It cannot be read or written.
        """
        stored = await self._state.get(self.place.registry, patience_seconds=PATIENCE_SECONDS)
        registry = BatchRegistry.decode(stored)
        if stored is not None and registry is None:
            logger.warning("The registry of %s cannot be read, so it begins anew: what was open comes back", self)
        for entry in registry.entries.values() if registry is not None else ():
            if entry.stage is Stage.AT_WORK or await self._is_kept(entry):
                self._open[entry.batch_id] = self._at_work(entry)
            else:
                await self._take_over(entry)
        await self._show(patience_seconds=PATIENCE_SECONDS)
        # What is asked for is asked for again; and there is something to read from now on.
        await self._state.put(self.place.claim, {}, patience_seconds=PATIENCE_SECONDS)

    def _at_work(self, entry: RegisteredBatch) -> _OpenBatch:
        reminder = Reminder.from_now(self.keepers.clock.now())
        return _OpenBatch(replace(entry, stage=Stage.AT_WORK), None, {}, reminder)

    async def _is_kept(self, entry: RegisteredBatch) -> bool:
        """Whether the keeper of a claimed batch has, or had, it already."""
        if entry.claimant is None:
            return False
        keeper = entry.claimant.keeper
        states = (await task_states(keeper.dag_id, [keeper.run_id], [keeper.task_id])).get(keeper.run_id, {})
        return states.get(keeper.task_id, "removed") in _ENDED | {"deferred"}

    async def _take_over(self, entry: RegisteredBatch) -> None:
        lease = await self._state.get(self.place.lease(entry.batch_id), patience_seconds=PATIENCE_SECONDS)
        published = await self._state.get(self.place.messages(entry.batch_id), patience_seconds=PATIENCE_SECONDS)
        if lease is None or published is None:
            return
        try:
            handed = await load_lease(lease)
            messages = {message.message_id: message for message in await in_thread(messages_of, published)}
        except PayloadError as error:
            await self._leave_unreadable(entry, lease, error)
            return
        here = self.keepers.batches.get(entry.batch_id)
        if here is not None and not isinstance(here.owner, OpenBatches | HandOff):
            # Its keeper claimed it since it was asked for.
            self._open[entry.batch_id] = self._at_work(entry)
            return
        shared = self.keepers.claim(entry.batch_id, self, self.happened)
        if shared is None:
            lasting = [one for one in handed.leases if one.deadline > self.keepers.clock.wall() + MARGIN_SECONDS]
            if not lasting:
                logger.warning("Batch %s of %s lapsed while no trigger held it", entry.batch_id, self.queue_url)
                self._delete_keys(entry.batch_id)
                await remove_files(lease)
                return
            shared = self.open_shared_batch(handed.policy)
            self.keepers.enter(entry.batch_id, shared, self)
            contents = [replace(messages[one.receipt.message_id], receipt=one.receipt) for one in lasting]
            await adopt(shared.batch, from_wall_time(lasting, self.keepers.clock), contents, self.keepers.rounds)
        logger.info("Taking over batch %s of %s, which is %s", entry.batch_id, self.queue_url, entry.stage.value)
        held = _Held(shared, handed.policy)
        batch = _OpenBatch(entry, held, lease, Reminder.from_now(self.keepers.clock.now()))
        if self.payload is None:
            batch.inline_bytes = sum(map(published_bytes, shared.batch.messages()))
        self._open[entry.batch_id] = batch
        if entry.claimant is None:
            # Its event may have been lost with the process that fired it.
            self._fire(entry)
        else:
            self._hand_off(batch, shared, entry.claimant)

    async def _leave_unreadable(self, entry: RegisteredBatch, lease: Mapping[str, Any], error: PayloadError) -> None:
        """Serve the queue without a batch that cannot be held: nobody extends its leases, so it comes back soon."""
        logger.error(
            "Leaving batch %s of %s alone; its messages come back when their visibility timeout ends: %s",
            entry.batch_id,
            self.queue_url,
            error,
        )
        if entry.claimant is None:
            self._delete_keys(entry.batch_id)
            await remove_files(lease)
        else:
            # Its keeper may still read it.
            self._open[entry.batch_id] = self._at_work(entry)

    def open_batch(self, policy: RenewalPolicy) -> SharedBatch:
        """Open a batch for what is about to be received; it is the caller's until it was added."""
        return self.shared_keeper.open_shared_batch(self.queue_url, policy, self.happened, _nothing_else)

    async def room(self) -> None:
        """Wait until another batch may be received."""
        while True:
            self._fewer.clear()
            if (seconds := self._pause.ends_at - self.keepers.clock.now()) > 0:
                await asyncio.sleep(seconds)
            elif len(self._open) >= self.limit or self.bytes_left() == 0:
                await self._fewer.wait()
            else:
                return

    def bytes_left(self) -> int | None:
        """How many bytes may be received for the next run, which may be given all that waits; None in files."""
        if self.payload is not None:
            return None
        return max(INLINE_BYTES - sum(batch.inline_bytes for batch, _ in self._waiting()), 0)

    def holds(self, batch_id: str) -> bool:
        """Whether a batch is open here."""
        return batch_id in self._open

    async def add(self, batch_id: str, shared: SharedBatch, policy: RenewalPolicy) -> None:
        """Register a batch that was just received, and fire its event.

        Raises:
            CommsError: It could not be put there; the batch is still the caller's.
            PayloadError: It could not be stored; the same.
        """
        entry = RegisteredBatch(batch_id, shared.batch.count_held(), self.keepers.clock.wall())
        held = _Held(shared, policy)
        batch = _OpenBatch(entry, held, {}, Reminder.from_now(self.keepers.clock.now()))
        try:
            await self._store(batch, held, patience_seconds=PATIENCE_SECONDS)
            shared.listener = self.happened
            self.keepers.enter(batch_id, shared, self)
            self._open[batch_id] = batch
            await self._show(patience_seconds=PATIENCE_SECONDS)
        except (CommsError, PayloadError):
            self._open.pop(batch_id, None)
            await self._delete_stored(batch)
            raise
        logger.info("Received %d messages of %s: batch %s waits for a run", entry.messages, self.queue_url, batch_id)
        self._fire(entry)

    async def find_refused(self, batch_id: str, messages: Sequence[Message]) -> frozenset[str]:
        """Find the messages that keep a batch out of the registry by themselves; none where it is in files.

        Raises:
            CommsError: Airflow takes nothing at all, or gave no answer.
        """
        if self.payload is not None:
            return frozenset()
        try:
            return await find_refused(messages, partial(self._state.put, self.place.messages(batch_id)))
        finally:
            self._delete_keys(batch_id)

    # Attending

    async def attend(self) -> None:
        """Look after the open batches, without end.

        Raises:
            ReplacedError: Another trigger does.
        """
        while True:
            try:
                await self._look()
            except (CommsError, PayloadError) as error:
                if not self._in_trouble:
                    logger.warning(
                        "The registry of %s cannot be read or written; leases are extended meanwhile: %s", self, error
                    )
                self._in_trouble = True
            else:
                self._in_trouble = False
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        now = self.keepers.clock.now()
        stalled, self._looked_at = now - self._looked_at > STALL_SECONDS, now
        if stalled and not await self.is_served():
            raise ReplacedError(f"another trigger serves {self}")
        if self._waiting() and (claim := Claim.decode(await self._state.get(self.place.claim))) is not None:
            await self._give_away(claim)
        await self._end_what_nobody_claimed()
        self._end_handoffs()
        if now - self._work_looked_at >= WORK_LOOK_SECONDS:
            self._work_looked_at = now
            await self._end_what_was_settled()
        self._remind()
        await self._refresh()
        await self._show()
        while self._to_delete:
            await self._state.delete(self._to_delete[-1])
            self._to_delete.pop()

    def _waiting(self) -> list[tuple[_OpenBatch, _Held]]:
        return [
            (batch, batch.held)
            for batch in self._open.values()
            if batch.entry.stage is Stage.WAITING and batch.held is not None
        ]

    async def _give_away(self, claim: Claim) -> None:
        given = [(batch, held) for batch, held in self._waiting() if batch.entry.batch_id in claim.batch_ids]
        if not given:
            return
        for batch, held in given:
            # Without what was lost meanwhile, and with how long the rest lasts.
            await self._store(batch, held)
        for batch, held in given:
            if held.shared.owner is not self:
                raise ReplacedError(f"another trigger of this process serves {self}")
            batch.entry = replace(batch.entry, stage=Stage.CLAIMED, claimant=claim.claimant)
            self._hand_off(batch, held.shared, claim.claimant)
        self._fewer.set()
        logger.info("%d batches of %s go to %s", len(given), self.queue_url, claim.claimant)
        for batch, _ in self._waiting():
            batch.reminder.missed(self.keepers.clock.now())
        await self._show()

    def _hand_off(self, batch: _OpenBatch, shared: SharedBatch, claimant: Claimant) -> None:
        async def releasing() -> None:
            self._open.pop(batch.entry.batch_id, None)
            self._unused(f"{claimant} claimed batch {batch.entry.batch_id}, but its keeper never came")
            try:
                # Gone from the registry before it is released: a keeper that begins all the same knows by that.
                if await self.is_served():
                    await self._show()
            except CommsError as error:
                logger.warning("That batch %s is given back cannot be written: %s", batch.entry.batch_id, error)

        async def released() -> None:
            self._fewer.set()
            await self._delete_stored(batch)

        batch.handoff = HandOff(
            self.keepers,
            batch.entry.batch_id,
            shared,
            claimant.keeper,
            self.handoff_timeout_seconds,
            released=released,
            releasing=releasing,
        ).start()

    async def _end_what_nobody_claimed(self) -> None:
        for batch, held in self._waiting():
            if not held.shared.batch.count_held():
                logger.error("Batch %s of %s was lost before a run claimed it", batch.entry.batch_id, self.queue_url)
                self.keepers.remove(batch.entry.batch_id, held.shared)
                await self._end(batch)
            elif self.keepers.clock.wall() - batch.entry.received_at >= self.handoff_timeout_seconds:
                if not batch.given_up:
                    batch.given_up = True
                    self._unused(
                        f"no run claimed batch {batch.entry.batch_id} within {self.handoff_timeout_seconds:g} s, so it "
                        "is released. Check that the DAG is not paused, or raise handoff_timeout above the length of "
                        "its runs"
                    )
                if not self.polling:
                    await self._release(batch, held.shared)

    async def _release(self, batch: _OpenBatch, shared: SharedBatch) -> None:
        # Gone from the registry before it is released: nobody may take it over from there then.
        del self._open[batch.entry.batch_id]
        try:
            await self._show()
        except CommsError:
            self._open[batch.entry.batch_id] = batch
            raise
        if shared.owner is self:
            self.keepers.batches.pop(batch.entry.batch_id, None)
            await shared.batch.release_all()
            self.keepers.remove(batch.entry.batch_id, shared)
        await self._delete_stored(batch)
        self._fewer.set()

    def _end_handoffs(self) -> None:
        for batch in list(self._open.values()):
            if batch.handoff is None or not batch.handoff.done() or batch.held is None:
                continue
            batch.held = None
            batch.entry = replace(batch.entry, stage=Stage.AT_WORK)
            # Its files, if it has any, are the keeper's now.
            self._delete_keys(batch.entry.batch_id)
            self._pause.used()

    def _unused(self, why: str) -> None:
        seconds = self._pause.unused(self.keepers.clock.now())
        logger.warning("Receiving nothing of %s for %.0f s: %s", self.queue_url, seconds, why)

    async def _end_what_was_settled(self) -> None:
        at_work = [
            (batch, batch.entry.claimant.keeper)
            for batch in self._open.values()
            if batch.entry.stage is Stage.AT_WORK and batch.entry.claimant is not None
        ]
        for dag_id in {keeper.dag_id for _, keeper in at_work}:
            of_dag = [(batch, keeper) for batch, keeper in at_work if keeper.dag_id == dag_id]
            run_ids, task_ids = {keeper.run_id for _, keeper in of_dag}, {keeper.task_id for _, keeper in of_dag}
            states = await task_states(dag_id, sorted(run_ids), task_ids)
            for batch, keeper in of_dag:
                if states.get(keeper.run_id, {}).get(keeper.task_id, "removed") in _ENDED:
                    del self._open[batch.entry.batch_id]
                    self._fewer.set()

    async def _end(self, batch: _OpenBatch) -> None:
        del self._open[batch.entry.batch_id]
        self._fewer.set()
        await self._delete_stored(batch)

    # Firing

    def _fire(self, entry: RegisteredBatch) -> None:
        self.fire(BatchEvent(entry.batch_id, self.queue_url, entry.messages, self.place))

    def _remind(self) -> None:
        """Fire again for one batch if any needs it: the run that it starts takes all that wait."""
        now = self.keepers.clock.now()
        waiting = [batch for batch, _ in self._waiting()]
        due = [batch for batch in waiting if now >= batch.reminder.due_at]
        if due:
            logger.info("%d batches of %s still wait for a run: telling Airflow again", len(waiting), self.queue_url)
            self._fire(due[0].entry)
            for batch in waiting:
                batch.reminder.reminded(now)

    # Storing

    async def _show(self, *, patience_seconds: float = 0.0) -> None:
        async with self._showing:
            entries = {batch_id: batch.entry for batch_id, batch in self._open.items()}
            registry = BatchRegistry(self.owner, self.queue_url, entries).encode()
            if registry != self._shown:
                self._shown = None  # Unknown, until an answer comes.
                await self._state.put(self.place.registry, registry, patience_seconds=patience_seconds)
                self._shown = registry

    async def _store(self, batch: _OpenBatch, held: _Held, *, patience_seconds: float = 0.0) -> None:
        """Store what is still held of a batch, in place of what was stored of it before."""
        batch_id = batch.entry.batch_id
        leases, messages = await held_by(held.shared.batch, self.keepers.rounds, self.keepers.clock)
        handed = HandedLease(batch_id, self.queue_url, held.policy, self.connection, leases)
        batch.lease, published = await publishable(self.payload, handed, messages)
        if self.payload is None:
            batch.inline_bytes = sum(map(published_bytes, messages))
        if len(messages) != batch.stored_messages:
            await self._state.put(self.place.messages(batch_id), published, patience_seconds=patience_seconds)
            batch.stored_messages = len(messages)
        await self._state.put(self.place.lease(batch_id), batch.lease, patience_seconds=patience_seconds)
        batch.stored_deadline = _earliest(leases)
        batch.stored_at = self.keepers.clock.now()

    async def _refresh(self) -> None:
        for batch, held in self._waiting():
            if self.keepers.clock.now() - batch.stored_at >= REFRESH_SECONDS:
                leases = to_wall_time(held.shared.batch.leases(), self.keepers.clock)
                if leases and _earliest(leases) > batch.stored_deadline + MARGIN_SECONDS:
                    await self._store(batch, held)

    def _delete_keys(self, batch_id: str) -> None:
        self._to_delete += [self.place.messages(batch_id), self.place.lease(batch_id)]

    async def _delete_stored(self, batch: _OpenBatch) -> None:
        self._delete_keys(batch.entry.batch_id)
        if batch.lease:
            await remove_files(batch.lease)

    async def is_served(self) -> bool:
        """Whether this trigger is the one that the registry names.

        Raises:
            CommsError: There was no usable answer.
        """
        registry = BatchRegistry.decode(await self._state.get(self.place.registry))
        return registry is not None and registry.owner == self.owner

    # Ending

    async def give_back(self) -> None:
        """Release what waits, unless another trigger keeps the registry; what was claimed goes its way.

        Raises:
            CommsError: It cannot be told whether another one does; what was not released is still held.
        """
        if await self.is_served():
            for batch, held in self._waiting():
                await self._release(batch, held.shared)

    async def leave(self) -> None:
        """Extend the waiting batches once, and stop tracking them: the next trigger finds them in the registry."""
        ours = [(batch.entry.batch_id, held.shared) for batch, held in self._waiting() if held.shared.owner is self]
        await asyncio.gather(*(self.keepers.leave(batch_id, shared, Leaving.EXTEND) for batch_id, shared in ours))


async def _nothing_else(message_ids: Sequence[str]) -> Mapping[str, Message]:
    """The source of contents of a batch that has all of them."""
    return {}


def _earliest(leases: Sequence[Lease]) -> float:
    return min((lease.deadline for lease in leases), default=0.0)
