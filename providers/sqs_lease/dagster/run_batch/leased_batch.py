"""The messages of a run, for its steps: the run worker holds them, and settles them by the steps' reports.

A step gets them by :meth:`SqsQueueResource.lease <sqs_lease.dagster.resource.SqsQueueResource.lease>`, and uses them
like messages that it receives itself. Its settlements are written down, and carried out when the run ends, because
other steps work on the same messages.

**A step ends with its run worker.** Dagster's multiprocess executor starts a process for each step. If the run worker
is killed, these processes live on, for as long as their work takes, although the run has failed for Dagster. The
messages of the run worker come back by themselves then, so a step must not go on: within the block its process is
ended. A step that the run worker did not start, in another container or on another machine, cannot see whether it is
gone. ``is_of_run_worker`` (``batch_of_run.py``) tells the two apart, and such a step does not get the batch.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Final

from sqs_lease.blocking import LeasedBatch
from sqs_lease.core.failure_rules import check_reason, checked_names
from sqs_lease.core.messages import Message
from sqs_lease.dagster._internals import Context, step_key
from sqs_lease.dagster.metadata import LeaseNumbers
from sqs_lease.dagster.retries import exception_of_work
from sqs_lease.dagster.run_batch.batch_of_run import HeldBatch
from sqs_lease.dagster.run_batch.folder import BatchFolder, BatchFolderError, PieceOfWork, RaisedException
from sqs_lease.keeper.batch import LeaseReport
from sqs_lease.keeper.session import Messages, ended

if TYPE_CHECKING:
    from sqs_lease.dagster.step_lease import Attempt

logger = logging.getLogger(__name__)

INTERRUPTED_SECONDS: Final = 3.0
"""How long a step may take to end by the interruption."""

EXIT_CODE: Final = 70
"""The exit code of an orphaned step; no process waits for it."""


@contextmanager
def _ended_with(run_worker: BaseProcess | None) -> Iterator[None]:
    """Within the block, end this process, which is a step's, if its run worker ends.

    First the step is interrupted, as when its run is terminated, so that it also stops its own child processes, such as
    the one behind a Pipes client. After :data:`INTERRUPTED_SECONDS` the process exits at once in any case: code that
    catches the interruption, or that it does not reach, must not go on.
    """
    if run_worker is None:
        yield
        return
    left, leave = multiprocessing.Pipe(duplex=False)
    thread = threading.Thread(
        target=_watch, args=(run_worker.sentinel, left), name="sqs-lease run worker watch", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        leave.close()


def _watch(worker_ends: int, left: Connection) -> None:
    ready = wait([worker_ends, left])
    if worker_ends not in ready:
        left.close()
        return
    logger.error("The run worker is gone: this step ends, because others will receive its messages")
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)
    threading.Event().wait(INTERRUPTED_SECONDS)
    os._exit(EXIT_CODE)


CALLED_DIRECTLY: Final = "called directly"
"""The name of a piece of work without a step, as in a test."""


def attempt_name(run_id: str, retry_number: int) -> str:
    """Name one attempt at a step among those of all runs, as in :class:`PieceOfWork`.

    Args:
        run_id: The run.
        retry_number: The number of the step's retry within the run; 0 is the first attempt.
    """
    return f"{run_id}/{retry_number}"


class RunBatch(LeasedBatch):
    """The messages of a run, in the order they were received, as one step sees them.

    The run's executor holds them, and settles them when the run has ended. A step's report on a message is written down
    at once, and decides about the message together with those of the other steps:

    - ``succeed``: this step is done with it. It is deleted when every other step is done with it, too; a retry of this
      step does not get it again.
    - ``fail``: it is settled by the executor's failure rule.
    - ``release``: it is visible again, without the failure rule.

    If Dagster retries the step, its releases are forgotten: the next attempt gets those messages again. Failed messages
    are not given to later attempts, nor to steps that begin afterwards.

    Arguments and errors are those of :class:`LeasedBatch`, but for ``SettlementError``: no call is made. All methods
    that settle raise ``OSError`` if the report cannot be written.

    Attributes:
        batch_id: Names the batch.
    """

    def __init__(self, held: HeldBatch, work: PieceOfWork, *, is_rest: bool, failed: Collection[str] = ()) -> None:
        left_out = {*work.done, *failed}
        # An earlier block of the same attempt was done with its messages: see _begun().
        messages = () if is_rest else [each for each in held.manifest.messages if each.message_id not in left_out]
        super().__init__(messages, held.manifest.queue_url)
        self.batch_id = held.manifest.batch_id
        self._folder = held.folder
        self._work = work
        self._is_over = False
        self._lock = threading.Lock()

    def still_held(self, message: Message | str) -> bool:
        """Whether this step may still work on a message: it did not settle it, and the batch is not being settled.

        The process that holds the batch does not report single lost leases to steps.

        Raises:
            KeyError: It is not of this batch.
            OSError: The batch's directory cannot be read.
        """
        (chosen,) = self._chosen(message)
        if self._is_over or self._work.has_settled(chosen.message_id):
            return False
        # The directory of a settled batch is removed.
        return self._folder.read(self._work.name) is not None

    def flush(self) -> None:
        """Return at once: settlements are already written down, and sent to SQS when the run ends."""

    def succeed(self, messages: Messages) -> None:
        """Succeed messages in this step: a retry of it does not get them, and its exceptions do not fail them."""
        self._settle(messages, lambda work, ids: replace(work, done=work.done | ids))

    def fail(self, messages: Messages, reason: str, *, errors: Sequence[str] = ()) -> None:
        """Fail messages for good: the failure rule settles them when the run ends, even if other steps succeed."""
        self._fail({each.message_id: reason for each in self._chosen(messages)}, errors)

    def fail_each(self, reasons: Mapping[str, str]) -> None:
        """Fail messages for good, each for a reason of its own; see :meth:`fail`."""
        self._fail(reasons, ())

    def _fail(self, reasons: Mapping[str, str], errors: Sequence[str]) -> None:
        for reason in reasons.values():
            check_reason(reason)
        names = checked_names(errors)

        def failed(work: PieceOfWork, ids: frozenset[str]) -> PieceOfWork:
            new = {message_id: reason for message_id, reason in reasons.items() if message_id in ids}
            classes = dict.fromkeys(ids, names) if names else {}
            return replace(work, failed={**work.failed, **new}, errors={**work.errors, **classes})

        self._settle(list(reasons), failed)

    def release(self, messages: Messages) -> None:
        """Release messages that were not processed and are not at fault: they are visible again when the run ends."""
        self._settle(messages, lambda work, ids: replace(work, released=work.released | ids))

    def report(self) -> LeaseReport:
        """Report all messages as held: they are settled only when the run ends."""
        nothing = dict.fromkeys((each.name for each in fields(LeaseReport)), 0)
        return LeaseReport(**{**nothing, "received": len(self), "held": len(self)})

    def failed(self) -> dict[str, str]:
        """Return the reasons of the failed messages so far, by message id."""
        return dict(self._work.failed)

    def begin(self) -> None:
        """Write down that the step works on the batch.

        Raises:
            OSError: It cannot be written down.
        """
        self._folder.write(self._work)

    def end(self, raised: RaisedException | None) -> None:
        """Write down how the block ended.

        Raises:
            OSError: It cannot be written down.
        """
        with self._lock:
            self._is_over = True
            self._work = replace(self._work, is_over=True, raised=raised or self._work.raised)
            self._report()

    def step_failed(self, error: Exception) -> None:
        """Write down the exception of the step, which is that of its last block as well; an earlier one stays.

        Raises:
            OSError: It cannot be written down.
        """
        if self._work.raised is None:
            self.end(RaisedException.by(error))

    def drop(self) -> None:
        """Stop writing reports: the block's generator was given up, and a later attempt may have begun."""
        with self._lock:
            self._is_over = True

    def _settle(self, messages: Messages, settled: Callable[[PieceOfWork, frozenset[str]], PieceOfWork]) -> None:
        chosen = self._chosen(messages)
        with self._lock:
            if self._is_over:
                raise ended(self.queue_url)
            ids = frozenset(each.message_id for each in chosen if not self._work.has_settled(each.message_id))
            if ids:
                self._work = settled(self._work, ids)
                self._report()

    def _report(self) -> None:
        """Write down the step's report, unless the batch is gone or another attempt took over meanwhile."""
        now = self._folder.read(self._work.name)
        if now is None or now.attempt != self._work.attempt:
            logger.warning("The end of %s of step %s no longer counts", self._work.attempt, self._work.name)
            return
        self._folder.write(self._work)


@contextmanager
def joined(context: Context, held: HeldBatch, attempt: Attempt | None, given: Sequence[str]) -> Iterator[RunBatch]:
    """Work on the messages of the run, in one of its steps.

    The step's settlements are written down at once, and the exception that ends the block when it ends; with
    ``MessageFailed`` only the messages that it names have failed. The exception is raised again.

    In a process that the multiprocess executor started, the block also ends the step when the run worker is gone: see
    :mod:`sqs_lease.dagster.run_batch.leased_batch`.

    Args:
        context: The context of the op or asset.
        held: The batch.
        attempt: The attempt at the step; None if the function is called directly.
        given: The arguments of the lease that differ from the defaults; they do not apply.

    Yields:
        The batch, empty if no message came, or if an earlier block of this attempt was done with it.

    Raises:
        BatchFolderError: The batch cannot be read, or is being settled: the run came too late.
        OSError: The step's report cannot be written.
    """
    folder = held.folder
    with nullcontext() if attempt is None else attempt.lock:
        work, is_rest = _begun(context, folder)
        # Messages that failed, in any step and any attempt, are no longer worked on.
        failed = {each for piece in folder.pieces().values() for each in piece.failed}
        batch = RunBatch(held, work, is_rest=is_rest, failed=failed)
        batch.begin()
    if attempt is not None:
        attempt.joined = batch
    context.log.info("Works on %d messages of %s: the batch of the run", len(batch), batch.queue_url)
    if given:
        context.log.info("The run's executor holds this batch: %s of this lease do not apply", ", ".join(given))
    with _ended_with(held.run_worker):
        try:
            yield batch
        except GeneratorExit:
            batch.drop()
            raise
        except BaseException as error:
            # Also if the step is interrupted: the run is given up then, and its messages are not deleted.
            batch.end(RaisedException.by(exception_of_work(error)) if isinstance(error, Exception) else None)
            raise
        else:
            batch.end(None)
    if attempt is not None:
        # The outcome of the messages is known later: their holder adds it to the assets of the run.
        attempt.worked(LeaseNumbers.of_work(batch, len(batch.failed())))


def _begun(context: Context, folder: BatchFolder) -> tuple[PieceOfWork, bool]:
    """Begin the step's piece of work; tell whether an earlier block of the attempt was done with its messages.

    Raises:
        BatchFolderError: Another block of the attempt is open: each would overwrite the other's report.
    """
    key = step_key(context)
    op_context = context.op_execution_context
    retry_number = 0 if key is None else op_context.retry_number
    work = PieceOfWork(key or CALLED_DIRECTLY, attempt_name(op_context.run_id, retry_number))
    before = folder.read(work.name)
    if before is None:
        return work, False
    if before.attempt != work.attempt:
        return replace(work, done=before.done, failed=before.failed, errors=before.errors), False
    if not before.is_over:
        raise BatchFolderError(
            f"step {work.name} works on the batch of run {op_context.run_id} already, in a block of lease() that it "
            "has not left: use that block's batch, in other threads too, or leave the block first"
        )
    # A second block: the failures of the first one stay. If the first one ended well, no messages are left. If it
    # raised an exception that named no messages, this one gets the rest.
    raised = before.raised
    is_repeated = raised is not None and raised.message_ids is None
    return replace(before, is_over=False, raised=None if is_repeated else raised), raised is None
