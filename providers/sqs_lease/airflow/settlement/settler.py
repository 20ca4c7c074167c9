"""Settles the messages of a held batch as the work tasks that concern them end.

What ended tasks say of single messages is read first: the return values of those that succeeded, and the reports of the
others (:class:`WorkReports`).
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
from typing import Any, Final

from sqs_lease.airflow.airflow_api.polling import FailureSignals, StateWatch
from sqs_lease.airflow.airflow_api.requests import (
    UNMAPPED,
    CommsError,
    InstanceKey,
    RunOfTask,
    TaskStates,
    publish,
    pull,
    pull_plain_mapping,
    state_key,
)
from sqs_lease.airflow.failures.report import FAILURE_KEY, FailureReport
from sqs_lease.airflow.settlement.rules import (
    FAILED,
    REFUSALS,
    SUCCESS,
    Decision,
    Failure,
    InstanceReport,
    Judgement,
    WorkTask,
    affected,
    concerned,
    tasks_one_by_one,
)
from sqs_lease.airflow.transfer.progress import PROGRESS_KEY, DeadlineNote, Progress, counts_of
from sqs_lease.airflow.transfer.status import FIRST_PAUSE_SECONDS, PAUSE_SECONDS, settled_counts, status_of
from sqs_lease.clock import Clock
from sqs_lease.core.events import Lapsed, LeaseEvent, Lost, Outcome, Settled
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
from sqs_lease.keeper.batch import Batch, KeeperClosedError
from sqs_lease.keeper.event_loop_rounds import LEASES_IN_A_ROUND
from sqs_lease.keeper.gathered_log import GatheredLog
from sqs_lease.keeper.plain_leases import WrittenBatch

logger = logging.getLogger(__name__)

AFTER_STALL_SECONDS: Final = 5.0
"""How long nothing is settled after this process stood still: by then Airflow has told it what runs elsewhere."""

READS_AT_ONCE: Final = 20
"""Reports read before the states are looked at again; each read takes the supervisor about 20 ms."""

MAX_LISTED_MESSAGES: Final = 100
"""Up to this many messages the report lists their ids by outcome."""

SHOWN_MESSAGES: Final = 5
"""So many messages that failed are named in a line of the log."""

SHOWN_REFUSALS: Final = 3
"""So many different things that SQS said about settlements that failed are in the report."""

_MAP_INDEX: Final = re.compile(r"\[\d+\]")

_DONE: Final = frozenset({"success", "skipped"})

_LEAVES_REPORT: Final = frozenset({SUCCESS, FAILED})

_ENDED: Final = object()

_OUTCOMES: Final[Mapping[type, Outcome]] = {
    Delete: Outcome.DELETED,
    Release: Outcome.RELEASED,
    Expire: Outcome.EXPIRED,
    DeadLetter: Outcome.DEAD_LETTERED,
}


class Settler:
    """Decides on the messages of one batch and settles them, until no lease is left.

    Args:
        task: The keeper's task.
        receive_task: The task that received: its XComs are where progress is written.
        batch: The batch, which goes on being extended by its keeper.
        leases: All leases of the batch in the order of the messages, those settled earlier included.
        work: The tasks that work on the messages.
        on_failure: What becomes of failed messages.
        clock: Source of time.
        inherited: What another process settled and counted before.
        signals: The signals by which workers report failures; None if they do not report them.
        ordered: Whether the messages of a FIFO group are settled in their order.
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
        self._task = task
        self._receive_task = receive_task
        self._batch = batch
        self._leases = leases
        self._message_ids = [lease.receipt.message_id for lease in leases]
        self._positions = {lease.receipt: position for position, lease in enumerate(leases)}
        self._groups: dict[str | None, list[int]] = {}  # the positions of each message group, where order matters
        self._work = work
        self._on_failure = on_failure
        self._clock = clock
        self._inherited = inherited
        self._refusals: Counter[str] = Counter()  # how many settlements failed, by what was said
        self._abandoned = 0  # settlements that this process gave up
        self._signals = signals
        self._ordered = ordered and batch.queue_url.endswith(".fifo")
        self._random = Random()
        # Positions that are held, and about which nothing was decided.
        self._open = dict.fromkeys(position for position in range(len(leases)) if position not in inherited.settled)
        self._held_back: frozenset[int] = frozenset()  # decided, but behind others of their group
        self._progress = dict(inherited.settled)
        self._noted = Progress(self._progress, batch_id=inherited.batch_id, counts=inherited.counts)
        self._deadline_note = DeadlineNote(batch, clock)
        self._unwritten = False
        self._status: Mapping[str, Any] | None = None
        self._shown: Mapping[str, int] = {}  # the counts that the page of leases shows
        self._shown_at = clock.now() + FIRST_PAUSE_SECONDS - PAUSE_SECONDS
        self._reports = WorkReports(task, work, self._message_ids)
        self._errors_matter = isinstance(on_failure, ByExceptionRule | DeadLetterRule)
        self._signalled: set[str] = set()  # instances that failed before their state says so
        self._taken_signals: set[str] = set()
        self._looked_at: TaskStates | None = None  # the states as Airflow answered them
        self._judged: TaskStates | None = None  # the same with what signals say
        self._unread: dict[InstanceKey, None] = {}
        self._look_again = False
        self._checked = False
        self._settling: set[asyncio.Task[None]] = set()
        self._failed_work = GatheredLog(_log_failed_work)
        self._settled = GatheredLog(_log_settled)
        if self._ordered:
            for position, lease in enumerate(leases):
                self._groups.setdefault(lease.message_group_id, []).append(position)

    def watched_tasks(self) -> list[str]:
        """The tasks whose states must be watched: the work, and the keeper itself."""
        return [self._task.task_id, *(task.task_id for task in self._work)]

    async def run(self, watch: StateWatch) -> None:
        """Settle as the work ends; returns when each message was settled or lost."""
        try:
            while self._still_open():
                states = await watch.next()
                if self._may_settle(states, watch):
                    await self._look(states, watch)
                    await self._note_deadlines()
            if self._settling:
                await asyncio.gather(*self._settling)
            if self._unwritten:
                await self._write_progress()  # so that no other process takes for settled what was refused
            watch.finished()
        finally:
            for settling in self._settling:
                settling.cancel()
            self._flush_log()

    async def look_once(self, states: TaskStates) -> bool:
        """Settle what is decided by some states, and wait until that is done.

        It is for ``dag.test()``: nobody else can hold the batch there, and nothing goes on while this does.

        Returns:
            Whether anything is still held.
        """
        self._checked = False
        if self._still_open():
            await self._settle_what_is_decided(states, asyncio.Semaphore(1))
        if self._settling:
            await asyncio.gather(*self._settling)
        self._flush_log()
        return self._still_open()

    def happened(self, event: LeaseEvent) -> None:
        """Take in what happened to one of the leases."""
        match event:
            case Settled():
                self._ended(event.receipt, event.outcome)
                if event.outcome is Outcome.FAILED:
                    self._refusals[event.detail or "no reason"] += 1
            case Lost():
                self._ended(event.receipt, Outcome.LOST)
            case Lapsed():
                self._unwritten = True  # a keeper that resumes must count it

    def _ended(self, receipt: Receipt, outcome: Outcome) -> None:
        """Note how a lease ended: a keeper that resumes counts it and must not extend it.

        What was written ahead is corrected where SQS did something else.
        """
        if (position := self._positions.get(receipt)) is None:
            return
        if self._progress.get(position) is not outcome:
            self._progress[position] = outcome
            self._unwritten = True
        self._open.pop(position, None)
        self._look_again = self._look_again or bool(self._held_back)

    def counts(self) -> dict[str, int]:
        """What became of the messages so far, what other processes settled included."""
        counts: dict[str, int] = asdict(self._batch.report())
        counts |= counts_of(self._batch, self._inherited.counts)
        counts["received"] = len(self._leases)
        counts["failed"] += self._abandoned
        for outcome in self._inherited.settled.values():
            counts[_field(outcome)] += 1
        return counts

    def report(self) -> dict[str, Any]:
        """Counts of the batch and, where they are not too many, the message ids by outcome."""
        counts: dict[str, Any] = self.counts()
        if self._refusals:
            counts[REFUSALS] = dict(self._refusals.most_common(SHOWN_REFUSALS))
        if len(self._leases) > MAX_LISTED_MESSAGES:
            return counts
        by_outcome: dict[str, list[str]] = {}
        for position, outcome in self._inherited.settled.items():
            by_outcome.setdefault(_field(outcome), []).append(self._message_ids[position])
        for receipt, settled in self._batch.outcomes().items():
            by_outcome.setdefault(_field(settled.outcome), []).append(receipt.message_id)
        return {**counts, "messages": by_outcome}

    def _flush_log(self) -> None:
        for log in (self._failed_work, self._settled):
            log.flush()

    def _still_open(self) -> bool:
        if not self._checked:
            # What ended before anybody told this settler. Afterwards its listener learns of each.
            self._checked = True
            if self._batch.count_held() == len(self._open):
                return bool(self._open)  # a look at each of 50 000 takes 0.1 s
            outcomes: Mapping[Receipt, Settled] | None = None
            for position in tuple(self._open):
                receipt = self._leases[position].receipt
                if not self._batch.holds(receipt):
                    outcomes = self._batch.outcomes() if outcomes is None else outcomes
                    settled = outcomes.get(receipt)
                    self._ended(receipt, Outcome.LOST if settled is None else settled.outcome)
        return bool(self._open)

    def _may_settle(self, states: TaskStates, watch: StateWatch) -> bool:
        """Whether this process is certainly the one that holds the batch.

        A keeper that is no longer deferred was cleared or marked, or ended in another triggerer while this
        one stood still. After a stall only what was asked since counts, however long the answer took.
        """
        stalled_until = watch.stalls.last_ended_at()
        has_heard = self._clock.now() >= stalled_until + AFTER_STALL_SECONDS
        is_current = has_heard and watch.asked_at >= stalled_until
        return is_current and states.get(self._task.task_id) == "deferred"

    async def _look(self, states: TaskStates, watch: StateWatch) -> None:
        """Decide and settle, unless nothing is new since the last look: with many keepers that is nearly always so."""
        signals = watch.signals
        if signals <= self._taken_signals and states == self._looked_at and not (self._look_again or self._unread):
            return
        self._look_again = False
        if self._signals is not None:
            await self._take_signals(self._signals, signals, states, watch)
        self._looked_at = states
        failed = {key: FAILED for key in self._signalled if states.get(key) not in _DONE}
        await self._settle_what_is_decided({**states, **failed} if failed else states, watch.turn)
        watch.acted_on(self._taken_signals & signals)

    async def _take_signals(
        self, known: FailureSignals, signals: frozenset[str], states: TaskStates, watch: StateWatch
    ) -> None:
        for key in sorted(signals - self._taken_signals)[:READS_AT_ONCE]:
            instance = known.instance(key)
            try:
                async with watch.turn:
                    if instance is not None and await self._reports.read_signalled(instance, states):
                        self._signalled.add(state_key(instance))
            except CommsError as error:
                logger.warning("The report of a failed task cannot be read yet: %s", error)
                return
            self._taken_signals.add(key)

    async def _settle_what_is_decided(self, states: TaskStates, turn: asyncio.Semaphore) -> None:
        """Decide on the messages that new states, and then new reports, say something about."""
        positions = self._affected(states)
        self._judged = states
        while True:
            if positions:
                await self._decide_on(positions, states)
            instances = self._next_unread(states)
            if not instances or not self._open:
                return
            read = await self._read(instances, states, turn)
            positions = self._concerned(read, states)
            if len(read) < len(instances):
                # What was read is decided on now: no news would bring it back here.
                await self._decide_on(positions, states)
                return

    async def _read(
        self, instances: Sequence[InstanceKey], states: TaskStates, turn: asyncio.Semaphore
    ) -> Sequence[InstanceKey]:
        """Read the reports of some instances, and return those that were read; the others stay unread."""
        for number, instance in enumerate(instances):
            try:
                async with turn:
                    await self._reports.read(instance, states)
            except CommsError as error:
                logger.warning("The report of %s[%d] cannot be read yet: %s", *instance, error)
                self._unread |= dict.fromkeys(instances[number:])
                return instances[:number]
        return instances

    def _next_unread(self, states: TaskStates) -> Sequence[InstanceKey]:
        """Some instances whose reports to read next."""
        instances: list[InstanceKey] = []
        while self._unread and len(instances) < READS_AT_ONCE:
            instance, _ = self._unread.popitem()
            # One that was cleared meanwhile leaves another report.
            if states.get(state_key(instance)) in _LEAVES_REPORT:
                instances.append(instance)
        return instances

    def _affected(self, states: TaskStates) -> Sequence[int]:
        """The messages about which states may say something new since the last look."""
        changed = None if self._judged is None else affected(self._work, len(self._leases), self._judged, states)
        if changed is None:
            return list(self._open)
        return sorted(self._open.keys() & (changed | self._held_back))

    def _concerned(self, instances: Iterable[InstanceKey], states: TaskStates) -> Sequence[int]:
        """The messages that the reports of some instances may be about."""
        one_by_one = {task.task_id for task in tasks_one_by_one(self._work, len(self._leases), states)}
        positions = set()
        for task_id, map_index in instances:
            if task_id not in one_by_one or map_index == UNMAPPED:
                return list(self._open)
            positions.add(map_index)
        return sorted(self._open.keys() & (positions | self._held_back))

    async def _decide_on(self, positions: Sequence[int], states: TaskStates) -> None:
        judgement = Judgement(
            self._work,
            states,
            self._reports.known,
            self._message_ids,
            read_failures=self._signals is not None,
            by_exception=self._errors_matter,
        )
        settlements: dict[int, Settlement] = {}
        failures: dict[int, Failure] = {}
        if not judgement.holds_all:
            for some in _slices(positions):
                decision = judgement.on(position for position in some if position in self._open)
                settlements |= self._settlements(decision)
                failures |= decision.fail
                await asyncio.sleep(0)
        self._unread |= dict.fromkeys(judgement.unread)
        await self._begin(settlements, failures)

    def _settlements(self, decision: Decision) -> dict[int, Settlement]:
        settlements: dict[int, Settlement] = dict.fromkeys(decision.delete, Delete())
        settlements |= {
            position: self._settlement(position, ReleaseRule(), Failure("its work was skipped"))
            for position in decision.release
        }
        for position, failure in decision.fail.items():
            settlements[position] = self._settlement(position, self._on_failure.matching(failure.errors), failure)
        return settlements

    async def _begin(self, settlements: Mapping[int, Settlement], failures: Mapping[int, Failure]) -> None:
        """Write down what is about to be settled, and begin it: a thousand messages at a time."""
        if self._ordered:
            settlements = self._in_group_order(settlements)
        if not settlements:
            return
        positions = sorted(settlements)
        for some in _slices(positions):
            for position in some:
                if (failure := failures.get(position)) is not None:
                    self._log_failure(position, failure)
                if self._open.pop(position, _ENDED) is not _ENDED:
                    self._progress[position] = _OUTCOMES[type(settlements[position])]
            await asyncio.sleep(0)
        # Before the calls: a keeper that resumes must not extend these again.
        await self._write_progress()
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
        # The instances of a mapped task fail alike, each with its index in the reason: the first one is shown.
        kind = _MAP_INDEX.sub("", failure.reason)
        self._failed_work.line(kind, partial(_FailedWork, failure.reason)).add(self._message_ids[position])

    def _in_group_order(self, settlements: Mapping[int, Settlement]) -> Mapping[int, Settlement]:
        """What may be settled now of the messages of a FIFO queue, and how; the rest is held back."""
        groups = {self._leases[position].message_group_id for position in settlements}
        leases = [self._leases[position] for position in sorted(chain(*(self._groups[group] for group in groups)))]
        by_receipt = {self._leases[position].receipt: settlements[position] for position in sorted(settlements)}
        by_receipt = ready(hold_back(by_receipt, leases, self._outcome_of), leases, self._outcome_of)
        now = {self._positions[receipt]: settlement for receipt, settlement in by_receipt.items()}
        self._held_back = (self._held_back | settlements.keys()) - now.keys()
        return now

    def _settlement(self, position: int, rule: FailureRule, failure: Failure) -> Settlement:
        reason = f"{failure.reason} in run {self._task.run_id} of DAG {self._task.dag_id}"
        return rule.settlement(
            receive_count=self._leases[position].receive_count,
            # The message's own detail comes first: a reason that is too long is cut off at its end.
            reason=f"{failure.detail} ({reason})" if failure.detail else reason,
            random=self._random,
        )

    async def _write_progress(self) -> None:
        try:
            await self._publish_progress()
        except CommsError as error:
            logger.warning("The keeper's progress cannot be written; messages are settled anyway: %s", error)

    async def _note_deadlines(self) -> None:
        """After extensions, write how long the leases last now: a process that takes over may then release them.

        And for the page of leases, after settlements.
        """
        if not self._deadline_note.is_due() and not self._unwritten and not self._is_news_for_the_page():
            return
        shown = self.counts()
        self._shown, self._shown_at = settled_counts(shown), self._clock.now()
        self._status = await status_of(self._batch, shown, self._clock)
        try:
            self.progress()
            await self._publish_progress()
        except CommsError as error:
            logger.warning("The deadline of the leases cannot be written; they are extended anyway: %s", error)

    def progress_of_next_try(self, written: WrittenBatch) -> Progress:
        """What the keeper's next try begins with, when this one has stopped holding the batch.

        What was decided but not carried out is in ``written``: the next try decides on it.
        """
        held = {self._positions[lease.receipt] for lease in written.leases}
        settled = {position: outcome for position, outcome in self._progress.items() if position not in held}
        in_doubt = any(lease.doubtful for lease in written.leases)
        until = None if in_doubt else min((lease.deadline for lease in written.leases), default=None)
        return replace(self.progress(), settled=settled, certain_until=until, written_at=written.written_at)

    def progress(self) -> Progress:
        """The progress now: what was settled, how long the leases last, and the counts."""
        counts = counts_of(self._batch, self._inherited.counts)
        self._noted = Progress(
            self._progress,
            self._deadline_note.until(),
            self._inherited.batch_id,
            counts,
            self._status,
            self._clock.wall(),
        )
        return self._noted

    def _is_news_for_the_page(self) -> bool:
        """Whether anything was settled or lost since the last note, and that was written some time ago."""
        return self._clock.now() - self._shown_at >= PAUSE_SECONDS and settled_counts(self.counts()) != self._shown

    async def _publish_progress(self) -> None:
        self._unwritten = False
        await publish(self._receive_task, PROGRESS_KEY, self._noted.encode(), patience_seconds=0)

    async def _settle(self, settlements: Mapping[Receipt, Settlement]) -> None:
        try:
            outcomes = await self._batch.settle(settlements, in_order=self._ordered)
        except KeeperClosedError as error:
            ended = self._batch.outcomes()
            abandoned = sum(receipt not in ended for receipt in settlements)
            self._abandoned += abandoned
            logger.warning("%d messages could not be settled here: %s", abandoned, error)
            return
        self._settled.line(None, Counter).update(settled.outcome for settled in outcomes.values())

    def _outcome_of(self, receipt: Receipt) -> Outcome | None:
        """How a lease ended, or is being ended."""
        return self._progress.get(self._positions[receipt])


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


def _field(outcome: Outcome) -> str:
    return outcome.value.replace("-", "_")


class WorkReports:
    """The reports read so far.

    Args:
        task: Any task of the run.
        work: The work tasks.
        message_ids: The messages of the batch, in its order.
    """

    def __init__(self, task: RunOfTask, work: Sequence[WorkTask], message_ids: Sequence[str]) -> None:
        self.known: dict[InstanceKey, InstanceReport] = {}
        self._task = task
        self._work = {task.task_id: task for task in work}
        self._message_ids = message_ids

    async def read(self, instance: InstanceKey, states: TaskStates) -> None:
        """Read the report of an instance that ended.

        Raises:
            CommsError: There was no usable answer.
        """
        if states.get(state_key(instance)) == FAILED:
            self._take_failure(instance, states, await self._failure(instance))
        else:
            returned = await pull_plain_mapping(self._task, instance)
            failed = failed_items(returned, self._concerned(instance, states))
            self.known[instance] = InstanceReport(failed, reasons=failure_reasons(returned, failed))

    async def read_signalled(self, instance: InstanceKey, states: TaskStates) -> bool:
        """Read the report of an instance whose failure was signalled before its state says so.

        Returns:
            Whether there is one. Airflow removes it when the task starts again, so without it the signal is old.

        Raises:
            CommsError: There was no usable answer.
        """
        report = await self._failure(instance)
        if report is not None:
            self._take_failure(instance, states, report)
        return report is not None

    async def _failure(self, instance: InstanceKey) -> FailureReport | None:
        task_id, map_index = instance
        task = RunOfTask(self._task.dag_id, self._task.run_id, task_id)
        return FailureReport.decode(await pull(task, FAILURE_KEY, map_index=map_index))

    def _take_failure(self, instance: InstanceKey, states: TaskStates, report: FailureReport | None) -> None:
        report = report or FailureReport()
        failed = failed_by_exception(report.message_ids, self._concerned(instance, states))
        self.known[instance] = InstanceReport(failed, report.errors)

    def _concerned(self, instance: InstanceKey, states: TaskStates) -> Sequence[str]:
        task_id, map_index = instance
        return concerned(self._work[task_id], map_index, self._message_ids, states)
