"""A lease in a step of Dagster. It ends with its step, not with its block.

Dagster stores what an op or asset returns when its function has ended, so a lease that ended with its block would
delete messages before their value is stored. This one goes on after its block until Dagster reports the end of the
step to the listeners in the step's own process:

| the step's last event | messages that a block failed by an exception | messages of blocks that ended well |
| --- | --- | --- |
| STEP_SUCCESS | by the failure rule | deleted: the IO managers have stored the values by then |
| STEP_UP_FOR_RETRY | visible again at once | visible again at once |
| STEP_FAILURE, and the run may be repeated | visible again at once | visible again at once |
| STEP_FAILURE otherwise | by the failure rule | by the failure rule, for the step's exception |
| STEP_FAILURE by an interruption (the run is terminated) | visible again at once | visible again at once |
| none: the process was killed | visible when their last extension ends | the same |

A killed process may have stored its value without having deleted the messages: they come again then, as at-least-once
delivery has it. This was seen in process and with the multiprocess executor of Dagster 1.11.16, 1.12.0 and 1.13.27.

Two ends are earlier. A block that is interrupted gives back at once. A lease ends with its block if it was said of each
of its messages what becomes of it (``succeed``, ``fail``, ``release``), so that a step may work on batch after batch.

**Retries in one process.** Each attempt has a listener of its own, and all of them hear the events of the last one. So
an attempt's :class:`StepEnd` is over for good at the attempt's own last event.

**What the service refuses fails the step.** Dagster lets an exception of a listener fail what it was about to report:
the step that would have succeeded has failed, once, because no ``RetryPolicy`` is for errors outside of the function.
By then its values are stored, and the messages that could be deleted are deleted.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import Event
from types import TracebackType
from typing import Any, Final

import dagster as dg

from sqs_lease.blocking import LeaseBlock, LeasedBatch, OwnLeasedBatch
from sqs_lease.core.failure_rules import FailureRule, Settlement
from sqs_lease.core.messages import Receipt
from sqs_lease.core.specs import OnFailure
from sqs_lease.dagster._internals import (
    Context,
    add_metadata,
    listen,
    materialized_by,
    observe,
    report_event,
    step_exception,
    step_key,
    warn_in_log,
)
from sqs_lease.dagster.metadata import (
    HELD,
    combined_metadata,
    lease_metadata,
    lease_summary,
    left_metadata,
    work_metadata,
)
from sqs_lease.dagster.retries import ReleaseWhileRetrying, Repetition, failure_rule, repetition
from sqs_lease.dagster.run_batch.routed import HANDOFF_SECONDS, RoutedBatch
from sqs_lease.keeper.session import Messages, SettlementError, ended
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import QueueAttributes

logger = logging.getLogger(__name__)

MOST_OPEN: Final = 100
"""So many leases of a step may be open at once; each has a thread and a client."""


class StepFailedError(Exception):
    """Stands for the exception of a step that Dagster does not tell."""


class RecordingBatch(OwnLeasedBatch):
    """The messages of a lease in a step. What fails is written down, and settled when the step has ended."""

    def __init__(self, lease: Any) -> None:
        super().__init__(lease)
        self._failed: set[Receipt] = set()
        self.refused: list[Exception] = []

    def succeed(self, messages: Messages) -> None:
        """See :meth:`LeasedBatch.succeed`; what the service refuses fails the step at its end."""
        with self._noting_refusals():
            super().succeed(messages)

    def release(self, messages: Messages) -> None:
        """See :meth:`LeasedBatch.release`; what the service refuses fails the step at its end."""
        with self._noting_refusals():
            super().release(messages)

    @contextmanager
    def _noting_refusals(self) -> Iterator[None]:
        # Raised here, it would end the work on messages that are not concerned.
        try:
            yield
        except SettlementError as error:
            self.refused.append(error)

    def fail(self, messages: Messages, reason: str, *, errors: Sequence[str] = ()) -> None:
        """These failed for good: they are settled by the failure rule when the step has ended, however that is.

        See :meth:`LeasedBatch.fail <sqs_lease.blocking.LeasedBatch.fail>` for the arguments.

        Raises:
            KeyError: One is not of this batch.
            RuntimeError: The lease has ended.
        """
        self._record(self._session.failing(self._chosen(messages), reason, errors))

    def fail_each(self, reasons: Mapping[str, str]) -> None:
        """These failed for good, each for a reason of its own; see :meth:`fail`.

        Args:
            reasons: By message id.

        Raises:
            KeyError: One is not of this batch.
            RuntimeError: The lease has ended.
        """
        self._record(self._session.failing(self._chosen(reasons), reasons))

    def count_failed(self) -> int:
        """How many were failed so far."""
        return len(self._failed)

    def is_decided(self) -> bool:
        """Whether it was said of each message what becomes of it."""
        return all(self._session.is_decided(message.receipt) for message in self)

    def _record(self, settlements: Mapping[Receipt, Settlement]) -> None:
        if not self.is_open:
            raise ended(self.queue_url)
        self._failed |= {receipt for receipt in settlements if not self._session.is_decided(receipt)}
        self._session.decide(settlements)


class StepLease(AbstractContextManager[LeasedBatch]):
    """One lease in a step.

    Args:
        end: The end of the attempt at the step.
        make: Makes the block of the lease for a failure rule; its batch is a :class:`RecordingBatch`.
        attributes: Reads what the queue says of itself.
        on_failure: What becomes of messages that failed for good.
        routed: The batch of a router's run that the lease takes up, and passes on to the next attempt.

    Raises:
        ValueError: There is no such rule, or an argument of it is out of range.
        TypeError: ``on_failure`` is something else, or an argument is unknown.
    """

    def __init__(
        self,
        end: StepEnd,
        make: Callable[[FailureRule], LeaseBlock],
        attributes: Callable[[], QueueAttributes],
        on_failure: OnFailure | None,
        routed: RoutedBatch | None = None,
    ) -> None:
        self.attributes = attributes
        self._end = end
        self._routed = routed
        # The lease's thread has the rule, which must not lead back to the lease: one that is dropped is given back.
        self._is_tried_again = Event()
        self._make = make
        self._rule = ReleaseWhileRetrying(failure_rule(on_failure), self._is_tried_again)
        self._block: LeaseBlock | None = None
        self._batch: RecordingBatch | None = None
        self._raised: Exception | None = None

    def __enter__(self) -> LeasedBatch:
        self._end.refuse_too_many()
        self._block = self._make(self._rule)
        batch = self._block.__enter__()
        if not isinstance(batch, RecordingBatch):
            raise TypeError(f"a lease in a step needs a RecordingBatch, not {type(batch).__name__}")
        self._batch = batch
        self._end.hold(self)
        received = f"Received {len(batch)} messages of {batch.queue_url}"
        report_event(self._end.context, received, {HELD: dg.MetadataValue.int(len(batch))})
        return batch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        batch, block = self._batch, self._block
        if batch is None or block is None or not batch.is_open or isinstance(error, GeneratorExit):
            # Of these, the last one is a function that is dropped while it is suspended: its step comes to its end.
            return
        block.leave()
        if error is not None and not isinstance(error, Exception):
            self.settle(error, is_tried_again=False)
            return
        self._raised = error
        if error is None:
            metadata = work_metadata(tuple(batch), batch.queue_url, batch.count_failed())
            add_metadata(self._end.context, metadata, combine=combined_metadata)
        if batch.is_decided() and self._routed is None:
            self.settle(None, is_tried_again=False)

    def settle(self, error: BaseException | None, *, is_tried_again: bool) -> None:
        """Settle what is held, by what the block raised or else by how the step ended.

        Args:
            error: What the step failed with; None if it succeeded.
            is_tried_again: Whether the step is tried again, or may be.
        """
        batch, block = self._batch, self._block
        if batch is None or block is None or not batch.is_open:
            return
        if is_tried_again:
            self._is_tried_again.set()
        is_interrupted = error is not None and not isinstance(error, Exception)
        ended_by = error if is_interrupted else self._raised or error
        passed_on: int | None = None
        if is_tried_again and self._routed is not None and ended_by is not None:
            passed_on = self._pass_on(block, self._routed, ended_by)
        problems = block.settle(ended_by)
        text = lease_summary(batch)
        if passed_on is not None:
            text += f"; {passed_on} are passed on to the next attempt, and come back if it does not begin in time"
        elif self._routed is not None:
            self._routed.remove()
        elif is_tried_again:
            text += "; the step is or may be tried again, so on_failure was not applied"
        self._end.ended(self, text, lease_metadata(batch), [*batch.refused, *problems])

    def _pass_on(self, block: LeaseBlock, routed: RoutedBatch, error: BaseException) -> int | None:
        """Write down what is left for the next attempt; return how many messages that are, None where it failed."""
        try:
            written = block.pass_on(error, HANDOFF_SECONDS)
            if written is None:
                return None
            routed.write(written)
        except Exception:
            # They come back when that has passed, and the router starts another run.
            logger.exception("The messages of %s could not be passed on to the next attempt", routed.folder)
            return None
        return len(written.leases)


_LAST_EVENTS: Final = (
    dg.DagsterEventType.STEP_SUCCESS,
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.STEP_UP_FOR_RETRY,
)


class StepEnd:
    """The end of one attempt at a step, as the process that makes it hears of it: then its leases are settled.

    Args:
        context: The context of the op or asset.
        key: The step's key.
    """

    def __init__(self, context: Context, key: str) -> None:
        self.context = context
        self._key = key
        self._leases: list[StepLease] = []
        self._numbers: dict[str, dg.MetadataValue] = {}
        self._problems: list[Exception] = []
        self._attributes: Callable[[], QueueAttributes] | None = None
        self._not_entered = 0
        self._is_over = False

    def made(self) -> None:
        """Take note that a lease was asked for, which is to be entered by ``with``."""
        self._not_entered += 1

    def entered(self) -> None:
        """Take note that one was entered."""
        self._not_entered -= 1

    def refuse_too_many(self) -> None:
        """Refuse one more lease where too many are open.

        Raises:
            RuntimeError: So many are open.
        """
        if len(self._leases) >= MOST_OPEN:
            raise RuntimeError(
                f"step {self._key} holds the messages of {MOST_OPEN} leases, which end with the step: say "
                "batch.succeed(messages) when they are done and all that is made of them is stored, so that they are "
                "deleted at the end of the block; or lease more messages at once by max_messages"
            )

    def hold(self, lease: StepLease) -> None:
        """Settle a lease when the step has ended."""
        self._leases.append(lease)

    def ended(
        self, lease: StepLease, text: str, numbers: dict[str, dg.MetadataValue], problems: Sequence[Exception]
    ) -> None:
        """Take note of a lease that has ended, and report it.

        Args:
            lease: The lease.
            text: What became of its messages, for people.
            numbers: The same as metadata.
            problems: What the service did not do as asked.
        """
        self._leases.remove(lease)
        self._problems += problems
        self._numbers = combined_metadata(self._numbers, numbers)
        self._attributes = lease.attributes
        report_event(self.context, text, numbers)

    def see(self, instance: dg.DagsterInstance, entry: dg.EventLogEntry) -> None:
        """Take an event of the run.

        Raises:
            Exception: The step is about to succeed, and must not: the service refused to settle messages as asked, or
                a lease was not entered.
        """
        event = entry.dagster_event
        if self._is_over or event is None or event.step_key != self._key or event.event_type not in _LAST_EVENTS:
            return
        self._is_over = True
        _ends.pop(self.context.op_execution_context, None)
        if event.event_type is dg.DagsterEventType.STEP_SUCCESS:
            self._succeeded(instance)
        else:
            is_retried = event.event_type is dg.DagsterEventType.STEP_UP_FOR_RETRY
            self._failed(instance, entry, is_retried=is_retried)

    def _succeeded(self, instance: dg.DagsterInstance) -> None:
        for lease in tuple(self._leases):
            lease.settle(None, is_tried_again=False)
        try:
            self._observe(instance)
        except Exception:
            # The messages are settled. That they cannot be counted is no reason to fail the work.
            logger.exception("The assets of step %s have no numbers of its leases", self._key)
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

    def _failed(self, instance: dg.DagsterInstance, entry: dg.EventLogEntry, *, is_retried: bool) -> None:
        error = step_exception(self.context) or StepFailedError(f"step {self._key} failed")
        is_tried_again = bool(self._leases) and (
            is_retried or repetition(instance, self.context.run) is not Repetition.NO
        )
        for lease in tuple(self._leases):
            lease.settle(error, is_tried_again=is_tried_again)
        for problem in self._problems:
            warn_in_log(instance, entry, str(problem))

    def _observe(self, instance: dg.DagsterInstance) -> None:
        """Add what became of the messages to the assets of the step."""
        assets = materialized_by(instance, self.context.run, [self._key]) if self._numbers else []
        if not assets or self._attributes is None:
            return
        try:
            left = left_metadata(self._attributes())
        except SqsError as error:
            logger.warning("What is left in the queue is not known: %s", error)
            left = {}
        observe(instance, self.context.run, assets, {**self._numbers, **left})


_ends: Final[dict[object, StepEnd]] = {}
"""The ends of the attempts at steps that lease in this process and have not ended, by the attempts' contexts."""


def step_end(context: Context) -> StepEnd | None:
    """Return the end of the attempt at a step that a context belongs to; None where its function is called directly.

    Args:
        context: The context of the op or asset.
    """
    key = step_key(context)
    if key is None:
        return None
    attempt = context.op_execution_context
    end = _ends.get(attempt)
    if end is None:
        end = _ends[attempt] = StepEnd(context, key)
        # Weakly: Dagster keeps the listener for as long as the instance, which may outlast many runs.
        heard = weakref.ref(end)

        def see(instance: dg.DagsterInstance, entry: dg.EventLogEntry) -> None:
            if (living := heard()) is not None:
                living.see(instance, entry)

        listen(context, see)
    return end
