"""Objects give the rows that are in them, or say where they are wrong without quoting what they say."""

from __future__ import annotations

import gzip
import io
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from sqs_lease.spark.sources.s3_events import contents
from sqs_lease.spark.sources.s3_events.contents import BadContentError, Csv, Format, JsonDocument, JsonLines
from sqs_lease.spark.sources.s3_events.parquet import Parquet
from tests.spark.sources.allowances import allowance

ID_NAME = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows(how: Format, content: bytes, name: str = "file") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    file = io.BytesIO(content)
    # As after it was written.
    file.seek(0, io.SEEK_END)
    for batch in how.rows(file, name, allowance()):
        assert batch.schema == how.schema
        found += batch.to_pylist()
    return found


def fault(how: Format, content: bytes, name: str = "file") -> str:
    with pytest.raises(BadContentError) as caught:
        rows(how, content, name)
    return str(caught.value)


def csv(*fields: tuple[str, pa.DataType], required: tuple[str, ...] = (), delimiter: str = ",") -> Csv:
    return Csv(pa.schema(fields), required, delimiter)


def parquet_file(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


class TestJsonLines:
    def test_each_line_is_a_record_but_blank_lines_are_not(self) -> None:
        found = rows(JsonLines(), b'{"id": 1}\r\n\n  \n {"id": 2, "name": "\xc3\xa9"}')

        assert [row[contents.LINE] for row in found] == ['{"id": 1}', '{"id": 2, "name": "é"}']

    @pytest.mark.parametrize("content", [b"", b"\n\n"])
    def test_a_file_without_lines_has_no_record(self, content: bytes) -> None:
        assert rows(JsonLines(), content) == []

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            (b"secret", "line 2: not valid JSON"),
            (b'{"id": 2} {"secret": 3}', "line 2: not valid JSON: trailing"),
            (b'{"secret": 1, "secret": 2}', "line 2: not valid JSON: a name stands twice"),
            (b'["secret"]', "line 2: not a JSON object"),
            (b'{"id": "\xff"}', "line 2: not valid JSON"),
        ],
    )
    def test_a_bad_line_is_named_by_its_number(self, line: bytes, says: str) -> None:
        said = fault(JsonLines(), b'{"id": 1}\n' + line + b"\n")

        assert said.startswith(says)
        assert "secret" not in said

    def test_a_line_that_does_not_end_is_refused_before_it_fills_the_memory(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(contents, "LONGEST_LINE_BYTES", 100)

        assert fault(JsonLines(), b'{"id": "' + b"x" * 200 + b'"}') == "line 1 is longer than 100 bytes"

    def test_a_large_file_comes_in_several_batches(self) -> None:
        content = b"".join(b'{"id": %d}\n' % number for number in range(25_000))

        sizes = [batch.num_rows for batch in JsonLines().rows(io.BytesIO(content), "file", allowance())]

        assert sizes == [10_000, 10_000, 5_000]


class TestGzip:
    def test_the_suffix_says_that_a_file_is_compressed(self) -> None:
        two_members = gzip.compress(b'{"id": 1}\n') + gzip.compress(b'{"id": 2}\n')

        assert len(rows(JsonLines(), two_members, "a.jsonl.gz")) == 2
        assert rows(Csv(ID_NAME, []), gzip.compress(b"id,name\n1,a\n"), "a.csv.gz") == [{"id": 1, "name": "a"}]

    @pytest.mark.parametrize(
        ("how", "content"), [(JsonLines(), b'{"id": 1}\n' * 1000), (Csv(ID_NAME, []), b"id,name\n" + b"1,a\n" * 1000)]
    )
    def test_objects_that_are_not_compressed_or_not_whole_are_refused(self, how: Format, content: bytes) -> None:
        whole = gzip.compress(content)

        assert rows(how, whole, "a.gz")
        for bad in (content, whole[:-9], whole[:30] + b"\0" * 20 + whole[50:], whole + b"more"):
            assert fault(how, bad, "a.gz") == "not gzip, or cut off"


class TestCsv:
    def test_values_become_what_the_schema_says(self) -> None:
        how = csv(
            ("id", pa.int64()),
            ("name", pa.string()),
            ("amount", pa.decimal128(6, 2)),
            ("ratio", pa.float64()),
            ("ok", pa.bool_()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("wall", pa.timestamp("us")),
            ("absent", pa.int32()),
        )
        content = (
            b"\xef\xbb\xbfmore,ok,id,name,amount,ratio,day,at,wall\r\n"
            b'x,true,1,"a ""b"",\nc",1.5,0.5,2013-01-31,2013-01-31 10:00:00,2013-01-31T10:00:00\r\n'
            b"x,,2,,,,,2013-01-31T10:00:00+02:00,\r\n"
            b'x,FALSE,3,"",-3,1e3,,2013-01-31T10:00:00.123456Z,\r\n'
        )

        first, second, third = rows(how, content)

        noon = datetime(2013, 1, 31, 10, tzinfo=UTC)
        assert first == {
            "id": 1,
            "name": 'a "b",\nc',
            "amount": Decimal("1.50"),
            "ratio": 0.5,
            "ok": True,
            "absent": None,
            "day": date(2013, 1, 31),
            "at": noon,
            "wall": noon.replace(tzinfo=None),
        }
        assert (second["name"], second["amount"], second["ok"], second["at"].hour) == (None, None, None, 8)
        assert (third["name"], third["ok"], third["ratio"]) == ("", False, 1000.0)
        assert third["at"].microsecond == 123456

    def test_the_delimiter_may_be_another_one(self) -> None:
        assert rows(Csv(ID_NAME, [], ";"), b"id;name\n1;a,b\n") == [{"id": 1, "name": "a,b"}]

    @pytest.mark.parametrize("content", [b"", b"\n\n", b"id,name\n"])
    def test_a_file_without_rows_has_no_record(self, content: bytes) -> None:
        assert rows(Csv(ID_NAME, []), content) == []

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"id,name\n1,a\nsecret,b\n", "row 3: column id is not of the type in the schema"),
            (b"name,id\na,1\nb,secret\n", "row 3: column id is not of the type in the schema"),
            (b"id,name\n1,a\n99999999999999999999,a\n", "row 3: column id is not of the type in the schema"),
            (b"id,name\n1,secret\xff\n", "row 2: column name is not of the type in the schema"),
            (b"id,name\n1,a\n1,secret,2\n", "row 3 has 3 values, and the header 2"),
            (b"id,name\n1\n", "row 2 has 1 values, and the header 2"),
            (b"id,id\n1,2\n", "the header names the column id twice"),
            (b"1,secret\n2,b\n", "the header has none of the schema's columns"),
            (b"name\na\n", "the header has no column id, which is required"),
            (b"\xff\xfe,id\n", "the header is not CSV in UTF-8"),
        ],
    )
    def test_a_wrong_value_is_named_by_its_place(self, content: bytes, says: str) -> None:
        assert fault(Csv(ID_NAME, ["id"]), content) == says

    @pytest.mark.parametrize("value", [b"nan", b"inf", b"1e999"])
    def test_a_number_must_be_finite(self, value: bytes) -> None:
        assert fault(csv(("x", pa.float64())), b"x\n" + value) == "column x has a number that is infinite or NaN"

    def test_a_time_must_be_one(self) -> None:
        how = csv(("at", pa.timestamp("us", tz="UTC")))

        assert fault(how, b"at\nsoon\n") == "column at is not of the type in the schema"

    def test_a_quote_that_does_not_end_is_refused_before_it_fills_the_memory(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(contents, "_BLOCK_BYTES", 1000)

        assert "a quote that does not end" in fault(Csv(ID_NAME, []), b'id,name\n1,"' + b"secret\n" * 1000)


class TestParquet:
    def test_columns_are_matched_by_name_and_converted_where_nothing_is_lost(self) -> None:
        schema = pa.schema(
            [
                ("name", pa.string()),
                ("id", pa.int64()),
                ("ratio", pa.float64()),
                ("at", pa.timestamp("us", tz="UTC")),
                ("tags", pa.list_(pa.string())),
                ("trip", pa.struct([("miles", pa.int32())])),
                ("absent", pa.date32()),
            ]
        )
        noon = datetime(2013, 1, 31, 12, tzinfo=UTC)
        table = pa.table(
            {
                "id": pa.array([1, None], pa.int16()),
                "name": pa.array(["a", "b"]).dictionary_encode(),
                "ratio": pa.array([1, 2], pa.int32()),
                "at": pa.array([noon, noon]).cast(pa.timestamp("ns")),
                "tags": pa.array([["x"], None], pa.large_list(pa.large_string())),
                "trip": pa.array([{"miles": 3}, None], pa.struct([("miles", pa.int32())])),
                "more": [1, 2],
            }
        )

        assert rows(Parquet(schema, ["id"]), parquet_file(table)) == [
            {"name": "a", "id": 1, "ratio": 1.0, "at": noon, "tags": ["x"], "trip": {"miles": 3}, "absent": None},
            {"name": "b", "id": None, "ratio": 2.0, "at": noon, "tags": None, "trip": None, "absent": None},
        ]

    def test_times_of_the_deprecated_type_are_read(self) -> None:
        noon = datetime(2013, 1, 31, 12, tzinfo=UTC)
        content = parquet_file(pa.table({"at": pa.array([noon])}), use_deprecated_int96_timestamps=True)

        how = Parquet(pa.schema([("at", pa.timestamp("us", tz="UTC"))]), [])
        assert rows(how, content) == [{"at": noon}]

    @pytest.mark.parametrize(
        ("values", "says"),
        [
            (pa.array(["1"]), "column id is string, and must be int64"),
            (pa.array([1.5]), "column id is double, and must be int64"),
            (pa.array([2**63], pa.uint64()), "column id, of uint64, has a value that int64 cannot hold"),
        ],
    )
    def test_a_value_that_would_change_is_refused(self, values: pa.Array, says: str) -> None:
        assert fault(Parquet(ID_NAME, []), parquet_file(pa.table({"id": values}))) == says

    @pytest.mark.parametrize(
        ("values", "wanted"),
        [
            (pa.array([0.1]), pa.float32()),
            (pa.array([[1e300]]), pa.list_(pa.float32())),
            (pa.array([[0.125]]), pa.list_(pa.decimal128(10, 2))),
            (pa.array([{"at": datetime(2026, 1, 1, 12)}]), pa.struct([("at", pa.date32())])),  # noqa: DTZ001
            (pa.array([{"many": [5]}]), pa.struct([("many", pa.list_(pa.bool_()))])),
            (pa.array([["0x1f"]]), pa.list_(pa.int64())),
            (pa.array([[("a", 1.5)]], pa.map_(pa.string(), pa.float64())), pa.map_(pa.string(), pa.decimal128(10, 0))),
        ],
        ids=str,
    )
    def test_values_inside_of_a_value_do_not_change_either(self, values: pa.Array, wanted: pa.DataType) -> None:
        said = fault(Parquet(pa.schema([("it", wanted)]), []), parquet_file(pa.table({"it": values})))

        assert said.startswith("column it is ")
        assert said.endswith(f", and must be {wanted}")

    @pytest.mark.parametrize(
        ("values", "wanted", "stored"),
        [
            (pa.array([1, 99999999]), pa.decimal128(10, 2), [Decimal(1), Decimal(99999999)]),
            (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0), [Decimal(2**64 - 1)]),
            (pa.nulls(2), pa.string(), [None, None]),
            (pa.nulls(1), pa.struct([("x", pa.int64())]), [None]),
            (pa.array([[None]]), pa.list_(pa.int64()), [[None]]),
            (pa.array([0.1], pa.float32()), pa.float64(), [0.10000000149011612]),
        ],
        ids=str,
    )
    def test_values_that_lose_nothing_are_converted(
        self, values: pa.Array, wanted: pa.DataType, stored: list[Any]
    ) -> None:
        found = rows(Parquet(pa.schema([("it", wanted)]), []), parquet_file(pa.table({"it": values})))

        assert [row["it"] for row in found] == stored

    @pytest.mark.parametrize(
        ("table", "says"),
        [
            (pa.table({"name": ["a"]}), "the file has no column id, which is required"),
            (pa.table({"other": ["a"]}), "the file has none of the schema's columns"),
            (pa.table([[1], [2]], names=["id", "id"]), "the file names the column id twice"),
        ],
    )
    def test_a_file_of_other_columns_is_refused(self, table: pa.Table, says: str) -> None:
        assert fault(Parquet(ID_NAME, ["id"]), parquet_file(table)) == says

    def test_a_file_of_another_format_or_a_damaged_one_is_refused(self) -> None:
        whole = parquet_file(pa.table({"id": list(range(1000))}), compression="snappy", use_dictionary=False)

        assert fault(Parquet(ID_NAME, []), b"secret") == "not Parquet, or damaged"
        assert fault(Parquet(ID_NAME, []), whole[:-20]) == "not Parquet, or damaged"
        assert fault(Parquet(ID_NAME, []), whole[:40] + b"\xff" * 200 + whole[240:]) == "not Parquet, or damaged"

    def test_a_file_without_rows_has_no_record(self) -> None:
        assert rows(Parquet(ID_NAME, []), parquet_file(ID_NAME.empty_table())) == []


def test_a_disk_that_is_full_is_not_the_fault_of_the_object() -> None:
    class Full(io.BytesIO):
        def read(self, _size: int | None = -1) -> bytes:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        list(JsonLines().rows(Full(), "a.jsonl.gz", allowance()))


class TestJsonDocument:
    def test_the_objects_of_an_array_are_records_whatever_the_lines(self) -> None:
        found = rows(JsonDocument(), b' [\n {"id": 1,\n "price": 1.10},\n{"id": 2, "deep": [{}]}\n]\n')

        # Numbers stay as they were written: a DECIMAL has all of their digits.
        assert [row[contents.LINE] for row in found] == ['{"id": 1,\n "price": 1.10}', '{"id": 2, "deep": [{}]}']

    def test_one_object_is_one_record(self) -> None:
        assert [row[contents.LINE] for row in rows(JsonDocument(), b'{"id":\n1}')] == ['{"id":\n1}']

    def test_compressed_by_its_name(self) -> None:
        assert len(rows(JsonDocument(), gzip.compress(b"[{}, {}]"), "file.json.gz")) == 2

    @pytest.mark.parametrize("content", [b"", b" \n", b"[]"])
    def test_nothing_in_it(self, content: bytes) -> None:
        assert rows(JsonDocument(), content) == []

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b'[{"id": 1}, "secret"]', "record 2: not a JSON object, but a string"),
            (b"[[]]", "record 1: not a JSON object, but an array"),
            (b"[{}, {}, true]", "record 3: not a JSON object, but true or false"),
            (b"[null]", "record 1: not a JSON object, but null"),
            (b"[1e400]", "record 1: not a JSON object, but a number"),
            (b'[{"secret": 1, "secret": 2}]', "record 1: not valid JSON: a name stands twice"),
            (b'[{"id": 1}] [secret]', "the array does not end, or has something else in it"),
            (b'[{"id": 1}', "the array does not end"),
            (b'{"id": 1}\n{"secret": 2}', "record 1: not valid JSON: trailing"),
            (b'[{"a": "\xff"}]', "not valid JSON"),
        ],
    )
    def test_a_wrong_value_is_not_quoted(self, content: bytes, says: str) -> None:
        said = fault(JsonDocument(), content)

        assert says in said
        assert "secret" not in said

    def test_a_document_that_would_fill_the_memory_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contents, "LONGEST_DOCUMENT_BYTES", 10)

        assert "write one object a line" in fault(JsonDocument(), b'[{"id": 123456}]')
