"""Jobs on batches that lease sensors hold, each on a queue of its own, for the end-to-end tests.

Dagster reads the annotations of ops and assets, so this module has no postponed ones.
"""

import json
import logging
import os

import dagster as dg

from sqs_lease import Fixed
from sqs_lease.dagster import SqsQueueResource, build_sqs_lease_sensor
from tests.dagster.evidence import (
    SENSOR_VISIBILITY_SECONDS,
    SHORT_SENSOR_VISIBILITY_SECONDS,
    keeper_threads,
    note,
    wait_until_allowed_to_end,
)

# What keepers say of themselves goes into the code server's log: its former processes can be asked for nothing else.
logging.getLogger("sqs_lease").setLevel(logging.INFO)
logging.getLogger("sqs_lease").addHandler(logging.StreamHandler())

RENEWAL_SECONDS = 4
"""Nearly all of the visibility timeout is left whenever a process is gone."""

STOPPED = "tried"
"""The sensor that nobody starts."""


def queue(name: str) -> SqsQueueResource:
    return SqsQueueResource(queue=f"{os.environ['QUEUES']}-{name}")


def sensor(name: str, target: dg.JobDefinition, visibility: float = SENSOR_VISIBILITY_SECONDS) -> dg.SensorDefinition:
    return build_sqs_lease_sensor(
        name,
        queue(name),
        target,
        workspace=os.environ["WORKSPACE"],
        policy=Fixed(visibility=visibility, every=RENEWAL_SECONDS),
        wait=1,
        linger=1,
        minimum_interval_seconds=5,
        default_status=dg.DefaultSensorStatus.STOPPED if name == STOPPED else dg.DefaultSensorStatus.RUNNING,
    )


def job_of(name: str) -> dg.JobDefinition:
    """A job that works until it is told how to end."""

    @dg.op(name=f"work_{name}")
    def work(context: dg.OpExecutionContext) -> None:
        with queue(name).lease(context) as batch:
            note(name, "received", bodies=sorted(message.body for message in batch), run_id=context.run_id)
            wait_until_allowed_to_end(name)
            note(name, "ended")
            if name in ("failing", "stopped"):
                raise ValueError("out of orders")

    @dg.job(name=f"job_{name}", executor_def=dg.in_process_executor)
    def job() -> None:
        work()

    return job


@dg.op
def first_part(context: dg.OpExecutionContext) -> int:
    with queue("retried").lease(context) as batch:
        note("retried", "first part", ids=sorted(message.message_id for message in batch), run_id=context.run_id)
        batch.fail([message for message in batch if message.body == "no order"], "not understood")
    return 1


@dg.op
def second_part(context: dg.OpExecutionContext, number: int) -> None:
    with queue("retried").lease(context) as batch:
        note("retried", "second part", ids=sorted(message.message_id for message in batch), run_id=context.run_id)
        if not context.has_tag("dagster/retry_number"):
            wait_until_allowed_to_end("retried_first")
            raise ValueError("out of orders for the moment")
        wait_until_allowed_to_end("retried")
        note("retried", "ended")


@dg.job(executor_def=dg.in_process_executor, tags={"dagster/max_retries": "1"})
def job_retried() -> None:
    """Fails in its second part, and is repeated from there by Dagster."""
    second_part(first_part())


NAMES = ("failing", "canceled", "killed", "stopped", "outliving", STOPPED)
SENSORS = [
    *(sensor(name, job_of(name)) for name in NAMES),
    sensor("retried", job_retried, visibility=SHORT_SENSOR_VISIBILITY_SECONDS),
]


@dg.sensor(job=job_retried)
def keepers(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """Says which threads of the code server extend leases."""
    return dg.SkipReason(json.dumps(keeper_threads()))


defs = dg.Definitions(sensors=[*SENSORS, keepers], jobs=[job_retried])
