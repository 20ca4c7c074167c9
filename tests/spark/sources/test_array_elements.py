"""A JSON array is one message with a record for each element."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

from sqs_lease.spark.sources.array_elements import ArrayElements
from sqs_lease.spark.sources.json import JsonSource
from sqs_lease.spark.sources.pinned_schema import InferredSchema
from sqs_lease.spark.sources.sns import SnsEnvelope
from sqs_lease.spark.sources.whole_bodies import VariantSource
from tests.spark.inferring import infers
from tests.spark.sources.parsing import parsed
from tests.spark.sources.s3_messages import in_sns

pytestmark = pytest.mark.processes


def test_each_element_is_a_record_and_any_other_value_rejects_its_message(spark: SparkSession) -> None:
    source = ArrayElements(JsonSource("id BIGINT NOT NULL, price DECIMAL(30, 20)"))
    bodies = {
        "two": ' [ {"id": 1, "price": 1.10000000000000000001} ,\n{"id": 2}]',
        "one": '{"id": 3}',
        "none": "[ ]",
        "inner": '[[{"id": 4}]]',
        "no id": '[{"id": 5}, {"price": 1}]',
        "type": '[{"id": 6}, {"id": "secret"}]',
        "twice": '[{"id": 7}, {"secret": 1, "secret": 2}]',
        "no JSON": "[{secret]",
        "number": "8",
    }

    outcome = parsed(spark, source, bodies)

    assert outcome.records == {
        "two": [{"id": 1, "price": Decimal("1.10000000000000000001")}, {"id": 2, "price": None}],
        "one": [{"id": 3, "price": None}],
    }
    assert outcome.empty == {"none"}
    assert outcome.rejected["inner"] == "element 1: not a JSON object, but an array"
    assert outcome.rejected["no id"] == "required, but missing or null: id"
    assert outcome.rejected["type"] == "not of the type in the schema: id"
    assert outcome.rejected["twice"].startswith("not valid JSON: a name stands twice")
    assert outcome.rejected["no JSON"].startswith("not valid JSON")
    assert outcome.rejected["number"] == "not a JSON object, but a number"
    assert "secret" not in str(outcome.rejected)


@infers
def test_schemas_are_inferred_from_the_elements(spark: SparkSession, tmp_path: pytest.TempPathFactory) -> None:
    source = ArrayElements(JsonSource(InferredSchema(f"{tmp_path}/schema.json"), new_fields="add"))

    first = parsed(spark, source, {"m1": '[{"id": 1}]'})
    second = parsed(spark, source, {"m2": '[{"id": 2}, {"name": "a"}]'})

    assert (first.columns.names, second.columns.names) == (["id"], ["id", "name"])
    assert second.records == {"m2": [{"id": 2, "name": None}, {"id": None, "name": "a"}]}


def test_within_an_envelope(spark: SparkSession) -> None:
    outcome = parsed(spark, SnsEnvelope(ArrayElements(JsonSource("id INT"))), {"m1": in_sns('[{"id": 1}, {"id": 2}]')})

    assert outcome.records == {"m1": [{"id": 1}, {"id": 2}]}


def test_any_values(spark: SparkSession) -> None:
    outcome = parsed(spark, ArrayElements(VariantSource("event")), {"m1": '[1, "a", null]'})

    assert len(outcome.records["m1"]) == 3
