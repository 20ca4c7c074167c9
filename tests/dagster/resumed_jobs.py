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
def load_by_itself(context: dg.OpExecutionContext, queue: SqsQueueResource, number: int) -> int:
    _fail_if_told("load_by_itself")
    with queue.lease(context, wait=0, on_resume="receive"):
        return number


@dg.op
def beside() -> None:
    _fail_if_told("beside")


@dg.job(resource_defs={"queue": QUEUE}, executor_def=dg.in_process_executor)
def connected() -> None:
    """The step that receives comes after another one."""
    load(before())
    beside()


@dg.job(resource_defs={"queue": QUEUE}, executor_def=dg.in_process_executor)
def independent() -> None:
    """So does this, and says that it does not matter."""
    load_by_itself(before())
