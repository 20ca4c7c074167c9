"""Flights from an SQS queue into a Delta table, up to 1500 a run, each exactly once.

The messages of a run stay invisible for as long as `load` needs, with all of its tries, even if the queue's visibility
timeout is short. Then messages that are in the table are deleted, and those that are not flights are given back; the
queue's redrive policy moves them to its dead-letter queue.

`make demo` runs this DAG. To run it elsewhere, set two Airflow variables (`flights_queue_url`: the URL or the
name of the queue, `flights_table`: a directory that all workers reach) and the connection `aws_default`.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, task

from sqs_lease import Fixed
from sqs_lease.airflow import sqs_lease

FLIGHT = """
    time_hour TIMESTAMP NOT NULL, carrier STRING NOT NULL, flight INT NOT NULL, tailnum STRING,
    origin STRING NOT NULL, dest STRING NOT NULL, distance INT, air_time INT,
    sched_dep_time INT, dep_time INT, dep_delay INT, sched_arr_time INT, arr_time INT, arr_delay INT
"""

EXTEND_SECONDS = float(os.environ.get("FLIGHTS_EXTEND_SECONDS", "0"))
"""The time between two extensions, for demonstrations; 0 leaves it to the default policy."""


@dag(
    schedule=None,
    max_active_runs=4,
    params={
        "run_seconds": Param(0, type="integer", description="for demonstrations: the run takes at least so long"),
        "fail_first_try": Param(False, description="for demonstrations: the first try fails after its commit"),
    },
)
def flights_to_delta() -> None:
    """Receive a batch, load it, settle it."""

    @task(retries=2, retry_delay=timedelta(seconds=2))
    def load(messages: Any, table: str, params: Any = None, ti: Any = None, dag_run: Any = None) -> dict[str, Any]:
        # Imported where it runs: a process that only parses this file needs no Spark.
        from sqs_lease.spark import DeltaSink, JsonSource, ingest, local_session

        with local_session(cores=2) as spark:
            result = ingest(
                spark,
                messages,
                source=JsonSource(FLIGHT),
                sink=DeltaSink(f"{table}/flights"),
                workspace=f"{table}/batches",
            )
        if params["fail_first_try"] and ti.try_number == 1:
            raise RuntimeError("failing once, as configured: the rows are in the table, but the try did not succeed")
        # Stands in for work that takes longer than this batch does: a slow API, a large join, a queue for a cluster.
        until = dag_run.start_date + timedelta(seconds=params["run_seconds"])
        time.sleep(max(0.0, (until - datetime.now(UTC)).total_seconds()))
        # Names the messages that are not flights; all others are deleted.
        return result.partial_batch_response()

    with sqs_lease(
        "flights",
        queue_url="{{ var.value.flights_queue_url }}",
        max_messages=1500,
        linger=5,
        timeout=5,
        soft_fail=True,
        # Leave it out. The demo extends leases often, to show it; the default makes far fewer calls.
        policy=Fixed(every=EXTEND_SECONDS) if EXTEND_SECONDS else None,
    ) as messages:
        load(messages, table="{{ var.value.flights_table }}")


flights_to_delta()
