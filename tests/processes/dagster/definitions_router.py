"""A router on a queue of its own, and the job of its runs, for tests of what goes wrong around it.

Dagster reads the annotations of ops, so this module has no postponed ones.
"""

import os

import dagster as dg

from sqs_lease.dagster import SqsQueueResource, build_sqs_router
from tests.dagster.evidence import note

LINGER_SECONDS = 10
"""How long a message is held in the code server until its run is asked for."""

QUEUE = SqsQueueResource(queue=os.environ["QUEUE"])


@dg.op
def store(context: dg.OpExecutionContext) -> None:
    with QUEUE.lease(context) as batch:
        note("routed", "stored", bodies=sorted(message.body for message in batch))


@dg.job(executor_def=dg.in_process_executor)
def routed() -> None:
    store()


defs = dg.Definitions(
    jobs=[routed],
    sensors=[
        build_sqs_router(
            "router",
            QUEUE,
            routed,
            workspace=os.environ["WORKSPACE"],
            wait=5,
            linger=LINGER_SECONDS,
            handoff_timeout=float(os.environ["HANDOFF_SECONDS"]),
            minimum_interval_seconds=5,
            default_status=dg.DefaultSensorStatus.RUNNING,
        )
    ],
)
