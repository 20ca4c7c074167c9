"""JSON bodies are records or rejects with a reason; nothing is lost or changed in silence."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StructField, StructType

from sqs_lease.spark import IngestResult, JsonSource, SchemaError
from tests.spark.samples import Place, message, rows

pytestmark = pytest.mark.processes

SCHEMA = """
    id BIGINT NOT NULL, name STRING, small SMALLINT, amount DECIMAL(6,2), ratio DOUBLE, ok BOOLEAN,
    day DATE, moment TIMESTAMP, raw BINARY, tags ARRAY<STRING>, counts MAP<STRING, INT>,
    trip STRUCT<miles: INT NOT NULL, stops: ARRAY<STRUCT<at: STRING NOT NULL>>>
"""

# Seen by the driver: (the body, how the reason starts).
NOT_JSON = {
    "empty": ("", "the body is empty"),
    "white space": (" \n\t", "the body is empty"),
    "text": ("hello", "not valid JSON"),
    "cut off": ('{"id": 1', "not valid JSON"),
    "trailing garbage": ('{"id": 1} garbage', "not valid JSON: JSON is malformed: trailing characters"),
    "a second object": ('{"id": 1}{"id": 2}', "not valid JSON: JSON is malformed: trailing characters"),
    "a second line": ('{"id": 1}\n{"id": 2}', "not valid JSON: JSON is malformed: trailing characters"),
    "a trailing comma": ('{"id": 1,}', "not valid JSON"),
    "a comment": ('{"id": 1} // one', "not valid JSON"),
    "single quotes": ("{'id': 1}", "not valid JSON"),
    "a name without quotes": ("{id: 1}", "not valid JSON"),
    "NaN": ('{"id": 1, "ratio": NaN}', "not valid JSON"),
    "infinity": ('{"id": 1, "ratio": -Infinity}', "not valid JSON"),
    "a leading zero": ('{"id": 01}', "not valid JSON"),
    "a control character": ('{"id": 1, "name": "\x01"}', "not valid JSON"),
    "a byte order mark": ('\ufeff{"id": 1}', "not valid JSON"),
    "an unknown escape": ('{"id": 1, "name": "\\x41"}', "not valid JSON"),
    "half a surrogate pair, escaped": ('{"id": 1, "name": "\\ud800"}', "not valid JSON"),
    "half a surrogate pair": ('{"id": 1, "name": "\ud800"}', "not valid JSON: half a surrogate pair"),
    "an array": ('[{"id": 1}]', "not a JSON object"),
    "an empty array": ("[]", "not a JSON object"),
    "a string": ('"id"', "not a JSON object"),
    "a number": ("1", "not a JSON object"),
    "null": ("null", "not a JSON object"),
    "a number that no double holds": ('{"id": 1, "ratio": 1e999}', "not a JSON object that can be stored"),
    "far too deep": ('{"id": ' + "[" * 100_000 + "]" * 100_000 + "}", "not a JSON object that can be stored"),
}
# Seen by Spark: (the body, the reason).
NOT_A_RECORD = {
    "a required field is missing": ("{}", "required, but missing or null: id"),
    "a required field is null": ('{"id": null}', "required, but missing or null: id"),
    "a name in other letters": ('{"ID": 1}', "required, but missing or null: id"),
    "a required field inside": (
        '{"id": 1, "trip": {"stops": []}}',
        "required, but missing or null: trip.miles",
    ),
    "a required field inside an array": (
        '{"id": 1, "trip": {"miles": 1, "stops": [{"at": "A"}, {}]}}',
        "required, but missing or null: trip.stops[]",
    ),
    "two required fields": ('{"trip": {}}', "required, but missing or null: id, trip.miles"),
    "a required field of the wrong type": ('{"id": "1"}', "not of the type in the schema: id"),
    "a fraction for an integer": ('{"id": 1.5}', "not of the type in the schema: id"),
    "an object for a number": ('{"id": {"x": 1}}', "not of the type in the schema: id"),
    "an integer out of range": ('{"id": 9223372036854775808}', "not of the type in the schema: id"),
    "an optional field out of range": ('{"id": 1, "small": 32768}', "not of the type in the schema: small"),
    "a decimal out of range": ('{"id": 1, "amount": 10000.00}', "not of the type in the schema: amount"),
    "NaN in quotes": ('{"id": 1, "ratio": "NaN"}', "not of the type in the schema: ratio"),
    "a word for a boolean": ('{"id": 1, "ok": "true"}', "not of the type in the schema: ok"),
    "a date that is none": ('{"id": 1, "day": "2013-02-30"}', "not of the type in the schema: day"),
    "a date and more": ('{"id": 1, "day": "2013-01-02 or so"}', "not of the type in the schema: day"),
    "a date without dashes": ('{"id": 1, "day": "20130102"}', "not of the type in the schema: day"),
    "a time that is none": ('{"id": 1, "moment": "soon"}', "not of the type in the schema: moment"),
    "no base 64": ('{"id": 1, "raw": "?"}', "not of the type in the schema: raw"),
    "an object for an array": ('{"id": 1, "tags": {}}', "not of the type in the schema: tags"),
    "a word in a map of numbers": ('{"id": 1, "counts": {"a": "x"}}', "not of the type in the schema: counts"),
    "an array for an object": ('{"id": 1, "trip": []}', "not of the type in the schema: trip"),
    "several": ('{"id": "x", "ok": 1, "day": 3}', "not of the type in the schema: id, ok, day"),
}
# (the body, what of it stands in the table beside id 1)
RECORDS: dict[str, tuple[str, dict[str, Any]]] = {
    "white space around it": (' \n{"id": 1}\t', {"name": None}),
    "a field that the schema does not name": ('{"id": 1, "more": {"x": []}}', {"name": None}),
    "null for what may be null": ('{"id": 1, "name": null, "trip": null}', {"name": None, "trip": None}),
    "any language": ('{"id": 1, "name": "Zürich \\ud83d\\ude00 日本"}', {"name": "Zürich 😀 日本"}),
    "a null character": ('{"id": 1, "name": "a\\u0000b"}', {"name": "a\0b"}),
    "a number for a string": ('{"id": 1, "name": 7}', {"name": "7"}),
    "an object for a string": ('{"id": 1, "name": {"x": [1]}}', {"name": '{"x":[1]}'}),
    "nested values": (
        '{"id": 1, "tags": ["a", null], "trip": {"miles": 3, "stops": [{"at": "B"}]}}',
        {"tags": ["a", None], "trip": {"miles": 3, "stops": [{"at": "B"}]}},
    ),
    "a map": ('{"id": 1, "counts": {"a": 1, "b": null}}', {"counts": [("a", 1), ("b", None)]}),
}


@pytest.fixture(scope="module")
def ingested(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[IngestResult, dict[str, dict[str, Any]]]:
    """All cases in one batch, as they come in life: the result, and the table's rows by message id."""
    place = Place(spark, tmp_path_factory.mktemp("json"), JsonSource(SCHEMA))
    cases = {**NOT_JSON, **NOT_A_RECORD, **RECORDS}
    result = place.ingest([message(name, body) for name, (body, _) in cases.items()])
    return result, {row["_message_id"]: row for row in rows(place.table)}


@pytest.mark.parametrize("case", [*NOT_JSON, *NOT_A_RECORD])
def test_a_body_that_is_no_record_is_rejected_with_the_reason(
    ingested: tuple[IngestResult, dict[str, dict[str, Any]]], case: str
) -> None:
    result, stored = ingested

    assert case not in stored
    if case in NOT_JSON:
        assert result.rejected[case].startswith(NOT_JSON[case][1])
    else:
        assert result.rejected[case] == NOT_A_RECORD[case][1]


@pytest.mark.parametrize("case", RECORDS)
def test_a_body_that_is_a_record_is_stored_as_it_is(
    ingested: tuple[IngestResult, dict[str, dict[str, Any]]], case: str
) -> None:
    result, stored = ingested

    assert case not in result.rejected
    assert stored[case].items() >= {"id": 1}.items()
    for name, value in RECORDS[case][1].items():
        assert stored[case][name] == value


def test_a_nested_value_of_the_wrong_type_is_rejected_even_if_spark_keeps_the_rest(place: Place) -> None:
    result = place.ingest(
        [message("bad", '{"id": 1, "trip": {"miles": "far", "to": "B"}}')],
        source=JsonSource("id BIGINT NOT NULL, trip STRUCT<miles: INT, to: STRING>"),
    )

    assert result.rejected == {"bad": "a nested value is not of the type in the schema"}


def test_a_timestamp_without_a_zone_is_in_utc_whatever_the_sessions_zone(place: Place) -> None:
    zone = place.spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    place.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        place.ingest(
            [
                message("m1", '{"at": "2013-01-01T05:00:00"}'),
                message("m2", '{"at": "2013-01-01T05:00:00+02:00"}'),
            ],
            source=JsonSource("at TIMESTAMP"),
        )
    finally:
        place.spark.conf.set("spark.sql.session.timeZone", zone)

    assert [row["at"].isoformat() for row in rows(place.table)] == [
        "2013-01-01T05:00:00+00:00",
        "2013-01-01T03:00:00+00:00",
    ]


@pytest.mark.parametrize("policy", ["LEGACY", "EXCEPTION"])
def test_the_session_cannot_bring_back_lenient_parsing_or_errors_that_quote_values(place: Place, policy: str) -> None:
    place.spark.conf.set("spark.sql.legacy.timeParserPolicy", policy)
    try:
        result = place.ingest(
            [message("bad", '{"day": "2013-02-30"}'), message("m1", '{"day": "1066-10-14"}')],
            source=JsonSource("day DATE"),
        )
    finally:
        place.spark.conf.set("spark.sql.legacy.timeParserPolicy", "CORRECTED")

    assert result.rejected == {"bad": "not of the type in the schema: day"}
    assert rows(place.table)[0]["day"] == date(1066, 10, 14)


def test_the_schema_may_be_a_struct_type(place: Place) -> None:
    schema = StructType([StructField("id", IntegerType(), nullable=False)])

    result = place.ingest([message("m1", '{"id": 1}'), message("bad", "{}")], source=JsonSource(schema))

    assert (result.ingested, set(result.rejected)) == (1, {"bad"})


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        pytest.param("id BIGGINT", "is not Spark DDL", id="an unknown type"),
        pytest.param("INT", "names no columns", id="a type alone"),
        pytest.param(StructType([]), "has no columns", id="no columns"),
        pytest.param("id INT, ID STRING", "column 'ID' twice", id="names that differ in case only"),
        pytest.param("_message_id INT", "keeps for itself", id="a name that is taken"),
        pytest.param("`two words` INT", "rename it", id="a name that Delta refuses"),
        pytest.param("s STRUCT<`a,b`: INT>", "rename it", id="a name inside that Delta refuses"),
        pytest.param("i INTERVAL DAY", "cannot store the type", id="a type that Delta has not"),
        pytest.param("a ARRAY<STRUCT<x: TINYINT>>", "use SMALLINT", id="a type that Spark misreads"),
        pytest.param(None, "must be a DDL string or a StructType", id="none"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_at_once(place: Place, schema: Any, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        place.ingest([message("m1", "{}")], source=JsonSource(schema))
    assert list(place.root.iterdir()) == []
