"""Jobs whose first run fails where the environment says, to be resumed; the queue is that of the environment, too."""

import os

import dagster as dg

from sqs_lease.dagster import SqsQueueResource

QUEUE = SqsQueueResource(queue=dg.EnvVar("ORDERS_QUEUE"))


def _fail_if_told(name: str) -> None:
    if os.environ.get("FAILING_OP") == name:
        raise ZeroDivisionError


@dg.op
def before() -> int:
    _fail_if_told("before")
    return 1


@dg.op
def load(context: dg.OpExecutionContext, queue: SqsQueueResource, number: int) -> int:
    _fail_if_told("load")
    with queue.lease(context, wait=0):
        return number


@dg.op
def consume(context: dg.OpExecutionContext, queue: SqsQueueResource) -> int:
    with queue.lease(context, wait=0) as batch:
        return len(batch)


@dg.op
def beside() -> None:
    _fail_if_told("beside")


@dg.job(resource_defs={"queue": QUEUE}, executor_def=dg.in_process_executor)
def connected() -> None:
    """The step that receives comes after another one."""
    load(before())
    beside()


@dg.job(resource_defs={"queue": QUEUE}, executor_def=dg.in_process_executor)
def consumed() -> None:
    """The step before settled what it received."""
    load(consume())
