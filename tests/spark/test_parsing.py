"""Messages give no, one or many rows, or rows and a reject: each message has exactly one outcome all the same."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from sqs_lease.core.messages import Message
from sqs_lease.spark import JsonSource
from sqs_lease.spark.columns import MESSAGE_ID, NOTHING_TO_STORE, REASON, SENT_AT
from tests.spark.samples import Place, message, named_files, rows, staged_files, stored_ids

pytestmark = pytest.mark.processes


@dataclass(frozen=True)
class ListSource(JsonSource):
    """Each message is ``{"rows": [...]}``: a row for each string, a reject for each null, nothing to store for none."""

    def columns(self, _messages: DataFrame, _checker: Any) -> StructType:
        return StructType([StructField("name", StringType())])

    def parse(self, messages: DataFrame, _columns: StructType) -> DataFrame:
        parsed = F.from_json("body", "rows ARRAY<STRING>")["rows"]
        names = F.when(F.size(parsed) == 0, F.lit([NOTHING_TO_STORE]).cast(ArrayType(StringType()))).otherwise(parsed)
        exploded = messages.select("message_id", "sent_at", F.explode(names).alias("name"))
        reason = F.when(F.col("name").isNull(), F.lit("no name")).when(
            F.col("name") == NOTHING_TO_STORE, F.lit(NOTHING_TO_STORE)
        )
        return exploded.select(
            "name", F.col("message_id").alias(MESSAGE_ID), F.col("sent_at").alias(SENT_AT), reason.alias(REASON)
        )


LISTS = ListSource("name STRING")


def lists(**bodies: list[str | None]) -> list[Message]:
    return [message(message_id, json.dumps({"rows": rows})) for message_id, rows in bodies.items()]


def test_messages_give_no_one_or_many_rows_and_are_known_all_the_same(place: Place) -> None:
    batch = lists(none=[], one=["a"], many=["b", "b", "c"])
    result = place.ingest(batch, source=LISTS)

    assert (result.ingested, result.empty, result.rows, result.rejected) == (2, 1, 4, {})
    assert [(row["_message_id"], row["name"]) for row in rows(place.table)] == [
        ("many", "b"),
        ("many", "b"),
        ("many", "c"),
        ("one", "a"),
    ]
    assert place.ingest(batch, source=LISTS) == replace(result, rows=0)
    later = place.ingest([*batch, *lists(other=["d"])], source=LISTS)
    assert (later.ingested, later.empty, later.duplicates) == (1, 0, 3)


def test_a_batch_of_nothing_but_empty_messages_is_done_and_adds_no_files(place: Place) -> None:
    batch = lists(a=[], b=[])

    assert place.ingest(batch, source=LISTS).empty == 2
    assert place.ingest(lists(a=[]), source=LISTS).duplicates == 1
    assert staged_files(place.table) == set()


def test_a_message_with_records_and_a_reject_is_rejected_as_a_whole(place: Place) -> None:
    batch = lists(torn=["a", None], good=["b"], bad=[None, None], none=[])

    result = place.ingest(batch, source=LISTS)

    assert result.rejected == {"torn": "no name", "bad": "no name"}
    assert (result.ingested, result.empty, result.rows) == (1, 1, 1)
    assert stored_ids(place.table) == ["good"]
    assert staged_files(place.table) == named_files(place.table)
