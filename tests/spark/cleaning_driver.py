"""A driver that stores S3 objects and deletes them; told to, it dies between its commit and the deletion."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import DataFrame

from sqs_lease.ingestion.result import CleanUp
from sqs_lease.spark import S3EventsSource, local_session
from sqs_lease.spark.sources.source import CleanerOf
from tests.spark.driver import die
from tests.spark.samples import Place, message

DIES = "dies"


class DyingSource(S3EventsSource):
    """A source that kills this process when it is to clean up."""

    @property
    def cleaner(self) -> CleanerOf:
        return _die


def _die(_messages: DataFrame) -> CleanUp:
    die()
    raise AssertionError("unreachable")


def main(root: str, notification: str, mode: str) -> None:
    kind = DyingSource if mode == DIES else S3EventsSource
    source = kind("jsonl", "id BIGINT NOT NULL", read={"tasks": 1, "threads": 1}, clean_source="delete")
    with local_session(cores=1) as spark:
        result = Place(spark, Path(root)).ingest([message("m1", notification)], source=source)
    sys.stdout.write(json.dumps(asdict(result)))


if __name__ == "__main__":
    main(*sys.argv[1:])
