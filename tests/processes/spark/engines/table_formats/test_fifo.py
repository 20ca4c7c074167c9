"""Of a FIFO queue's messages of one millisecond the later one wins, in native Delta and Iceberg tables, too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.spark import JsonSource, ingest
from tests.processes.spark.engines.table_formats.test_changed_tables import DELTA, ICEBERG, place_of


@pytest.mark.parametrize("kind", [DELTA, ICEBERG])
def test_of_messages_of_one_millisecond_the_later_one_wins(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    place = place_of(spark, tmp_path, kind, ("id",))
    said = {"SentTimestamp": "1700000000123", "MessageGroupId": "g"}

    def load(numbers: Mapping[str, int]) -> list[tuple[str, int]]:
        batch = [
            Message(Receipt(message_id, "handle"), '{"id": 1}', {**said, "SequenceNumber": str(number)})
            for message_id, number in numbers.items()
        ]
        source = JsonSource("id BIGINT NOT NULL")
        ingest(spark, batch, source=source, sink=place.subject.new_sink(), workspace=tmp_path / "workspace")
        return place.subject.ids()

    assert load({"z": 1, "a": 100, "m": 20}) == [("a", 1)]
    assert load({"b": 101}) == [("b", 1)]
    spark.sql(f"DROP TABLE {place.name}")
