"""Jobs whose first run fails where the environment says, to be resumed; the queue is that of the environment, too."""

import os
from collections.abc import Iterator
from contextlib import suppress

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
def peek(context: dg.OpExecutionContext, queue: SqsQueueResource) -> int:
    """Looks at the messages and leaves them to the next step."""
    with queue.lease(context, wait=0) as batch:
        batch.release(batch)
        return len(batch)


class SeenError(Exception):
    """A step has seen enough of its messages."""


@dg.op
def peek_and_raise(context: dg.OpExecutionContext, queue: SqsQueueResource) -> int:
    """Looks at the messages as well, and survives what its block raised."""
    with suppress(SeenError), queue.lease(context, wait=0):
        raise SeenError
    return 1


@dg.op
def consume(context: dg.OpExecutionContext, queue: SqsQueueResource) -> int:
    with queue.lease(context, wait=0) as batch:
        return len(batch)


@dg.op
def peek_elsewhere(context: dg.OpExecutionContext) -> int:
    with SqsQueueResource(queue="returns").lease(context, wait=0) as batch:
        batch.release(batch)
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
def peeked() -> None:
    """The step that deletes comes after one that has seen the same messages."""
    load(peek())


@dg.job(resource_defs={"queue": QUEUE}, executor_def=dg.in_process_executor)
def peeked_and_raised() -> None:
    """The same, where the block of the first step raised."""
    load(peek_and_raise())


@dg.job(resource_defs={"queue": QUEUE}, executor_def=dg.in_process_executor)
def peeked_independently() -> None:
    """The same, and the second step says that it does not matter."""
    load_by_itself(peek())


@dg.job(resource_defs={"queue": QUEUE}, executor_def=dg.in_process_executor)
def consumed() -> None:
    """The step before settled what it received."""
    load(consume())


@dg.job(resource_defs={"queue": QUEUE}, executor_def=dg.in_process_executor)
def peeked_elsewhere() -> None:
    """The step before has seen messages of another queue."""
    load(peek_elsewhere())


@dg.multi_asset(specs=[dg.AssetSpec("left", skippable=True), dg.AssetSpec("right", skippable=True)], can_subset=True)
def both(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Iterator[dg.MaterializeResult[None]]:
    with queue.lease(context, wait=0):
        for key in sorted(context.selected_asset_keys):
            _fail_if_told(key.to_user_string())
            yield dg.MaterializeResult(asset_key=key)


def pair() -> dg.JobDefinition:
    """Two assets of one step, of which one may be stored when the other one fails."""
    job = dg.define_asset_job("pair", executor_def=dg.in_process_executor)
    return dg.Definitions(assets=[both], jobs=[job], resources={"queue": QUEUE}).resolve_job_def("pair")
