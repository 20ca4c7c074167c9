"""A Dagster job for each queue: one op works on a batch under a lease.

Dagster reads the annotations of ops, so this module has no postponed ones.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import dagster as dg

from sqs_lease.dagster import SqsQueueResource


def consumer(job: dict[str, Any]) -> dg.JobDefinition:
    """A job that receives a batch and works on it as a whole."""

    @dg.op(name=f"{job['name']}_work")
    def work(context: dg.OpExecutionContext, queue: SqsQueueResource) -> None:
        # The default of a second is too short to receive hundreds in.
        linger = 1 if job["a_run"] <= 100 else 60
        with queue.lease(context, max_messages=job["a_run"], linger=linger) as batch:
            time.sleep(job["work_seconds"])
            if job["fails"]:
                with Path(job["record"]).open("a") as record:
                    record.write(f"failed {time.time()}\n")
                raise RuntimeError(f"the work on {len(batch)} messages fails, as it was told to")

    @dg.job(
        name=job["name"],
        executor_def=dg.in_process_executor,
        resource_defs={"queue": SqsQueueResource(queue=job["queue_url"], endpoint_url=job["endpoint_url"])},
    )
    def consume() -> None:
        work()

    return consume


defs = dg.Definitions(jobs=[consumer(job) for job in json.loads(os.environ["PEER_JOBS"])])
