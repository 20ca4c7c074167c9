"""Definitions of the rounds on Dagster: a job with a lease of its own, and one with the batch of its run worker.

Each is started by a backlog sensor; both take from one queue. Dagster reads the annotations of ops, so there are no
postponed ones here.
"""

import json
import os
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, Final
from uuid import uuid4

import dagster as dg

from sqs_lease import by_exception, dead_letter, release
from sqs_lease.core.messages import Message
from sqs_lease.dagster import LeasedBatch, SqsQueueResource, build_sqs_backlog_sensor, sqs_lease_executor
from tests.rounds.notebook import Notebook, append

TABLE: Final = Path(os.environ["ROUNDS_TABLE"])
NOTES: Final = Path(os.environ["ROUNDS_NOTES"])
WORKSPACE: Final = os.environ["ROUNDS_WORKSPACE"]
VISIBILITY_SECONDS: Final = float(os.environ["ROUNDS_VISIBILITY_SECONDS"])
QUEUE: Final = SqsQueueResource(queue=os.environ["ROUNDS_QUEUE"])
RULE: Final = by_exception({ValueError: dead_letter()}, otherwise=release())
POISON: Final = ("builtins.ValueError",)
MESSAGES: Final = 6
WAIT_SECONDS: Final = 2


class LeaseEndedError(Exception):
    """The lease's report as an error: not all messages were deleted while it lasted."""


def work_on(message: Message) -> tuple[str, ...] | None:
    """Work on a message as it says; return the classes of the error with which it fails, None if it is good."""
    order: dict[str, Any] = json.loads(message.body)
    Event().wait(order["seconds"])
    if order["kind"] == "poison":
        return POISON
    return () if order["kind"] == "flaky" and message.receive_count == 1 else None


def store(message: Message) -> None:
    """Write the row of a message."""
    # A file of its own: a full disk still has room in the last block of a file.
    append(TABLE / f"{uuid4()}.jsonl", {"id": message.message_id, "at": monotonic()})


def enter(kind: str, context: dg.OpExecutionContext, holder: int, batch: LeasedBatch) -> Notebook:
    """Note that the work on a batch begins."""
    book = Notebook(NOTES / f"{kind}.{context.run_id}.{holder}.{os.getpid()}.jsonl")
    book.holds([message.message_id for message in batch], receive_counts=[message.receive_count for message in batch])
    return book


def told(batch: LeasedBatch) -> Exception | None:
    """Return the report of the step's metadata: whether another consumer may have had a message."""
    report = batch.report()
    return LeaseEndedError() if report.lost + report.late + report.uncertain + report.failed + report.held else None


@dg.op
def work(context: dg.OpExecutionContext) -> None:
    """Work on a batch of its own."""
    book = None
    try:
        with QUEUE.lease(
            context, max_messages=MESSAGES, wait=WAIT_SECONDS, visibility=VISIBILITY_SECONDS, on_failure=RULE
        ) as batch:
            if not len(batch):
                return
            book = enter("alone", context, os.getpid(), batch)
            for message in batch:
                if (errors := work_on(message)) is not None:
                    book.fails(message.message_id)
                    batch.fail(message, "drawn so", errors=errors)
                    continue
                store(message)
                if json.loads(message.body)["settles_early"]:
                    batch.succeed(message)
    except Exception as error:
        if book is not None:
            book.ended(error)
        raise
    book.ended(told(batch))


@dg.job(executor_def=dg.in_process_executor)
def alone() -> None:
    """One step, which holds its batch itself."""
    work()


@dg.op
def check(context: dg.OpExecutionContext) -> list[str]:
    """Work on the messages of the run; return those that are good."""
    with QUEUE.lease(context) as batch:
        book = enter("steps", context, os.getppid(), batch)
        good = []
        for message in batch:
            if (errors := work_on(message)) is None:
                good.append(message.message_id)
            else:
                book.fails(message.message_id)
                batch.fail(message, "drawn so", errors=errors)
        return good


@dg.op(retry_policy=dg.RetryPolicy(max_retries=1))
def write(context: dg.OpExecutionContext, good: list[str]) -> None:
    """Write the rows of the good ones; it may be tried again."""
    with QUEUE.lease(context) as batch:
        enter("steps", context, os.getppid(), batch)
        for message in batch:
            if message.message_id in good:
                store(message)


@dg.job(
    executor_def=sqs_lease_executor(
        QUEUE,
        workspace=WORKSPACE,
        max_messages=MESSAGES,
        wait=WAIT_SECONDS,
        visibility=VISIBILITY_SECONDS,
        on_failure=RULE,
        around=dg.multiprocess_executor.configured({"max_concurrent": 1}),
    )
)
def steps() -> None:
    """Two steps in processes of their own, whose run worker holds their batch."""
    write(check())


def sensor(job: dg.JobDefinition) -> dg.SensorDefinition:
    """Start a run of a job when messages wait."""
    return build_sqs_backlog_sensor(
        f"{job.name}_backlog",
        QUEUE,
        job,
        pause_after_failure=0,
        minimum_interval_seconds=5,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )


defs = dg.Definitions(jobs=[alone, steps], sensors=[sensor(alone), sensor(steps)])
