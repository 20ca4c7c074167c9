"""A worker of the Spark stacks: a driver that leases batches and ingests them into one table: `... KIND DISK NOTES`."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from threading import Event
from typing import Any, Final

import boto3
from pyspark.sql import SparkSession

from sqs_lease import by_exception, dead_letter, lease, release
from sqs_lease.spark import DeltaSink, JsonSource, ParquetSink, ingest, local_session
from sqs_lease.sqs.client import client_config
from tests.rounds.notebook import Notebook

QUEUE: Final = os.environ.get("ROUNDS_QUEUE", "")
SCHEMA: Final = "id BIGINT NOT NULL, kind STRING"
BATCH: Final = 20
WAIT_SECONDS: Final = 4
PAUSE_SECONDS: Final = 0.2
ECONOMY: Final = {
    # Batches of some messages are not worth compiling code for, and a driver is killed before that pays.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
REJECTED: Final = ("builtins.ValueError",)


def work(spark: SparkSession, sink: Any, workspace: Path, book: Notebook, session: boto3.Session) -> None:
    """Ingest one batch."""
    rule = by_exception({ValueError: dead_letter()}, otherwise=release())
    client = session.client("sqs", config=client_config())
    with lease(QUEUE, max_messages=BATCH, wait=WAIT_SECONDS, on_failure=rule, on_lost="raise", client=client) as batch:
        if not len(batch):
            return
        book.holds([message.message_id for message in batch])
        result = ingest(spark, batch, source=JsonSource(SCHEMA), sink=sink, workspace=workspace)
        for message_id, reason in result.failures().items():
            book.fails(message_id)
            batch.fail(message_id, reason, errors=REJECTED)


def main() -> None:
    kind, disk, notes = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    sink = DeltaSink(disk / "table") if kind == "delta" else ParquetSink(disk / "table")
    book, session = Notebook(notes), boto3.Session()
    with local_session(cores=1) as spark:
        for name, value in ECONOMY.items():
            spark.conf.set(name, value)
        book.ready()
        while True:
            try:
                work(spark, sink, disk / "batches", book, session)
            except Exception as error:
                logging.exception("The block failed")
                book.ended(error)
                Event().wait(PAUSE_SECONDS)
            else:
                book.ended(None)


if __name__ == "__main__":
    main()
