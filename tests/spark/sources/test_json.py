"""JSON bodies are records or rejects with a reason; nothing is lost or changed in silence."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date
from operator import and_, or_
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import IntegerType, StructField, StructType, TimestampType

from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.schemas import struct_type
from sqs_lease.spark.session import INGESTION, session_settings
from sqs_lease.spark.sources.arrow_json import ArrowJson
from sqs_lease.spark.sources.json import MOST_COLUMNS, JsonSource, TimestampUnit
from sqs_lease.spark.sources.pinned_schema import InferredSchema
from sqs_lease.spark.sources.row_flaws import joined
from tests.spark.inferring import infers
from tests.spark.sources.parsing import Parsed, parsed

pytestmark = pytest.mark.processes

SCHEMA = """
    id BIGINT NOT NULL, name STRING, small SMALLINT, amount DECIMAL(6,2), ratio DOUBLE, ok BOOLEAN,
    day DATE, moment TIMESTAMP, raw BINARY, tags ARRAY<STRING>, counts MAP<STRING, INT>,
    seen ARRAY<STRUCT<at: MAP<STRING, TIMESTAMP>>>,
    trip STRUCT<miles: INT NOT NULL, stops: ARRAY<STRUCT<at: STRING NOT NULL>>>
"""

TIME = "a time beyond the years 1 to 9999; numbers are seconds since 1970, or timestamp_units: "

# (the body, the reason)
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
    "milliseconds in a time": ('{"id": 1, "moment": 1700000000000}', TIME + "moment"),
    "microseconds in a time": ('{"id": 1, "moment": 1700000000000000}', TIME + "moment"),
    "a time before year 1": ('{"id": 1, "moment": -63000000000}', TIME + "moment"),
    "milliseconds inside": ('{"id": 1, "seen": [{"at": {"a": 1700000000000}}]}', TIME + "seen[]"),
    "a time that is none": ('{"id": 1, "moment": "soon"}', "not of the type in the schema: moment"),
    "no base 64": ('{"id": 1, "raw": "?"}', "not of the type in the schema: raw"),
    "an object for an array": ('{"id": 1, "tags": {}}', "not of the type in the schema: tags"),
    "a word in a map of numbers": ('{"id": 1, "counts": {"a": "x"}}', "not of the type in the schema: counts[]"),
    "an array for an object": ('{"id": 1, "trip": []}', "not of the type in the schema: trip"),
    "a word inside": (
        '{"id": 1, "trip": {"miles": "far", "stops": [{"at": "B"}]}}',
        "not of the type in the schema: trip.miles",
    ),
    "an object for an array inside": (
        '{"id": 1, "trip": {"miles": 1, "stops": {}}}',
        "not of the type in the schema: trip.stops",
    ),
    "several": ('{"id": "x", "ok": 1, "day": 3}', "not of the type in the schema: id, ok, day"),
}
# (the body, what of it is in the record beside id 1)
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
    "a number of many digits": (
        '{"id": 1, "ratio": 0.' + "0" * 1200 + '1, "more": 0.' + "5" * 1200 + "}",
        {"ratio": 0.0},
    ),
    "a long name": ('{"id": 1, "' + "x" * 60_000 + '": 1}', {"name": None}),
    "a map": ('{"id": 1, "counts": {"a": 1, "b": null}}', {"counts": {"a": 1, "b": None}}),
}


@pytest.fixture(scope="module")
def outcome(spark: SparkSession) -> Parsed:
    """All cases in one batch, as they come in life."""
    cases = {name: body for name, (body, _) in {**NOT_A_RECORD, **RECORDS}.items()}
    return parsed(spark, JsonSource(SCHEMA), {**cases, "no JSON": "{'id': 1}"})


@pytest.mark.parametrize("case", NOT_A_RECORD)
def test_a_body_that_is_not_a_record_is_rejected_with_the_reason(outcome: Parsed, case: str) -> None:
    assert outcome.rejected[case] == NOT_A_RECORD[case][1]


@pytest.mark.parametrize("case", RECORDS)
def test_a_body_that_is_a_record_is_taken_as_it_is(outcome: Parsed, case: str) -> None:
    (record,) = outcome.records[case]

    assert record.items() >= {"id": 1, **RECORDS[case][1]}.items()


def test_a_body_that_is_not_json_does_not_reach_spark(outcome: Parsed) -> None:
    assert outcome.rejected["no JSON"].startswith("not valid JSON")


def test_a_timestamp_without_a_zone_is_in_utc_whatever_the_sessions_zone(spark: SparkSession) -> None:
    bodies = {"m1": '{"at": "2013-01-01T05:00:00"}', "m2": '{"at": "2013-01-01T05:00:00+02:00"}'}

    with session_settings(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        outcome = parsed(spark, JsonSource("at TIMESTAMP"), bodies)

    # PySpark hands out local times, without a zone.
    assert [outcome.records[name][0]["at"].astimezone(UTC).hour for name in bodies] == [5, 3]


@pytest.mark.parametrize("policy", ["LEGACY", "EXCEPTION"])
def test_the_session_cannot_bring_back_lenient_parsing_or_errors_that_quote_values(
    spark: SparkSession, policy: str
) -> None:
    bodies = {"bad": '{"day": "2013-02-30"}', "m1": '{"day": "1066-10-14"}'}

    with session_settings(spark, {"spark.sql.legacy.timeParserPolicy": policy}):
        outcome = parsed(spark, JsonSource("day DATE"), bodies)

    assert outcome.rejected == {"bad": "not of the type in the schema: day"}
    assert outcome.records == {"m1": [{"day": date(1066, 10, 14)}]}


@pytest.mark.parametrize(("unit", "number"), [("s", 1357016400), ("ms", 1357016400123), ("us", 1357016400123456)])
def test_numbers_are_times_in_the_unit_that_the_column_was_given(
    spark: SparkSession, unit: TimestampUnit, number: int
) -> None:
    source = JsonSource("at TIMESTAMP, id INT", timestamp_units={"at": unit})
    bodies = {
        "m1": f'{{"at": {number}}}',
        "m2": '{"id": 1}',
        "far": f'{{"at": {2**63 - 1}}}',
        "text": '{"at": "2013-01-01T05:00:00Z"}',
    }

    outcome = parsed(spark, source, bodies)

    found = outcome.records["m1"][0]["at"].astimezone(UTC)
    assert found.replace(microsecond=0).isoformat() == "2013-01-01T05:00:00+00:00"
    assert found.microsecond == {"s": 0, "ms": 123_000, "us": 123_456}[unit]
    assert outcome.records["m2"] == [{"at": None, "id": 1}]
    assert "beyond the years 1 to 9999" in outcome.rejected["far"]
    assert outcome.rejected["text"] == "not of the type in the schema: at"


def test_a_unit_is_for_a_timestamp_column_and_one_of_three(spark: SparkSession) -> None:
    with pytest.raises(SchemaError, match="timestamp_units: the schema has no column id of the type TIMESTAMP"):
        parsed(spark, JsonSource("id BIGINT", timestamp_units={"id": "ms"}), {"m1": '{"id": 1}'})
    with pytest.raises(ValueError, match="'minutes' for at is none of s, ms, us"):
        JsonSource("at TIMESTAMP", timestamp_units={"at": "minutes"})  # type: ignore[dict-item]


def test_the_session_cannot_make_another_type_of_timestamp(spark: SparkSession) -> None:
    with session_settings(spark, {"spark.sql.timestampType": "TIMESTAMP_NTZ"}):
        outcome = parsed(spark, JsonSource("at TIMESTAMP"), {"m1": '{"at": "2013-01-01T05:00:00+02:00"}'})

    assert outcome.rejected == {}
    assert outcome.columns["at"].dataType == TimestampType()


def test_the_schema_may_be_a_struct_type(spark: SparkSession) -> None:
    schema = StructType([StructField("id", IntegerType(), nullable=False)])

    outcome = parsed(spark, JsonSource(schema), {"m1": '{"id": 1}', "bad": "{}"})

    assert (set(outcome.records), set(outcome.rejected)) == ({"m1"}, {"bad"})


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        pytest.param("id BIGGINT", "is not Spark DDL", id="an unknown type"),
        pytest.param("INT", "names no columns", id="a type alone"),
        pytest.param("a ARRAY<STRUCT<x: TINYINT>>", "use SMALLINT", id="a type that Spark misreads"),
        pytest.param(None, "must be a DDL string or a StructType", id="none"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_before_a_body_is_looked_at(
    spark: SparkSession, schema: Any, says: str
) -> None:
    with pytest.raises(SchemaError, match=says):
        JsonSource(schema).checker()


def test_a_new_field_is_ignored_by_default_and_rejected_by_name_on_request(spark: SparkSession) -> None:
    bodies = {"old": '{"id": 1}', "new": '{"id": 2, "size": null, "id2": 1}'}

    ignoring = parsed(spark, JsonSource("id INT"), bodies)
    rejecting = parsed(spark, JsonSource("id INT", new_fields="reject"), bodies)

    assert ignoring.records == {"old": [{"id": 1}], "new": [{"id": 2}]}
    assert rejecting.records == {"old": [{"id": 1}]}
    assert rejecting.rejected == {"new": "not in the schema: size, id2"}


def test_no_reason_is_longer_than_a_few_names() -> None:
    reader = ArrowJson.of(StructType([StructField("id", IntegerType())]), closed=True)

    _, reasons = reader(pa.array([json.dumps({"x" * 10_000 + str(number): 1 for number in range(100)})]))

    assert reasons.to_pylist() == ["not in the schema: " + ", ".join(["x" * 63] * 3)]


def test_a_given_schema_cannot_grow() -> None:
    with pytest.raises(SchemaError, match="needs schema=InferredSchema"):
        JsonSource("id INT", new_fields="add")


def test_an_unknown_choice_for_new_fields_is_refused() -> None:
    with pytest.raises(ValueError, match="one of ignore, reject, add"):
        JsonSource("id INT", new_fields="keep")  # type: ignore[arg-type]


def test_the_identity_tells_sources_apart_that_decide_differently(tmp_path: Path) -> None:
    sources = [
        JsonSource("id INT"),
        JsonSource("id BIGINT"),
        JsonSource("id INT", new_fields="reject"),
        JsonSource(StructType([StructField("id", IntegerType())])),
        JsonSource(InferredSchema(tmp_path / "a")),
        JsonSource(InferredSchema(tmp_path / "b")),
    ]

    assert len({source.identity for source in sources}) == len(sources)
    assert JsonSource("id INT").identity == sources[0].identity


ANOTHER_KIND = {
    "an envelope of SNS": '{"Type": "Notification", "MessageId": "m", "Message": "{\\"id\\": 1}"}',
    "the test event of S3": '{"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}',
    "nothing": "{}",
    "nulls": '{"id": null, "trip": null}',
}


@pytest.mark.parametrize("new_fields", ["ignore", "reject"])
def test_another_kind_of_message_does_not_become_a_row_of_nulls(spark: SparkSession, new_fields: Any) -> None:
    source = JsonSource("id BIGINT, name STRING, trip STRUCT<miles: INT>", new_fields)
    outcome = parsed(spark, source, {**ANOTHER_KIND, "a record": '{"name": ""}', "an empty object": '{"trip": {}}'})
    assert outcome.rejected.keys() == ANOTHER_KIND.keys()
    assert outcome.rejected["nothing"] == outcome.rejected["nulls"] == "none of the schema's fields has a value"
    assert outcome.records.keys() == {"a record", "an empty object"}


def test_another_kind_of_message_among_records_is_rejected_by_tasks(spark: SparkSession) -> None:
    with session_settings(spark, INGESTION):
        reader = ArrowJson.of(struct_type("id BIGINT, trip STRUCT<miles: INT>"))
    records, reasons = reader(pa.array([*ANOTHER_KIND.values(), '{"id": 1}', '{"trip": {}}'], pa.string()))
    assert reasons.to_pylist() == ["none of the schema's fields has a value"] * len(ANOTHER_KIND) + [None, None]
    assert records.to_pylist() == [{"id": 1, "trip": None}, {"id": None, "trip": {"miles": None}}]


class TestRescued:
    SOURCE = JsonSource("id BIGINT NOT NULL, day DATE, at TIMESTAMP", rescued="_rescued_data")

    def test_a_value_that_does_not_fit_is_saved_as_it_came_and_the_rest_is_a_record(self, spark: SparkSession) -> None:
        bodies = {
            "fits": '{"id": 1, "day": "2013-01-01"}',
            "new field": '{"id": 2, "price": 1.10000000000000000001}',
            "type": '{"id": 3, "day": "soon"}',
            "time": '{"id": 4, "at": 1700000000000}',
        }

        outcome = parsed(spark, self.SOURCE, bodies)

        def record(number: int, day: date | None, rescued: str | None) -> list[dict[str, Any]]:
            return [{"id": number, "day": day, "at": None, "_rescued_data": rescued}]

        assert outcome.records == {
            "fits": record(1, date(2013, 1, 1), None),
            "new field": record(2, None, bodies["new field"]),
            "type": record(3, None, bodies["type"]),
            "time": record(4, None, bodies["time"]),
        }

    def test_required_fields_still_are_required(self, spark: SparkSession) -> None:
        outcome = parsed(spark, self.SOURCE, {"type": '{"id": "x"}', "missing": '{"day": null}', "no JSON": "{"})

        assert outcome.rejected.pop("no JSON").startswith("not valid JSON")
        assert set(outcome.rejected.values()) == {"required, but missing or null: id"}

    def test_another_kind_of_object_is_saved_where_nothing_is_required(self, spark: SparkSession) -> None:
        outcome = parsed(spark, JsonSource("id INT", rescued="rest"), {"m1": '{"Event": "s3:TestEvent"}'})

        assert outcome.records == {"m1": [{"id": None, "rest": '{"Event": "s3:TestEvent"}'}]}

    @infers
    def test_beside_a_schema_that_is_inferred(self, spark: SparkSession, tmp_path: Path) -> None:
        source = JsonSource(InferredSchema(tmp_path / "schema.json"), rescued="rest")

        parsed(spark, source, {"m1": '{"id": 1}'})
        outcome = parsed(spark, source, {"m2": '{"id": 2, "more": 3}'})

        assert outcome.records == {"m2": [{"id": 2, "rest": '{"id": 2, "more": 3}'}]}

    def test_mistakes_are_refused(self, spark: SparkSession) -> None:
        with pytest.raises(ValueError, match='leave out new_fields="reject"'):
            JsonSource("id INT", new_fields="reject", rescued="rest")
        with pytest.raises(SchemaError, match="rescued: the schema has a column ID already"):
            parsed(spark, JsonSource("id INT", rescued="ID"), {"m1": '{"id": 1}'})


@pytest.mark.parametrize("operator", [and_, or_])
@pytest.mark.parametrize("count", [1, 2, 3, 3 * MOST_COLUMNS])
def test_conditions_on_more_columns_than_a_table_has_are_not_too_deep_for_spark(
    spark: SparkSession, operator: Callable[[Column, Column], Column], count: int
) -> None:
    frame = spark.range(2).select(joined(operator, [F.col("id") == 1] * count).alias("is_one"))

    assert [row.is_one for row in frame.collect()] == [False, True]
