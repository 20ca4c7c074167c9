"""A lease in a step of Dagster, from the beginning of its block to the deletion of its messages.

**A lease in a step ends with its step**, not with its block. Dagster stores the return value of an op or asset after
its function has ended, so a lease that ended with its block would delete messages before their value is stored. A
:class:`StepLease` goes on after its block, until Dagster reports the end of the step to the listeners in the step's own
process. :class:`Attempt` is such a listener, and settles all leases of one attempt at the step:

| the step's last event | messages that a block failed by an exception | other messages |
| --- | --- | --- |
| STEP_SUCCESS | by the failure rule | deleted: the IO managers have stored the values by then |
| STEP_UP_FOR_RETRY | visible again at once | visible again at once |
| STEP_FAILURE, and the run may be repeated | visible again at once | visible again at once |
| STEP_FAILURE otherwise | by the failure rule | by the failure rule, for the step's exception |
| STEP_FAILURE by an interruption (the run is terminated) | visible again at once | visible again at once |
| no event: the process was killed | visible when their last extension ends | the same |

A block that has not ended when the step succeeds did not do its work, so its messages are visible again at once: a
generator was dropped while it was suspended in the block, or a thread still works in it.

A killed process may have stored its value without deleting the messages: they come again then, by at-least-once
delivery. This was seen in process and with the multiprocess executor of Dagster 1.11.16, 1.12.0 and 1.13.27.

Two ends are earlier. A block that is interrupted gives back at once. A lease ends with its block if each of its
messages was settled there (``succeed``, ``fail``, ``release``), so that a step may work on batch after batch.

**Retries in one process.** Each attempt has a listener of its own, and all of them get the events of the last attempt.
So an :class:`Attempt` is over for good at its own last event.

**A refused settlement fails the step.** If a listener raises an exception, Dagster reports a failure instead: a step
that would have succeeded fails, once, because a ``RetryPolicy`` does not apply to errors outside of the function. By
then its values are stored, and the messages that could be deleted are deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from threading import Lock
from types import TracebackType
from typing import Any, Final, cast

import dagster as dg

from sqs_lease.blocking import LeaseBlock, LeasedBatch, OwnLeasedBatch
from sqs_lease.core.failure_rules import (
    Release,
    Settlement,
    exception_names,
    failed_by_exception,
    named_message_ids,
)
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.dagster._internals import (
    Context,
    add_metadata,
    error_names,
    listening,
    report_event,
    step_exception,
    warn_in_log,
)
from sqs_lease.dagster.metadata import HELD, LeaseNumbers, observe_outcome
from sqs_lease.dagster.retries import (
    Repetition,
    exception_of_work,
    repetition,
)
from sqs_lease.dagster.run_batch.batch_of_run import RoutedBatch, pass_on
from sqs_lease.dagster.run_batch.folder import BatchFolderError
from sqs_lease.dagster.run_batch.leased_batch import RunBatch
from sqs_lease.keeper.session import Messages, SettlementError, ended
from sqs_lease.sqs.transport import QueueAttributes

logger = logging.getLogger(__name__)

MOST_OPEN: Final = 100
"""The number of leases of a step that may be open at once; each has a thread and a client."""


class StepLease(AbstractContextManager[LeasedBatch]):
    """One lease in a step that holds its messages itself.

    Args:
        attempt: The attempt at the step.
        block: The block of the lease, with a :class:`RecordingBatch`.
        routed: The batch of a router that it takes up, and passes on to the next attempt.
        attributes: Reads the queue's attributes.
    """

    def __init__(
        self,
        attempt: Attempt,
        block: LeaseBlock,
        routed: RoutedBatch | None,
        attributes: Callable[[], QueueAttributes],
    ) -> None:
        self._attempt = attempt
        self._block = block
        self.routed = None if routed is None or routed.is_taken else routed
        self.attributes = attributes
        self._batch: RecordingBatch | None = None
        self._raised: BaseException | None = None
        self._has_ended = False

    def __enter__(self) -> LeasedBatch:
        batch = self._batch = cast(RecordingBatch, self._block.__enter__())
        try:
            self._attempt.hold(self)
        except RuntimeError:
            self._block.leave()
            self._block.give_back()
            raise
        received = f"Received {len(batch)} messages of {batch.queue_url}"
        report_event(self._attempt.context, received, {HELD: dg.MetadataValue.int(len(batch))})
        return batch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        batch = self._batch
        if batch is None or not batch.is_open or isinstance(error, GeneratorExit):
            # GeneratorExit is not a failure: a suspended generator was dropped, and its step goes on to its end.
            return
        self._has_ended = True
        self._block.leave()
        if error is not None and not isinstance(error, Exception):
            self.settle(error, is_tried_again=False)
            return
        self._raised = None if error is None else exception_of_work(error)
        if error is None:
            self._attempt.worked(LeaseNumbers.of_work(batch, batch.count_failed()))
        if batch.is_decided() and self.routed is None:
            self.settle(None, is_tried_again=False)

    def settle(self, error: BaseException | None, *, is_tried_again: bool) -> None:
        """Settle the held messages, by the block's exception and by the step's.

        Args:
            error: The exception of the step; None if it succeeded.
            is_tried_again: Whether the step is tried again, or may be.
        """
        batch = self._batch
        if batch is None or not batch.is_open:
            return
        ended_by = error or self._raised
        if self._raised is not None and isinstance(error, Exception):
            if _is_same(self._raised, error):
                ended_by = self._raised
            elif not is_tried_again:
                # The step survived it and failed later, so messages that it does not name are not done either.
                batch.fail_by(self._raised)
        is_cut_off = ended_by is None and not self._has_ended and not batch.is_decided()
        if is_cut_off:
            ended_by = GeneratorExit()
        passed_on: int | None = None
        if is_tried_again and ended_by is not None:
            # The next attempt gets the messages, so on_failure is not for them.
            if self.routed is not None:
                passed_on = pass_on(self._block, self.routed.folder, ended_by)
            if batch.is_open:
                batch.release_by(ended_by)
        problems = self._block.settle(ended_by)
        numbers = LeaseNumbers.of(batch)
        text = numbers.summary()
        if passed_on is not None:
            text += f"; {passed_on} are passed on to the next attempt, and come back if it does not begin in time"
        elif self.routed is not None:
            self.routed.folder.discard()
        elif is_tried_again:
            text += "; the step is or may be tried again, so on_failure was not applied"
        if is_cut_off:
            text += (
                "; the step succeeded before the end of its block, so messages that it had not settled are given back"
            )
            logger.warning(text)
        self._attempt.ended(self, text, numbers, [*batch.refused, *problems])


class StepFailedError(Exception):
    """Stand-in for the exception of a step that is tried again, which Dagster does not give.

    Attributes:
        names: The bare names of its class and of its causes.
    """

    def __init__(self, step: str, names: frozenset[str]) -> None:
        super().__init__(f"step {step} failed")
        self.names = names


def _is_same(raised: BaseException, error: Exception) -> bool:
    """Whether the exception of a block is the one by which its step failed."""
    if isinstance(error, StepFailedError):
        return type(raised).__name__ in error.names
    return raised is error


_LAST_EVENTS: Final = (
    dg.DagsterEventType.STEP_SUCCESS,
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.STEP_UP_FOR_RETRY,
)


class Attempt:
    """One attempt at a step: it hears the step's last event in the step's process, and settles its leases then.

    Attributes:
        joined: The batch of the run, if the step works on that.
        lock: Held while something changes here, and while a block over the batch of the run begins: threads of the step
            may lease as well, and outlive it.
    """

    @classmethod
    def of(cls, context: Context, key: str) -> Attempt:
        """Return the attempt under way at the step of this key, for one more lease, which must be entered."""
        attempt = listening(context, cls(context, key))
        attempt.made()
        return attempt

    def __init__(self, context: Context, key: str) -> None:
        self.context = context
        self._key = key
        self._leases: list[StepLease] = []
        self._work: LeaseNumbers | None = None
        self._numbers: LeaseNumbers | None = None
        self._problems: list[Exception] = []
        self._attributes: Callable[[], QueueAttributes] | None = None
        self._not_entered = 0
        self.joined: RunBatch | None = None
        self._is_over = False
        self.lock = Lock()

    def made(self) -> None:
        """Take note that a lease is made, which must be entered."""
        with self.lock:
            self._not_entered += 1

    def entered(self) -> None:
        """Take note that a lease is entered.

        Raises:
            RuntimeError: :data:`MOST_OPEN` leases are open, or the step has ended.
        """
        with self.lock:
            self._not_entered -= 1
            self._refuse_if_over()
        if len(self._leases) >= MOST_OPEN:
            raise RuntimeError(
                f"step {self._key} holds the messages of {MOST_OPEN} leases, which end with the step: call "
                "batch.succeed(messages) when they are done and their results are stored, so that they are deleted at "
                "the end of the block; or lease more messages at once by max_messages"
            )

    def still_left(self, routed: RoutedBatch) -> RoutedBatch:
        """Return a batch as it is for one more lease of the step: taken, if an earlier one has it."""
        is_taken = any(
            each.routed is not None and each.routed.folder.path == routed.folder.path for each in self._leases
        )
        return replace(routed, is_taken=is_taken)

    def hold(self, lease: StepLease) -> None:
        """Settle a lease when the step has ended.

        Raises:
            RuntimeError: The step has ended while a thread of it received: the lease would never be settled.
        """
        with self.lock:
            self._refuse_if_over()
            self._leases.append(lease)

    def _refuse_if_over(self) -> None:
        if self._is_over:
            raise RuntimeError(
                f"step {self._key} has ended, and its leases with it: a thread that leases in a step must end before it"
            )

    def worked(self, numbers: LeaseNumbers) -> None:
        """Add the numbers of a block that ended well to the materializations or outputs of the step."""
        with self.lock:
            self._work = numbers if self._work is None else self._work + numbers
            add_metadata(self.context, self._work.metadata())

    def ended(self, lease: StepLease, text: str, numbers: LeaseNumbers, problems: Sequence[Exception]) -> None:
        """Take note of a lease that has ended, and report it; the problems are the refused settlements."""
        with self.lock:
            self._leases.remove(lease)
            self._problems += problems
            self._numbers = numbers if self._numbers is None else self._numbers + numbers
            self._attributes = lease.attributes
        report_event(self.context, text, numbers.metadata())

    def see(self, instance: dg.DagsterInstance, entry: dg.EventLogEntry) -> None:
        """Take an event of the run.

        Raises:
            Exception: The step is about to succeed, and must not: SQS refused to settle messages, or a lease was not
                entered.
        """
        event = entry.dagster_event
        if self._is_over or event is None or event.step_key != self._key or event.event_type not in _LAST_EVENTS:
            return
        # Later events of this step belong to a retry in the same process: that has an Attempt of its own.
        with self.lock:
            self._is_over = True
        if event.event_type is dg.DagsterEventType.STEP_SUCCESS:
            self._succeeded(instance)
        else:
            is_retried = event.event_type is dg.DagsterEventType.STEP_UP_FOR_RETRY
            self._failed(instance, entry, event, is_retried=is_retried)

    def _succeeded(self, instance: dg.DagsterInstance) -> None:
        for lease in tuple(self._leases):
            lease.settle(None, is_tried_again=False)
        if self._numbers is not None and self._attributes is not None:
            observe_outcome(instance, self.context.run, [self._key], self._numbers, self._attributes)
        if self._not_entered:
            self._problems.append(
                TypeError(
                    f"step {self._key} called lease(context) and did not enter it, so it received nothing: write "
                    "`with queue.lease(context) as batch:`"
                )
            )
        if self._problems:
            first, *others = self._problems
            for other in others:
                first.add_note(str(other))
            raise first

    def _failed(
        self, instance: dg.DagsterInstance, entry: dg.EventLogEntry, event: dg.DagsterEvent, *, is_retried: bool
    ) -> None:
        raised = step_exception(self.context)
        if raised is not None:
            raised = exception_of_work(raised)
        if self.joined is not None and isinstance(raised, Exception):
            # By it the executor knows which messages failed, also if it was raised after the block.
            try:
                self.joined.step_failed(raised)
            except (OSError, BatchFolderError) as not_written:
                self._problems.append(not_written)
        error = raised or StepFailedError(self._key, error_names(event))
        is_tried_again = bool(self._leases) and (
            is_retried or repetition(instance, self.context.run) is not Repetition.NO
        )
        for lease in tuple(self._leases):
            lease.settle(error, is_tried_again=is_tried_again)
        for problem in self._problems:
            warn_in_log(instance, entry, str(problem))


class RecordingBatch(OwnLeasedBatch):
    """The messages of a lease in a step. Failures are written down, and settled when the step has ended."""

    def __init__(self, lease: Any) -> None:
        super().__init__(lease)
        self._failed: set[Receipt] = set()
        self.refused: list[Exception] = []

    def succeed(self, messages: Messages) -> None:
        """Delete messages, see :meth:`LeasedBatch.succeed`; a refusal of SQS fails the step at its end."""
        with self._noting_refusals():
            super().succeed(messages)

    def release(self, messages: Messages) -> None:
        """Release messages, see :meth:`LeasedBatch.release`; a refusal of SQS fails the step at its end."""
        with self._noting_refusals():
            super().release(messages)

    @contextmanager
    def _noting_refusals(self) -> Iterator[None]:
        # An exception here would end the work on other messages.
        try:
            yield
        except SettlementError as error:
            self.refused.append(error)

    def fail(self, messages: Messages, reason: str, *, errors: Sequence[str] = ()) -> None:
        """Fail messages for good: the failure rule settles them when the step has ended, whether it succeeds or not.

        See :meth:`LeasedBatch.fail <sqs_lease.blocking.LeasedBatch.fail>` for the arguments.

        Raises:
            KeyError: One is not of this batch.
            RuntimeError: The lease has ended.
        """
        self._record(self._failing(messages, reason, errors))

    def fail_each(self, reasons: Mapping[str, str]) -> None:
        """Fail messages for good, each for a reason of its own; see :meth:`fail`.

        Args:
            reasons: By message id.

        Raises:
            KeyError: One is not of this batch.
            RuntimeError: The lease has ended.
        """
        self._record(self._failing_each(reasons))

    def fail_by(self, error: BaseException) -> None:
        """Fail the messages that an exception of the work names, or all; see :meth:`fail`."""
        self.fail(self._named_by(error), type(error).__name__, errors=exception_names(error))

    def release_by(self, error: BaseException) -> None:
        """Release the messages that an exception of the work names, or all, when the step has ended."""
        self._session.decide(self._settlements(self._named_by(error), Release()))

    def _named_by(self, error: BaseException) -> list[Message]:
        failed = failed_by_exception(named_message_ids(error), [message.message_id for message in self])
        return [message for message in self if message.message_id in failed]

    def count_failed(self) -> int:
        """Return how many messages were failed so far."""
        return len(self._failed)

    def is_decided(self) -> bool:
        """Whether each message was settled or failed."""
        return all(self._session.is_decided(message.receipt) for message in self)

    def _record(self, settlements: Mapping[Receipt, Settlement]) -> None:
        if not self.is_open:
            raise ended(self.queue_url)
        self._failed |= {receipt for receipt in settlements if not self._session.is_decided(receipt)}
        self._session.decide(settlements)
