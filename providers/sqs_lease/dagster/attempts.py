"""Attempts at a step: what becomes of messages while Dagster tries again, and what earlier attempts did.

Dagster repeats a step by ``RetryPolicy`` or ``RetryRequested``, and a failed run by run retries. The failure rule is
for the last attempt: before that, messages are given back plainly, so that the next attempt works on them.

Attempts may run in different processes, so each lease leaves two events in the run's log: what it received, and what
became of it. The next attempt reads them. A lease without the second event was cut off: its process was killed.

**A retry that finds nothing fails** where the attempt before it received messages of the queue, and failed: whether it
gave them back, so that they are elsewhere, or deleted them, so that they do not come back. Two exceptions:

- That attempt failed by what the block of a later lease raised, and the step stores no value. What it did with the
  earlier one, it had done.
- A run is repeated whose step succeeded, because another step failed. The log warns: what this step makes now is made
  of no messages.

Where a retry finds other messages, ``sqs/earlier_deleted_then_failed`` says how many are missing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from threading import Event
from typing import Any, Final
from uuid import uuid4

import dagster as dg

from sqs_lease.blocking import LeaseBlock, LeasedBatch
from sqs_lease.core.failure_rules import ByExceptionRule, DeadLetter, FailureRule, ReleaseRule, Settlement
from sqs_lease.core.specs import OnFailure, resolve_failure_rule
from sqs_lease.dagster._internals import (
    Context,
    failed_checks_error,
    failures_of_step,
    is_tried_again,
    may_have_failed_by,
    report_event,
    reported,
    run_events,
    step_key,
)
from sqs_lease.dagster.metadata import EARLIER, PREFIX, QUEUE, lease_metadata, lease_summary
from sqs_lease.dagster.step_watch import watch_of
from sqs_lease.ingestion.job import JobError
from sqs_lease.keeper.batch import LeaseReport
from sqs_lease.keeper.session import SettlementError

logger = logging.getLogger(__name__)

_LEASE: Final = f"{PREFIX}lease"
"""Names one lease in the two events that it leaves."""

_RECEIVED: Final = f"{PREFIX}received"
_ATTEMPT: Final = f"{PREFIX}attempt"
_UNFINISHED: Final = f"{PREFIX}unfinished"
_RAISED: Final = f"{PREFIX}raised"
_ERROR: Final = f"{PREFIX}error"
_RETRY_NUMBER_TAG: Final = "dagster/retry_number"
"""Dagster's tag of runs that its daemon repeats by itself."""

_JOB_ERROR: Final = f"{JobError.__module__}.{JobError.__qualname__}"
_COUNTS: Final = (
    "received",
    "deleted",
    "released",
    "dead_lettered",
    "expired",
    "lost",
    "late",
    "uncertain",
    "unsettled",
)


class RetryWithoutMessagesError(RuntimeError):
    """A retry received nothing, and the attempt before it received messages and failed.

    A step that can go on without messages catches it.
    """


@dataclass(frozen=True, slots=True)
class AttemptRule(FailureRule):
    """The failure rule of a lease in a step.

    Attributes:
        last: What becomes of messages that failed for good.
        is_repeated: Set when the block raised, and Dagster tries again.
    """

    last: FailureRule
    is_repeated: Event

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Settlement:
        """As the last attempt settles it."""
        return self.last.settlement(receive_count=receive_count, reason=reason, random=random)

    def matching(self, errors: Sequence[str]) -> FailureRule:
        """A plain release where Dagster tries again; else the rule for the exception."""
        return ReleaseRule(delay=0) if self.is_repeated.is_set() else self.last.matching(errors)


@dataclass(frozen=True, slots=True)
class SparingRule(FailureRule):
    """A failure rule that sends no message to the dead-letter queue because a Spark job failed.

    A :class:`JobError <sqs_lease.ingestion.job.JobError>` says that the job could not do its work: no executor was
    left, or the table was locked. Messages are not at fault, so a rule that would dead-letter them makes them visible
    again. Only ``by_exception`` that names ``JobError`` itself is taken at its word.

    Attributes:
        rule: The user's rule.
    """

    rule: FailureRule

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Settlement:
        """As the user's rule has it."""
        return self.rule.settlement(receive_count=receive_count, reason=reason, random=random)

    def matching(self, errors: Sequence[str]) -> FailureRule:
        """The user's rule for the exception, without its dead letters where a job failed."""
        rule = self.rule.matching(errors)
        named = isinstance(self.rule, ByExceptionRule) and _JOB_ERROR in dict(self.rule.rules)
        return _WithoutDeadLetters(rule) if _JOB_ERROR in errors and not named else rule


@dataclass(frozen=True, slots=True)
class _WithoutDeadLetters(FailureRule):
    rule: FailureRule

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Settlement:
        settlement = self.rule.settlement(receive_count=receive_count, reason=reason, random=random)
        if isinstance(settlement, DeadLetter):
            return ReleaseRule().settlement(receive_count=receive_count, reason=reason, random=random)
        return settlement


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What the run's log says of one lease.

    Attributes:
        attempt: The run, and the number of the attempt within it: 0 is the first.
        queue_url: The queue.
        received: How many messages it received.
        counts: What became of them: received, deleted, released and so on.
        unfinished: How many of them were held when the block raised or was cut off, and were not deleted.
        raised: Whether the block raised, or was cut off.
        error: The name of the class of what the block raised; None where it did not, or was cut off.
    """

    attempt: tuple[str, int]
    queue_url: str
    received: int
    counts: Mapping[str, int]
    unfinished: int
    raised: bool
    error: str | None = None

    @property
    def deleted(self) -> int:
        """How many messages it deleted."""
        return self.counts["deleted"] + self.counts["uncertain"]


def failure_rule(on_failure: OnFailure | None) -> FailureRule:
    """Return the failure rule that a user described, which spares messages where a Spark job failed.

    Args:
        on_failure: A rule, its name, or a mapping of its kind and arguments; None for ``release()``.

    Raises:
        ValueError: There is no rule of that name, or an argument is out of range.
        TypeError: It is something else, or an argument is unknown.
    """
    return SparingRule(resolve_failure_rule(on_failure))


class StepLease:
    """One lease in a step, and what it leaves in the run's log.

    Where the function is called directly, as in a test, it only logs.

    Args:
        context: The context of the op or asset.
        on_failure: What becomes of messages that failed for good, as :func:`failure_rule` takes it.

    Raises:
        ValueError: There is no such rule, or an argument is out of range.
        TypeError: ``on_failure`` is something else, or an argument is unknown.
    """

    def __init__(self, context: Context, on_failure: OnFailure | None) -> None:
        # The lease's thread has the rule, which must not refer to the batch: a lease is given back when nothing does.
        self._is_repeated = Event()
        self.rule = AttemptRule(failure_rule(on_failure), self._is_repeated)
        self._context = context
        self._key = step_key(context)
        self._id = uuid4().hex
        self._watch = watch_of(context)
        self._block: LeaseBlock | None = None
        self._batch: LeasedBatch | None = None
        self._when_raised: LeaseReport | None = None
        self._raised: str | None = None
        self._has_ended = False
        self._has_rule = on_failure is not None
        self._waits_with: Exception | None = None
        self._notes: tuple[str, ...] = ()
        self._unsettled: str | None = None

    def watch(self, block: LeaseBlock) -> None:
        """Have the lease given back if its step fails while its generator is suspended in the block.

        Args:
            block: The lease.
        """
        self._block = block
        if self._watch is not None:
            self._watch.add(self)

    def received(self, batch: LeasedBatch) -> None:
        """Tell what was received.

        Raises:
            RetryWithoutMessagesError: This is a retry that received nothing, and the attempt before it received
                messages and failed.
        """
        self._batch = batch
        numbers = {QUEUE: dg.MetadataValue.text(batch.queue_url), _RECEIVED: dg.MetadataValue.int(len(batch))}
        self._tell(f"Received {len(batch)} messages of {batch.queue_url}", numbers)
        if len(batch) == 0:
            self._refuse_to_hide_the_attempt_before(batch.queue_url)

    def refuse_to_receive(self) -> None:
        """Receive nothing where a blocking check of the step has failed: Dagster fails it when it has ended.

        Raises:
            dagster.DagsterError: One did.
        """
        if self._watch is not None and (checks := self._watch.failed_checks):
            raise failed_checks_error(
                f"Step {self._key!r} receives nothing: its blocking asset checks failed before the lease, so that "
                f"Dagster fails it: {', '.join(checks)}"
            )

    def refuse_failed_checks(self) -> None:
        """Fail the block if a blocking check failed that it yielded: Dagster would fail the step when all is deleted.

        Raises:
            dagster.DagsterError: One did.
        """
        if self._watch is not None and (checks := self._watch.failed_checks):
            raise failed_checks_error(
                "Blocking asset checks failed within the block of the lease, and its messages with them: "
                f"{', '.join(checks)}"
            )

    def raised(self, error: BaseException) -> bool:
        """Take note of what the block raised, before its messages are settled.

        A step may survive the exception, or turn it into a ``RetryRequested`` or another ``Failure``. So a rule of the
        user's waits until the step has ended: only then is it known whether Dagster tries it again.

        Returns:
            Whether :meth:`settle` settles the messages, and not the end of the block.
        """
        self._notes = tuple(getattr(error, "__notes__", ()))
        self._raised = type(error).__name__
        if self._batch is not None:
            # The count is to have what was settled a moment ago; the end of the block tells of refusals.
            with suppress(SettlementError):
                self._batch.flush()
            self._when_raised = self._batch.report()
        if self._watch is not None:
            self._watch.raised(self._raised)
        if self._key is None or not isinstance(error, Exception):
            return False
        if self._has_rule and self._batch is not None and self._watch is not None and self._watch.sees_the_end:
            self._waits_with = error
            for problem in self._watch.defer(self):
                self._context.log.warning(problem)
            return True
        try:
            if is_tried_again(self._context, error):
                self._is_repeated.set()
        except Exception:
            # The user's exception must go on.
            logger.exception("Whether step %s is tried again is not known: its messages are given back", self._key)
            self._is_repeated.set()
        return False

    def settle(self, *, is_tried_again: bool) -> None:
        """Settle what :meth:`raised` left.

        Args:
            is_tried_again: Whether Dagster tries the step again.
        """
        error, self._waits_with = self._waits_with, None
        if error is None or self._block is None:
            return
        if is_tried_again:
            self._is_repeated.set()
        self._block.__exit__(type(error), error, error.__traceback__)
        self.ended(error, is_listener=True)

    def unsettled(self) -> str | None:
        """Say what the service did not settle as asked, where no exception says it; only once."""
        said, self._unsettled = self._unsettled, None
        return said

    def warn_of_unsettled(self) -> None:
        """Have the run's log say what :meth:`unsettled` does, from within the step."""
        if (said := self.unsettled()) is not None:
            self._context.log.warning(said)

    def ended(self, error: BaseException | None = None, *, is_listener: bool = False) -> None:
        """Tell what became of the messages; only the first call counts.

        Args:
            error: What the block raised, with the notes that the lease added.
            is_listener: Whether a listener of the instance's events calls this.
        """
        if self._batch is None or self._has_ended or self._waits_with is not None:
            return
        self._has_ended = True
        text = lease_summary(self._batch)
        if self._is_repeated.is_set():
            text += "; Dagster tries the step again, so on_failure was not applied"
        report = self._batch.report()
        if self._watch is not None and self._when_raised is None:
            self._watch.ended(report.deleted + report.uncertain)
        if self._when_raised is not None and report.failed + report.held:
            added = list(getattr(error, "__notes__", ()))[len(self._notes) :]
            self._unsettled = "\n".join([f"Of step {self._key!r}: {text}", *added])
        left = {
            _UNFINISHED: dg.MetadataValue.int(self._unfinished(report)),
            _RAISED: dg.MetadataValue.bool(self._when_raised is not None),
            _ERROR: dg.MetadataValue.text(self._raised or ""),
        }
        self._tell(text, {**lease_metadata(self._batch), **left}, is_listener=is_listener)

    def metadata_of_earlier_attempts(self) -> dict[str, dg.MetadataValue]:
        """What the attempts before this one did with messages; empty where none of them leased.

        Returns:
            By key: ``sqs/earlier_attempts``, and ``sqs/earlier_received`` and so on, as in :func:`lease_metadata`;
            and ``sqs/earlier_deleted_then_failed``: messages that a block deleted as it ended well, in an attempt that
            failed later. What a process held that was killed counts as unsettled.
        """
        earlier = [record for record in self._records() if record.attempt != self._attempt()]
        if not earlier:
            return {}
        numbers = {"attempts": len({record.attempt for record in earlier})}
        numbers |= {name: sum(record.counts[name] for record in earlier) for name in _COUNTS}
        numbers["deleted_then_failed"] = sum(record.deleted for record in self._owed(earlier) if not record.raised)
        return {f"{EARLIER}{name}": dg.MetadataValue.int(number) for name, number in numbers.items()}

    def give_back(self) -> bool:
        """Give the messages back if the block is open: the step has failed, and nothing will close its generator.

        A listener of the instance's events calls this.

        Returns:
            Whether the block was open.
        """
        if self._batch is None or self._block is None or self._has_ended:
            return False
        when_failed = self._batch.report()
        if not self._block.give_back():
            return False
        self._when_raised = when_failed
        self.ended(is_listener=True)
        return True

    def _tell(self, text: str, metadata: Mapping[str, dg.MetadataValue], *, is_listener: bool = False) -> None:
        if self._key is None:
            self._context.log.info(text)
            return
        number = dg.MetadataValue.int(self._context.op_execution_context.retry_number)
        named = {_LEASE: dg.MetadataValue.text(self._id), _ATTEMPT: number, **metadata}
        report_event(self._context, text, named, is_listener=is_listener)

    def _unfinished(self, now: LeaseReport) -> int:
        """How many messages were held when the block raised, and were not deleted."""
        if self._when_raised is None:
            return 0
        before = self._when_raised
        return before.held - (now.deleted + now.uncertain - before.deleted - before.uncertain)

    def _refuse_to_hide_the_attempt_before(self, queue_url: str) -> None:
        """Fail, or at least warn, where the last attempt before this one that received messages of a queue had some.

        Raises:
            RetryWithoutMessagesError: It failed.
        """
        records = self._records()
        with_messages = [record for record in records if record.queue_url == queue_url and record.received]
        if not with_messages or with_messages[-1].attempt == self._attempt():
            return
        last = with_messages[-1].attempt
        had = [record for record in with_messages if record.attempt == last]
        owed = [record for record in self._owed(records) if record in had]
        if owed:
            raise RetryWithoutMessagesError(
                f"This attempt at {self._key!r} received nothing from {queue_url}, and the attempt before it received "
                f"messages and failed. {_what_is_missing(owed)} A new run starts afresh; a step that can go on without "
                "messages catches this error"
            )
        deleted = sum(record.deleted for record in had)
        if self._succeeded_in(last[0]):
            self._context.log.warning(
                "This attempt at %r received nothing from %s: run %s, which is repeated, deleted %d messages of it in "
                "this step, which succeeded. What the step makes now is made without them",
                self._key,
                queue_url,
                last[0],
                deleted,
            )
        else:
            self._context.log.info(
                "This attempt at %r received nothing from %s: the attempt before it deleted %d messages of it when "
                "their block had ended well, and failed in a later lease",
                self._key,
                queue_url,
                deleted,
            )

    def _owed(self, records: Sequence[LeaseRecord]) -> list[LeaseRecord]:
        """The leases of earlier attempts whose work is not known to be done."""
        attempts: dict[tuple[str, int], list[LeaseRecord]] = {}
        for record in records:
            attempts.setdefault(record.attempt, []).append(record)
        attempts.pop(self._attempt(), None)
        latest = dict(sorted(attempts))
        owed: list[LeaseRecord] = []
        for (run_id, number), leases in attempts.items():
            if latest[run_id] == number and self._succeeded_in(run_id):
                continue
            # A step without values that failed in a later lease had done the work of those before it.
            is_explained = self._watch is not None and not self._watch.stores_values and self._failed_by(leases[-1])
            owed += [lease for lease in leases if lease.received and (lease.raised or not is_explained)]
        return owed

    def _failed_by(self, lease: LeaseRecord) -> bool:
        """Whether the attempt of a lease failed by what its block raised, and did not survive that."""
        run_id, number = lease.attempt
        failures = failures_of_step(self._context.instance, run_id, str(self._key))
        # An attempt that was killed may have left no event.
        is_known = lease.error is not None and number < len(failures)
        return lease.raised and (not is_known or may_have_failed_by(failures[number], str(lease.error)))

    def _succeeded_in(self, run_id: str) -> bool:
        """Whether the step succeeded in a run before this one."""
        if run_id == self._context.run.run_id:
            return False
        ends = run_events(self._context.instance, run_id, {dg.DagsterEventType.STEP_SUCCESS})
        return any(event.step_key == self._key for event in ends)

    def _attempt(self) -> tuple[str, int]:
        return self._context.run.run_id, self._context.op_execution_context.retry_number

    def _records(self) -> list[LeaseRecord]:
        """The leases of this attempt and those before it, oldest first; none where this is the first attempt."""
        if self._key is None:
            return []
        run, instance = self._context.run, self._context.instance
        runs = [run]
        while _RETRY_NUMBER_TAG in runs[0].tags and runs[0].parent_run_id is not None:
            parent = instance.get_run_by_id(runs[0].parent_run_id)
            if parent is None:
                break
            runs.insert(0, parent)
        if len(runs) == 1 and self._context.op_execution_context.retry_number == 0:
            return []
        return [record for each in runs for record in lease_records(instance, each.run_id, self._key)]


def _what_is_missing(owed: Sequence[LeaseRecord]) -> str:
    """What an attempt that failed made of its messages, and where they are."""
    unfinished, deleted = sum(record.unfinished for record in owed), sum(record.deleted for record in owed)
    said = []
    if unfinished:
        said.append(
            f"It left {unfinished} messages unfinished. They may be with another consumer; in the dead-letter queue, "
            "if that attempt sent them there or they were received maxReceiveCount times; or still invisible, if its "
            "process was killed. Look there."
        )
    if deleted:
        said.append(
            f"It deleted {deleted} messages before it failed, so these do not come back, and what it had yet to do "
            "with them is not done: a value that was not stored, or work after the block. Do that work within the "
            "block, or decorate the function with leased()."
        )
    if not said:
        said.append(f"What became of its messages: {counts_said(owed)}.")
    return " ".join(said)


def counts_said(leases: Iterable[LeaseRecord]) -> str:
    """Say what became of the messages of some leases; nothing where they had none."""
    counts: Counter[str] = Counter()
    for lease in leases:
        counts.update(lease.counts)
    return ", ".join(f"{counts[name]} {name.replace('_', '-')}" for name in _COUNTS if counts[name])


def lease_records(instance: dg.DagsterInstance, run_id: str, key: str) -> list[LeaseRecord]:
    """Read from a run's log what a step leased, oldest first.

    Args:
        instance: The instance that has the run.
        run_id: The run.
        key: The step's.
    """
    records: dict[str, LeaseRecord] = {}
    for event in reported(instance, run_id):
        numbers: dict[str, Any] = {name: value.value for name, value in event.metadata.items()}
        if event.step_key != key or _LEASE not in numbers:
            continue
        received, queue_url = numbers[_RECEIVED], numbers[QUEUE]
        attempt = (run_id, numbers[_ATTEMPT])
        if _UNFINISHED in numbers:
            counts = {name: numbers[f"{PREFIX}{name}"] for name in _COUNTS}
            raised, error = numbers[_RAISED], numbers.get(_ERROR) or None
            record = LeaseRecord(attempt, queue_url, received, counts, numbers[_UNFINISHED], raised, error)
        else:
            # Until the second event says otherwise.
            cut_off = {**dict.fromkeys(_COUNTS, 0), "received": received, "unsettled": received}
            record = LeaseRecord(attempt, queue_url, received, cut_off, received, raised=True)
        records[numbers[_LEASE]] = record
    return list(records.values())
