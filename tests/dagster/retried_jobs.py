"""A job with a step that leases and fails."""

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
