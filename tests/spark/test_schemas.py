"""A value that is nested deeper than tables take is refused, or stays a text where its type is not given."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructField, StructType

from sqs_lease.spark import InferredSchema, JsonSource
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.schemas import DEEPEST, arrow_schema, struct_type
from sqs_lease.spark.sinks.delta.schema import delta_schema
from tests.spark.inferring import infers
from tests.spark.samples import Place, message, rows

WAYS = ("object", "array", "map")


def nested(levels: int, way: str) -> StructType:
    """A column in which so many types are inside of each other."""
    kind: DataType = LongType()
    for _ in range(levels):
        inner = kind
        kind = {
            "object": StructType([StructField("x", inner)]),
            "array": ArrayType(inner),
            "map": MapType(StringType(), inner),
        }[way]
    return StructType([StructField("a", kind)])


@pytest.mark.parametrize("way", WAYS)
def test_accepted_schemas_fit_into_a_table(way: str) -> None:
    columns = struct_type(nested(DEEPEST - 1, way))

    assert len(delta_schema(columns).fields) == len(arrow_schema(columns)) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("levels", [DEEPEST, 100, 200])
def test_a_deeper_schema_is_refused(way: str, levels: int) -> None:
    with pytest.raises(SchemaError, match="column a is nested more than 30 levels deep"):
        JsonSource(nested(levels, way)).checker()


@pytest.mark.processes
@infers
def test_deeper_values_of_the_first_batch_are_a_column_with_a_text_inside(place: Place) -> None:
    deep: Any = "bottom"
    for _ in range(60):
        deep = {"x": [deep]}
    source = JsonSource(InferredSchema(place.root / "schema.json"))

    result = place.ingest([message("m1", json.dumps({"id": 1, "a": deep}))], source=source)
    later = place.ingest([message("m2", json.dumps({"id": 2, "a": {"x": []}}))], source=source)

    assert (result.rejected, later.rejected) == ({}, {})
    found = rows(place.table)[0]["a"]
    taken = 0
    while not isinstance(found, str):
        found, taken = (found["x"] if isinstance(found, dict) else found[0]), taken + 1
    for _ in range(taken):
        deep = deep["x"] if isinstance(deep, dict) else deep[0]
    assert json.loads(found) == deep
