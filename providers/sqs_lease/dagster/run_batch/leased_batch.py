"""The messages of a run, for its steps: somebody else holds them, and is told what each step failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sqs_lease.batch_files.manifest_extra import require_manifests
from sqs_lease.core.messages import Message
from sqs_lease.dagster._internals import Context, add_metadata, step_key
from sqs_lease.dagster.metadata import work_metadata
from sqs_lease.dagster.run_batch.elsewhere import ended_with_batch, recent_sign, report
from sqs_lease.dagster.run_batch.folder import BatchFolder, BatchFolderError, PieceOfWork, Raised
from sqs_lease.dagster.run_batch.parent_watch import ended_with_run_worker, has_run_worker
from sqs_lease.dagster.run_batch.run_folders import workspace_path
from sqs_lease.dagster.run_batch.signs_of_life import read_sign, this_process
from sqs_lease.keeper.session import Messages

if TYPE_CHECKING:
    from sqs_lease.batch_files.manifest import Manifest

BATCH_TAG: Final = "sqs_lease/batch"
"""The run's tag that says where its batch is: the URI or absolute path of the directory."""

CALLED_DIRECTLY: Final = "called directly"
"""What a piece of work is called where there is no step, as in a test."""


def attempt_name(run_id: str, retry_number: int) -> str:
    """Name one attempt at a step among those of all runs, as in :class:`PieceOfWork`.

    Args:
        run_id: The run.
        retry_number: Which retry of the step within it; 0 is the first attempt.
    """
    return f"{run_id}/{retry_number}"


class NoBatchError(RuntimeError):
    """The run has no batch; the text says what to set up."""


class RunBatch:
    """The messages of a run, in the order they were received, as one step sees them.

    Attributes:
        batch_id: Names the batch.
        queue_url: The queue that the messages were received from.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.batch_id = manifest.batch_id
        self.queue_url = manifest.queue_url
        self._messages = manifest.messages
        self._ids = frozenset(message.message_id for message in manifest.messages)
        self._failed: dict[str, str] = {}

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def fail(self, messages: Messages, reason: str) -> None:
        """These failed for good: they are settled by the failure rule when the run ends, whatever else succeeds.

        If this step is retried, what its last attempt says counts.

        Args:
            messages: Messages of this batch, or their ids.
            reason: Why, for people; it becomes a message attribute of what is dead-lettered.

        Raises:
            KeyError: One is not of this batch.
        """
        several = [messages] if isinstance(messages, Message | str) else messages
        ids = [message if isinstance(message, str) else message.message_id for message in several]
        unknown = [message_id for message_id in ids if message_id not in self._ids]
        if unknown:
            raise KeyError(f"not in this batch of {self.queue_url}: {', '.join(map(str, unknown))}")
        self._failed.update(dict.fromkeys(ids, reason))

    def fail_each(self, reasons: Mapping[str, str]) -> None:
        """These failed for good, each for a reason of its own.

        Args:
            reasons: By message id; see :meth:`fail`.

        Raises:
            KeyError: One is not of this batch.
        """
        for message_id, reason in reasons.items():
            self.fail(message_id, reason)

    def failed(self) -> dict[str, str]:
        """The reasons of what was failed so far, by message id."""
        return dict(self._failed)


@contextmanager
def leased_batch(context: Context) -> Iterator[RunBatch]:
    """Work on the messages of the run, in one of its steps: an op or asset.

    ::

        @dg.op
        def load(context: dg.OpExecutionContext) -> None:
            with leased_batch(context) as batch:
                for message in batch:
                    store(message.body)

    Somebody else holds the messages and settles them when the run has ended: the job's executor
    (:func:`sqs_lease_executor <sqs_lease.dagster.executor.sqs_lease_executor>`) or the lease sensor that started it.
    Each step may work on all of them. What it fails by ``batch.fail(ids, reason)``, and the exception that ends the
    block, are passed on when the block ends; with ``MessageFailed`` only the messages that it names have failed. The
    exception goes on.

    In a process of its own the block also ends the step when the run worker is gone or gives the messages up: see
    :mod:`sqs_lease.dagster.run_batch.parent_watch` for those that the multiprocess executor started, and
    :mod:`sqs_lease.dagster.run_batch.elsewhere` for others.

    In a test, write a batch with :class:`sqs_lease.dagster.run_batch.folder.BatchFolder` and name its directory by the
    tag: ``build_op_context(run_tags={BATCH_TAG: str(folder)})``, or ``job.execute_in_process(tags=...)``.

    Args:
        context: The context of the op or asset.

    Yields:
        The batch, empty if no message came.

    Raises:
        NoBatchError: Nobody holds messages for this run.
        BatchFolderError: The batch cannot be read, or is being settled: the run came too late; or the run worker that
            holds it is gone.
        ModuleNotFoundError: The extra ``manifest`` is not installed.
        OSError: What the step failed cannot be written.
    """
    require_manifests("leased_batch()", "dagster,manifest")
    folder = BatchFolder(workspace_path(_batch_uri(context)))
    batch = RunBatch(folder.manifest())
    _refuse_if_settling(folder, context)
    sign = read_sign(folder)
    with ExitStack() as watching:
        if sign is None or sign.process == this_process() or has_run_worker():
            work = _begun(context, folder)
            watching.enter_context(ended_with_run_worker())
            folder.write(work)
        else:
            sign = recent_sign(folder, sign)
            work = replace(_begun(context, folder), is_elsewhere=True)
            folder.write(work)
            watching.enter_context(ended_with_batch(folder, work, sign))
        raised: Raised | None = None
        is_done = False
        try:
            if work.is_elsewhere:
                # Once more: who gives the batch up does not wait for a step that had not yet written that it begins.
                _refuse_if_settling(folder, context)
            yield batch
            is_done = True
        except Exception as error:
            raised = Raised.by(error)
            raise
        finally:
            # Also where the step is interrupted: the run is given up then, and nothing is deleted for it.
            over = _over(work, batch, raised)
            report(folder, over)
        if is_done:
            # What becomes of the messages is known later: whoever holds them adds that to the assets of the run.
            add_metadata(context, work_metadata(tuple(batch), batch.queue_url, len(over.failed)))


def _refuse_if_settling(folder: BatchFolder, context: Context) -> None:
    if folder.is_settling():
        raise BatchFolderError(
            f"the batch at {folder} is being given back or deleted: run {context.run_id} came too late for it, or "
            "repeats a run that is over. What was not done is received again"
        )


def _batch_uri(context: Context) -> str:
    op_context = context.op_execution_context
    # The context has the tags of the run when it was started, and its executor sets this one later.
    run = context.instance.get_run_by_id(op_context.run_id)
    uri = op_context.get_tag(BATCH_TAG) if run is None else run.tags.get(BATCH_TAG)
    if uri is None:
        raise NoBatchError(
            f"run {op_context.run_id} has no batch: it has no tag {BATCH_TAG!r}. Give its job "
            "executor_def=sqs_lease_executor(...), start it by a lease sensor, or lease in the step itself with "
            "SqsQueueResource.lease()"
        )
    return uri


def _begun(context: Context, folder: BatchFolder) -> PieceOfWork:
    key = step_key(context)
    op_context = context.op_execution_context
    retry_number = 0 if key is None else op_context.retry_number
    work = PieceOfWork(key or CALLED_DIRECTLY, attempt_name(op_context.run_id, retry_number))
    before = folder.read(work.name)
    if before is not None and before.attempt == work.attempt:
        # A second block of the same attempt: what the first one failed has failed.
        return replace(work, failed=before.failed, raised=before.raised)
    return work


def _over(work: PieceOfWork, batch: RunBatch, raised: Raised | None) -> PieceOfWork:
    return replace(work, is_over=True, failed={**work.failed, **batch.failed()}, raised=raised or work.raised)
