"""An ordinary batch is few jobs of Spark's: each costs a tenth of a second, and more where workers start."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from sqs_lease.core.messages import Message
from sqs_lease.spark import DeltaSink, ParquetSink, Sink
from tests.spark.samples import Place, good, message

pytestmark = pytest.mark.processes


def jobs_of(spark: SparkSession, work: Callable[[], object]) -> int:
    """How many jobs of Spark's some work begins."""
    # The scheduler's own count: the status tracker hears of jobs a moment later.
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    before = int(scheduler.numTotalJobs())
    work()
    return int(scheduler.numTotalJobs()) - before


def delta(place: Place) -> Sink:
    return DeltaSink(place.table)


def parquet(place: Place) -> Sink:
    return ParquetSink(place.table)


@pytest.mark.parametrize("sink", [delta, parquet])
@pytest.mark.parametrize(
    ("messages", "rejected"),
    [(good(range(200)), 0), ([*good(range(200)), message("bad", "no JSON")], 1)],
    ids=["all well", "one bad message"],
)
def test_a_batch_is_one_job(
    place: Place, sink: Callable[[Place], Sink], messages: list[Message], rejected: int
) -> None:
    def work() -> None:
        result = place.ingest(messages, sink=sink(place))
        assert (result.ingested, len(result.rejected)) == (200, rejected)

    assert jobs_of(place.spark, work) == 1


def test_a_batch_that_the_table_knows_needs_no_job(place: Place) -> None:
    place.ingest(good(range(200)))

    assert jobs_of(place.spark, lambda: place.ingest(good(range(200), receive_count=2))) == 0
