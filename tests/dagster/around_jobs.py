"""Jobs over one batch whose steps another executor of Dagster runs than the default one.

Dagster reads the annotations of ops, so this module has no postponed ones.
"""

import os

import dagster as dg

from sqs_lease.core.specs import OnFailure
from sqs_lease.dagster import MessageFailed
from sqs_lease.dagster.executor import sqs_lease_executor
from tests.dagster.executor_jobs import (
    BY_EXCEPTION,
    QUEUE,
    check,
    leased,
    load,
    report,
    split,
)


def executor(around: dg.ExecutorDefinition, on_failure: OnFailure = BY_EXCEPTION) -> dg.ExecutorDefinition:
    return sqs_lease_executor(
        QUEUE,
        workspace=os.environ.get("ORDERS_WORKSPACE", "/var/lib/orders"),
        wait=0,
        linger=0,
        on_failure=on_failure,
        around=around,
    )


def _orders(around: dg.ExecutorDefinition) -> dg.JobDefinition:
    @dg.job(executor_def=executor(around))
    def orders() -> None:
        report(check(), load())

    return orders


def in_process() -> dg.JobDefinition:
    return _orders(dg.in_process_executor)


def strict() -> dg.JobDefinition:
    @dg.job(executor_def=executor(dg.in_process_executor, "dead_letter"))
    def strict() -> None:
        """Dead-letters whatever fails."""
        report(check(), load())

    return strict


def either() -> dg.JobDefinition:
    return _orders(dg.multi_or_in_process_executor)


def without_retries() -> dg.JobDefinition:
    return _orders(dg.in_process_executor.configured({"retries": {"disabled": {}}}))


@dg.op
def load_or_fail(context: dg.OpExecutionContext, message_id: str) -> None:
    with leased(context) as batch:
        if message_id in [message.message_id for message in batch if message.body == "bad"]:
            raise MessageFailed(message_id)


def mapped() -> dg.JobDefinition:
    @dg.job(executor_def=executor(dg.in_process_executor))
    def mapped() -> None:
        split().map(load_or_fail)

    return mapped
