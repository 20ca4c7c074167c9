"""A JSON text becomes the same record, or has the same reason, whether it is read among others or alone."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType, TimestampType

from sqs_lease.spark.sources.arrow_json import ArrowJson
from sqs_lease.spark.sources.json_values import ObjectReader
from tests.spark.samples import why_not_json

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
    "local": "TIMESTAMP_NTZ",
    "f": "FLOAT",
    "bytes": "BINARY",
}
NESTED = {
    **{f"a_{name}": f"ARRAY<{kind}>" for name, kind in KINDS.items()},
    "r": "STRUCT<at: TIMESTAMP, n: INT NOT NULL, more: STRUCT<day: DATE, t: STRING>>",
    "a_r": "ARRAY<STRUCT<at: TIMESTAMP, t: STRING NOT NULL>>",
}
MAPS = {"by": "MAP<STRING, INT>", "by_r": "MAP<STRING, STRUCT<day: DATE, more: ARRAY<BINARY>>>"}


def schema_of(fields: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in fields.items())


SCHEMA = schema_of({"id": "INT NOT NULL", **KINDS, **NESTED})

# As JSON text. A text that is right for one type is wrong for another, or a stranger way to write it.
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
    "local": st.datetimes().map(lambda at: json.dumps(at.isoformat(" "))),
    "f": st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    "bytes": st.binary(max_size=9).map(lambda value: json.dumps(base64.b64encode(value).decode())),
}
records = objects(["at", "n", "t", "day", "more", "other"], scalars | objects(["day", "t"], scalars))
anything = st.one_of(scalars, arrays(scalars), records, arrays(records), st.just("[[[]]]"))


@st.composite
def bodies(draw: st.DrawFn) -> str:
    """An object with a few of the fields: mostly of the type that the column has, now and then of any."""
    fields = {"id": "1"} if draw(st.integers(0, 9)) else {}
    for name in draw(st.lists(st.sampled_from([*KINDS, *NESTED, *MAPS]), max_size=4, unique=True)):
        if draw(st.booleans()):
            value = draw(anything)
        elif name in KINDS:
            value = draw(FITTING[name] | st.just("null"))
        elif name[2:] in KINDS:
            value = draw(arrays(FITTING[name[2:]] | st.just("null")))
        elif name in MAPS:
            value = draw(objects(["a", "", "key"], scalars if name == "by" else records))
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


def read(reader: ArrowJson, texts: list[str]) -> list[Any]:
    """The record of each text, or its reason."""
    rows, reasons = reader(pa.array(texts, pa.string()))
    assert rows.schema == reader.schema
    records = iter(rows.to_pylist())
    found = [next(records) if reason is None else reason for reason in reasons.to_pylist()]
    assert next(records, None) is None
    return found


def by_arrow(columns: StructType, given: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The records by name."""
    found = zip(given, read(ArrowJson.of(columns), list(given.values())), strict=True)
    return {name: record for name, record in found if isinstance(record, dict)}


def columns_read(name: str) -> StructType:
    return columns_of(f"{name} {KINDS[name]}, a ARRAY<{KINDS[name]}>, r STRUCT<v: {KINDS[name]}>")


@pytest.mark.parametrize(
    "options",
    [{}, {"closed": True}, {"rescued": "rest"}, {"units": {"at": 1_000}}],
    ids=["open", "closed", "rescued", "in milliseconds"],
)
@given(st.lists(bodies() | st.sampled_from(["", "{", "[]", "{} {}"]), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_text_becomes_the_same_among_others_and_alone(options: dict[str, Any], texts: list[str]) -> None:
    reader = ArrowJson.of(columns_of(SCHEMA), **options)
    assert reader.direct is not None

    among_others = read(reader, texts)

    assert among_others == read(replace(reader, direct=None), texts)
    assert among_others == [found for text in texts for found in read(reader, [text])]


@given(st.lists(bodies(), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_maps_are_read_beside_all_other_types(texts: list[str]) -> None:
    everything = ArrowJson.of(columns_of(f"{SCHEMA}, {schema_of(MAPS)}"))
    without_maps = ArrowJson.of(columns_of(SCHEMA))

    found = read(everything, texts)

    for text, one, other in zip(texts, found, read(without_maps, texts), strict=True):
        if isinstance(one, dict):
            given = json.loads(text)
            assert {name: value for name, value in one.items() if name not in MAPS} == other
            assert dict(one["by"] or {}) == (given.get("by") or {})
            assert dict(one["by_r"] or {}).keys() == (given.get("by_r") or {}).keys()
        elif isinstance(other, dict):
            assert "by" in one


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("value", [*NUMBERS, *map(json.dumps, TEXTS), "true", "null", "[]", "{}"])
def test_every_way_to_write_a_value_is_read_the_same_among_others_and_alone(name: str, value: str) -> None:
    reader = ArrowJson.of(columns_read(name))
    text = f'{{"{name}": {value}, "a": [{value}, null], "r": {{"v": {value}}}}}'

    (found,) = read(reader, [text])
    among_others = read(reader, ["{}", text, '{"a": []}'])

    assert [found] == read(replace(reader, direct=None), [text]) == among_others[1:2]
    if isinstance(found, dict):
        assert found["a"] == [found[name], None] or found["a"] is None
        assert found["r"] == {"v": found[name]} or found["r"] is None


EXPECTED: Final[dict[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("b", "s", "i", "l", "d", "f", "t"), json.loads),
    "m": lambda value: Decimal(value).quantize(Decimal("0.01")),
    "w": Decimal,
    "day": lambda value: date.fromisoformat(json.loads(value)),
    "at": lambda value: datetime.fromisoformat(json.loads(value)).replace(tzinfo=UTC),
    "local": lambda value: datetime.fromisoformat(json.loads(value)),
    "bytes": lambda value: base64.b64decode(json.loads(value)),
}


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_values_that_fit_are_what_python_reads(name: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(FITTING[name], min_size=1, max_size=50))
    texts = [f'{{"{name}": {value}, "a": [{value}, null], "r": {{"v": {value}}}}}' for value in values]

    found = read(ArrowJson.of(columns_read(name)), texts)

    expected = [EXPECTED[name](value) for value in values]
    assert found == [{name: value, "a": [value, None], "r": {"v": value}} for value in expected]


def test_the_last_second_of_the_year_9999_may_not_be_in_the_next_year_in_utc() -> None:
    reader = ArrowJson.of(StructType([StructField("at", TimestampType())]))

    found = read(reader, [f'{{"at": "9999-12-31T23:59:59{zone}"}}' for zone in ("Z", "-12:00", "+12:00")])

    assert "a time beyond the years 1 to 9999" in found[1]
    assert [found[at]["at"].astimezone(UTC).hour for at in (0, 2)] == [23, 11]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts were read at once, each time."""
    sizes = []
    read_many = ArrowJson.read

    def noted(self: Any, texts: pa.Array, **how: Any) -> Any:
        sizes.append(len(texts))
        return read_many(self, texts, **how)

    monkeypatch.setattr(ArrowJson, "read", noted)
    return sizes


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List the texts that were read alone."""
    texts = []
    read_one = ObjectReader.read

    def noted(self: Any, text: str) -> Any:
        texts.append(text)
        return read_one(self, text)

    monkeypatch.setattr(ObjectReader, "read", noted)
    return texts


@pytest.mark.parametrize(
    ("unfit", "others"),
    [
        pytest.param('{"id": "x"}', 0, id="of another kind"),
        pytest.param("{}", 0, id="without a required field"),
        pytest.param('{"id": 1, "at": "soon"}', 0, id="not a time"),
        pytest.param('{"id": 1.5}', 31, id="not convertible"),
        pytest.param('{"id": 1, "at": "2013-02-30T00:00:00Z"}', 31, id="not in the calendar"),
    ],
)
@pytest.mark.parametrize("places", [[0], [1_999], [700, 1_200, 1_201]])
def test_one_that_does_not_fit_takes_few_others_along(
    reads: list[int], alone: list[str], unfit: str, others: int, places: list[int]
) -> None:
    given = {str(number): f'{{"id": {number}}}' for number in range(2_000)}

    taken = by_arrow(
        columns_of("id BIGINT NOT NULL, at TIMESTAMP"), {**given, **{str(place): unfit for place in places}}
    )

    assert given.keys() - taken.keys() == set(map(str, places))
    assert alone.count(unfit) == len(places)
    assert len(alone) <= len(places) * (1 + others)
    assert all(record == {"id": int(name), "at": None} for name, record in taken.items())
    assert len(reads) <= 20 * len(places)


@pytest.mark.parametrize("unfit", ['{"id": "x"}', '{"id": 1.5}'])
@pytest.mark.parametrize("one_in", [1, 2, 10])
def test_where_much_is_refused_the_rest_is_read_alone_after_a_few_tries(
    reads: list[int], unfit: str, one_in: int
) -> None:
    found = [unfit if number % one_in == 0 else f'{{"id": {number}}}' for number in range(5_000)]

    taken = by_arrow(columns_of("id INT"), {str(number): body for number, body in enumerate(found)})

    assert taken == {str(number): {"id": number} for number in range(5_000) if number % one_in}
    assert len(reads) < 60


def test_a_refusal_now_and_then_is_not_too_much(alone: list[str]) -> None:
    found = ['{"id": "x"}' if number % 250 == 0 else f'{{"id": {number}}}' for number in range(5_000)]

    taken = by_arrow(columns_of("id INT"), {str(number): body for number, body in enumerate(found)})

    assert len(taken) == 4_980
    assert alone == ['{"id": "x"}'] * 20


def test_texts_longer_than_one_look_are_read_in_parts() -> None:
    filler = "x" * 40_000
    given = {str(number): f'{{"id": {number}, "t": "{filler}"}}' for number in range(1_000)}

    taken = by_arrow(columns_of("id INT"), given)

    assert taken == {str(number): {"id": number} for number in range(1_000)}


def test_without_texts_there_are_no_records() -> None:
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
def test_a_body_that_is_not_one_json_object_is_rejected_by_tasks_and_takes_nothing_of_its_neighbours(
    beside: str,
) -> None:
    columns = columns_of("id INT, at STRING, d DOUBLE, in STRUCT<a: INT>, ins ARRAY<STRUCT<a: INT>>")
    reader = ArrowJson.of(columns)
    good = '{"id": 7, "at": "x"}'
    cases = {
        "alone": [[body] for body in NO_OBJECTS],
        "others": [[good, body, good] for body in NO_OBJECTS],
        "each other": [[first, second] for first in NO_OBJECTS for second in NO_OBJECTS],
    }
    for texts in cases[beside]:
        rows, reasons = reader(pa.array(texts, pa.string()))
        assert reasons.to_pylist() == [why_not_json(text) for text in texts], texts
        assert rows["id"].to_pylist() == [7] * texts.count(good)


def test_objects_with_other_fields_than_columns_are_taken() -> None:
    columns = columns_of("id INT, in STRUCT<a: INT>")
    given = {"a": '{"id": 1, "x": {"x": [1]}}', "b": '{"id": 2}', "c": '{"in": {"a": 3, "b": 4}}'}
    assert by_arrow(columns, given) == {
        "a": {"id": 1, "in": None},
        "b": {"id": 2, "in": None},
        "c": {"id": None, "in": {"a": 3}},
    }


@pytest.mark.parametrize("number", ["1" * 310, "-" + "1" * 400, "1.8e308", "17976931348623159077e289", "1e400"])
@pytest.mark.parametrize("body", ['{"d": %s}', '{"a": [1, %s]}', '{"s": {"d": %s}}'])
def test_a_number_that_no_double_holds_is_rejected_and_never_stored_as_infinite(body: str, number: str) -> None:
    """Arrow refuses 1e400, and reads 1.8e308 or 310 digits as infinite."""
    text = body % number
    number_column = StructField("d", DoubleType())
    columns = [number_column, StructField("a", ArrayType(DoubleType())), StructField("s", StructType([number_column]))]
    assert read(ArrowJson.of(StructType(columns)), [text]) == [why_not_json(text)]
