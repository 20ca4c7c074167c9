"""A code location with both sensors on one queue, switched on, for rounds of the daemon in the process of a test."""

import os

import dagster as dg

from sqs_lease.dagster import SqsQueueResource, build_sqs_backlog_sensor, build_sqs_router

QUEUE = SqsQueueResource(queue="orders")
RUNNING = dg.DefaultSensorStatus.RUNNING


@dg.asset
def orders() -> None: ...


defs = dg.Definitions(
    assets=[orders],
    sensors=[
        build_sqs_backlog_sensor("backlog", QUEUE, orders, default_status=RUNNING),
        build_sqs_router(
            "lease", QUEUE, orders, workspace=os.environ["WORKSPACE"], wait=0, linger=0, default_status=RUNNING
        ),
    ],
)
