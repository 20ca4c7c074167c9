"""Jobs that fail at first: one whose only step leases and fails, and one whose leasing step succeeds."""

import dagster as dg

from sqs_lease import dead_letter
from sqs_lease.dagster import SqsQueueResource


@dg.op
def load(context: dg.OpExecutionContext, queue: SqsQueueResource) -> None:
    with queue.lease(context, wait=0, linger=0, on_failure=dead_letter()):
        raise ConnectionError


@dg.job(resource_defs={"queue": SqsQueueResource(queue="orders")}, executor_def=dg.in_process_executor)
def retried() -> None:
    load()


@dg.op
def loads(context: dg.OpExecutionContext, queue: SqsQueueResource) -> None:
    with queue.lease(context, wait=0, linger=0):
        pass


@dg.op(ins={"after": dg.In(dg.Nothing)})
def reports(context: dg.OpExecutionContext) -> None:
    if "dagster/retry_number" not in context.run.tags:
        raise ConnectionError


@dg.job(resource_defs={"queue": SqsQueueResource(queue="orders")}, executor_def=dg.in_process_executor)
def reported() -> None:
    reports(loads())
