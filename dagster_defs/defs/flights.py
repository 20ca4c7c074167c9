"""Flights from an SQS queue into a Delta table, up to 1500 a run, each exactly once.

A sensor counts the messages of the queue and starts runs of the asset; the asset receives. Its messages stay invisible
for as long as it works, even if the queue's visibility timeout is short. Then messages that are in the table are
deleted, and those that are not flights are given back; the queue's redrive policy moves them to its dead-letter queue.
When the asset fails, all are given back at once, and its next try receives again; it recognizes messages that are in
the table already.

`make demo-dagster` runs this. To run it elsewhere, set `FLIGHTS_QUEUE`.
"""

import time

import dagster as dg
from pydantic import Field

from dagster_defs.queues import flights_queue as queue
from dagster_defs.settings import FLIGHTS_RUN_SECONDS, LAKE
from sqs_lease.dagster import SqsQueueResource, build_sqs_backlog_sensor, build_sqs_lease_check

FLIGHT = """
    time_hour TIMESTAMP NOT NULL, carrier STRING NOT NULL, flight INT NOT NULL, tailnum STRING,
    origin STRING NOT NULL, dest STRING NOT NULL, distance INT, air_time INT,
    sched_dep_time INT, dep_time INT, dep_delay INT, sched_arr_time INT, arr_time INT, arr_delay INT
"""
BATCH_SIZE = 1500


class FlightsRun(dg.Config):
    """The options of a run that is started by hand."""

    fail_first_try: bool = Field(False, description="for demonstrations: the first try fails after its commit")


@dg.asset(kinds={"sqs", "spark", "delta"}, retry_policy=dg.RetryPolicy(max_retries=2, delay=2))
def flights(
    context: dg.AssetExecutionContext, config: FlightsRun, flights_queue: SqsQueueResource
) -> dg.MaterializeResult[None]:
    """Append the flights of one batch to the table."""
    # Imported where it runs: a process that only loads this file needs no Spark.
    from sqs_lease.spark import DeltaSink, JsonSource, ingest, local_session

    with flights_queue.lease(context, max_messages=BATCH_SIZE, wait=5, linger=5) as batch:
        if not len(batch):
            return dg.MaterializeResult(metadata={"rows": 0})
        received = time.monotonic()
        with local_session(cores=2) as spark:
            result = ingest(
                spark,
                batch,
                source=JsonSource(FLIGHT),
                sink=DeltaSink(LAKE / "flights"),
                workspace=LAKE / "batches",
            )
        if config.fail_first_try and context.retry_number == 0:
            raise RuntimeError("failing once, as configured: the rows are in the table, but the try did not succeed")
        # Stands in for work that takes longer than this batch does: a slow API, a large join, a queue for a cluster.
        time.sleep(max(0.0, received + FLIGHTS_RUN_SECONDS - time.monotonic()))
        # All others are deleted when the step has succeeded.
        batch.fail_each(result.failures())
        return dg.MaterializeResult(metadata={"rows": result.rows, "duplicates": result.duplicates})


# It warns if messages were not flights, or if others may have worked on the same messages. It runs after each run, and
# reads the lease's metadata of the materialization.
flights_check = build_sqs_lease_check(flights)

# Ticks are cheap: the sensor only reads the attributes of the queue.
flights_backlog = build_sqs_backlog_sensor(
    "flights_backlog",
    queue,
    flights,
    messages_per_run=BATCH_SIZE,
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
