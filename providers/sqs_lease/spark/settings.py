"""Session settings for the length of one block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

INGESTION: Final[Mapping[str, str]] = {
    # The default, INT96, is deprecated in Parquet, and Delta wants microseconds.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # EXCEPTION would fail the whole batch for one old date, and quote the value in the error text.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # TIMESTAMP in a schema is a moment; with the other choice it would be TIMESTAMP_NTZ, and times with a zone rejects.
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # The file of a batch has a third of its bodies' bytes, or less: by the default, 128 MB, a million messages of 1 KB
    # would be three tasks, on whatever cluster.
    "spark.sql.files.maxPartitionBytes": "32m",
}
"""What a stored batch must not leave to the session that happens to run it."""


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set ``settings``, and put back what was set before at the end of the block.

    Settings belong to the session: threads that ingest at the same time need sessions of their own
    (``spark.newSession()``).
    """
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, earlier)
