"""Jobs over one batch whose steps an executor of the test's own runs, which does what such executors may do.

Dagster reads the annotations of ops, so this module has no postponed ones.
"""

import os
from collections.abc import Iterator
from typing import Any

import dagster as dg
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.in_process import InProcessExecutor

from sqs_lease.core.specs import OnFailure
from sqs_lease.dagster import MessageFailed
from sqs_lease.dagster.executor import sqs_lease_executor
from tests.dagster.executor_jobs import (
    BY_EXCEPTION,
    QUEUE,
    check,
    complain,
    leased,
    load,
    load_one,
    look,
    report,
    split,
)


class AroundInProcess(dg.Executor):
    """Runs the steps in the run worker, by Dagster's own executor."""

    def __init__(self, steps: dg.Executor) -> None:
        self.steps = steps

    @property
    def retries(self) -> Any:
        return self.steps.retries

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        yield from self.steps.execute(plan_context, execution_plan)


class Asking(AroundInProcess):
    """Looks for itself in the context."""

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        assert plan_context.executor is self
        yield from super().execute(plan_context, execution_plan)


class Hasty(AroundInProcess):
    """Loses sight of its steps when the first one has ended, and is done."""

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        is_lost = False
        for event in super().execute(plan_context, execution_plan):
            if not is_lost:
                yield event
            is_lost |= event.is_step_success


class Broken(Hasty):
    """Fails then."""

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        yield from super().execute(plan_context, execution_plan)
        raise ConnectionError("the broker is away")


class Reticent(AroundInProcess):
    """Does not tell of skipped steps, as executors that read the run's log do at the end."""

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        for event in super().execute(plan_context, execution_plan):
            if not event.is_step_skipped:
                yield event


def made(kind: type[AroundInProcess]) -> dg.ExecutorDefinition:
    """A definition of such an executor, with the configuration of Dagster's own."""

    def create(context: dg.InitExecutorContext) -> dg.Executor:
        here = dg.in_process_executor.executor_creation_fn
        assert here is not None
        return kind(here(context))

    schema: Any = dg.in_process_executor.config_schema
    return dg.ExecutorDefinition(kind.__name__.lower(), schema, executor_creation_fn=create)


def executor(
    around: dg.ExecutorDefinition | dg.Executor, on_failure: OnFailure = BY_EXCEPTION
) -> dg.ExecutorDefinition:
    return sqs_lease_executor(
        QUEUE,
        workspace=os.environ.get("ORDERS_WORKSPACE", "/var/lib/orders"),
        wait=0,
        linger=0,
        on_failure=on_failure,
        around=around,
    )


def _orders(around: dg.ExecutorDefinition | dg.Executor) -> dg.JobDefinition:
    @dg.job(executor_def=executor(around))
    def orders() -> None:
        report(check(), load())

    return orders


def _spread(around: dg.ExecutorDefinition) -> dg.JobDefinition:
    @dg.job(executor_def=executor(around))
    def spread() -> None:
        complain(look(split().map(load_one).collect()))

    return spread


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


def asking() -> dg.JobDefinition:
    return _orders(made(Asking))


def ready_made() -> dg.JobDefinition:
    return _orders(AroundInProcess(InProcessExecutor(RetryMode.ENABLED)))


def hasty() -> dg.JobDefinition:
    return _orders(made(Hasty))


def broken() -> dg.JobDefinition:
    return _orders(made(Broken))


def reticent() -> dg.JobDefinition:
    return _spread(made(Reticent))


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
