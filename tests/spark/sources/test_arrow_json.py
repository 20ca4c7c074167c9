"""Arrow reads JSON as Spark does: whatever it takes, Spark takes and makes the same of; all else is left to Spark."""

from __future__ import annotations

import json
import pickle
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType

from sqs_lease.batch_files.json_syntax import NotJsonError, decode_object, why_not_json
from sqs_lease.spark.columns import MESSAGE_ID, REASON
from sqs_lease.spark.session import INGESTION, session_settings
from sqs_lease.spark.sources.arrow_json import ArrowJson
from sqs_lease.spark.sources.json import JsonSource
from tests.spark.sources.parsing import messages_of

# Schemas are read with the help of a session.
pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("spark")]

KINDS = {
    "b": "BOOLEAN",
    "s": "SMALLINT",
    "i": "INT",
    "l": "BIGINT",
    "d": "DOUBLE",
    "m": "DECIMAL(6,2)",
    "w": "DECIMAL(38,10)",
    "t": "STRING",
    "day": "DATE",
    "at": "TIMESTAMP",
}
NESTED = {
    **{f"a_{name}": f"ARRAY<{kind}>" for name, kind in KINDS.items()},
    "r": "STRUCT<at: TIMESTAMP, n: INT NOT NULL, more: STRUCT<day: DATE, t: STRING>>",
    "a_r": "ARRAY<STRUCT<at: TIMESTAMP, t: STRING NOT NULL>>",
}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in {"id": "INT NOT NULL", **KINDS, **NESTED}.items())

# As JSON text. What is right for one type is wrong for another, or a stranger way to write it.
NUMBERS = [
    "0", "-0", "7", "-1", "1.0", "1.5", "-2.25", "1e2", "1E-2", "1e400", "0.1", "1.005", "9999.99", "10000", "12345.6",
    "32767", "32768", "-32769", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808",
    "4.9e-324", "1.7976931348623157e308", "123456789012345678901234567890", "0.30000000000000004", "1e-400",
    "12345678901234567890123456789012345678.5", "1" * 39, "5e-11",
]  # fmt: skip
TEXTS = [
    "", " ", "7", "1.5", "true", "NaN", "Infinity", "null", "Zürich 日本 😀", 'a"b\\c/', "a\tb\nc\rd", "\0", "\u2028",
    "2013-01-02", "2013-1-2", "2013-02-30", "0001-01-01", "1066-10-14", "9999-12-31", "20130102", "2013-01-02 or so",
    "2013-01-02T03:04:05", "2013-01-02 03:04:05", "2013-01-02T03:04:05Z", "2013-01-02T03:04:05.123456+02:00",
    "2013-01-02T03:04:05.1", "2013-01-02T03:04:05.123456789Z", "2013-01-02T24:00:00Z", "2013-01-02T23:59:60Z",
    "2013-01-02T03:04:05+18:00", "2013-01-02T03:04:05-17:59", "2013-01-02T03:04:05+19:00", "2013-01-02T03:04",
    "2013-01-02T03", "2013-02-30T03:04:05", "0001-01-01T00:00:00Z", "1582-10-10T00:00:00Z", "9999-12-31T23:59:59Z",
    "2013-01-02T03:04:05+0200", "2013-01-02T03:04:05 UTC", " 2013-01-02", "+5", ".5", "5.", "1,000.5", "0x10",
]  # fmt: skip
scalars = st.one_of(
    st.sampled_from([*NUMBERS, "true", "false", "null", r'"\ud83d\ude00"', r'"\ud800"', r'"\u0000"']),
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-20_000, 20_000, places=2).map(str),
    st.sampled_from(TEXTS).map(json.dumps),
    st.text(max_size=5).map(json.dumps),
    st.datetimes().map(lambda at: json.dumps(at.isoformat())),
    st.dates().map(lambda day: json.dumps(day.isoformat())),
)


def objects(names: list[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    fields = st.dictionaries(st.sampled_from(names).map(json.dumps), values, max_size=3)
    return fields.map(lambda given: "{" + ", ".join(f"{name}: {value}" for name, value in given.items()) + "}")


def arrays(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(values, max_size=3).map(lambda given: "[" + ", ".join(given) + "]")


FITTING: dict[str, st.SearchStrategy[str]] = {
    "b": st.sampled_from(["true", "false"]),
    "s": st.integers(-(2**15), 2**15 - 1).map(str),
    "i": st.integers(-(2**31), 2**31 - 1).map(str),
    "l": st.integers(-(2**63), 2**63 - 1).map(str),
    "d": st.floats(allow_nan=False, allow_infinity=False).map(repr),
    "m": st.decimals(-9_999, 9_999, places=2).map(str),
    "w": st.decimals(-(10**20), 10**20, places=10).map(str),
    "t": st.text().map(json.dumps),
    "day": st.dates().map(lambda day: json.dumps(day.isoformat())),
    "at": st.datetimes().map(lambda at: json.dumps(at.isoformat())),
}
records = objects(["at", "n", "t", "day", "more", "other"], scalars | objects(["day", "t"], scalars))
anything = st.one_of(scalars, arrays(scalars), records, arrays(records), st.just("[[[]]]"))


@st.composite
def bodies(draw: st.DrawFn) -> str:
    """An object with a few of the fields: mostly of the type that the column has, now and then of any."""
    fields = {"id": "1"} if draw(st.integers(0, 9)) else {}
    for name in draw(st.lists(st.sampled_from([*KINDS, *NESTED]), max_size=4, unique=True)):
        if draw(st.booleans()):
            value = draw(anything)
        elif name in KINDS:
            value = draw(FITTING[name] | st.just("null"))
        elif name[2:] in KINDS:
            value = draw(arrays(FITTING[name[2:]] | st.just("null")))
        else:
            value = draw(arrays(records) if name == "a_r" else records)
        fields[name] = value
    if not draw(st.integers(0, 4)):
        fields["other"] = draw(anything)
    space = draw(st.sampled_from(["", " ", "\n", "\r\n"]))
    return "{" + space + f",{space}".join(f'"{name}":{value}' for name, value in fields.items()) + space + "}"


def columns_of(schema: str) -> StructType:
    columns = StructType.fromDDL(schema)
    assert isinstance(columns, StructType)
    return columns


def is_object(body: str) -> bool:
    try:
        decode_object(body)
    except NotJsonError:
        return False
    return True


def by_spark(spark: SparkSession, columns: StructType, given: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The records by message id; rejected messages have none."""
    with session_settings(spark, {**INGESTION, "spark.sql.session.timeZone": "UTC"}):
        rows = JsonSource(columns).parse(messages_of(spark, given), columns)
        table = rows.where(f"{REASON} IS NULL").select(MESSAGE_ID, *columns.names).toArrow()
    return {row.pop(MESSAGE_ID): row for row in table.to_pylist()}


def by_arrow(columns: StructType, given: dict[str, str]) -> dict[str, dict[str, Any]]:
    reader = ArrowJson.of(columns)
    assert reader is not None
    rows, taken, _ = reader(pa.array(given.values(), pa.string()))
    assert len(taken) == len(given)
    names = [name for name, is_taken in zip(given, taken.to_pylist(), strict=True) if is_taken]
    return dict(zip(names, rows.to_pylist(), strict=True))


@given(st.lists(bodies(), min_size=30, max_size=60))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_arrow_takes_spark_takes_and_makes_the_same_of(spark: SparkSession, found: list[str]) -> None:
    columns = columns_of(SCHEMA)
    given = {f"m{number}": body for number, body in enumerate(filter(is_object, found))}

    taken = by_arrow(columns, given)

    records = by_spark(spark, columns, given)
    for name, record in taken.items():
        assert records.get(name) == record, given[name]


@pytest.mark.parametrize("name", KINDS)
def test_every_way_to_write_a_value_is_read_as_by_spark_or_left(spark: SparkSession, name: str) -> None:
    columns = columns_of(f"{name} {KINDS[name]}")
    found = {value: f'{{"{name}": {value}}}' for value in [*NUMBERS, *map(json.dumps, TEXTS), "true", "null", "[]"]}
    given = {value: body for value, body in found.items() if is_object(body)}

    taken = by_arrow(columns, given)

    records = by_spark(spark, columns, given)
    assert {value: records.get(value) for value in taken} == taken
    # Left is left: none of these is without any.
    assert set(taken) < set(given)


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_values_that_fit_are_all_taken(name: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(FITTING[name], min_size=1, max_size=50))
    if name in {"at", "day"}:
        values = [value for value in values if not value.startswith('"0')]

    taken = by_arrow(
        columns_of(f"{name} {KINDS[name]}, a ARRAY<{KINDS[name]}>, r STRUCT<v: {KINDS[name]}>"),
        {
            str(number): f'{{"{name}": {value}, "a": [{value}, null], "r": {{"v": {value}}}}}'
            for number, value in enumerate(values)
        },
    )

    assert len(taken) == len(values)
    for record in taken.values():
        assert record["a"] == [record[name], None]
        assert record["r"] == {"v": record[name]}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts were read at once, each time."""
    sizes = []
    read = ArrowJson.read

    def noted(self: Any, texts: pa.Array, **how: Any) -> Any:
        sizes.append(len(texts))
        return read(self, texts, **how)

    monkeypatch.setattr(ArrowJson, "read", noted)
    return sizes


@pytest.mark.parametrize(
    ("unfit", "others"),
    [
        pytest.param('{"id": "x"}', 0, id="of another kind"),
        pytest.param("{}", 0, id="without a required field"),
        pytest.param('{"id": 1, "at": "soon"}', 0, id="not a time"),
        pytest.param('{"id": 1.5}', 31, id="not convertible"),
        pytest.param('{"id": 1, "at": "2013-02-30T00:00:00Z"}', 31, id="not in the calendar"),
        pytest.param('{"id": 1, "x": ' + "1" * 1_100 + "}", 31, id="beyond Spark's limits"),
    ],
)
@pytest.mark.parametrize("places", [[0], [1_999], [700, 1_200, 1_201]])
def test_one_that_does_not_fit_takes_few_others_along(
    reads: list[int], unfit: str, others: int, places: list[int]
) -> None:
    given = {str(number): f'{{"id": {number}}}' for number in range(2_000)}

    taken = by_arrow(
        columns_of("id BIGINT NOT NULL, at TIMESTAMP"), {**given, **{str(place): unfit for place in places}}
    )

    left = given.keys() - taken.keys()
    assert left >= set(map(str, places))
    assert len(left) <= len(places) * (1 + others)
    assert all(record == {"id": int(name), "at": None} for name, record in taken.items())
    assert len(reads) <= 20 * len(places)


@pytest.mark.parametrize("unfit", ['{"id": "x"}', '{"id": 1.5}'])
@pytest.mark.parametrize("one_in", [1, 2, 10])
def test_where_much_is_refused_the_rest_is_left_after_a_few_tries(reads: list[int], unfit: str, one_in: int) -> None:
    found = [unfit if number % one_in == 0 else f'{{"id": {number}}}' for number in range(5_000)]

    taken = by_arrow(columns_of("id INT"), {str(number): body for number, body in enumerate(found)})

    assert all(record == {"id": int(name)} for name, record in taken.items())
    assert len(taken) < 500
    assert len(reads) < 60


def test_a_refusal_now_and_then_is_not_too_much(reads: list[int]) -> None:
    found = ['{"id": "x"}' if number % 250 == 0 else f'{{"id": {number}}}' for number in range(5_000)]

    taken = by_arrow(columns_of("id INT"), {str(number): body for number, body in enumerate(found)})

    assert len(taken) == 4_980


def test_texts_longer_than_one_look_are_read_in_parts() -> None:
    filler = "x" * 40_000
    given = {str(number): f'{{"id": {number}, "t": "{filler}"}}' for number in range(1_000)}

    taken = by_arrow(columns_of("id INT"), given)

    assert taken == {str(number): {"id": number} for number in range(1_000)}


@pytest.mark.parametrize(
    ("body", "is_taken"),
    [
        pytest.param('{"id": 1, "x": 0.' + "5" * 900 + "}", True, id="a number that Spark reads"),
        pytest.param('{"id": 1, "x": 0.' + "5" * 1_001 + "}", False, id="a number too long for Spark"),
        pytest.param('{"id": 1, "x": "' + "12345 " * 500 + '"}', True, id="much that is like a number"),
        pytest.param('{"id": 1, "' + "x" * 49_000 + '": 1}', True, id="a name that Spark reads"),
        pytest.param('{"id": 1, "' + "x" * 50_001 + '": 1}', False, id="a name too long for Spark"),
    ],
)
def test_texts_beyond_the_limits_of_sparks_parser_are_left_to_it(
    spark: SparkSession, body: str, is_taken: bool
) -> None:
    columns = columns_of("id INT")

    assert bool(by_arrow(columns, {"m": body})) == bool(by_spark(spark, columns, {"m": body})) == is_taken


@pytest.mark.parametrize(
    "kind", ["FLOAT", "BINARY", "MAP<STRING, INT>", "TIMESTAMP_NTZ", "VARIANT", "STRING COLLATE UNICODE_CI"]
)
def test_a_type_that_the_two_read_differently_is_left_to_spark_wherever_it_is(spark: SparkSession, kind: str) -> None:
    for schema in (f"id INT, x {kind}", f"x ARRAY<STRUCT<y: {kind}>>"):
        assert ArrowJson.of(columns_of(schema)) is None


def test_no_text_is_no_record() -> None:
    assert by_arrow(columns_of("id INT"), {}) == {}


def test_the_reader_can_be_sent_to_another_process() -> None:
    reader = ArrowJson.of(columns_of(SCHEMA))

    assert pickle.loads(pickle.dumps(reader)) == reader


NO_OBJECTS: Final = [
    *("", " ", "null", "1", '"{}"', "[{}]", "{", "}", '{"id": 1} x', '{"id": 1}{"id": 2}', '{"id": 1}\n{"id": 2}'),
    *('\ufeff{"id": 1}', '{"id": 1}\x00', '{"id": 1} // it', "{'id': 1}", '{"id": 01}', '{"id": 1,}', '{"id": +1}'),
    *('{"id": NaN}', '{"at": "a\tb"}', '{"at": "\\ud800"}', '{"at": "\\udc00"}', '{"at": "\\x"}', '{"id": 1}\x0b'),
    *('{"id": 1, "id": 2}', '{"id": 1, "\\u0069d": 2}', '{"x": 1, "x": 2}', '{"in": {"a": 1, "a": 2}}', '{"id": tru}'),
    *('{"in": {"x": 1, "x": 2}}', '{"ins": [{"a": 1, "a": 2}]}', '{"x": 1e999}', '{"d": 1e999}', '{"id": -}'),
    *(
        '{"x": [1, ]}',
        '{"x": "\x01"}',
        '{"x": ' + "[" * 201 + "]" * 201 + "}",
        '{"id": 1',
        ', "at": "x"}',
        '{"": 1, "": 2}',
    ),
]


@pytest.mark.parametrize("beside", ["alone", "others", "each other"])
def test_what_is_not_one_json_object_is_rejected_by_tasks_and_takes_nothing_of_its_neighbours(beside: str) -> None:
    columns = columns_of("id INT, at STRING, d DOUBLE, in STRUCT<a: INT>, ins ARRAY<STRUCT<a: INT>>")
    reader = ArrowJson.of(columns)
    assert reader is not None
    good = '{"id": 7, "at": "x"}'
    cases = {
        "alone": [[body] for body in NO_OBJECTS],
        "others": [[good, body, good] for body in NO_OBJECTS],
        "each other": [[first, second] for first in NO_OBJECTS for second in NO_OBJECTS],
    }
    for texts in cases[beside]:
        rows, taken, reasons = reader(pa.array(texts, pa.string()))
        assert reasons.to_pylist() == [why_not_json(text) for text in texts], texts
        assert taken.to_pylist() == [text == good for text in texts], texts
        assert rows["id"].to_pylist() == [7] * texts.count(good)


def test_objects_with_other_fields_than_columns_are_taken(spark: SparkSession) -> None:
    columns = columns_of("id INT, in STRUCT<a: INT>")
    given = {"a": '{"id": 1, "x": {"x": [1]}}', "b": '{"id": 2}', "c": '{"in": {"a": 3, "b": 4}}'}
    assert by_arrow(columns, given) == by_spark(spark, columns, given)


@pytest.mark.parametrize("number", ["1" * 310, "-" + "1" * 400, "1.8e308", "17976931348623159077e289", "1e400"])
@pytest.mark.parametrize("body", ['{"d": %s}', '{"a": [1, %s]}', '{"s": {"d": %s}}'])
def test_a_number_that_no_double_holds_is_rejected_and_never_stored_as_infinite(body: str, number: str) -> None:
    """Arrow refuses 1e400, and reads 1.8e308 or 310 digits as infinite."""
    text = body % number
    number_column = StructField("d", DoubleType())
    columns = [number_column, StructField("a", ArrayType(DoubleType())), StructField("s", StructType([number_column]))]
    reader = ArrowJson.of(StructType(columns))
    assert reader is not None
    table, _, reasons = reader(pa.array([text]))
    assert (table.to_pylist(), reasons.to_pylist()) == ([], [why_not_json(text)])
