"""Settles the messages of a held batch as the work tasks that concern them end.

:class:`Work` knows the state of the work on each message: by the states of its tasks, failure signals, and reports,
read as needed. A report is the return value of an instance that succeeded, or the worker's note on the exception of one
that failed, or its note that one skipped itself. A signal says that an instance failed, before Airflow's own state does
(:mod:`sqs_lease.airflow.failures`).

:class:`Settler` turns that into settlements, by the failure rule and the order of message groups.
:class:`BatchProgress` writes them down before they are made.

With thousands of mapped instances, most answers of Airflow change only a few messages, so only those are decided on
again. Each report costs Airflow's supervisor about 20 ms: a few are read before the states are looked at again, and
only reports that can change a decision.

**The progress note** (:data:`PROGRESS_KEY`) has the settlements and the deadline of the leases. A trigger writes
settlements before it makes them, so that no other process extends a message that this one is giving back. It writes the
deadline after extensions: a process that takes over then knows that the leases hold, and may release failed messages.
Airflow deletes a task's XComs when its next try begins. So the note is an XCom of the receiving task: it is there for
each try of the keeper, and when the receiving task itself begins again, there is another batch. A process that does not
know yet that a run was cleared may still write a note. So each names its batch, and readers ignore notes about other
batches.

**The page** *SQS leases* shows the :func:`batch_status` in the note, and before the first note the one that the
keeper's task wrote (:data:`KEEPS_KEY`). The status has neither message ids nor bodies nor receipt handles, and only the
page reads it.

**The report** is the keeper's XCom at the end: counts, and message ids by outcome if they are not too many.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from random import Random
from typing import Any, Final, Self

import msgspec

from sqs_lease.airflow.airflow_api.polling import FailureSignals, StateWatch
from sqs_lease.airflow.airflow_api.requests import (
    UNMAPPED,
    CommsError,
    InstanceKey,
    NoAnswerError,
    RunOfTask,
    TaskStates,
    publish,
    pull,
    pull_plain_mapping,
    state_key,
)
from sqs_lease.airflow.failures import FAILURE_KEY, SKIP_KEY, FailureReport
from sqs_lease.airflow.settlement.lost_leases import RAISE
from sqs_lease.airflow.settlement.rules import (
    FAILED,
    SKIPPED,
    SUCCESS,
    InstanceReport,
    Judgement,
    WorkTask,
    affected,
    begins_again,
    concerned,
    failed_with,
    returned_as_failed,
    tasks_one_by_one,
    unreadable,
)
from sqs_lease.clock import Clock
from sqs_lease.core.events import OUTCOME_LETTERS, Lapsed, LeaseEvent, Lost, Outcome, Settled
from sqs_lease.core.failure_rules import (
    ByExceptionRule,
    DeadLetter,
    DeadLetterRule,
    Delete,
    Expire,
    FailureRule,
    Release,
    ReleaseRule,
    Settlement,
    failed_by_exception,
    failed_items,
    failure_reasons,
)
from sqs_lease.core.group_order import hold_back, ready
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.verdict import Action, Decision, Failure
from sqs_lease.keeper.batch import Batch, KeeperClosedError
from sqs_lease.keeper.event_loop_rounds import LEASES_IN_A_ROUND
from sqs_lease.keeper.gathered_log import GatheredLog
from sqs_lease.keeper.plain_leases import WrittenBatch

logger = logging.getLogger(__name__)

AFTER_STALL_SECONDS: Final = 5.0
"""Time without settlements after this process stood still: by then Airflow has told it which triggers run elsewhere."""

SHOWN_MESSAGES: Final = 5
"""The number of failed messages that a line of the log names."""

_MAP_INDEX: Final = re.compile(r"\[\d+\]")

_ENDED: Final = object()

_OUTCOMES: Final[Mapping[type, Outcome]] = {
    Delete: Outcome.DELETED,
    Release: Outcome.RELEASED,
    Expire: Outcome.EXPIRED,
    DeadLetter: Outcome.DEAD_LETTERED,
}


class Settler:
    """The settlement of one batch: decides on its messages and settles them, until no lease is left.

    Args:
        task: The keeper's task.
        receive_task: The task that received, whose XComs have the progress note.
        batch: The batch; its keeper goes on extending it.
        leases: All leases of the batch in the order of the messages, those settled earlier included.
        work: The tasks that work on the messages.
        on_failure: The rule for failed messages.
        clock: Source of time.
        inherited: The settlements and counts of processes before this one.
        signals: The signals by which workers report failures; None if they do not report them.
        ordered: Whether the messages of a FIFO group are settled in their order.

    Attributes:
        progress: The outcomes of the messages so far.
    """

    def __init__(
        self,
        task: RunOfTask,
        receive_task: RunOfTask,
        batch: Batch,
        leases: Sequence[Lease],
        work: Sequence[WorkTask],
        on_failure: FailureRule,
        *,
        clock: Clock,
        inherited: Progress,
        signals: FailureSignals | None = None,
        ordered: bool = True,
    ) -> None:
        self.progress = BatchProgress(batch, leases, receive_task, clock, inherited)
        self._task = task
        self._receive_task = receive_task
        self._batch = batch
        self._leases = leases
        self._message_ids = [lease.receipt.message_id for lease in leases]
        self._groups: dict[str | None, list[int]] = {}  # the positions of each message group, where order matters
        self._work = Work(
            task,
            work,
            self._message_ids,
            signals=signals,
            by_exception=isinstance(on_failure, ByExceptionRule | DeadLetterRule),
        )
        self.progress.unreadable = self._work.unreadable
        self._on_failure = on_failure
        self._clock = clock
        self._ordered = ordered and batch.queue_url.endswith(".fifo")
        self._random = Random()
        # Positions of messages that are held and undecided.
        self._open = dict.fromkeys(position for position in range(len(leases)) if position not in inherited.settled)
        self._held_back: frozenset[int] = frozenset()  # decided, but behind others of their group
        self._look_again = False
        self._settling: set[asyncio.Task[None]] = set()
        self._failed_work = GatheredLog(_log_failed_work)
        self._settled = GatheredLog(_log_settled)
        if self._ordered:
            for position, lease in enumerate(leases):
                self._groups.setdefault(lease.message_group_id, []).append(position)

    def watched_tasks(self) -> list[str]:
        """Return the tasks to watch: the work, the keeper itself, and the task that received."""
        return [self._task.task_id, self._receive_task.task_id, *(task.task_id for task in self._work.tasks)]

    async def run(self, watch: StateWatch) -> bool:
        """Settle as the work ends, unless the receiving task is cleared: its new work is not about this batch.

        Airflow ends the trigger of a cleared keeper only when that task is scheduled again. So this method looks for
        the clear itself. The caller then releases the rest at once, before new work could end and delete it.

        Returns:
            Whether each message was settled or lost.
        """
        self._take_in_what_ended()
        cleared_in: int | None = None  # the number of the answer
        try:
            while self._open:
                states = await watch.next()
                if begins_again(self._receive_task, states):
                    # Two answers are needed: a single one may lack the task for another reason.
                    cleared_in = watch.answers if cleared_in is None else cleared_in
                    if watch.answers > cleared_in:
                        return False
                    continue
                cleared_in = None
                if self._may_settle(states, watch):
                    await self._look(states, watch)
                    await self.progress.write_if_due()
            if self._settling:
                await asyncio.gather(*self._settling)
            await self.progress.write_corrections()  # other processes must not take refused settlements for settled
            watch.finished()
            return True
        finally:
            for settling in self._settling:
                settling.cancel()
            self._flush_log()

    async def look_once(self, states: TaskStates) -> None:
        """Settle the messages that some states decide, and wait for the end of that.

        It is for ``dag.test()``: other processes cannot hold the batch there, and nothing else runs meanwhile.
        """
        self._take_in_what_ended()
        if self._open:
            await self._settle_what_is_decided(states, asyncio.Semaphore(1))
        if self._settling:
            await asyncio.gather(*self._settling)
        self._flush_log()

    def happened(self, event: LeaseEvent) -> None:
        """Take in what happened to one of the leases."""
        self._ended(self.progress.happened(event))

    def _ended(self, position: int | None) -> None:
        if position is not None:
            self._open.pop(position, None)
            self._look_again = self._look_again or bool(self._held_back)

    def _flush_log(self) -> None:
        for log in (self._failed_work, self._settled):
            log.flush()

    def _take_in_what_ended(self) -> None:
        """Take in the leases that ended before this settler began to receive events."""
        if self._batch.count_held() == len(self._open):
            return  # a look at each of 50 000 takes 0.1 s
        outcomes = self._batch.outcomes()
        for position in tuple(self._open):
            receipt = self._leases[position].receipt
            if not self._batch.holds(receipt):
                settled = outcomes.get(receipt)
                outcome = Outcome.LOST if settled is None else settled.outcome
                self._ended(self.progress.ended(receipt, outcome))

    def _may_settle(self, states: TaskStates, watch: StateWatch) -> bool:
        """Whether this process is certainly the one that holds the batch.

        A keeper that is no longer deferred was cleared or marked, or ended in another triggerer while this one stood
        still. After a stall only answers to questions asked since then count, however long they took. A release by a
        process that no longer holds the batch would be harmful: on a standard queue, SQS lets a stale receipt make the
        next holder's message visible.
        """
        stalled_until = watch.stalls.last_ended_at()
        has_heard = self._clock.now() >= stalled_until + AFTER_STALL_SECONDS
        is_current = has_heard and watch.asked_at >= stalled_until
        return is_current and states.get(self._task.task_id) == "deferred"

    async def _look(self, states: TaskStates, watch: StateWatch) -> None:
        """Decide and settle, unless nothing is new since the last look, as is usual with many keepers."""
        signals = watch.signals
        if not self._look_again and not self._work.has_news(states, signals):
            return
        self._look_again = False
        await self._settle_what_is_decided(await self._work.with_signals(states, signals, watch), watch.turn)
        self._work.acted_on(signals, watch)

    async def _settle_what_is_decided(self, states: TaskStates, turn: asyncio.Semaphore) -> None:
        """Decide on the messages that new states, and then new reports, may change, and settle them."""
        news = self._work.news_in(states)
        while True:
            positions = list(self._open) if news is None else sorted(self._open.keys() & (news | self._held_back))
            if positions:
                await self._begin(await self._work.decide(positions, states))
            if not self._open or (news := await self._work.read_more(states, turn)) == NOTHING:
                return

    def _settlement(self, position: int, decision: Decision) -> Settlement:
        if decision is Action.DELETE:
            return Delete()
        rule: FailureRule = ReleaseRule()
        reason = ""
        if isinstance(decision, Failure):
            rule = self._on_failure.matching(decision.errors)
            reason = f"{decision.reason} in run {self._task.run_id} of DAG {self._task.dag_id}"
            if decision.detail:
                # The detail comes first: a reason that is too long is cut off at its end.
                reason = f"{decision.detail} ({reason})"
        receive_count = self._leases[position].receive_count
        return rule.settlement(receive_count=receive_count, reason=reason, random=self._random)

    async def _begin(self, decisions: Mapping[int, Decision]) -> None:
        """Write settlements down, and begin them: a thousand messages at a time."""
        settlements: dict[int, Settlement] = {}
        for some in _slices(list(decisions)):
            settlements |= {
                position: self._settlement(position, decisions[position]) for position in some if position in self._open
            }
            # Other triggers run in between: thousands of messages in one round would delay their extensions.
            await asyncio.sleep(0)
        if self._ordered:
            settlements = self._in_group_order(settlements)
        if not settlements:
            return
        positions = sorted(settlements)
        for some in _slices(positions):
            for position in some:
                if isinstance(failure := decisions[position], Failure):
                    self._log_failure(position, failure)
                if self._open.pop(position, _ENDED) is not _ENDED:
                    self.progress.begins(position, _OUTCOMES[type(settlements[position])])
            await asyncio.sleep(0)
        # Before the calls: a keeper that resumes must not extend these again.
        await self.progress.write_settled()
        for some in _slices(positions):
            settling = asyncio.get_running_loop().create_task(
                self._settle({self._leases[position].receipt: settlements[position] for position in some})
            )
            self._settling.add(settling)
            settling.add_done_callback(self._settling_ended)
            await asyncio.sleep(0)

    def _settling_ended(self, settling: asyncio.Task[None]) -> None:
        if not settling.cancelled() and settling.exception() is None:
            self._settling.discard(settling)  # those that failed are raised at the end

    def _log_failure(self, position: int, failure: Failure) -> None:
        # The instances of a mapped task fail in the same way, with their index in the reason: the first is shown.
        kind = _MAP_INDEX.sub("", failure.reason)
        self._failed_work.line(kind, partial(_FailedWork, failure.reason)).add(self._message_ids[position])

    def _in_group_order(self, settlements: Mapping[int, Settlement]) -> dict[int, Settlement]:
        """Return the settlements that the order of a FIFO queue allows now; the rest is held back."""
        groups = {self._leases[position].message_group_id for position in settlements}
        leases = [self._leases[position] for position in sorted(chain(*(self._groups[group] for group in groups)))]
        by_receipt = {self._leases[position].receipt: settlements[position] for position in sorted(settlements)}
        outcome = self.progress.outcome
        by_receipt = ready(hold_back(by_receipt, leases, outcome), leases, outcome)
        now = {self.progress.positions[receipt]: settlement for receipt, settlement in by_receipt.items()}
        self._held_back = (self._held_back | settlements.keys()) - now.keys()
        return now

    async def _settle(self, settlements: Mapping[Receipt, Settlement]) -> None:
        try:
            outcomes = await self._batch.settle(settlements, in_order=self._ordered)
        except KeeperClosedError as error:
            ended = self._batch.outcomes()
            abandoned = sum(receipt not in ended for receipt in settlements)
            self.progress.abandoned += abandoned
            logger.warning("%d messages could not be settled here: %s", abandoned, error)
            return
        self._settled.line(None, Counter).update(settled.outcome for settled in outcomes.values())


def _slices(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    return (positions[start : start + LEASES_IN_A_ROUND] for start in range(0, len(positions), LEASES_IN_A_ROUND))


@dataclass(slots=True)
class _FailedWork:
    """Messages whose work failed in the same way, for a line of the log."""

    reason: str
    count: int = 0
    shown: list[str] = field(default_factory=list)

    def add(self, message_id: str) -> None:
        """Take in one more."""
        self.count += 1
        if len(self.shown) < SHOWN_MESSAGES:
            self.shown.append(message_id)


def _log_failed_work(failed: _FailedWork) -> None:
    more = f" and {failed.count - len(failed.shown)} more" if failed.count > len(failed.shown) else ""
    logger.warning("%d messages failed: %s (%s%s)", failed.count, failed.reason, ", ".join(failed.shown), more)


def _log_settled(counts: Counter[Outcome]) -> None:
    logger.info("Settled: %s", ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items()))


PATIENCE_WITH_REPORTS_SECONDS: Final = 600.0
"""How long a report that cannot be read is asked for: an XCom backend of the user's may never work in a triggerer.

The messages of a result that is not known then are settled as failed, and the keeper fails.
"""

READS_AT_ONCE: Final = 20
"""Reports read before the states are looked at again; each read takes the supervisor about 20 ms."""

NOTHING: Final[frozenset[int]] = frozenset()

_DONE: Final = frozenset({SUCCESS, SKIPPED})

_LEAVES_REPORT: Final = frozenset({SUCCESS, FAILED, SKIPPED})


class Work:
    """The known state of the work on one batch.

    Args:
        task: Any task of the run.
        tasks: The tasks that work on the messages.
        message_ids: The messages of the batch, in its order.
        signals: The signals by which workers report failures; None if they do not report them.
        by_exception: Whether it matters by which exception a message failed.

    Attributes:
        unreadable: The tasks that succeeded, but with a result that cannot be read, and why.
    """

    def __init__(
        self,
        task: RunOfTask,
        tasks: Sequence[WorkTask],
        message_ids: Sequence[str],
        *,
        signals: FailureSignals | None = None,
        by_exception: bool = False,
    ) -> None:
        self.tasks = tasks
        self._task = task
        self._message_ids = message_ids
        self._signals = signals
        self._by_exception = by_exception
        self._reports: dict[InstanceKey, InstanceReport] = {}
        self._skipped_themselves: dict[InstanceKey, bool] = {}  # the skipped instances whose reports were read
        self._returned: set[str] = set()  # the tasks of which an instance returned something
        self._unread: dict[InstanceKey, None] = {}
        self._refused_since: dict[InstanceKey, float] = {}  # reports that could not be read, by the loop's clock
        self.unreadable: dict[str, str] = {}
        self._signalled: set[str] = set()  # instances that failed before their state says so
        self._taken_signals: set[str] = set()
        self._looked_at: TaskStates | None = None  # the states as Airflow answered them
        self._judged: TaskStates | None = None  # the same with what signals say

    def has_news(self, states: TaskStates, signals: frozenset[str]) -> bool:
        """Whether an answer is new, or a report is still to be read."""
        return states != self._looked_at or not signals <= self._taken_signals or bool(self._unread)

    async def with_signals(self, states: TaskStates, signals: frozenset[str], watch: StateWatch) -> TaskStates:
        """Take in an answer; return the states, with instances whose failure was signalled as failed."""
        if self._signals is not None:
            await self._take_signals(self._signals, signals, states, watch)
        self._looked_at = states
        failed = {key: FAILED for key in self._signalled if states.get(key) not in _DONE}
        return {**states, **failed} if failed else states

    def acted_on(self, signals: frozenset[str], watch: StateWatch) -> None:
        """Have signals removed that were taken in."""
        watch.acted_on(self._taken_signals & signals)

    def news_in(self, states: TaskStates) -> frozenset[int] | None:
        """Return the positions of the messages that states may change since the last call; None: all."""
        before, self._judged = self._judged, states
        return None if before is None else affected(self.tasks, len(self._message_ids), before, states)

    async def decide(self, positions: Sequence[int], states: TaskStates) -> dict[int, Decision]:
        """Decide on the messages at some positions; those that are held are left out."""
        judgement = Judgement(
            self.tasks,
            states,
            self._reports,
            self._message_ids,
            read_failures=self._signals is not None,
            by_exception=self._by_exception,
            skipped_themselves=self._skipped_themselves,
            returned=self._returned,
        )
        decisions: dict[int, Decision] = {}
        if not judgement.holds_all():
            for start in range(0, len(positions), LEASES_IN_A_ROUND):
                decisions |= judgement.on(positions[start : start + LEASES_IN_A_ROUND])
                await asyncio.sleep(0)
        self._unread |= judgement.unread
        return decisions

    async def read_more(self, states: TaskStates, turn: asyncio.Semaphore) -> frozenset[int] | None:
        """Read some of the reports that decisions need.

        Args:
            states: The states.
            turn: Held during each request.

        Returns:
            The positions of the messages that they may change; None: all. Empty if there is nothing to read, or if
            nothing can be read now.
        """
        instances = self._next_unread(states)
        for number, instance in enumerate(instances):
            try:
                async with turn:
                    await self.read(instance, states)
            except CommsError as error:
                if self._gives_up(instance, states, error):
                    continue
                self._unread |= dict.fromkeys(instances[number:])
                # Decided on now, because no later news would bring the reports that were read back here.
                return self._positions(instances[:number], states)
        return self._positions(instances, states)

    def _gives_up(self, instance: InstanceKey, states: TaskStates, error: CommsError) -> bool:
        """Whether a report cannot be read for good; it counts then as the worst that it may have said."""
        now = asyncio.get_running_loop().time()
        since = self._refused_since.get(instance, now)
        if instance not in self._refused_since:
            logger.warning("The report of %s[%d] cannot be read yet: %s", *instance, error)
        if isinstance(error, NoAnswerError):
            return False  # whether it can be read is not known
        self._refused_since[instance] = since
        if now - since < PATIENCE_WITH_REPORTS_SECONDS:
            return False
        state = states.get(state_key(instance))
        if state == FAILED:
            self._take_failure(instance, states, FailureReport())
        elif state == SKIPPED:
            self._skipped_themselves[instance] = False
        else:
            self.unreadable[instance[0]] = str(error)
            self._reports[instance] = dict.fromkeys(self._concerned(instance, states), unreadable(instance))
        return True

    async def read(self, instance: InstanceKey, states: TaskStates) -> None:
        """Read the report of an instance that ended.

        Raises:
            CommsError: There was no usable answer.
        """
        state = states.get(state_key(instance))
        if state == FAILED:
            self._take_failure(instance, states, await self._failure(instance) or FailureReport())
        elif state == SKIPPED:
            report = await pull(self._run_of(instance), SKIP_KEY, map_index=instance[1])
            self._skipped_themselves[instance] = report is not None
        else:
            returned = await pull_plain_mapping(self._task, instance)
            if returned is not None:
                self._returned.add(instance[0])
            failed = failed_items(returned, self._concerned(instance, states))
            why = returned_as_failed(instance)
            self._reports[instance] = dict.fromkeys(failed, why) | {
                message_id: replace(why, detail=reason)
                for message_id, reason in failure_reasons(returned, failed).items()
            }

    async def _take_signals(
        self, known: FailureSignals, signals: frozenset[str], states: TaskStates, watch: StateWatch
    ) -> None:
        for key in sorted(signals - self._taken_signals)[:READS_AT_ONCE]:
            instance = known.instance(key)
            try:
                async with watch.turn:
                    report = None if instance is None else await self._failure(instance)
            except CommsError as error:
                logger.warning("The report of a failed task cannot be read yet: %s", error)
                return
            # Airflow removes the report when the task starts again, so a signal without a report is old.
            if instance is not None and report is not None:
                self._take_failure(instance, states, report)
                self._signalled.add(state_key(instance))
            self._taken_signals.add(key)

    async def _failure(self, instance: InstanceKey) -> FailureReport | None:
        return FailureReport.decode(await pull(self._run_of(instance), FAILURE_KEY, map_index=instance[1]))

    def _take_failure(self, instance: InstanceKey, states: TaskStates, report: FailureReport) -> None:
        failed = failed_by_exception(report.message_ids, self._concerned(instance, states))
        self._reports[instance] = dict.fromkeys(failed, failed_with(instance, report.errors))

    def _concerned(self, instance: InstanceKey, states: TaskStates) -> Sequence[str]:
        task_id, map_index = instance
        (task,) = (task for task in self.tasks if task.task_id == task_id)
        return concerned(task, map_index, self._message_ids, states)

    def _run_of(self, instance: InstanceKey) -> RunOfTask:
        return RunOfTask(self._task.dag_id, self._task.run_id, instance[0])

    def _next_unread(self, states: TaskStates) -> Sequence[InstanceKey]:
        instances: list[InstanceKey] = []
        while self._unread and len(instances) < READS_AT_ONCE:
            instance, _ = self._unread.popitem()
            # An instance that was cleared meanwhile will leave another report.
            if states.get(state_key(instance)) in _LEAVES_REPORT:
                instances.append(instance)
        return instances

    def _positions(self, instances: Iterable[InstanceKey], states: TaskStates) -> frozenset[int] | None:
        """Return the positions of the messages that the reports of some instances may be about; None: all."""
        one_by_one = {task.task_id for task in tasks_one_by_one(self.tasks, len(self._message_ids), states)}
        positions = set()
        for task_id, map_index in instances:
            # Instances that work on other messages may have been skipped for the same reason.
            is_skipped = states.get(state_key((task_id, map_index))) == SKIPPED
            if task_id not in one_by_one or map_index == UNMAPPED or is_skipped:
                return None
            positions.add(map_index)
        return frozenset(positions)


PROGRESS_KEY: Final = "settled"
"""The XCom key of a batch's progress; the page of leases reads it, too."""

NOTE_SECONDS: Final = 15.0
"""Shortest time between two notes of the leases' deadline, and the least time that should be left of a noted deadline.

A trigger that takes over believes a deadline only as far as it was noted. Past a noted deadline it takes leases for
lapsed: it does not release failed messages, and counts deletions as uncertain. The page of leases waits as long for the
outcomes of messages.
"""

FIRST_NOTE_SECONDS: Final = 5.0
"""The same before the first note: the requests that keep the batch come first."""

KEEPS_KEY: Final = "keeps"
"""The XCom key of a keeper's note: the task that received its batch, and the batch's status when the keeper began."""

MAX_LISTED_MESSAGES: Final = 100
"""Up to this many messages the report lists their ids by outcome."""

SHOWN_REFUSALS: Final = 3
"""The number of different error texts of SQS about failed settlements in the report."""

_SHOWN_COUNTS: Final = (
    "received",
    "held",
    "deleted",
    "released",
    "dead_lettered",
    "expired",
    "lost",
    "failed",
    "uncertain",
    "extensions",
    "late",
)

_HELD: Final = "-"

_LETTERS: Final[Mapping[Outcome, str]] = {outcome: letter for letter, outcome in OUTCOME_LETTERS.items()}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the keeper of one batch has come.

    Attributes:
        settled: The settlements that were made or are about to be made, by the message's position in the batch.
        certain_until: The time until which every held lease lasts at least, in seconds since the epoch. None if a
            lease has lapsed, or if only the deadlines that the sensor handed over are known.
        written_at: When that was written, in seconds since the epoch.
        batch_id: The batch; None if the note does not say.
        counts: Other counts so far, by their names in the report: extensions, and leases that lapsed.
        status: The status for the page of leases alone, see :func:`batch_status`.
    """

    settled: Mapping[int, Outcome] = field(default_factory=dict)
    certain_until: float | None = None
    batch_id: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    status: Mapping[str, Any] | None = None
    written_at: float | None = None

    def encode(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "settled": _letters(self.settled),
            "certain_until": self.certain_until,
            "written_at": self.written_at,
            "batch_id": self.batch_id,
            "counts": dict(self.counts),
            **({} if self.status is None else {"status": dict(self.status)}),
        }

    @classmethod
    def decode(cls, plain: Mapping[str, Any] | None) -> Self:
        """Build it from what :meth:`encode` returned; None or an empty mapping means that nothing was settled.

        Raises:
            CommsError: It is something else, so the settlements are not known.
        """
        try:
            stored = msgspec.convert(plain or {}, _StoredProgress)
        except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
            raise CommsError(f"the XCom {PROGRESS_KEY!r} is not what sqs-lease writes there: {error}") from None
        settled = {at: _outcome(letter) for at, letter in enumerate(stored.settled) if letter != _HELD}
        return cls(settled, stored.certain_until, stored.batch_id, stored.counts, written_at=stored.written_at)

    def newest(self, written: WrittenBatch) -> WrittenBatch:
        """Return the leases as the sensor wrote them, with the newest known deadlines."""
        until = self.certain_until
        if until is None or self.written_at is None:
            return written
        leases = (lease.lasting_until(until) for lease in written.leases)
        return WrittenBatch(written.batch_id, self.written_at, tuple(leases))


class _StoredProgress(msgspec.Struct):
    """The result of :meth:`Progress.encode`, without the part for the page."""

    settled: str = ""
    certain_until: float | None = None
    batch_id: str | None = None
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    written_at: float | None = None


def _outcome(letter: str) -> Outcome:
    if letter not in OUTCOME_LETTERS:
        raise CommsError(f"the XCom {PROGRESS_KEY!r} has an outcome {letter!r}, which this release does not know")
    return OUTCOME_LETTERS[letter]


async def read_progress(receive_task: RunOfTask, batch_id: str) -> Progress | None:
    """Read the progress of a batch from the XCom of the task that received it.

    Returns:
        The progress; None if it is missing, or about another batch.

    Raises:
        CommsError: There was no usable answer, or the XCom has another content.
    """
    plain = await pull(receive_task, PROGRESS_KEY)
    progress = Progress.decode(plain)
    return progress if plain and progress.batch_id in (None, batch_id) else None


def _letters(settled: Mapping[int, Outcome]) -> str:
    """Return settlements as a string: the letter at a position is the outcome of that message."""
    letters = [_HELD] * (max(settled, default=-1) + 1)
    for position, outcome in settled.items():
        letters[position] = _LETTERS[outcome]
    return "".join(letters)


def batch_status(
    queue_url: str,
    counts: Mapping[str, int],
    oldest_received_at: float | None = None,
    renew_at: float | None = None,
    deadline: float | None = None,
) -> dict[str, Any]:
    """Return the status of a batch as plain values; times are in seconds since the epoch.

    Args:
        queue_url: The queue.
        counts: The messages by outcome, with the names of the keeper's report.
        oldest_received_at: When the oldest held lease was received; None if all leases have ended.
        renew_at: When the next lease is to be extended; None if no further extension will be made.
        deadline: When the first lease ends unless it is extended; None if all leases have ended.
    """
    # In whole seconds, because small differences between the two clocks must not count as news.
    times = {"oldest_received_at": oldest_received_at, "renew_at": renew_at, "deadline": deadline}
    return {
        "queue_url": queue_url,
        "counts": {name: counts[name] for name in _SHOWN_COUNTS if name in counts},
        **{name: None if at is None else round(at) for name, at in times.items()},
    }


class BatchProgress:
    """The outcomes of one batch's messages, as its holder decides them and learns of them.

    Args:
        batch: The batch.
        leases: All leases of it in the order of the messages, those settled earlier included.
        receive_task: The task that received, whose XComs have the note.
        clock: The batch's clock.
        inherited: The settlements and counts of processes before this one.

    Attributes:
        positions: The position of each lease's message in the batch.
        abandoned: The number of settlements that this process gave up.
        unreadable: The tasks that succeeded, but with a result that cannot be read, and why.
    """

    def __init__(
        self, batch: Batch, leases: Sequence[Lease], receive_task: RunOfTask, clock: Clock, inherited: Progress
    ) -> None:
        self.positions: Mapping[Receipt, int] = {lease.receipt: position for position, lease in enumerate(leases)}
        self.abandoned = 0
        self.unreadable: Mapping[str, str] = {}
        self._batch = batch
        self._receive_task = receive_task
        self._clock = clock
        self._inherited = inherited
        self._settled = dict(inherited.settled)
        self._refusals: Counter[str] = Counter()  # how many settlements failed, by what was said
        self._note = Progress(self._settled, batch_id=inherited.batch_id, counts=inherited.counts)
        self._is_unwritten = False
        self._status: Mapping[str, Any] | None = None
        self._noted: Mapping[str, int] = {}  # the counts when the deadline was noted last
        self._due_at = clock.now() + FIRST_NOTE_SECONDS

    def outcome(self, receipt: Receipt) -> Outcome | None:
        """Return how a lease ended, or is being ended; None while it is held."""
        return self._settled.get(self.positions[receipt])

    def begins(self, position: int, outcome: Outcome) -> None:
        """Take in that a message is about to be settled. The note is corrected if SQS refuses it."""
        self._settled[position] = outcome

    def happened(self, event: LeaseEvent) -> int | None:
        """Take in what happened to one of the leases, and return its position if it ended."""
        match event:
            case Settled():
                if event.outcome is Outcome.FAILED:
                    self._refusals[event.detail or "no reason"] += 1
                return self.ended(event.receipt, event.outcome)
            case Lost():
                return self.ended(event.receipt, Outcome.LOST)
            case Lapsed():
                self._is_unwritten = True  # a keeper that resumes must count it
        return None

    def ended(self, receipt: Receipt, outcome: Outcome) -> int | None:
        """Take in how a lease ended, and return its position: a keeper that resumes must not extend it."""
        if (position := self.positions.get(receipt)) is not None and self._settled.get(position) is not outcome:
            self._settled[position] = outcome
            self._is_unwritten = True
        return position

    def counts(self) -> dict[str, int]:
        """Count the messages by outcome so far, including settlements of processes before this one."""
        counts: dict[str, int] = asdict(self._batch.report())
        counts |= self._counts_of_extensions()
        counts["received"] = len(self.positions)
        counts["failed"] += self.abandoned
        for outcome in self._inherited.settled.values():
            counts[_field(outcome)] += 1
        return counts

    def report(self) -> dict[str, Any]:
        """Return the counts of the batch and, if they are not too many, the message ids by outcome."""
        counts: dict[str, Any] = self.counts()
        if self._refusals:
            counts["refusals"] = dict(self._refusals.most_common(SHOWN_REFUSALS))
        if self.unreadable:
            counts["unreadable"] = dict(self.unreadable)
        if len(self.positions) > MAX_LISTED_MESSAGES:
            return counts
        message_ids = [receipt.message_id for receipt in self.positions]
        by_outcome: dict[str, list[str]] = {}
        for position, outcome in self._inherited.settled.items():
            by_outcome.setdefault(_field(outcome), []).append(message_ids[position])
        for receipt, settled in self._batch.outcomes().items():
            by_outcome.setdefault(_field(settled.outcome), []).append(receipt.message_id)
        return {**counts, "messages": by_outcome}

    def _note_now(self) -> Progress:
        """Return the note as it is now: the settlements, the deadline of the leases, and the counts."""
        until = self._batch.certain_until()
        return Progress(
            self._settled,
            None if until is None else until + self._clock.wall() - self._clock.now(),
            self._inherited.batch_id,
            self._counts_of_extensions(),
            self._status,
            self._clock.wall(),
        )

    async def write_end(self) -> None:
        """Write down that the batch was settled or is about to be given back, for a try of its keeper that comes later.

        That try still has the receipt handles, and the older note says that the leases hold: it would extend and settle
        the leases of other consumers. So all leases that are held now count as lost for it.
        """
        settled = {**dict.fromkeys(range(len(self.positions)), Outcome.LOST), **self._settled}
        self._note = replace(self._note_now(), settled=settled, certain_until=None)
        await self._write("It cannot be written that the batch has ended: %s")

    async def write_for_next_try(self, written: WrittenBatch) -> None:
        """Write the note for the keeper's next try, when this one has stopped holding the batch.

        Args:
            written: The leases that it held. Decisions on them that were not carried out are made by the next try.
        """
        held = {self.positions[lease.receipt] for lease in written.leases}
        settled = {position: outcome for position, outcome in self._settled.items() if position not in held}
        in_doubt = any(lease.doubtful for lease in written.leases)
        until = None if in_doubt else min((lease.deadline for lease in written.leases), default=None)
        self._note = replace(self._note_now(), settled=settled, certain_until=until, written_at=written.written_at)
        await self._write("How long the leases last cannot be written for the keeper's next try: %s")

    async def write_settled(self) -> None:
        """Write the note before messages are settled, or after SQS refused that. Its deadlines stay as they were."""
        await self._write("The keeper's progress cannot be written; messages are settled anyway: %s")

    async def write_corrections(self) -> None:
        """Write the note if leases ended in another way than it says."""
        if self._is_unwritten:
            await self.write_settled()

    async def write_if_due(self) -> None:
        """Write the note if something happened, and the last one is old or its deadline is about to pass.

        A process that takes over may then release the leases that were extended, and the page of leases shows the rest.
        """
        now = self._clock.now()
        if not self._is_unwritten and (now < self._due_at or self.counts() == self._noted):
            return
        self._noted = self.counts()
        seconds = self._batch.certain_seconds()
        self._due_at = now + (NOTE_SECONDS if seconds is None else min(NOTE_SECONDS, seconds - NOTE_SECONDS))
        self._status = await self._status_now(self._noted)
        self._note = self._note_now()
        await self._write("The deadline of the leases cannot be written; they are extended anyway: %s")

    async def _write(self, otherwise: str) -> None:
        self._is_unwritten = False
        try:
            await publish(self._receive_task, PROGRESS_KEY, self._note.encode(), patience_seconds=0)
        except CommsError as error:
            logger.warning(otherwise, error)

    def _counts_of_extensions(self) -> dict[str, int]:
        """Add the counts of this process to those of processes before it."""
        batch, before = self._batch, self._inherited.counts
        return {
            "extensions": batch.extensions + before.get("extensions", 0),
            "extension_calls": batch.extension_calls + before.get("extension_calls", 0),
            # Not a sum: leases that lapsed before count as lapsed here again, because their deadlines are not known.
            "late": max(batch.late, before.get("late", 0)),
        }

    async def _status_now(self, counts: Mapping[str, int]) -> dict[str, Any]:
        outlook, ahead = await self._batch.outlook(), self._clock.wall() - self._clock.now()

        def wall(at: float | None) -> float | None:
            return None if at is None else at + ahead

        return batch_status(
            self._batch.queue_url,
            counts,
            wall(self._batch.oldest_received_at()),
            wall(outlook.renew_at),
            wall(outlook.deadline),
        )


def why_it_fails(report: Mapping[str, Any], on_lost: object, queue_url: str) -> str | None:
    """Return why the keeper of a batch whose leases have all ended fails, for people; None if it does not.

    Messages that could not be settled always fail it: their work may be done, and they come back to the queue all the
    same. So do results of work that could not be read. Leases that were lost or have lapsed fail it with
    ``on_lost="raise"``. So do deletes after a lapse (``uncertain``): SQS confirms such a delete also where another
    consumer received the message since, and then it is not gone.

    Args:
        report: The lease report.
        on_lost: The option, as :func:`~sqs_lease.airflow.settlement.lost_leases.encode_on_lost` returned it.
        queue_url: The queue.
    """
    reasons = []
    if report["failed"]:
        refusals = report.get("refusals", {})
        said = "".join(f" SQS said {count} times: {text}." for text, count in refusals.items())
        reasons.append(
            f"{report['failed']} of {report['received']} messages of {queue_url} could not be settled, so they come "
            f"back to the queue, although their work may be done.{said} Check that the queue exists, that the AWS "
            "connection may sqs:DeleteMessage and sqs:ChangeMessageVisibility on it, and for dead_letter() that it "
            "has a dead-letter queue to which the connection may sqs:SendMessage"
        )
    for task_id, error in report.get("unreadable", {}).items():
        reasons.append(
            f"task {task_id!r} succeeded, but it is not known which messages it named in batchItemFailures, so those "
            f"of {queue_url} were settled as failed: {error}. Let triggerers read it, or annotate the task's function "
            "with -> None if it returns nothing"
        )
    if on_lost == RAISE and (report["lost"] or report["late"] or report["uncertain"]):
        reasons.append(
            f"{report['lost']} leases of {queue_url} were lost and {report['late']} lapsed, and {report['uncertain']} "
            "messages were deleted only after their lease had lapsed. This fails the task, as on_lost says: other "
            "consumers may have worked on their messages as well. Make the work idempotent, or raise the visibility "
            "timeout"
        )
    return ". ".join(reasons) or None


def _field(outcome: Outcome) -> str:
    return outcome.value.replace("-", "_")
