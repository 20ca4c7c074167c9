"""A job over one batch that Dagster's daemon repeats from its failure: its second step fails in the first run.

Dagster reads the annotations of ops, so this module has no postponed ones.
"""

import os

import dagster as dg

from sqs_lease.dagster import SqsQueueResource, sqs_lease_executor
from tests.dagster.evidence import note

QUEUE = SqsQueueResource(queue=os.environ["ORDERS_QUEUE"])


@dg.op
def check(context: dg.OpExecutionContext) -> None:
    with QUEUE.lease(context) as batch:
        batch.fail([message for message in batch if message.body == "bad"], "it is bad")
        note("check", "worked")


@dg.op(ins={"after": dg.In(dg.Nothing)})
def load(context: dg.OpExecutionContext) -> None:
    with QUEUE.lease(context) as batch:
        note("load", "received", messages=[[message.body, message.receive_count] for message in batch])
        if "dagster/retry_number" not in context.run.tags:
            raise ConnectionError("the database is away")


@dg.job(
    executor_def=sqs_lease_executor(QUEUE, workspace=os.environ["WORKSPACE"], linger=5),
    tags={"dagster/max_retries": "1"},
)
def orders() -> None:
    """Is repeated once."""
    load(after=check())


defs = dg.Definitions(jobs=[orders])
