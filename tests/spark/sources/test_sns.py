"""Messages that came through SNS are treated as if they had come without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from sqs_lease.spark import batch_file
from sqs_lease.spark.sources.json import JsonSource
from sqs_lease.spark.sources.pinned_schema import InferredSchema
from sqs_lease.spark.sources.sns import SnsEnvelope, unwrap
from sqs_lease.spark.sources.source import NotANotificationError
from sqs_lease.spark.sources.whole_bodies import TextSource
from tests.spark.inferring import infers
from tests.spark.sources.parsing import parsed
from tests.spark.sources.s3_messages import in_sns

pytestmark = pytest.mark.processes


def test_the_published_text_is_checked_and_parsed_by_the_other_source(spark: SparkSession) -> None:
    bodies = {
        "m1": in_sns('{"id": 1, "name": "Zürich \\ud83d\\ude00"}'),
        "no JSON": in_sns("{'id': 1}"),
        "twice": in_sns('{"id": 1, "id": 2}'),
        "no id": in_sns('{"name": "a"}'),
        "raw": '{"id": 1}',
        "cut off": in_sns('{"id": 1}')[:-1],
        "subscription": in_sns("You have chosen to subscribe", kind="SubscriptionConfirmation"),
        "unknown": in_sns('{"id": 1}', kind="News"),
    }

    outcome = parsed(spark, SnsEnvelope(JsonSource("id BIGINT NOT NULL, name STRING")), bodies)

    assert outcome.records == {"m1": [{"id": 1, "name": "Zürich 😀"}]}
    assert outcome.rejected["no JSON"].startswith("in the SNS message: not valid JSON")
    assert outcome.rejected["twice"].startswith("in the SNS message: not valid JSON: a name stands twice")
    assert outcome.rejected["no id"] == "required, but missing or null: id"
    assert "raw message delivery" in outcome.rejected["raw"]
    assert outcome.rejected["cut off"].startswith("not valid JSON")
    assert "SubscriptionConfirmation" in outcome.rejected["subscription"]
    assert outcome.rejected["unknown"] == "an SNS envelope of an unknown form"


ENVELOPE = json.loads(in_sns("text"))


@pytest.mark.parametrize(
    "envelope",
    [
        pytest.param({**ENVELOPE, "Message": {"id": 1}}, id="a message that is not a text"),
        pytest.param({**ENVELOPE, "More": 1.5}, id="a number"),
        pytest.param({**ENVELOPE, "x" * 60_000: "a"}, id="a name that Spark does not read"),
        pytest.param({**ENVELOPE, "MessageAttributes": ["a"]}, id="attributes of a wrong type"),
        pytest.param({**ENVELOPE, "MessageAttributes": {"a": "b"}}, id="an attribute that is none"),
        pytest.param({**ENVELOPE, "MessageAttributes": {"a": {"Value": 1}}}, id="an attribute that is not a text"),
        pytest.param({**ENVELOPE, "MessageAttributes": {"x" * 60_000: {}}}, id="a long name of an attribute"),
    ],
)
def test_an_envelope_that_spark_might_read_otherwise_is_refused(envelope: dict[str, Any]) -> None:
    with pytest.raises(NotANotificationError, match="unknown form"):
        unwrap(json.dumps(envelope))


def test_an_envelope_may_have_fields_that_are_null_or_new() -> None:
    assert (
        unwrap(json.dumps({**ENVELOPE, "Subject": None, "SequenceNumber": "10", "MessageAttributes": None})) == "text"
    )


def test_the_published_text_arrives_as_it_was(spark: SparkSession) -> None:
    texts = {"m1": "", "m2": 'a "b"\\n\n\t\0 日本 😀', "m3": "x" * 100_000}

    outcome = parsed(spark, SnsEnvelope(TextSource()), {name: in_sns(text) for name, text in texts.items()})

    assert outcome.records == {name: [{"body": text}] for name, text in texts.items()}


@infers
def test_a_schema_is_inferred_from_and_widened_by_what_was_published(spark: SparkSession, tmp_path: Path) -> None:
    pin = InferredSchema(tmp_path / "schema.json")
    pin.pin(StructType([StructField("id", LongType())]))
    source = SnsEnvelope(JsonSource(pin, new_fields="add"))

    outcome = parsed(spark, source, {"m1": in_sns('{"id": 1, "size": 2.5}')})

    assert source.widens
    assert outcome.records == {"m1": [{"id": 1, "size": 2.5}]}


class AttributesSource(TextSource):
    """Gives the attributes in place of the body."""

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        attributes = messages[batch_file.MESSAGE_ATTRIBUTES]
        return super().parse(messages.withColumn(batch_file.BODY, attributes), columns)


def test_the_attributes_are_those_that_were_published(spark: SparkSession) -> None:
    published = {"kind": {"Type": "String", "Value": "order"}, "raw": {"Type": "Binary", "Value": "AAE="}}

    outcome = parsed(
        spark, SnsEnvelope(AttributesSource()), {"with": in_sns("a", published), "without": in_sns("a")}, "{}"
    )

    assert json.loads(outcome.records["with"][0]["body"]) == {
        "kind": {"DataType": "String", "StringValue": "order"},
        "raw": {"DataType": "Binary", "BinaryValue": {"base64": "AAE="}},
    }
    assert outcome.records["without"] == [{"body": None}]
