"""The trigger of the keeper's task: keeps the leases while the work runs, and settles them.

It always begins in the same way (:mod:`sqs_lease.airflow.handover`): it adopts the leases in its arguments, without
those that the progress note calls settled, and with the newest known deadlines. The next extension is made when the
policy says so. It ends in one of these ways:

- Everything was settled (or lost): it publishes the report and ends its task as successful; or a worker does, where
  listeners such as OpenLineage's hear of successes, because Airflow tells them in workers only.
- A settlement failed, or leases were lost and ``on_lost`` is ``"raise"``: the same, and a worker fails the task,
  without a retry (:func:`~sqs_lease.airflow.settlement.settler.why_it_fails`).
- The triggerer stops or hands its triggers to another one: one last extension, and the leases are left alone. They are
  not released, because the work goes on.
- A user marks, clears or kills the task: see :meth:`SqsLeaseKeeperTrigger.on_kill`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import asdict, replace
from enum import Enum
from typing import Any, Final

from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from sqs_lease.airflow.airflow_api.polling import (
    FailureSignals,
    are_reported,
)
from sqs_lease.airflow.airflow_api.requests import (
    PATIENCE_SECONDS,
    CommsError,
    NoAnswerError,
    RunOfTask,
    TaskStates,
    publish,
    pull,
    task_states,
    triggerer_deletes_variables,
)
from sqs_lease.airflow.handover import HANDED_KEY, LEASE_KEY, HandedLease, OtherKeyError, PayloadError, adopt, hand_on
from sqs_lease.airflow.payload import PublishedMessages, load_lease, remove_files
from sqs_lease.airflow.settlement.lost_leases import WARN, LostLeases
from sqs_lease.airflow.settlement.rules import ENDED, WorkTask, begins_again
from sqs_lease.airflow.settlement.settler import (
    AFTER_STALL_SECONDS,
    Progress,
    Settler,
    read_progress,
    why_it_fails,
)
from sqs_lease.airflow.triggers.shared import (
    LeaseTrigger,
    TriggererKeepers,
    last_calls,
    shielded,
)
from sqs_lease.clock import Clock
from sqs_lease.core.events import LeaseEvent, Outcome
from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS
from sqs_lease.core.policies import Never
from sqs_lease.core.specs import decode_failure_rule
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.endings import end_of
from sqs_lease.keeper.keeper import Keeper
from sqs_lease.keeper.plain_leases import CLOCK_ERROR_SECONDS, WrittenBatch, to_wall_time
from sqs_lease.keeper.telemetry import publish_span

logger = logging.getLogger(__name__)

REPORT_KEY: Final = "lease_report"
"""The keeper's XCom key for how the batch ended."""

PROGRESS_SECONDS: Final = 20.0
"""How long to wait for the progress note before all messages are held without it.

On a busy machine the first answer of a new triggerer takes 15 s: its supervisor loads the API server's code for it.
Waiting is cheap: a lease that is taken over at the default visibility timeout has much time left. Holding without the
note is not: it extends messages that were given back, and on a standard queue that may change the time that another
consumer has asked for. So the wait is longer while the leases last as they were written, until
:data:`HOLDING_MARGIN_SECONDS` before the first of them ends. The trigger goes on asking until there is an answer, and
settles nothing before.
"""

ASK_AGAIN_SECONDS: Final = 3.0
"""How long until the note is read again after an error, as of an XCom backend whose service is away for a moment."""

HOLDING_MARGIN_SECONDS: Final = 30.0
"""Time for the first extensions of a takeover, three attempts of 10 s each, before a lease ends."""

EARLIER_TRY_SECONDS: Final = 5.0
"""How long the trigger of a second or later try waits before it reads the note.

Airflow starts the new try's trigger up to a second before it tells the earlier trigger that it was cleared. After this
wait the earlier one has noted its settlements and the deadline of the leases.
"""


class _AfterAction(Enum):
    """What to do with a batch after a user acted on its keeper."""

    RELEASE = "no keeper will follow: note that the batch has ended, and release it"
    RELEASE_OF_CLEARED = (
        "its run receives another batch: release it, without a note, which would count for the other batch"
    )
    EXTEND = "the keeper's next try will adopt it: extend it once, and forget it"
    LEAVE = "another trigger has it, or may have it: forget it"


class SqsLeaseKeeperTrigger(LeaseTrigger):
    """The trigger that keeps and settles one batch.

    Args:
        lease: The lease as the sensor published it, see :class:`~sqs_lease.airflow.handover.HandedLease`.
        receive_task_id: The sensor's task; its return value has the messages.
        work: The tasks that work on the messages, each as the arguments of a ``WorkTask``.
        on_failure: The rule for failed messages, see :func:`~sqs_lease.core.specs.encode_failure_rule`.
        on_lost: The action when leases are lost, see
            :func:`~sqs_lease.airflow.settlement.lost_leases.encode_on_lost`.
        ordered: Whether the messages of a FIFO group are settled in their order.
        handoff_timeout_seconds: How long the messages stay invisible for a keeper that was cleared and starts again,
            or for another triggerer.
        tried_before: Whether the task was tried before: the trigger of that try may not know yet that it was cleared.
        ends_in_worker: Whether a worker ends the task also when it succeeds.
    """

    _receiving: RunOfTask  # from the beginning of run() on

    def __init__(
        self,
        lease: dict[str, Any],
        receive_task_id: str,
        work: list[dict[str, Any]],
        on_failure: dict[str, Any],
        handoff_timeout_seconds: float,
        on_lost: str | dict[str, Any] = WARN,
        ordered: bool = True,
        tried_before: bool = False,
        ends_in_worker: bool = False,
    ) -> None:
        super().__init__()
        self.lease = lease
        self.receive_task_id = receive_task_id
        self.work = work
        self.on_failure = on_failure
        self.handoff_timeout_seconds = handoff_timeout_seconds
        self.on_lost = on_lost
        self.ordered = ordered
        self.tried_before = tried_before
        self.ends_in_worker = ends_in_worker
        self._settler: Settler | None = None
        self._losses: LostLeases | None = None
        self._handed: HandedLease | None = None
        self._batch: Batch | None = None  # while this trigger holds it
        self._received_at = 0.0  # the first message, in seconds since the epoch
        self._extended_at = 0.0  # when all messages were extended without the note, in seconds since the epoch

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, for Airflow."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "lease": self.lease,
                "receive_task_id": self.receive_task_id,
                "work": self.work,
                "on_failure": self.on_failure,
                "handoff_timeout_seconds": self.handoff_timeout_seconds,
                "on_lost": self.on_lost,
                "ordered": self.ordered,
                "tried_before": self.tried_before,
                "ends_in_worker": self.ends_in_worker,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Keep the leases until each is settled, then end the task."""
        keepers = await self._begin()
        task = self._task
        self._receiving = receiving = replace(task, task_id=self.receive_task_id)
        try:
            handed = await load_lease(self.lease, receiving)
        except OtherKeyError as error:
            # This triggerer has another Fernet key. A worker could read the leases when the task deferred, so a worker
            # gives them back; they are not held meanwhile.
            logger.error("%s", error)  # noqa: TRY400 - the text has the cause and the remedy
            await self._deferral_was_noticed()
            yield TriggerEvent({"error": str(error), "give_back": True})  # type: ignore[no-untyped-call]
            return
        if not isinstance(self.on_lost, str):
            self._losses = LostLeases(self.on_lost, task, handed.queue_url)
        keeper = await self._use_when_possible(keepers, handed)
        signals = self._signals()
        self._settler = settler = await self._adopt(handed, keepers, keeper, signals)
        self._received_at = min((lease.received_at for lease in handed.leases), default=handed.written.written_at)
        self._handed = replace(handed, written=replace(handed.written, leases=()))
        # Deleted, because with many keepers a second copy of the leases slows the garbage collector.
        del handed
        listen_to = signals.prefix if signals is not None and triggerer_deletes_variables() else None
        with keepers.poller.watch(task.dag_id, task.run_id, settler.watched_tasks(), signals=listen_to) as watch:
            if not await settler.run(watch):
                batch, self._batch = self._batch, None
                if batch is not None:
                    logger.info("The run was cleared: releasing its messages")
                    # A task of its own, so that it finishes when Airflow ends this trigger meanwhile: nothing else
                    # would release the rest.
                    await end_of(asyncio.create_task(self._release(batch, self._handed)))
                # Airflow ends this trigger when the task is scheduled again, which may be days later.
                await asyncio.Event().wait()
        if self._losses is not None:
            await self._losses.told()
        report = settler.progress.report()
        logger.info("All leases ended: %s", {name: count for name, count in report.items() if name != "messages"})
        try:
            await publish(task, REPORT_KEY, report)
        except CommsError as error:
            logger.warning("Everything was settled, but the report cannot be published: %s", error)
        # If this task is cleared later, with failed work for example, its next try finds that all is settled.
        await settler.progress.write_end()
        problem = why_it_fails(report, self.on_lost, self._handed.queue_url)
        if problem is not None:
            logger.error("%s", problem)
        in_worker = problem is not None or self.ends_in_worker
        if in_worker:
            await self._deferral_was_noticed()
        await self._publish_span(self._handed, settler)
        await remove_files(self._handed)
        # After a TaskFailedEvent Airflow would retry the task, which would then succeed with nothing to keep. So a
        # worker ends it, by an exception without a retry.
        if in_worker:
            yield TriggerEvent({"error": problem})  # type: ignore[no-untyped-call]
        else:
            yield TaskSuccessEvent()

    async def _use_when_possible(self, keepers: TriggererKeepers, handed: HandedLease) -> Keeper:
        """Return the keeper of the batch's connection; while Airflow does not give the connection, ask again.

        Nothing else would keep the messages, and they last until their deadlines: 12 hours at most.

        Raises:
            SqsError: There is no client, and another try would not help, or would come too late.
        """
        last_received_at = max((lease.received_at for lease in handed.leases), default=0.0)
        ends_at = last_received_at + MAX_VISIBILITY_SECONDS
        return await self._use_until(ends_at, keepers, handed.connection, handed.queue_url)

    async def _release(self, batch: Batch, handed: HandedLease) -> None:
        """Release all held messages: no keeper follows."""
        try:
            await batch.release_all()
            if self._settler is not None:
                await self._publish_span(handed, self._settler)
        finally:
            batch.forget()
        await remove_files(handed)

    async def _publish_span(self, handed: HandedLease, settler: Settler) -> None:
        """Publish the span of the lease, which the sensor began."""
        await publish_span(
            handed.queue_url, handed.trace, received_at=self._received_at, counts=settler.progress.counts()
        )

    async def _let_go(self) -> None:
        """Extend the held leases once and release nothing: the next process adopts them.

        A note cannot be written here: when a triggerer stops, its supervisor no longer answers the triggers. After a
        stall nothing is extended: another triggerer may hold the leases by now.
        """
        batch, self._batch = self._batch, None
        if batch is None or self._keepers is None:
            return
        if self._stood_still(self._keepers):
            batch.forget()
        else:
            await last_calls(batch, batch.pass_on(self.handoff_timeout_seconds))

    @shielded
    async def on_kill(self) -> None:
        """Release, extend or leave the leases after a user's action on the task.

        Airflow also calls this, without an action, when a triggerer that stood still comes back. One look at the states
        tells the cases apart:

        - The keeper was marked (success, failed, ...), or the sensor was cleared too, so that it receives again: no
          keeper will follow, so the leases are released.
        - The keeper alone was cleared, and its next try has not deferred: they are extended once, and left to it.
        - The keeper is deferred: another trigger has them, so they are left alone.

        They are also left alone when this process stood still, when Airflow does not answer, or before the settlements
        are known: other consumers may have received some of the messages by then.
        """
        keepers, handed, settler = self._keepers, self._handed, self._settler
        batch, self._batch = self._batch, None
        if keepers is None or batch is None:
            return
        try:
            if handed is None or settler is None or self._stood_still(keepers):
                logger.warning(
                    "Leaving the leases alone, because earlier settlements, or those elsewhere, are not known"
                )
                return
            try:
                then = await self._decide_after_action(handed, keepers)
            except CommsError as error:
                logger.warning(
                    "Leaving the leases alone; their messages come back when their visibility timeout ends: %s", error
                )
                return
            if then in (_AfterAction.RELEASE, _AfterAction.RELEASE_OF_CLEARED):
                logger.info("The keeper was ended by hand, or its run was cleared: releasing its messages")
                # In a cleared run this note would replace the one about the new batch.
                if then is _AfterAction.RELEASE:
                    await settler.progress.write_end()
                await self._release(batch, handed)
            elif then is _AfterAction.EXTEND:
                await self._leave_to_the_next_try(batch, handed, settler, keepers)
        finally:
            # Also after an error: the keeper that other triggers share would extend it for hours.
            batch.forget()

    async def _leave_to_the_next_try(
        self, batch: Batch, handed: HandedLease, settler: Settler, keepers: TriggererKeepers
    ) -> None:
        written = await hand_on(batch, handed.policy, self.handoff_timeout_seconds, keepers.clock)
        await settler.progress.write_for_next_try(written)
        left = replace(handed, written=written, messages=len(written.leases))
        try:
            # Read by the sensor if it is cleared before this task begins again.
            await publish(self._task, HANDED_KEY, left.encode(self._receiving), patience_seconds=0)
        except CommsError as error:
            logger.warning("A sensor that is cleared now will not find what this keeper held: %s", error)

    async def _decide_after_action(self, handed: HandedLease, keepers: TriggererKeepers) -> _AfterAction:
        """Ask Airflow, until it answers, what to do with the batch. The keeper holds it meanwhile."""
        ends_at = keepers.clock.now() + PATIENCE_SECONDS
        while True:
            try:
                return await self._decide_by_states(handed)
            except NoAnswerError as error:
                if keepers.clock.now() >= ends_at:
                    raise
                logger.warning("Asking again who keeps the messages: %s", error)

    async def _decide_by_states(self, handed: HandedLease) -> _AfterAction:
        states = await self._states([self._task.task_id, self._receiving.task_id])
        if begins_again(self._receiving, states):
            return _AfterAction.RELEASE_OF_CLEARED
        state = states.get(self._task.task_id, "removed")
        if state in ENDED:
            note = await read_progress(self._receiving, handed.batch_id)
            has_ended = note is not None and len(note.settled) == handed.messages
            # Airflow had moved the trigger to another triggerer, which has already noted the end of the batch.
            return _AfterAction.LEAVE if has_ended else _AfterAction.RELEASE
        if not await self._is_still_the_runs(handed):
            return _AfterAction.RELEASE_OF_CLEARED
        return _AfterAction.LEAVE if state == "deferred" else _AfterAction.EXTEND

    async def _states(self, task_ids: Collection[str]) -> TaskStates:
        """Ask for the states of some tasks of the run."""
        task = self._task
        return (await task_states(task.dag_id, [task.run_id], task_ids)).get(task.run_id, {})

    async def _is_still_the_runs(self, handed: HandedLease) -> bool:
        """Whether the receiving task still has this batch, and not another one that the keeper will get instead."""
        lease = await pull(self._receiving, LEASE_KEY)
        try:
            return lease is not None and HandedLease.decode_head(lease, self._receiving).batch_id == handed.batch_id
        except PayloadError:
            return False  # sealed with another Fernet key than this batch was, or what a user put in its place

    @staticmethod
    def _stood_still(keepers: TriggererKeepers) -> bool:
        """Whether this process stood still a moment ago: Airflow may not have told it yet which triggers moved."""
        return keepers.clock.now() - keepers.poller.stalled_until() < AFTER_STALL_SECONDS

    async def _adopt(
        self, handed: HandedLease, keepers: TriggererKeepers, keeper: Keeper, signals: FailureSignals | None
    ) -> Settler:
        """Hold the batch as it was written, without the messages that were settled since."""
        known = await self._progress(handed, keepers, keeper)
        if self.tried_before:
            await self._take_what_was_left()
        progress = Progress(batch_id=handed.batch_id) if known is None else known
        if (lost := list(progress.settled.values()).count(Outcome.LOST)) > 0:
            logger.warning("%d messages were lost, or given back, before this trigger began", lost)
        written = self._with_extensions(progress.newest(handed.written), keepers.clock)
        if known is None:
            # Any of them may have been given back, and be another consumer's by now.
            written = replace(written, leases=tuple(lease.in_doubt() for lease in written.leases))
        leases = written.leases_now(keepers.clock, handed.queue_url)
        to_hold = [lease for position, lease in enumerate(leases) if position not in progress.settled]
        logger.info("Keeping %d messages of %s", len(to_hold), handed.queue_url)
        in_doubt = any(lease.doubtful for lease in to_hold)
        batch = keeper.open_batch(
            handed.queue_url,
            policy=Never(visibility=handed.policy.visibility_seconds)
            if in_doubt and await self._is_over()
            else handed.policy,
            on_event=self._happened,
            message_source=PublishedMessages(self._receiving, handed.manifest_uri),
            batch_id=handed.batch_id,
        )
        if (meanwhile := self._batch) is not None:
            meanwhile.forget()
        self._batch = batch
        await adopt(batch, to_hold, keepers.rounds)
        return Settler(
            self._task,
            self._receiving,
            batch,
            leases,
            [WorkTask(**arguments) for arguments in self.work],
            decode_failure_rule(self.on_failure),
            clock=keepers.clock,
            inherited=progress,
            signals=signals,
            ordered=self.ordered,
        )

    async def _take_what_was_left(self) -> None:
        """Remove what the try before may have left for a sensor, which must not give back what this try holds."""
        try:
            await publish(self._task, HANDED_KEY, None, patience_seconds=0)
        except CommsError as error:
            logger.warning("A sensor that is cleared now may give back what this keeper holds: %s", error)

    async def _is_over(self) -> bool:
        """Whether all work has ended: a lease in doubt is then not extended, because its message is not needed here."""
        try:
            states = await self._states([work["task_id"] for work in self.work])
        except CommsError as error:
            logger.warning("Whether the work has ended cannot be read; its leases are extended: %s", error)
            return False
        return all(state in ENDED for state in states.values())

    def _with_extensions(self, written: WrittenBatch, clock: Clock) -> WrittenBatch:
        """Return the written batch with the extensions that were made before the progress note was known.

        A lease that had passed its deadline by then is in doubt: another consumer may have received its message.
        """
        if self._batch is None:
            return written
        held = {lease.receipt: lease.deadline for lease in to_wall_time(self._batch.leases(), clock)}
        sure_until = self._extended_at + CLOCK_ERROR_SECONDS
        leases = [
            (lease if lease.deadline >= sure_until else lease.in_doubt()).lasting_until(held.get(lease.receipt, 0.0))
            for lease in written.leases
        ]
        return WrittenBatch(written.batch_id, clock.wall(), tuple(leases))

    async def _progress(self, handed: HandedLease, keepers: TriggererKeepers, keeper: Keeper) -> Progress | None:
        """Read the progress note: the settlements so far, and the deadline of the leases; None if it cannot be read.

        While Airflow does not answer, all messages are held, in a batch without events and counts.
        """
        if self.tried_before:
            await asyncio.sleep(EARLIER_TRY_SECONDS)
        written = handed.written.leases_now(keepers.clock, handed.queue_url)
        first_end = min((lease.deadline for lease in written), default=0.0)
        ask_until, hold_from = sorted((keepers.clock.now() + PROGRESS_SECONDS, first_end - HOLDING_MARGIN_SECONDS))
        while True:
            try:
                return replace(await self._read_progress(handed), batch_id=handed.batch_id)
            except NoAnswerError as error:
                if keepers.clock.now() >= hold_from and self._batch is None:
                    logger.warning("Holding all messages until Airflow says which were settled before: %s", error)
                    self._batch = keeper.open_batch(handed.queue_url, policy=handed.policy, on_event=_ignore)
                    await adopt(self._batch, written, keepers.rounds)
                    self._extended_at = keepers.clock.wall()
                    await self._batch.extend_now()
            except CommsError as error:
                if keepers.clock.now() >= ask_until:
                    logger.warning("Earlier settlements cannot be read; taking over all messages: %s", error)
                    return None
                await asyncio.sleep(ASK_AGAIN_SECONDS)

    async def _read_progress(self, handed: HandedLease) -> Progress:
        progress = await read_progress(self._receiving, handed.batch_id)
        if progress is not None:
            return progress
        if await self._is_still_the_runs(handed):
            return Progress()
        logger.warning("The run was cleared: its messages are or were given back, so they are not taken over")
        return Progress(dict.fromkeys(range(handed.messages), Outcome.LOST))

    def _signals(self) -> FailureSignals | None:
        if not are_reported():
            return None
        task = self._task
        return FailureSignals.to(task.dag_id, task.run_id, task.task_id, [work["task_id"] for work in self.work])

    def _happened(self, event: LeaseEvent) -> None:
        super()._happened(event)
        if self._settler is not None:
            self._settler.happened(event)
        if self._losses is not None:
            self._log_context.run(self._losses.happened, event)


def _ignore(event: LeaseEvent) -> None:
    """Ignore an event."""


def plain_work(work: Sequence[WorkTask]) -> list[dict[str, Any]]:
    """Return the work tasks as the trigger takes them."""
    return [asdict(task) for task in work]
