"""The trigger of the keeper's task: keeps the leases while the work runs, and settles them.

It takes the batch from the trigger that received it when that ran in this process, and otherwise takes it over from
its arguments: it holds the leases itself and extends them when they are due. How it ends:

- Everything was settled (or lost): it publishes the report and ends its task as successful.
- Something could not be settled, or leases were lost and ``on_lost`` says so: the same, and a worker fails the task,
  without a retry (:mod:`sqs_lease.airflow.settlement.rules`).
- The triggerer stops or hands its triggers to another one: one last extension, and the leases are left alone. Nothing
  is released, because the work goes on.
- A user marks, clears or kills the task: see :meth:`SqsLeaseKeeperTrigger.on_kill`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import asdict, replace
from enum import Enum
from functools import partial
from typing import Any, Final

from airflow.sdk.configuration import conf
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from sqs_lease.airflow.airflow_api.polling import (
    LONGEST_POLL_SECONDS,
    LONGEST_UNSIGNALLED_SECONDS,
    FailureSignals,
)
from sqs_lease.airflow.airflow_api.requests import (
    CommsError,
    NoAnswerError,
    RunOfTask,
    publish,
    pull,
    run_of,
    task_states,
    triggerer_deletes_variables,
)
from sqs_lease.airflow.provider_info import CONFIG_SECTION, REPORT_FAILURES_OPTION
from sqs_lease.airflow.runtime import (
    DEFERRAL_SECONDS,
    SharedBatch,
    SharedKeeper,
    TriggererKeepers,
    shielded,
    triggerer_keepers,
)
from sqs_lease.airflow.settlement.lost_leases import WARN, LostLeases
from sqs_lease.airflow.settlement.rules import WorkTask, why_it_fails
from sqs_lease.airflow.settlement.settler import Settler
from sqs_lease.airflow.transfer.handoff import (
    ENDED,
    TAKEOVER_SECONDS,
    HandOff,
    adopt,
    note_end,
    takeover_seconds,
    was_cleared,
)
from sqs_lease.airflow.transfer.lease import LEASE_KEY, HandedLease
from sqs_lease.airflow.transfer.payload import (
    RECEIVED_BY_WORKER,
    OtherKeyError,
    PublishedMessages,
    load_lease,
    remove_files,
)
from sqs_lease.airflow.transfer.progress import TAKEOVER_KEY, Progress, Takeover, read_progress, read_takeover
from sqs_lease.airflow.triggers.stored_arguments import raises_type_errors_only
from sqs_lease.clock import Clock
from sqs_lease.core.events import LeaseEvent, Outcome
from sqs_lease.core.messages import Lease
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.core.specs import decode_failure_rule
from sqs_lease.keeper.batch import EventListener
from sqs_lease.keeper.endings import cancelled_once, end_of
from sqs_lease.keeper.keeper import Leaving
from sqs_lease.keeper.lease_log import LeaseLog
from sqs_lease.keeper.plain_leases import from_wall_time

logger = logging.getLogger(__name__)

REPORT_KEY: Final = "lease_report"
"""The keeper's XCom key for how the batch ended."""

PROGRESS_SECONDS: Final = 20.0
"""How long a takeover asks for what was settled before it holds all messages without knowing.

On a busy machine the first answer of a new triggerer takes 15 s: its supervisor loads the API server's code for it.
Waiting costs little of what a lease has left when it is taken over at the default visibility timeout, a minute less
Airflow's threshold; not knowing means extending messages that were given back, and on a standard queue that may cut
short the time that another consumer has asked for them. So it waits longer while the leases last as they were handed
over, until :data:`HOLDING_MARGIN_SECONDS` before the first of them ends. It goes on asking for as long as there is no
answer, and settles nothing before.
"""

HOLDING_MARGIN_SECONDS: Final = 30.0
"""Time for the first extensions of a takeover, three attempts of 10 s each, before a lease ends."""


class _Kept(Enum):
    """Whose a batch is after a user acted on its keeper."""

    NOBODY = "nobody's: it is released"
    CLEARED = "nobody's, because its run receives another one: it is released"
    NEXT_TRIGGER = "that of the keeper's next trigger: it is held"
    ELSEWHERE = "another triggerer's, or nobody knows: it is left alone"


class SqsLeaseKeeperTrigger(BaseTrigger):
    """Keeps and settles one batch.

    Args:
        lease: What the sensor published, see :class:`~sqs_lease.airflow.transfer.lease.HandedLease`.
        receive_task_id: The sensor's task, whose return value has the messages.
        work: The tasks that work on the messages, each as the arguments of a ``WorkTask``.
        on_failure: What becomes of failed messages, see :func:`~sqs_lease.core.specs.encode_failure_rule`.
        on_lost: What happens when leases are lost, see
            :func:`~sqs_lease.airflow.settlement.lost_leases.encode_on_lost`.
        ordered: Whether the messages of a FIFO group are settled in their order.
        handoff_timeout_seconds: How long the batch is held for a keeper that was cleared and starts again.
        tried_before: Whether the task was tried before: the trigger of that try may not have heard yet that it ended.
    """

    @raises_type_errors_only()
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
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lease = lease
        self.receive_task_id = receive_task_id
        self.work = work
        self.on_failure = on_failure
        self.handoff_timeout_seconds = handoff_timeout_seconds
        self.on_lost = on_lost
        self.ordered = ordered
        self.tried_before = tried_before
        self._settler: Settler | None = None
        self._losses: LostLeases | None = None
        self._keepers: TriggererKeepers | None = None
        self._shared_keeper: SharedKeeper | None = None
        self._batch: SharedBatch | None = None
        self._knows_progress = True
        self._settles_from = -math.inf
        self._holder = uuid.uuid4().hex
        self._told = False
        self._lease_log = LeaseLog(lease["queue_url"])
        self._log_context = contextvars.copy_context()

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
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Keep the leases until each is settled, then end the task."""
        task = run_of(self.task_instance)
        self._log_context = contextvars.copy_context()
        self._keepers = keepers = triggerer_keepers()
        began_at = keepers.clock.now()
        await keepers.ready()
        signals = self._signals(task)
        if not isinstance(self.on_lost, str):
            self._losses = LostLeases(self.on_lost, task, self.lease["queue_url"])
        try:
            # Not kept in a variable: with many keepers, leases held twice are twice as much for the garbage collector.
            self._settler = settler = await self._take(task, await load_lease(self.lease), keepers, signals)
        except OtherKeyError as error:
            if self.tried_before or RECEIVED_BY_WORKER not in self.lease:
                raise
            # A worker encrypted them, so a worker can release them; nobody holds them meanwhile.
            logger.error("%s", error)  # noqa: TRY400 - the text says it all
            await asyncio.sleep(max(0.0, began_at + DEFERRAL_SECONDS - keepers.clock.now()))
            yield TriggerEvent({"error": str(error), "give_back": self.lease["batch_id"]})  # type: ignore[no-untyped-call]
            return
        if self._losses is not None:
            self._losses.begin()
        listen_to = signals.prefix if signals is not None and triggerer_deletes_variables() else None
        longest = LONGEST_UNSIGNALLED_SECONDS if listen_to is None else LONGEST_POLL_SECONDS
        with keepers.poller.watch(
            task.dag_id,
            task.run_id,
            settler.watched_tasks(),
            signals=listen_to,
            longest_pause_seconds=longest,
        ) as watch:
            if not await self._settled_before_it_was_cleared(settler.run(watch), task, keepers):
                # Airflow ends this trigger when the task is scheduled again, which may be days later.
                await asyncio.Event().wait()
        if self._losses is not None:
            await self._losses.told()
        self._lease_log.flush()
        report = settler.report()
        logger.info("All leases ended: %s", {name: count for name, count in report.items() if name != "messages"})
        try:
            await publish(task, REPORT_KEY, report)
        except CommsError as error:
            logger.warning("Everything was settled, but the report cannot be published: %s", error)
        # A try that begins when this task was cleared, with failed work say, finds what is settled already.
        await note_end(self._receiving(task), self.lease["batch_id"], self.lease["messages"], settler.progress())
        problem = why_it_fails(report, self.on_lost, self.lease["queue_url"])
        if problem is not None:
            logger.error("%s", problem)
            # The deferring process must have ended for Airflow, see DEFERRAL_SECONDS.
            await asyncio.sleep(max(0.0, began_at + DEFERRAL_SECONDS - keepers.clock.now()))
        await remove_files(self.lease)
        # A TaskFailedEvent would be tried again while the task has retries, and then succeed with nothing to keep: a
        # worker ends it by an exception that no retry follows.
        if problem is None:
            yield TaskSuccessEvent()
        else:
            yield TriggerEvent({"error": problem})  # type: ignore[no-untyped-call]

    async def _settled_before_it_was_cleared(
        self, settling: Coroutine[Any, Any, None], task: RunOfTask, keepers: TriggererKeepers
    ) -> bool:
        """Settle, unless the receiving task is cleared: it receives again, and its new work is not about this batch.

        Airflow does not end the trigger of a cleared task before that task is scheduled again. So this looks itself,
        and releases the batch at once: for the new try, and before the end of new work could delete its messages.

        Returns:
            Whether everything was settled.
        """
        work = asyncio.create_task(settling)
        cleared = asyncio.create_task(self._until_cleared(task, keepers))
        try:
            await asyncio.wait([work, cleared], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return True
        finally:
            for either in (cleared, work):
                await cancelled_once(either)
        cleared.result()
        batch, self._batch = self._batch, None
        if batch is not None and batch.owner is self:
            logger.info("The run was cleared: releasing what was held for it")
            # To its end, also when Airflow ends this trigger meanwhile: nobody else would release the rest.
            await end_of(asyncio.create_task(self._release(keepers, batch)))
            batch.drop()
        return False

    async def _release(self, keepers: TriggererKeepers, batch: SharedBatch) -> None:
        """Release what is held: no keeper follows. After a takeover, not before the other process has heard of it."""
        keepers.batches.pop(self.lease["batch_id"], None)
        await asyncio.sleep(max(0.0, self._settles_from - keepers.clock.now()))
        await batch.batch.release_all()
        await remove_files(self.lease)

    async def _until_cleared(self, task: RunOfTask, keepers: TriggererKeepers) -> None:
        receiving = self._receiving(task)
        with keepers.poller.watch(task.dag_id, task.run_id, [receiving.task_id]) as watch:
            seen = 0
            # Twice: an answer that lacks the task for any other reason must not give messages away.
            while seen < 2:
                states = await watch.next()
                begins_again = was_cleared(receiving, states) or states.get(receiving.task_id) == "deferred"
                seen = seen + 1 if begins_again else 0

    @shielded
    async def cleanup(self) -> None:
        """Extend the held leases once more and release nothing: the next process resumes the keeper."""
        keepers, batch = self._keepers, self._batch
        self._lease_log.flush()
        try:
            if keepers is not None and batch is not None and batch.owner is self:
                await keepers.leave(self.lease["batch_id"], batch, Leaving.EXTEND)
            if keepers is not None and self._shared_keeper is not None:
                await keepers.release(self._shared_keeper)
        except Exception:
            # Airflow drops what cleanup() raises.
            logger.exception("The keeper's trigger could not be ended properly")
        finally:
            self._batch = self._shared_keeper = None

    @shielded
    async def on_kill(self) -> None:
        """A user acted on the task, or a triggerer that stood still came back; the states tell which.

        The keeper was marked (success, failed, ...), or the sensor was cleared too, so that it receives again: nobody
        will keep these leases, so they are released. The keeper alone was cleared, or it is another triggerer's now:
        they are held until its next trigger takes them over. Another trigger did so already: they are left alone. So
        they are when Airflow gives no answer, or before it is known what was settled: some of the messages may be other
        consumers' by then.
        """
        keepers, batch = self._keepers, self._batch
        if keepers is None or batch is None or batch.owner is not self:
            return
        if not self._knows_progress:
            logger.warning("Leaving the leases alone, because it is not known yet what was settled before")
            keepers.remove(self.lease["batch_id"], batch)
            self._batch = None
            return
        task = run_of(self.task_instance)
        receiving = self._receiving(task)
        try:
            kept = await self._kept_by(task, receiving)
        except CommsError as error:
            logger.warning(
                "Leaving the leases alone; their messages come back when their visibility timeout ends: %s", error
            )
            kept = _Kept.ELSEWHERE
        if batch.owner is not self:
            return  # The next try began in this process meanwhile, and claimed the batch.
        if kept in (_Kept.NOBODY, _Kept.CLEARED):
            logger.info("The keeper was ended by hand, or its run was cleared: releasing what it held")
            # Of a cleared run the note would take the place of one about the new batch.
            if kept is _Kept.NOBODY:
                progress = Progress() if batch.progress is None else batch.progress()
                await note_end(receiving, self.lease["batch_id"], self.lease["messages"], progress)
            await self._release(keepers, batch)
        elif kept is _Kept.ELSEWHERE:
            keepers.remove(self.lease["batch_id"], batch)
            self._batch = None
        else:
            HandOff(
                keepers,
                self.lease["batch_id"],
                batch,
                task,
                self.handoff_timeout_seconds,
                released=partial(remove_files, self.lease),
                receive_task=receiving,
                progress=batch.progress,
                messages=self.lease["messages"],
                holder=self._holder if self._told else None,
            ).start()

    async def _kept_by(self, task: RunOfTask, receiving: RunOfTask) -> _Kept:
        takeover = await read_takeover(self.lease["batch_id"], task, receiving)
        if takeover is not None and takeover.holder != self._holder:
            return _Kept.ELSEWHERE
        states = (await task_states(task.dag_id, [task.run_id], [task.task_id, receiving.task_id])).get(task.run_id, {})
        if was_cleared(receiving, states):
            return _Kept.CLEARED
        if states.get(task.task_id, "removed") in ENDED:
            return _Kept.NOBODY
        return _Kept.NEXT_TRIGGER if await self._is_still_the_runs(receiving) else _Kept.CLEARED

    async def _is_still_the_runs(self, receiving: RunOfTask) -> bool:
        """Whether the receiving task has not received another batch already, which the keeper will get instead."""
        lease = await pull(receiving, LEASE_KEY)
        return lease is not None and lease["batch_id"] == self.lease["batch_id"]

    def _receiving(self, task: RunOfTask) -> RunOfTask:
        return RunOfTask(task.dag_id, task.run_id, self.receive_task_id)

    async def _take(
        self,
        task: RunOfTask,
        handed: HandedLease,
        keepers: TriggererKeepers,
        signals: FailureSignals | None,
    ) -> Settler:
        self._shared_keeper = shared_keeper = await keepers.acquire(handed.connection)
        leases = from_wall_time(handed.leases, keepers.clock)
        batch = keepers.claim(handed.batch_id, self, self._happened)
        if batch is not None and self.tried_before and await self._has_ended(task, handed, batch):
            # The try before took it to another process, which gives it back; this one had not read of that.
            keepers.remove(handed.batch_id, batch)
            batch = None
        if batch is not None:
            logger.info("Keeping %d messages of %s", len(leases), handed.queue_url)
            if self._losses is not None:
                self._losses.learn(batch.batch)
            self._batch = batch
            progress = replace(batch.inherited, batch_id=handed.batch_id)
            if self.tried_before or batch.progress is not None:
                # Another process may have taken it over from this one meanwhile, and hold it for the next trigger now.
                await self._tell_of_takeover(task, handed, keepers.clock)
        else:
            source = PublishedMessages(self._receiving(task))
            meanwhile = _HeldMeanwhile(keepers, partial(shared_keeper.open_batch, source=source), handed, leases, self)
            self._knows_progress = False
            progress = await self._progress(task, handed, keepers, meanwhile)
            if (lost := list(progress.settled.values()).count(Outcome.LOST)) > 0:
                logger.warning("%d messages were lost, or given back, before this trigger began", lost)
            leases = from_wall_time(progress.with_known_deadlines(handed.leases), keepers.clock)
            leases = meanwhile.end(leases)
            logger.info("Taking over %d messages of %s", len(leases) - len(progress.settled), handed.queue_url)
            batch = shared_keeper.open_batch(handed.queue_url, handed.policy, self._happened, source)
            keepers.enter(handed.batch_id, batch, self)
            self._batch = batch
            batch.inherited = progress
            held = [lease for position, lease in enumerate(leases) if position not in progress.settled]
            await adopt(batch.batch, held, [], keepers.rounds)
            await self._tell_of_takeover(task, handed, keepers.clock)
        self._batch = batch
        self._knows_progress = True
        settler = Settler(
            task,
            self._receiving(task),
            batch.batch,
            leases,
            self._work_tasks(),
            decode_failure_rule(self.on_failure),
            clock=keepers.clock,
            inherited=progress,
            settle_after=self._settles_from,
            signals=signals,
            ordered=self.ordered,
        )
        batch.progress = settler.progress
        return settler

    async def _has_ended(self, task: RunOfTask, handed: HandedLease, batch: SharedBatch) -> bool:
        """Whether another process left the note of its end, see :func:`note_end`."""
        try:
            note = await read_progress(self._receiving(task), handed.batch_id)
        except CommsError as error:
            logger.warning("Whether the batch was given back before cannot be read; keeping it: %s", error)
            return False
        if note is None or len(note.settled) < len(handed.leases):
            return False
        # What this process wrote ahead it may not have settled: its batch knows better.
        return batch.progress is None or note.settled != batch.progress().settled

    def _signals(self, task: RunOfTask) -> FailureSignals | None:
        if not conf.getboolean(CONFIG_SECTION, REPORT_FAILURES_OPTION, fallback=True):
            return None
        return FailureSignals.to(task.dag_id, task.run_id, task.task_id, [work["task_id"] for work in self.work])

    async def _tell_of_takeover(self, task: RunOfTask, handed: HandedLease, clock: Clock) -> None:
        takeover = Takeover([handed.batch_id], self._holder)
        self._told = True
        try:
            for noting in (self._receiving(task), task):
                await publish(noting, TAKEOVER_KEY, takeover.encode())
        except CommsError as error:
            logger.warning("The triggerer that received the messages may go on extending them for a while: %s", error)
        held_seconds = clock.wall() - min((lease.received_at for lease in handed.leases), default=clock.wall())
        self._settles_from = clock.now() + takeover_seconds(held_seconds)

    async def _progress(
        self, task: RunOfTask, handed: HandedLease, keepers: TriggererKeepers, meanwhile: _HeldMeanwhile
    ) -> Progress:
        """What was settled before, and how long the leases last; empty if Airflow refuses to answer."""
        if self.tried_before:
            # The trigger of the try before, if its process lives, settles until it hears that the task began again.
            await asyncio.sleep(TAKEOVER_SECONDS)
        while True:
            try:
                progress = await self._read_progress(self._receiving(task), handed)
                return replace(progress, batch_id=handed.batch_id)
            except NoAnswerError as error:
                if keepers.clock.now() >= meanwhile.begins_at and self._batch is None:
                    logger.warning("Holding all messages until Airflow says which were settled before: %s", error)
                    self._batch = meanwhile.open()
                    await meanwhile.hold()
            except CommsError as error:
                logger.warning("What was settled before cannot be read; taking over all messages: %s", error)
                return Progress(batch_id=handed.batch_id)

    async def _read_progress(self, receiving: RunOfTask, handed: HandedLease) -> Progress:
        progress = await read_progress(receiving, handed.batch_id)
        if progress is not None:
            return progress
        if await self._is_still_the_runs(receiving):
            return Progress()
        logger.warning("The run was cleared: its messages are given back, or were before, so none is taken over")
        return Progress(dict.fromkeys(range(len(handed.leases)), Outcome.LOST))

    def _work_tasks(self) -> list[WorkTask]:
        return [WorkTask(**arguments) for arguments in self.work]

    def _happened(self, event: LeaseEvent) -> None:
        # The keeper's calls serve many triggers: only in its own context does a trigger log to its task.
        self._log_context.run(self._lease_log.happened, event)
        if self._settler is not None:
            self._settler.happened(event)
        if self._losses is not None:
            self._log_context.run(self._losses.happened, event)


class _HeldMeanwhile:
    """Holds all messages of a batch while it is not known which of them were settled before.

    They are held in a separate batch, which is dropped in the end: it does not count what becomes of messages that were
    settled before. SQS may say that those are lost, and their old deadlines have passed.

    Args:
        keepers: What the triggers of this process share.
        open_batch: Opens a batch by its queue, policy and listener.
        handed: The batch.
        leases: Its leases as they were handed over, in times of the keepers' clock.
        owner: The trigger.

    Attributes:
        begins_at: When to begin to hold them, by the keepers' clock.
    """

    def __init__(
        self,
        keepers: TriggererKeepers,
        open_batch: Callable[[str, RenewalPolicy, EventListener], SharedBatch],
        handed: HandedLease,
        leases: Sequence[Lease],
        owner: object,
    ) -> None:
        first_end = min((0.0 if lease.doubtful else lease.deadline for lease in leases), default=0.0)
        self.begins_at = max(keepers.clock.now() + PROGRESS_SECONDS, first_end - HOLDING_MARGIN_SECONDS)
        self._keepers = keepers
        self._open_batch = open_batch
        self._handed = handed
        self._leases = leases
        self._owner = owner
        self._shared: SharedBatch | None = None
        self._extended_by = 0.0

    def open(self) -> SharedBatch:
        """Open the batch that :meth:`hold` fills."""
        self._shared = self._open_batch(self._handed.queue_url, self._handed.policy, _ignore)
        self._keepers.enter(self._handed.batch_id, self._shared, self._owner)
        return self._shared

    async def hold(self) -> None:
        """Hold all messages, and extend them at once."""
        keepers, shared = self._keepers, self._shared
        if shared is None:
            return
        await adopt(shared.batch, self._leases, [], keepers.rounds)
        await shared.batch.extend_now()
        self._extended_by = keepers.clock.now()

    def end(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Stop tracking all leases. The caller must hold the rest before it awaits anything but its turn.

        Args:
            leases: All leases of the batch, with the deadlines that are known by what was settled.

        Returns:
            The same, lasting longer where they were extended here in time.
        """
        if self._shared is None:
            return leases
        until = {lease.receipt: lease.deadline for lease in self._shared.batch.leases()}
        self._keepers.remove(self._handed.batch_id, self._shared)
        # Extended only after that deadline, somebody else may have received it: the deadline is left as it was.
        return [
            lease.lasting_until(until.get(lease.receipt, 0.0)) if lease.deadline >= self._extended_by else lease
            for lease in leases
        ]


def _ignore(event: LeaseEvent) -> None:
    """Do nothing: no listener."""


def plain_work(work: Sequence[WorkTask]) -> list[dict[str, Any]]:
    """Return the work tasks as the trigger takes them."""
    return [asdict(task) for task in work]
