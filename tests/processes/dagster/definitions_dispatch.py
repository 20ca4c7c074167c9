"""A router that sends the messages of one queue to two jobs and to partitions, for an end-to-end test.

Dagster reads the annotations of ops and assets, so this module has no postponed ones.
"""

import json
import os
from typing import Any

import dagster as dg

from sqs_lease import Message, by_exception, dead_letter
from sqs_lease.dagster import DispatchError, SqsQueueResource, build_sqs_router
from tests.dagster.evidence import note

QUEUE = SqsQueueResource(queue=os.environ["QUEUE"])
CUSTOMERS = dg.DynamicPartitionsDefinition(name="customers")


@dg.asset(partitions_def=CUSTOMERS)
def customer_orders(context: dg.AssetExecutionContext) -> None:
    with QUEUE.lease(context) as batch:
        note("orders", context.partition_key, bodies=sorted(message.body for message in batch))


@dg.op
def refund(context: dg.OpExecutionContext) -> None:
    with QUEUE.lease(context) as batch:
        note("returns", "refunded", bodies=sorted(message.body for message in batch))


@dg.job(executor_def=dg.in_process_executor)
def returns() -> None:
    refund()


JOBS: list[Any] = [dg.define_asset_job("orders", [customer_orders], executor_def=dg.in_process_executor), returns]


def job(message: Message) -> str:
    return str(json.loads(message.body)["job"])


def customer(message: Message) -> str | None:
    found: str | None = json.loads(message.body).get("customer")
    return found


defs = dg.Definitions(
    assets=[customer_orders],
    jobs=JOBS,
    sensors=[
        build_sqs_router(
            "dispatching",
            QUEUE,
            JOBS,
            job=job,
            partition_key=customer,
            workspace=os.environ["WORKSPACE"],
            max_messages=10,
            max_batches=5,
            wait=1,
            linger=1,
            minimum_interval_seconds=5,
            on_failure=by_exception({ValueError: dead_letter(), DispatchError: dead_letter()}),
            default_status=dg.DefaultSensorStatus.RUNNING,
        )
    ],
)
