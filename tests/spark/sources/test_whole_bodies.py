"""Bodies that are stored as they are: as text, or as JSON of any shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sqs_lease.spark.sources.source import Source
from sqs_lease.spark.sources.whole_bodies import TextSource, VariantSource
from tests.spark.sources.parsing import parsed

pytestmark = pytest.mark.processes


def test_any_text_is_a_record(spark: SparkSession) -> None:
    bodies = {"m1": "", "m2": " {'a': 1} \n", "m3": "日本\0"}

    outcome = parsed(spark, TextSource(column="`line`"), {**bodies, "half": "a\ud800"})

    assert outcome.records == {message_id: [{"`line`": body}] for message_id, body in bodies.items()}
    assert outcome.rejected == {"half": "not text: half a surrogate pair"}
    assert [(field.name, field.nullable) for field in outcome.columns] == [("`line`", False)]


def test_any_json_value_is_a_variant(spark: SparkSession) -> None:
    bodies = {"m1": '{"a": {"b": [1, null]}}', "m2": "[1.5]", "m3": "null", "m4": '"text"'}
    bad = {"garbage": '{"a": 1} x', "twice": '{"a": 1, "a": 2}', "empty": "", "long": '{"' + "n" * 60_000 + '": 1}'}

    outcome = parsed(spark, VariantSource(), {**bodies, **bad})

    found = {message_id: row["record"].toPython() for message_id, (row,) in outcome.records.items()}
    assert found == {message_id: json.loads(body) for message_id, body in bodies.items()}
    assert outcome.rejected.keys() == bad.keys()
    assert outcome.rejected["long"] == "cannot be stored as a VARIANT: too large or too long a name"
    assert outcome.columns.simpleString() == "struct<record:variant>"


def test_the_column_is_a_part_of_the_identity() -> None:
    sources: list[Source[Any]] = [TextSource(), TextSource("a"), VariantSource(), VariantSource("a")]

    assert len({source.identity for source in sources}) == 4
    assert not any(source.widens for source in sources)
