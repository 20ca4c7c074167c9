"""The time between two triggers: a received batch goes on being extended until the keeper's trigger takes it over.

The keeper's task may take seconds (or, when no worker is free, minutes) to be started and deferred, and its trigger may
run in another triggerer, which then takes over by itself and says so (:data:`TAKEOVER_KEY`). This process does about a
batch that it still owns, by the state of the keeper's task:

    not yet started, queued, running, to be retried   extends it up to the hand-off timeout, then releases it
    deferred                                          extends it until a trigger takes it over, however long that takes
    ended                                             releases it at once, unless a trigger took it over
    running, when the timeout ends                    stops tracking it; its messages come back by themselves
    unknown, when the timeout ends                    extends it until Airflow answers, for half a minute at most,
                                                      and then stops tracking it

A batch that a trigger took over is never released here: the leases may be another process's by then, and releasing
them would give messages away that it holds. And a keeper that begins after its batch was released finds a note that it
was (:func:`note_end`), so that it does the same.

The task that received it says whether the batch is still wanted. When that task was cleared, it receives again, and no
keeper will ever take this batch: it is released at once, so that the new try gets its messages.

The keeper's trigger takes it over: from a trigger of its own process, or from the plain leases in its arguments
(:func:`adopt`). Large batches are looked through a
slice at a time, because the event loop serves all triggers: Airflow warns when it stands still for 0.2 s, and 50 000
leases that are taken over at once take several times as long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import asdict, replace
from typing import Final

from sqs_lease.airflow.airflow_api.polling import POLL_SECONDS, StateWatch
from sqs_lease.airflow.airflow_api.requests import CommsError, RunOfTask, TaskStates, publish
from sqs_lease.airflow.runtime import SharedBatch, TriggererKeepers
from sqs_lease.airflow.transfer.progress import PROGRESS_KEY, DeadlineNote, Progress, counts_of, read_takeover
from sqs_lease.airflow.transfer.status import status_of
from sqs_lease.clock import Clock
from sqs_lease.core.events import Outcome
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.event_loop_rounds import LEASES_IN_A_ROUND, RoundLimiter
from sqs_lease.keeper.keeper import Leaving
from sqs_lease.keeper.lease_log import LeaseLog
from sqs_lease.keeper.plain_leases import to_wall_time

logger = logging.getLogger(__name__)

ADOPTION_SECONDS: Final = 2.0
"""How long a deferred keeper's trigger is waited for in this process; a new trigger is started within about 2 s."""

TAKEOVER_SECONDS: Final = 5.0
"""The shortest time for which a trigger that took a batch over settles nothing, see :func:`takeover_seconds`."""

LONGEST_PAUSE_SECONDS: Final = 10.0
"""Longest pause between two questions whether a trigger took the batch over.

A triggerer without room may leave hundreds of keepers waiting, and each question takes the supervisor about 20 ms.
"""

_FRESH_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 30.0
"""How long Airflow's answer is waited for at the end: on a busy machine one takes 15 s now and then."""

ENDED: Final = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})
"""The states in which a task, and its trigger with it, has come to its end."""

_BEGINS_AGAIN: Final = frozenset({None, "scheduled", "queued", "running", "restarting", "up_for_retry"})


def was_cleared(receiving: RunOfTask, states: TaskStates) -> bool:
    """Whether a task that received a batch will receive another one instead; so it is too when its run was deleted."""
    return states.get(receiving.task_id) in _BEGINS_AGAIN


def takeover_seconds(held_seconds: float) -> float:
    """How long a trigger that took a batch over from another process waits before it settles anything.

    By then the other process has read the takeover, and no longer extends what is released here.

    Args:
        held_seconds: How long ago the batch was received: its keeper has not been deferred for longer.
    """
    return TAKEOVER_SECONDS - POLL_SECONDS + _pause_seconds(held_seconds)


def _pause_seconds(waited_seconds: float) -> float:
    """The time between two questions whether a trigger took a batch over whose keeper has been deferred so long."""
    return min(max(POLL_SECONDS, waited_seconds / 4), LONGEST_PAUSE_SECONDS)


class HandOff:
    """Holds one batch of this process until it is claimed, or until it is known that it will not be.

    Args:
        keepers: What the triggers of this process share.
        batch_id: The name by which the keeper's trigger claims the batch.
        shared: The batch; its creator gives up ownership here.
        keeper_task: The task whose trigger is to take the batch.
        timeout_seconds: The hand-off timeout.
        released: Called after the batch was released, when nobody needs anything that was stored with it.
        receive_task: The task that received, if clearing it means that the batch is no longer wanted; its XComs are
            where notes are. None also writes no notes.
        progress: Gives what a keeper's trigger left to write down; by default nothing was settled yet.
        messages: How many were handed on with ``receive_task``, those that were settled since included.
        holder: Names the trigger that took the batch over, as it told; None if none of this process did. The process
            that it took it from may not have read of that.
    """

    def __init__(
        self,
        keepers: TriggererKeepers,
        batch_id: str,
        shared: SharedBatch,
        keeper_task: RunOfTask,
        timeout_seconds: float,
        released: Callable[[], Awaitable[None]] | None = None,
        receive_task: RunOfTask | None = None,
        progress: Callable[[], Progress] | None = None,
        messages: int = 0,
        holder: str | None = None,
    ) -> None:
        self._keepers = keepers
        self._batch_id = batch_id
        self._shared = shared
        self._keeper_task = keeper_task
        self._timeout_seconds = timeout_seconds
        self._released = released
        self._receive_task = receive_task
        self._messages = messages
        self._holder = holder
        self._deadline_note = DeadlineNote(shared.batch, keepers.clock)
        self._progress = self._nothing_settled if progress is None else progress
        self._lease_log = LeaseLog(shared.batch.queue_url)
        self._state: str | None = None
        self._was_received = False
        self._is_cleared = False
        self._answered_at: float | None = None
        self._deferred_at: float | None = None
        self._ended_at: float | None = None
        self._asks_at = 0.0
        self._must_note = False
        self._warned = False

    def start(self) -> asyncio.Task[None]:
        """Begin to hold the batch, from the event loop."""
        self._shared.listener = self._lease_log.happened
        self._keepers.enter(self._batch_id, self._shared, self)
        # Counted before the trigger that received the batch gives up its own use of the keeper.
        self._shared.shared_keeper.users += 1
        return self._keepers.loop.create_task(
            self._run(), name=f"sqs-lease hand-off of {self._batch_id}", context=Context()
        )

    async def _run(self) -> None:
        try:
            await self._hold()
        except asyncio.CancelledError:
            # The triggerer stops. One last extension gives the next holder as much time as possible.
            if self._is_ours():
                await self._keepers.leave(self._batch_id, self._shared, Leaving.EXTEND)
            raise
        finally:
            await self._keepers.release(self._shared.shared_keeper)

    async def _hold(self) -> None:
        clock = self._keepers.clock
        ends_at = clock.now() + self._timeout_seconds
        task, receiving = self._keeper_task, self._receive_task
        watched = [task.task_id] if receiving is None else [task.task_id, receiving.task_id]
        with self._keepers.poller.watch(task.dag_id, task.run_id, watched) as watch:
            while self._is_ours():
                states = await self._next_states(watch)
                if not self._is_ours():
                    return  # Claimed while the answer was on its way, so it says nothing about this process.
                now = clock.now()
                if states is not None:
                    self._take_in(states, now, is_late=now >= ends_at)
                elif now >= ends_at and self._answered_at is not None and now - self._answered_at <= _FRESH_SECONDS:
                    self._note_end(now, is_late=True)
                notes = self._receive_task is not None and self._ended_at is None
                self._must_note = notes and (self._must_note or self._deadline_note.is_due())
                if self._waits() or (self._must_note and now < ends_at):
                    await self._wait_for_trigger(watch, now, ends_at)
                elif now < ends_at:
                    continue
                elif self._state == "running":
                    self._forget("its keeper took it over, or is about to")
                elif now >= ends_at + _ANSWER_SECONDS:
                    self._forget("Airflow does not say what became of its keeper")

    async def _next_states(self, watch: StateWatch) -> TaskStates | None:
        """The next answer, or None after a while without one: time passes, and claims are made, meanwhile."""
        seconds = POLL_SECONDS * 2
        if self._waits():
            # The trigger that takes over waits no longer than until the next question.
            seconds = min(seconds, max(self._asks_at - self._keepers.clock.now(), 0.0))
        try:
            async with asyncio.timeout(seconds):
                return await watch.next()
        except TimeoutError:
            return None

    def _take_in(self, states: TaskStates, now: float, *, is_late: bool) -> None:
        before, self._state = self._state, states.get(self._keeper_task.task_id)
        self._answered_at = now
        if self._state == "deferred" != before:
            self._deferred_at = now
            self._asks_at = now + ADOPTION_SECONDS
        self._is_cleared = self._receive_task is not None and self._is_received_again(self._receive_task, states)
        self._note_end(now, is_late=is_late)

    def _note_end(self, now: float, *, is_late: bool) -> None:
        """Note whether the keeper will take the batch no more: also because it did not begin in time."""
        never_comes = is_late and self._state not in ("running", "deferred")
        if self._state not in ENDED and not self._is_cleared and not never_comes:
            self._ended_at = None
        elif self._ended_at is None:
            self._ended_at = self._asks_at = now

    def _is_received_again(self, receiving: RunOfTask, states: TaskStates) -> bool:
        """Whether the receiving task was cleared. It is still deferred at first, until its success is written down."""
        if states.get(receiving.task_id) == "success":
            self._was_received = True
        return was_cleared(receiving, states) or (self._was_received and states.get(receiving.task_id) == "deferred")

    def _waits(self) -> bool:
        """Whether it is the turn of the keeper's trigger, or of none any more."""
        return self._state == "deferred" or self._ended_at is not None

    async def _wait_for_trigger(self, watch: StateWatch, now: float, ends_at: float) -> None:
        """Hold a batch until it is known whether a trigger took it over: its keeper deferred, ended or was cleared."""
        # A note that is due asks before its time: once a trigger took over, the note is that trigger's own.
        if now < self._asks_at and not self._must_note:
            return
        waited = 0.0 if self._deferred_at is None or self._ended_at is not None else now - self._deferred_at
        self._asks_at = now + _pause_seconds(waited)
        # Of the two, that of the keeper is deleted when it begins again, and that of the other when the run is cleared.
        tasks = [self._keeper_task] if self._receive_task is None else [self._receive_task]
        if self._ended_at is not None and self._receive_task is not None:
            tasks.insert(0, self._keeper_task)
        try:
            async with watch.turn:
                takeover = await read_takeover(self._batch_id, *tasks)
        except CommsError as error:
            logger.warning("Whether %s took over its messages cannot be read: %s", self._keeper_task, error)
            if self._is_ours() and self._ended_at is not None and now - self._ended_at >= _ANSWER_SECONDS:
                self._forget("Airflow does not say whether its keeper took it over")
            return
        if not self._is_ours():
            return
        if takeover is not None and takeover.holder != self._holder:
            self._forget("its keeper's trigger runs in another triggerer")
        elif self._ended_at is None:
            if self._must_note:
                self._must_note = False
                await self._note()
            if now >= ends_at and not self._warned:
                self._warned = True
                logger.warning(
                    "%s has been deferred for %.0f s, but no triggerer runs its trigger; its messages of %s are held "
                    "here meanwhile. Check the capacity of the triggerers, and that one of them serves its queue",
                    self._keeper_task,
                    waited,
                    self._shared.batch.queue_url,
                )
        elif (self._deferred_at is None and self._holder is None) or now - self._ended_at >= TAKEOVER_SECONDS:
            # Within these seconds a trigger that began just before the end may still say so, and one from which the
            # batch was taken over reads of that.
            await self._release()

    async def _note(self) -> None:
        """Write down how long the leases last: a keeper elsewhere may then release them."""
        if self._receive_task is None:
            return
        progress = self._progress()
        if progress.status is None:
            batch = self._shared.batch
            status = await status_of(batch, asdict(batch.report()), self._keepers.clock)
            if not self._is_ours():
                return
            progress = replace(progress, status=status)
        try:
            await publish(self._receive_task, PROGRESS_KEY, progress.encode(), patience_seconds=0)
        except CommsError as error:
            logger.warning("The deadline of the leases of %s cannot be written: %s", self._keeper_task, error)

    def _nothing_settled(self) -> Progress:
        batch = self._shared.batch
        return Progress(
            certain_until=self._deadline_note.until(), batch_id=self._batch_id, counts=counts_of(batch, before={})
        )

    def _is_ours(self) -> bool:
        return self._shared.owner is self

    def _forget(self, why: str) -> None:
        logger.info("Batch %s of %s is no longer held here: %s", self._batch_id, self._keeper_task, why)
        self._keepers.remove(self._batch_id, self._shared)
        self._shared.owner = None

    async def _release(self) -> None:
        queue_url = self._shared.batch.queue_url
        if self._is_cleared:
            logger.info("%s was cleared, so its messages of %s are released", self._receive_task, queue_url)
        else:
            logger.error(
                "%s did not take over its messages of %s (its state is %s): they are released. "
                "Check that workers and pool slots are free for it, or raise handoff_timeout",
                self._keeper_task,
                queue_url,
                self._state,
            )
        # From here on nobody may claim what is being given back.
        self._keepers.batches.pop(self._batch_id, None)
        if self._receive_task is not None and not self._is_cleared:
            await note_end(self._receive_task, self._batch_id, self._messages, self._progress())
        await self._shared.batch.release_all()
        self._forget("it was released")
        if self._released is not None:
            await self._released()


async def note_end(receive_task: RunOfTask, batch_id: str, messages: int, progress: Progress) -> None:
    """Write down that a batch was settled or is about to be given back, for a try of its keeper that begins later.

    That try has the receipt handles still, and by what was written before they would seem to hold: it would extend and
    settle the leases of other consumers. What is held now counts as lost to it.

    Args:
        receive_task: The task that received; what the keeper's own task wrote is deleted when it begins again.
        batch_id: The batch.
        messages: How many it has.
        progress: What was settled before.
    """
    settled = {**dict.fromkeys(range(messages), Outcome.LOST), **progress.settled}
    note = replace(progress, settled=settled, certain_until=None, batch_id=batch_id)
    try:
        await publish(receive_task, PROGRESS_KEY, note.encode(), patience_seconds=0)
    except CommsError as error:
        logger.warning("It cannot be written that the batch of %s has ended: %s", receive_task, error)


async def held_by(batch: Batch, rounds: RoundLimiter, clock: Clock) -> tuple[list[Lease], list[Message]]:
    """Return the leases that a batch still holds, in times since the epoch, and their messages in the same order.

    Args:
        batch: The batch. Leases that end meanwhile may be missing, but both lists name the same messages.
        rounds: Shares the rounds of the event loop among slices of work.
        clock: The batch's clock.
    """
    leases = batch.leases()
    await asyncio.sleep(0)
    contents = await _by_receipt(batch.messages(), rounds)
    held: list[Lease] = []
    messages: list[Message] = []
    for start in range(0, len(leases), LEASES_IN_A_ROUND):
        some = leases[start : start + LEASES_IN_A_ROUND]
        await rounds.take(len(some))
        both = [(lease, contents[lease.receipt]) for lease in some if lease.receipt in contents]
        held += to_wall_time([lease for lease, _ in both], clock)
        messages += [message for _, message in both]
    return held, messages


async def adopt(batch: Batch, leases: Sequence[Lease], messages: Sequence[Message], rounds: RoundLimiter) -> None:
    """Let a batch hold leases that were held elsewhere, see :meth:`Batch.adopt`.

    If the caller is cancelled meanwhile, the batch holds all of them all the same.

    Args:
        batch: The batch.
        leases: The leases, in times of the keeper's clock.
        messages: Their messages, as far as their content is known.
        rounds: Shares the rounds of the event loop among slices of work.

    Raises:
        KeeperClosedError: The keeper was closed, or the batch dropped: nobody would extend them.
    """
    contents: dict[Receipt, Message] = {}

    def adopt_some(some: Sequence[Lease]) -> None:
        batch.adopt(some, [contents[lease.receipt] for lease in some if lease.receipt in contents])

    adopted = 0
    try:
        contents = await _by_receipt(messages, rounds)
        while adopted < len(leases):
            some = leases[adopted : adopted + LEASES_IN_A_ROUND]
            await rounds.take(len(some))
            adopted += len(some)
            adopt_some(some)
    except BaseException:
        adopt_some(leases[adopted:])
        raise


async def _by_receipt(messages: Sequence[Message], rounds: RoundLimiter) -> dict[Receipt, Message]:
    contents: dict[Receipt, Message] = {}
    for start in range(0, len(messages), LEASES_IN_A_ROUND):
        some = messages[start : start + LEASES_IN_A_ROUND]
        await rounds.take(len(some))
        contents.update((message.receipt, message) for message in some)
    return contents
