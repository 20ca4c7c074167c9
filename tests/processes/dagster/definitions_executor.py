"""Jobs over one batch, each on a queue of its own, whose run workers and steps are ended from outside.

Dagster reads the annotations of ops, so this module has no postponed ones.
"""

import os
import signal
import time

import dagster as dg

from sqs_lease import dead_letter
from sqs_lease.dagster import SqsQueueResource
from sqs_lease.dagster.executor import sqs_lease_executor
from tests.dagster.evidence import VISIBILITY_SECONDS, note

STEP_SECONDS = VISIBILITY_SECONDS + 1.0
NEVER_SECONDS = 600.0
ORPHANS_VISIBILITY_SECONDS = 20
"""At least a third of it is left when the run worker is killed: twice the time that steps are given to end."""


def queue(name: str) -> SqsQueueResource:
    return SqsQueueResource(queue=f"{os.environ['QUEUES']}-{name}")


def executor(name: str, visibility_seconds: int = VISIBILITY_SECONDS) -> dg.ExecutorDefinition:
    return sqs_lease_executor(
        queue(name),
        workspace=os.environ["WORKSPACE"],
        linger=2,
        visibility=visibility_seconds,
        # A message that this rule counted for would be in another queue.
        on_failure=dead_letter(),
        around=dg.multiprocess_executor.configured({"max_concurrent": 2}),
    )


@dg.op
def first(context: dg.OpExecutionContext) -> None:
    with queue(context.job_name).lease(context) as batch:
        note("long", "received", counts=[message.receive_count for message in batch])
        time.sleep(STEP_SECONDS)


@dg.op(ins={"after": dg.In(dg.Nothing)}, retry_policy=dg.RetryPolicy(max_retries=1))
def second(context: dg.OpExecutionContext) -> None:
    with queue(context.job_name).lease(context) as batch:
        if context.retry_number == 0:
            raise ValueError("not at the first try")
        time.sleep(STEP_SECONDS)
        note("long", "worked", counts=[message.receive_count for message in batch])


@dg.job(executor_def=executor("long"))
def long() -> None:
    """Its steps, of which one is tried again, take much longer than its messages are invisible."""
    second(after=first())


@dg.op
def obedient(context: dg.OpExecutionContext) -> None:
    name = context.job_name
    with queue(context.job_name).lease(context):
        try:
            # Within: once this is written, the step may be interrupted.
            note(name, "received")
            time.sleep(NEVER_SECONDS)
        finally:
            note(name, "interrupted")


@dg.op
def abrupt(context: dg.OpExecutionContext) -> None:
    name = context.job_name
    with queue(context.job_name).lease(context):
        try:
            # Within: once this is written, the step may be interrupted.
            note(name, "abrupt")
            time.sleep(NEVER_SECONDS)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)


@dg.op
def stubborn(context: dg.OpExecutionContext) -> None:
    name = context.job_name
    with queue(context.job_name).lease(context):
        note(name, "stubborn")
        while True:
            try:
                time.sleep(NEVER_SECONDS)
            except BaseException:  # noqa: BLE001 - no step should, and some libraries do
                note(name, "goes on")


@dg.op(ins={"after": dg.In(dg.Nothing)})
def never() -> None:
    """Comes after what does not end."""


@dg.job(executor_def=executor("terminated"))
def terminated() -> None:
    never(after=[obedient(), abrupt()])


@dg.job(executor_def=executor("worker_killed", ORPHANS_VISIBILITY_SECONDS))
def worker_killed() -> None:
    never(after=[obedient(), stubborn()])


defs = dg.Definitions(jobs=[long, terminated, worker_killed])
