"""The batch of a run: found by the run's tags, and taken up where an earlier holder wrote it down.

A run has a batch of one of three kinds:

- its executor holds one for all steps (``sqs_lease/batch``, :class:`HeldBatch`);
- a router wrote one down for it (``sqs_lease/routed_batch``, :class:`RoutedBatch`);
- the run that it repeats passed one on (``sqs_lease/batch`` of that run; only for an executor).

The last two go by the one rule of passing a batch on. A router receives, writes the batch down, extends it once and
forgets it. The run takes it up when its first ``lease(context)`` or its executor begins, and relies only on leases that
have not passed their deadline. A step that fails and will be tried again writes the rest down in the same way, and the
next attempt takes that up.

Beside the messages (``folder.py``) there are two files in the directory:

- ``run.json``: the run of the batch, so that it can be requested again.
- ``leases.json``: the leases as they were passed on (:class:`sqs_lease.keeper.plain_leases.WrittenBatch`). It is
  written last, and removed by the process that takes the batch up. Removing a file of a local directory is atomic, so
  only one of two processes gets the batch. It has receipt handles, so only its owner can read it.

The directory is removed when all of the batch is settled. After a crash, SQS makes the messages visible when their
deadline has passed, and a later run or evaluation removes the directory after a day.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
import time
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import dagster as dg

from sqs_lease.batch_files.manifest_extra import require_manifests
from sqs_lease.blocking import LeaseBlock
from sqs_lease.core.messages import Message
from sqs_lease.dagster._internals import Context
from sqs_lease.dagster.run_batch.folder import (
    BatchFolder,
    BatchFolderError,
    is_run_batch,
    run_batch_id,
    run_batch_path,
)
from sqs_lease.keeper.plain_leases import CLOCK_ERROR_SECONDS, WrittenBatch
from sqs_lease.sqs.validation import queue_reference

if TYPE_CHECKING:
    from sqs_lease.batch_files.manifest import Manifest

logger = logging.getLogger(__name__)

BATCH_TAG: Final = "sqs_lease/batch"
"""The run's tag with the directory of its batch, an absolute path."""

ROUTED_TAG: Final = "sqs_lease/routed_batch"
"""The tag of a router's run: the directory of its batch."""

ROUTED_QUEUE_TAG: Final = "sqs_lease/routed_queue"
"""Another tag of it: the queue of the batch, as the router has it."""

_WORKER: Final = "worker"
"""The file in a batch's directory with the process of the run worker that holds the messages."""

LEASES: Final = "leases.json"

HANDOFF_SECONDS: Final = 300.0
"""Default time that the leases of a batch last when it is passed on."""


@dataclass(frozen=True, slots=True)
class HeldBatch:
    """A batch that the run worker holds for a run.

    Attributes:
        folder: Its directory.
        manifest: The messages that were found there.
        run_worker: The run worker, if it started this process for a step.
    """

    folder: BatchFolder
    manifest: Manifest
    run_worker: BaseProcess | None


def write_worker(folder: BatchFolder) -> None:
    """Write down that this process is the run worker that holds the messages of a batch.

    Raises:
        OSError: It cannot be written.
    """
    folder.put(_WORKER, _process(os.getpid()))


def is_of_run_worker(folder: BatchFolder) -> bool:
    """Whether this process is the run worker that holds a batch, or one that the worker started for a step.

    Raises:
        OSError: The worker's file cannot be read.
    """
    return folder.get(_WORKER) == _process(os.getpid()) or run_worker(folder) is not None


def run_worker(folder: BatchFolder) -> BaseProcess | None:
    """Return the run worker that holds a batch, if it started this process for a step; else None.

    The multiprocess executor starts steps by ``multiprocessing``. Those in containers and on other machines are
    programs of their own. A run worker has a parent too: Dagster's code server, which it outlives on purpose.

    Raises:
        OSError: The worker's file cannot be read.
    """
    parent = multiprocessing.parent_process()
    return parent if parent is not None and folder.get(_WORKER) == _process(parent.pid) else None


def _process(pid: int | None) -> bytes:
    """Name a process, among those of all machines."""
    return f"{socket.gethostname()} {pid}".encode()


@dataclass(frozen=True, slots=True)
class RoutedBatch:
    """The batch of a run that a router asked for.

    Attributes:
        folder: Its directory.
        run_id: The run, for errors.
        is_taken: Whether an earlier lease of the step has it, so that nothing is left for this one.
    """

    folder: BatchFolder
    run_id: str
    is_taken: bool = False

    def take_up(self) -> tuple[WrittenBatch, tuple[Message, ...]]:
        """Take the batch up: return the written leases, and the messages with their receipts; none if it is taken.

        Raises:
            BatchFolderError: It is gone: it was taken up or settled before, or the run came too late.
            ModuleNotFoundError: The extra ``manifest`` is not installed.
        """
        if self.is_taken:
            return WrittenBatch(uuid4().hex, time.time(), ()), ()
        require_manifests("The batch of a run", "dagster,manifest")
        written = read_written(self.folder)
        if written is None or not _take(self.folder):
            raise BatchFolderError(
                f"the batch of run {self.run_id} at {self.folder} cannot be taken up: it was settled, or another step "
                "of the run has it. If several steps work on one batch, give their job sqs_lease_executor. Messages "
                "that were not done are visible in the queue, and the router starts another run"
            )
        if is_over(written):
            raise BatchFolderError(
                f"run {self.run_id} came too late for its batch at {self.folder}: its messages were visible again by "
                "then, and the router starts another run for them. Raise handoff_timeout of the router above the time "
                "that runs wait in the queue of runs, or lower max_batches"
            )
        contents = {message.message_id: message for message in self.folder.manifest().messages}
        receipts = [lease.receipt for lease in written.leases]
        messages = [
            replace(contents[receipt.message_id], receipt=receipt)
            for receipt in receipts
            if receipt.message_id in contents
        ]
        return written, tuple(messages)


def batch_of_run(context: Context, key: str | None, queue: str) -> HeldBatch | RoutedBatch | None:
    """Return the batch of a queue that was received for a run; None if the step has to receive itself.

    Args:
        context: The context of the op or asset.
        key: The step's key; None if its function is called directly.
        queue: The queue's name, ARN or URL.

    Raises:
        BatchFolderError: The batch cannot be read, or the run's worker holds it and did not start this process.
        ModuleNotFoundError: The extra ``manifest`` is not installed.
    """
    if (uri := _held_uri(context, key)) is not None:
        require_manifests("The batch of a run", "dagster,manifest")
        folder = BatchFolder(uri)
        manifest = folder.manifest()
        if is_same_queue(queue, manifest.queue_url):
            return HeldBatch(folder, manifest, run_worker(folder))
    return None if key is None else routed_batch_of(context.run, queue)


def _held_uri(context: Context, key: str | None) -> str | None:
    """Return the directory of the batch that the executor holds for a run; in a test, any that the run's tag names."""
    op_context = context.op_execution_context
    if key is None:
        uri: str | None = op_context.get_tag(BATCH_TAG)
        return uri
    # Read from the instance: the context has the tags of the run's start, and the executor sets this one later.
    run = context.instance.get_run_by_id(op_context.run_id)
    uri = op_context.get_tag(BATCH_TAG) if run is None else run.tags.get(BATCH_TAG)
    if uri is None or not is_run_batch(uri):
        return uri
    if not uri.rstrip("/").endswith(f"/{run_batch_id(op_context.run_id)}"):
        # It was copied from the run that this one repeats, whose executor has settled that batch.
        return None
    if not is_of_run_worker(BatchFolder(uri)):
        # This process would not be ended before others receive the messages.
        raise BatchFolderError(
            f"step {key} of job {op_context.job_name} runs in process {os.getpid()} on "
            f"{socket.gethostname()}, which the worker of run {op_context.run_id} did not start. sqs_lease_executor "
            "holds messages for steps in processes of the run worker alone: this one would not be ended before others "
            "receive its messages. Give the job the executor that launches its steps (executor_def=), without "
            "sqs_lease_executor, and lease in each step: queue.lease(context) then receives, holds and settles in the "
            "process of the step"
        )
    return uri


def is_same_queue(one: str, other: str) -> bool:
    """Whether two names, ARNs or URLs can be of one queue."""
    if one == other:
        return True
    ours, theirs = queue_reference(one), queue_reference(other)
    regions, accounts = {ours.region, theirs.region} - {None}, {_account(one), _account(other)} - {None}
    return ours.name == theirs.name and len(regions) < 2 and len(accounts) < 2


def _account(queue: str) -> str | None:
    """Return the account in an ARN or in a URL of the usual form."""
    if (account := queue_reference(queue).account) is not None:
        return account
    before = queue.rstrip("/").rpartition("/")[0].rpartition("/")[2]
    return before if before.isdigit() else None


def routed_batch_of(run: dg.DagsterRun, queue: str) -> RoutedBatch | None:
    """Return the batch that a router of this queue wrote for a run; None if there is no such batch."""
    uri = run.tags.get(ROUTED_TAG)
    if uri is None or not is_same_queue(queue, run.tags.get(ROUTED_QUEUE_TAG, queue)):
        return None
    return RoutedBatch(BatchFolder(uri), run.run_id)


def passed_on_batch_of(run: dg.DagsterRun, workspace: str, queue: str) -> RoutedBatch | None:
    """Return the batch that the executor of a failed run passed on to the run that repeats it; None if it is gone.

    Dagster copies the tags of a run to the one that repeats it, and with them the path of the batch. Nothing outside of
    the executor's workspace is read.

    Raises:
        OSError: It cannot be read.
        BatchFolderError: It is damaged.
    """
    uri = run.tags.get(BATCH_TAG)
    if uri is None or run.parent_run_id is None or uri != run_batch_path(workspace, uri.rpartition("/run-")[2]):
        return None
    folder = BatchFolder(uri)
    written = read_written(folder)
    if written is None or not is_same_queue(queue, folder.manifest().queue_url):
        return None
    passed_on = RoutedBatch(folder, run.run_id)
    if is_over(written):
        folder.discard()
        return None
    return passed_on


def pass_on(block: LeaseBlock, folder: BatchFolder, error: BaseException) -> int | None:
    """Pass the held messages of a lease on to the next attempt, and end the lease.

    Args:
        block: The block of the lease.
        folder: The directory of the batch, where the next attempt finds them.
        error: The exception that ended the work: messages that it does not concern are settled.

    Returns:
        How many messages are passed on; None if that failed, which is logged: they are visible when their leases end.
    """
    try:
        written = block.pass_on(error, HANDOFF_SECONDS)
        if written is None:
            return None
        write_leases(folder, written)
    except Exception:
        logger.exception("The messages of %s cannot be passed on, and come back in %g s", folder, HANDOFF_SECONDS)
        return None
    return len(written.leases)


def write_leases(folder: BatchFolder, written: WrittenBatch) -> None:
    """Write the leases of a batch, after its messages were written.

    Raises:
        OSError: They cannot be written.
    """
    folder.put(LEASES, written.encode().encode())


def read_written(folder: BatchFolder) -> WrittenBatch | None:
    """Read the leases of a batch; None if they were taken up, never written, or are damaged.

    Raises:
        OSError: They cannot be read, and may be later.
    """
    return folder.decoded(LEASES, lambda content: WrittenBatch.decode(content.decode()))


def is_over(written: WrittenBatch) -> bool:
    """Whether all leases of a batch have passed their deadline, by this machine's clock; false for an empty batch."""
    return bool(written.leases) and all(lease.deadline - CLOCK_ERROR_SECONDS <= time.time() for lease in written.leases)


def _take(folder: BatchFolder) -> bool:
    try:
        (Path(folder.path) / LEASES).unlink()
    except FileNotFoundError:
        return False
    return True
