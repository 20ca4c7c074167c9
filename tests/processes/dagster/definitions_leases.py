"""Assets and jobs that work with leases, each on a queue of its own, for the end-to-end tests.

Dagster reads the annotations of ops and assets, so this module has no postponed ones.
"""

import json
import os
import time

import dagster as dg

from sqs_lease.dagster import LeasedBatch, SqsQueueResource
from tests.dagster.evidence import VISIBILITY_SECONDS, WORK_SECONDS, keeper_threads, note, wait_until_allowed_to_end

NEVER_SECONDS = 600.0


def queue(name: str) -> SqsQueueResource:
    return SqsQueueResource(queue=f"{os.environ['QUEUES']}-{name}")


def received(name: str, batch: LeasedBatch) -> None:
    note(name, "received", counts=[message.receive_count for message in batch])


@dg.asset
def long(context: dg.AssetExecutionContext, long_queue: SqsQueueResource) -> None:
    """Works much longer than its messages are invisible."""
    with long_queue.lease(context, visibility=VISIBILITY_SECONDS) as batch:
        received("long", batch)
        time.sleep(WORK_SECONDS)
        note("long", "worked")
    note("long", "left")


@dg.asset
def failing(context: dg.AssetExecutionContext, failing_queue: SqsQueueResource) -> None:
    with failing_queue.lease(context) as batch:
        received("failing", batch)
        wait_until_allowed_to_end("failing")
        note("failing", "failed")
        raise ValueError("out of orders")


@dg.asset
def terminated(context: dg.AssetExecutionContext, terminated_queue: SqsQueueResource) -> None:
    with terminated_queue.lease(context) as batch:
        try:
            # Within: once this is written, the run may be terminated.
            received("terminated", batch)
            time.sleep(NEVER_SECONDS)
        finally:
            note("terminated", "interrupted")


@dg.op
def terminated_step(context: dg.OpExecutionContext, step_terminated_queue: SqsQueueResource) -> None:
    with step_terminated_queue.lease(context) as batch:
        try:
            # Within: once this is written, the run may be terminated.
            received("step_terminated", batch)
            time.sleep(NEVER_SECONDS)
        finally:
            note("step_terminated", "interrupted")


@dg.job(executor_def=dg.multiprocess_executor)
def step_terminated() -> None:
    """Has a process for its step."""
    terminated_step()


@dg.asset(retry_policy=dg.RetryPolicy(max_retries=1))
def retried(context: dg.AssetExecutionContext, retried_queue: SqsQueueResource) -> None:
    with retried_queue.lease(context) as batch:
        received("retried", batch)
        if context.op_execution_context.retry_number == 0:
            raise ValueError("out of orders for the moment")


@dg.asset
def partial(context: dg.AssetExecutionContext, partial_queue: SqsQueueResource) -> None:
    with partial_queue.lease(context, linger=2) as batch:
        received("partial", batch)
        wait_until_allowed_to_end("partial")
        note("partial", "failed")
        batch.fail([message for message in batch if message.body == "no order"], "not understood")
        # All are held until the end of the step.
        wait_until_allowed_to_end("partial_rest")
        note("partial", "worked")


class FullDisk(dg.IOManager):
    """Cannot store anything."""

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        note("unstored", "stored")
        raise OSError("no space is left")

    def load_input(self, context: dg.InputContext) -> None: ...


@dg.asset(io_manager_key="full_disk")
def unstored(context: dg.AssetExecutionContext, unstored_queue: SqsQueueResource) -> list[str]:
    """Returns a value that is not stored."""
    with unstored_queue.lease(context) as batch:
        received("unstored", batch)
        wait_until_allowed_to_end("unstored")
        return [message.body for message in batch]


@dg.asset
def worker_killed(context: dg.AssetExecutionContext, worker_killed_queue: SqsQueueResource) -> None:
    note("worker_killed", "receives")
    with worker_killed_queue.lease(context, visibility=VISIBILITY_SECONDS) as batch:
        received("worker_killed", batch)
        time.sleep(NEVER_SECONDS)


@dg.op
def killed_step(context: dg.OpExecutionContext, step_killed_queue: SqsQueueResource) -> None:
    note("step_killed", "receives")
    with step_killed_queue.lease(context, visibility=VISIBILITY_SECONDS) as batch:
        received("step_killed", batch)
        time.sleep(NEVER_SECONDS)


@dg.job(executor_def=dg.multiprocess_executor)
def step_killed() -> None:
    """Has a process for its step."""
    killed_step()


@dg.op
def orphaned_step(context: dg.OpExecutionContext, orphaned_queue: SqsQueueResource) -> None:
    with orphaned_queue.lease(context, visibility=VISIBILITY_SECONDS) as batch:
        received("orphaned", batch)
        wait_until_allowed_to_end("orphaned")
        note("orphaned", "worked")
    note("orphaned", "left")


@dg.job(executor_def=dg.multiprocess_executor)
def orphaned() -> None:
    """Has a process for its step, which lives on when that of the run is killed."""
    orphaned_step()


@dg.asset
def outliving(context: dg.AssetExecutionContext, outliving_queue: SqsQueueResource) -> None:
    """Works while Dagster's own processes come and go."""
    with outliving_queue.lease(context, visibility=VISIBILITY_SECONDS) as batch:
        received("outliving", batch)
        wait_until_allowed_to_end("outliving")
        note("outliving", "worked")


@dg.asset
def prepared() -> None:
    """Comes before what fails."""


@dg.asset(deps=[prepared])
def resumed(context: dg.AssetExecutionContext, resumed_queue: SqsQueueResource) -> None:
    with resumed_queue.lease(context) as batch:
        received("resumed", batch)
        raise ValueError("out of orders")


@dg.sensor(asset_selection=[long])
def keepers(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """Says which threads of the code server extend leases."""
    return dg.SkipReason(json.dumps(keeper_threads()))


ASSETS = [long, failing, terminated, retried, partial, unstored, worker_killed, outliving, prepared, resumed]
JOBS = [step_terminated, step_killed, orphaned]
QUEUES = [*(asset.key.to_user_string() for asset in ASSETS), *(job.name for job in JOBS)]

defs = dg.Definitions(
    assets=ASSETS,
    jobs=JOBS,
    sensors=[keepers],
    resources={**{f"{name}_queue": queue(name) for name in QUEUES}, "full_disk": FullDisk()},
    executor=dg.in_process_executor,
)
