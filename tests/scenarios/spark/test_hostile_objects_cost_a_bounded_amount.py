"""Objects that a stranger made to cost much cost a bounded amount of memory, disk and time, and no other message.

The tests count: bytes that Arrow allocates, bytes that are decompressed, rows, bytes of temporary files.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from sqs_lease.spark import batch_file
from sqs_lease.spark.columns import MESSAGE_ID, REASON
from sqs_lease.spark.sources.s3_events import S3EventsSource, S3Read, allowance, contents, parquet_pages
from sqs_lease.spark.sources.s3_events.allowance import OverAllowanceError, Spool, SpooledFile, SpoolFullError
from sqs_lease.spark.sources.s3_events.contents import BadContentError, Csv, Format, JsonDocument, JsonLines
from sqs_lease.spark.sources.s3_events.object_rows import ObjectRows
from sqs_lease.spark.sources.s3_events.object_store import ObjectStore
from sqs_lease.spark.sources.s3_events.parquet import Parquet
from tests.form import FULL_FORM
from tests.spark.sources.allowances import MIB
from tests.spark.sources.allowances import allowance as ample
from tests.spark.sources.s3_messages import direct, record

SEEDS = 2_000 if FULL_FORM else 40
TEXT = pa.schema([("text", pa.string())])
LISTS = pa.schema([("list", pa.list_(pa.string()))])


def parquet(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def repeated(text: str, times: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array([0] * times, pa.int32()), pa.array([text]))


# Arrow's buffers outlive the blocks below, and a pool has to outlive its buffers.
POOLS: list[Any] = []


@contextmanager
def arrow_memory() -> Iterator[Callable[[], int]]:
    """Count what Arrow allocates within the block: the most at one time."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool.max_memory
    finally:
        pa.set_memory_pool(before)


def read(how: Format, written: bytes, name: str = "file", **limits: Any) -> tuple[int, str]:
    """The rows of a file, and why no more of it was read."""
    rows = 0
    its = ample(**limits)
    try:
        for batch in how.rows(io.BytesIO(written), name, its):
            its.take_rows(batch.num_rows)
            rows += batch.num_rows
    except (BadContentError, OverAllowanceError) as error:
        return rows, str(error)
    return rows, ""


class TestParquet:
    def test_a_text_that_is_named_ten_thousand_times_is_never_in_memory_as_often(self) -> None:
        content = parquet(pa.table({"text": repeated("x" * 80_000, 10_000)}))
        assert len(content) < 200_000

        with arrow_memory() as most:
            rows, reason = read(Parquet(TEXT, []), content)

        assert (rows, reason) == (10_000, "")
        assert most() < 4 * parquet_pages.BATCH_BYTES

    def test_the_content_is_limited_whatever_the_object_says_of_itself(self) -> None:
        content = parquet(pa.table({"text": repeated("x" * 80_000, 10_000)}))

        _, reason = read(Parquet(TEXT, []), content, content=100 * MIB)

        assert reason == (
            f"the message's objects have more than {100 * MIB} bytes after decompression (max_content_bytes)"
        )

    @pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
    def test_long_texts_are_few_at_a_time_in_every_encoding(self, encoding: str) -> None:
        table = pa.table({"text": pa.array(["x" * 1_000_000] * 300)})
        options = {"use_dictionary": False, "column_encoding": {"text": encoding}, "compression": "zstd"}
        content = parquet(table, write_batch_size=1, data_page_size=MIB, **options)

        with arrow_memory() as most:
            rows, reason = read(Parquet(TEXT, []), content)

        assert (rows, reason) == (300, "")
        assert most() < 4 * parquet_pages.BATCH_BYTES

    def test_a_list_that_stands_for_terabytes_is_refused_before_it_is_decoded(self) -> None:
        texts = repeated("x" * 80_000, 1_000_000)
        content = parquet(pa.table({"list": pa.ListArray.from_arrays([0, len(texts)], texts)}))
        assert len(content) < 400_000

        with arrow_memory() as most:
            rows, reason = read(Parquet(LISTS, []), content)

        assert rows == 0
        assert "takes more than" in reason
        assert "row group 1" in reason
        assert most() < 64 * MIB

    @pytest.mark.parametrize("size", [100_000, 10_000_000, 2_000_000_000])
    def test_nulls_that_stand_for_lists_of_a_fixed_size_are_few_at_a_time_or_refused(self, size: int) -> None:
        fixed = pa.list_(pa.int64(), size)
        lists = pa.schema([("list", pa.list_(pa.int64()))])
        # As a file of one that is empty says it: nothing here has as many values.
        content = parquet(pa.table({"list": pa.array([None] * 1_000, pa.list_(pa.int64()))}), store_schema=False)
        content = with_arrow_schema(content, pa.schema([("list", fixed)]))
        assert len(content) < 2_000

        with arrow_memory() as most:
            rows, reason = read(Parquet(lists, []), content, content=100 * MIB)

        assert (rows, reason[:40]) != (1_000, "")
        assert most() < 4 * parquet_pages.BATCH_BYTES

    def test_vectors_of_a_fixed_size_are_read(self) -> None:
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(range(1536 * 5_000), pa.float64()), 1536)
        wanted = pa.schema([("list", pa.list_(pa.float64()))])

        assert read(Parquet(wanted, []), parquet(pa.table({"list": vectors}))) == (5_000, "")

    def test_a_page_that_is_huge_once_it_is_decompressed_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parquet_pages, "MEMORY_BYTES", 32 * MIB)
        table = pa.table({"text": pa.array(["x" * (33 * MIB)])})
        content = parquet(table, compression="zstd", use_dictionary=False, write_statistics=False)
        assert len(content) < MIB
        del table

        with arrow_memory() as most:
            rows, reason = read(Parquet(TEXT, []), content)

        assert (rows, "takes more than" in reason) == (0, True)
        assert most() < 8 * MIB

    @pytest.mark.parametrize("codec", ["snappy", "gzip", "brotli", "zstd", "lz4", "none"])
    def test_ordinary_dictionaries_are_read_in_large_steps(self, codec: str) -> None:
        names = pa.array([f"customer {number:080d}" for number in range(10_000)])
        table = pa.table({f"c{column}": names.take(pa.array(range(10_000))) for column in range(20)})
        wanted = pa.schema([(name, pa.string()) for name in table.schema.names])

        sizes = [
            batch.num_rows
            for batch in Parquet(wanted, []).rows(io.BytesIO(parquet(table, compression=codec)), "", ample())
        ]

        assert sizes == [10_000]

    def test_a_file_of_too_many_columns_is_refused(self) -> None:
        table = pa.table({f"c{number}": [number] for number in range(parquet_pages.MOST_COLUMNS + 1)})

        assert read(Parquet(pa.schema([("c1", pa.int64())]), []), parquet(table)) == (0, "not Parquet, or damaged")

    def test_a_footer_that_would_fill_the_memory_is_not_read(self) -> None:
        content = b"PAR1" + bytes(100) + struct.pack("<I", 1 << 30) + b"PAR1"

        assert read(Parquet(TEXT, []), content) == (0, "the file's footer is longer than 8388608 bytes")

    def test_the_deepest_schema_that_is_read_does_not_end_the_process(self) -> None:
        # In a process of its own: what would end is this one.
        program = "\n".join(
            [
                "import io, sys",
                "from sqs_lease.spark.sources.s3_events.parquet import Parquet",
                f"from {__name__} import TEXT, nested_parquet, read",
                "print(read(Parquet(TEXT, []), nested_parquet(int(sys.argv[1]))))",
            ]
        )
        for depth in (10, parquet_pages.MOST_COLUMNS - 10):
            done = subprocess.run(
                [sys.executable, "-c", program, str(depth)], capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stderr[-500:]) == (0, ""), depth


def with_arrow_schema(content: bytes, schema: pa.Schema) -> bytes:
    """The file, whose footer says that Arrow is to make another schema of it."""
    file = io.BytesIO()
    table = pq.read_table(io.BytesIO(content))
    said = base64.b64encode(schema.serialize().to_pybytes())
    with pq.ParquetWriter(file, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"ARROW:schema": said})
    return file.getvalue()


def nested_parquet(depth: int) -> bytes:
    """A file without rows, whose one column is so deep."""

    def varint(number: int) -> bytes:
        out = b""
        while number > 0x7F:
            out += bytes([number & 0x7F | 0x80])
            number >>= 7
        return out + bytes([number])

    def text(value: str) -> bytes:
        return varint(len(value)) + value.encode()

    # SchemaElement: 3 repetition (optional), 4 name, 5 number of children; a leaf has 1 type (INT64).
    group = b"\x35\x02\x18" + text("g") + b"\x15\x02\x00"
    root = b"\x48" + text("root") + b"\x15\x02\x00"
    leaf = b"\x15\x04\x25\x02\x18" + text("leaf") + b"\x00"
    elements = depth + 2
    # FileMetaData: 1 version, 2 schema, 3 rows, 4 row groups.
    footer = b"\x15\x02\x19\xfc" + varint(elements) + root + group * depth + leaf + b"\x16\x00\x19\x0c\x00"
    return b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"


class TestText:
    def test_a_bomb_of_gzip_is_decompressed_no_further_than_it_may(self) -> None:
        content = gzip.compress(b"\n" * (64 * MIB))
        assert len(content) < 128_000

        assert read(JsonLines(), content, "a.gz", content=MIB) == (
            0,
            "the message's objects have more than 1048576 bytes after decompression (max_content_bytes)",
        )

    def test_records_without_end_are_refused(self) -> None:
        rows, reason = read(JsonLines(), gzip.compress(b'{"a":1}\n' * 300_000), "a.gz", rows=100_000)

        assert (rows, reason) == (100_000, "the message's objects have more than 100000 rows (max_rows)")

    def test_an_array_of_anything_but_objects_ends_at_its_first_element(self) -> None:
        assert read(JsonDocument(), b"[" + b"1," * 1_000_000 + b"1]") == (
            0,
            "record 1: not a JSON object, but a number",
        )

    def test_a_document_of_millions_of_objects_is_refused_before_it_is_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(contents, "MOST_OBJECTS", 10)

        assert read(JsonDocument(), b"[" + b"{}," * 10 + b"{}]") == (
            0,
            "more than 10 objects: write one object a line, as jsonl",
        )

    def test_one_record_of_a_document_is_no_longer_than_a_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contents, "LONGEST_LINE_BYTES", 100)

        assert read(JsonDocument(), b'[{"a": "' + b"x" * 200 + b'"}]') == (0, "record 1 is longer than 100 bytes")

    def test_a_header_has_an_end_and_so_many_columns(self) -> None:
        how = Csv(pa.schema([("id", pa.int64())]), ["id"])

        assert read(how, b"id" + b"," * 20_000_000)[1] == "the header does not end within 4194304 bytes"
        assert read(how, b"id," + b"," * 10_000 + b"\n1")[1] == "the header names more than 10000 columns"

    def test_columns_that_a_file_lacks_are_added_to_some_rows_at_a_time(self) -> None:
        wide = pa.schema([("id", pa.int64()), *((f"c{number}", pa.string()) for number in range(500))])
        content = b"id\n" + b"1\n" * 500_000

        with arrow_memory() as most:
            assert read(Csv(wide, []), content) == (500_000, "")

        # All columns for one block at once would be a gigabyte.
        assert most() < 128 * MIB


def test_the_time_is_looked_at_while_something_is_read() -> None:
    ticks = iter(range(1_000_000))

    rows, reason = read(JsonLines(), b'{"a":1}\n' * 200_000, seconds=5, clock=lambda: float(next(ticks)))

    assert rows < 200_000
    assert reason == "the message's objects take longer than 5 s to read (max_seconds)"


class TestSpool:
    def test_room_is_taken_before_a_write_and_given_back_at_the_end(self) -> None:
        spool = Spool(100)
        with SpooledFile(ample(spool=spool)) as first, SpooledFile(ample(spool=spool)) as second:
            first.write(b"x" * 60)
            with pytest.raises(SpoolFullError):
                second.write(b"x" * 41)
            second.write(b"x" * 40)
            assert spool.used == 100
            first.empty()
            assert spool.used == 40
        assert spool.used == 0

    def test_one_message_may_fill_it_and_no_more(self) -> None:
        with SpooledFile(ample(spool=Spool(100))) as file:
            file.write(b"x" * 100)
            with pytest.raises(OverAllowanceError, match="need more than 100 bytes of temporary files"):
                file.write(b"x")


class Objects:
    """In place of a client of S3: objects by key. It counts what is sent."""

    def __init__(self, **objects: bytes) -> None:
        self.objects = objects
        self.sent = 0

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803 - as boto3 has them
        outer = self

        class Body(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                part = super().read(size)
                outer.sent += len(part)
                return part

        return {"Body": Body(self.objects[Key]), "ContentLength": len(self.objects[Key])}


def of_messages(
    client: Objects, how: Format, reading: S3Read, keys: dict[str, list[str]]
) -> dict[str, tuple[int, str]]:
    """Rows and reasons of messages that tell of objects, by message id."""
    store = ObjectStore(4)
    store.__dict__["client"] = client
    messages = pa.record_batch(
        {
            batch_file.MESSAGE_ID: pa.array(keys, pa.string()),
            batch_file.SENT_AT: pa.array([datetime(2026, 1, 2, tzinfo=UTC)] * len(keys), pa.timestamp("us", tz="UTC")),
            batch_file.BODY: pa.array(
                [direct(*(record("data", key) for key in its)) for its in keys.values()], pa.string()
            ),
        }
    )
    found: dict[str, tuple[int, str]] = {}
    for batch in ObjectRows(store, how, reading=reading)(iter([messages])):
        for row in batch.select([MESSAGE_ID, REASON]).to_pylist():
            rows, _ = found.get(row[MESSAGE_ID], (0, ""))
            found[row[MESSAGE_ID]] = (rows, row[REASON]) if row[REASON] else (rows + 1, "")
    return found


class TestMessages:
    def test_a_bomb_is_rejected_by_name_and_the_others_go_on(self) -> None:
        objects = Objects(
            **{f"good{number}.gz": gzip.compress(b'{"a":1}\n') for number in range(20)},
            **{"bomb.gz": gzip.compress(b'{"a":1}\n' * 1_000_000)},
        )
        keys = {name.removesuffix(".gz"): [name] for name in objects.objects}

        found = of_messages(objects, JsonLines(), S3Read(max_content_bytes=MIB), keys)

        assert found.pop("bomb") == (
            0,
            "s3://data/bomb.gz: the message's objects have more than 1048576 bytes after decompression "
            "(max_content_bytes)",
        )
        assert found == {f"good{number}": (1, "") for number in range(20)}

    def test_a_large_object_is_refused_before_a_byte_of_it_comes(self) -> None:
        objects = Objects(large=b"x" * 1000)

        found = of_messages(objects, JsonLines(), S3Read(max_bytes=999), {"m": ["large"]})

        assert found == {"m": (0, "s3://data/large: the message's objects have more than 999 bytes (max_bytes)")}
        assert objects.sent == 0

    def test_many_objects_of_one_message_have_the_limits_of_one_message(self) -> None:
        objects = Objects(**{f"o{number}": b'{"a":1}\n' * 100 for number in range(100)})

        found = of_messages(objects, JsonLines(), S3Read(max_bytes=10_000), {"m": list(objects.objects)})

        assert "s3://data/o12: the message's objects have more than 10000 bytes" in found["m"][1]
        assert objects.sent == 9_600

    def test_a_message_without_room_beside_others_is_read_alone(self) -> None:
        objects = Objects(**{f"o{number}": b'{"a":1}\n' * 20_000 for number in range(12)})

        found = of_messages(objects, JsonLines(), S3Read(spool_bytes=3 * MIB), {key: [key] for key in objects.objects})

        assert found == dict.fromkeys(objects.objects, (20000, ""))

    def test_one_that_has_no_room_alone_is_rejected(self) -> None:
        objects = Objects(small=b'{"a":1}\n', large=b'{"a":1}\n' * 100_000)

        found = of_messages(objects, JsonLines(), S3Read(spool_bytes=MIB), {"large": ["large"], "small": ["small"]})

        assert found["small"] == (1, "")
        assert "need more than 1048576 bytes of temporary files (spool_bytes)" in found["large"][1]

    def test_temporary_files_never_take_more_than_the_spool(self, monkeypatch: pytest.MonkeyPatch) -> None:
        most = 0
        take = Spool.take

        def noting(spool: Spool, size: int) -> None:
            nonlocal most
            take(spool, size)
            most = max(most, spool.used)

        monkeypatch.setattr(Spool, "take", noting)
        objects = Objects(**{f"o{number}.gz": gzip.compress(b'{"a":1}\n' * 100_000) for number in range(6)})

        found = of_messages(objects, JsonLines(), S3Read(spool_bytes=2 * MIB), {key: [key] for key in objects.objects})

        assert all(rows == 0 and "spool_bytes" in reason for rows, reason in found.values())
        assert MIB < most <= 2 * MIB


@pytest.mark.parametrize("name", ["max_bytes", "max_content_bytes", "max_rows", "max_seconds", "spool_bytes"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be more than 0"):
        S3EventsSource("csv", "id INT", read={name: 0})


def hostile(random: Random) -> tuple[Format, bytes, str]:
    """A small file that stands for much, of one of the formats."""
    size = random.choice((1, 100, 10_000, 1_000_000))
    times = random.choice((1, 100, 20_000))
    match random.randrange(8):
        case 0:
            return JsonLines(), gzip.compress(random.choice((b"\n", b" ", b"{}\n", b'{"a":[]}\n')) * size), "a.gz"
        case 1:
            return JsonLines(), b'{"a":' + b"[" * times + b"]" * times + b"}", "a"
        case 2:
            names = json.dumps({f"n{number}": {} for number in range(times)}).encode()
            return JsonDocument(), b"[" + names + b"]", "a"
        case 3:
            return JsonDocument(), b"[" + random.choice((b"{}", b"1", b"[]", b'""')) + b",{}" * times + b"]", "a"
        case 4:
            wide = pa.schema([(f"c{number}", pa.string()) for number in range(200)])
            return Csv(wide, []), gzip.compress(b"c0\n" + random.choice((b"1\n", b"\n", b'""\n')) * size), "a.gz"
        case 5:
            table = pa.table({"text": repeated("x" * min(size, 100_000), times)})
            codec = random.choice(("none", "snappy", "zstd", "gzip"))
            return Parquet(TEXT, []), parquet(table, compression=codec), "a"
        case 6:
            texts = repeated("x" * min(size, 100_000), times)
            offsets = sorted(random.choices(range(times + 1), k=3))
            lists = pa.ListArray.from_arrays([0, *offsets, times], texts)
            return Parquet(LISTS, []), parquet(pa.table({"list": lists}), row_group_size=random.choice((1, 100))), "a"
    texts = pa.array(["x" * random.choice((0, min(size, 100_000))) for _ in range(min(times, 200))])
    options = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}
    return Parquet(TEXT, []), parquet(pa.table({"text": texts}), **options), "a"


class Counting(allowance.Allowance):
    """An allowance that says how much was taken of it."""

    content = rows = 0

    def decompress(self, size: int) -> None:
        self.content += size
        super().decompress(size)

    def take_rows(self, count: int) -> None:
        super().take_rows(count)
        self.rows += count


def test_hostile_files_cost_a_bounded_amount() -> None:
    content_limit, row_limit = 32 * MIB, 100_000
    for seed in range(SEEDS):
        how, content, name = hostile(Random(seed))
        its = Counting(
            fetched=MIB, content=content_limit, rows=row_limit, seconds=600, spool=Spool(MIB), clock=lambda: 0.0
        )
        with arrow_memory() as most:
            try:
                for batch in how.rows(io.BytesIO(content), name, its):
                    its.take_rows(batch.num_rows)
            except (BadContentError, OverAllowanceError):
                pass
        assert its.rows <= row_limit, f"seed {seed}"
        # The last step is counted, and then refused.
        assert its.content <= content_limit + 2 * parquet_pages.BATCH_BYTES, f"seed {seed}"
        assert most() <= 4 * parquet_pages.BATCH_BYTES, f"seed {seed}"


def test_pages_follow_one_another_as_arrow_finds_them() -> None:
    table = pa.table({"text": pa.array([f"text {number}" for number in range(50_000)])})
    for options in ({}, {"data_page_version": "2.0"}, {"use_dictionary": False}, {"data_page_size": 1000}):
        content = io.BytesIO(parquet(table, row_group_size=20_000, **options))
        metadata = pq.read_metadata(content)
        for group in range(metadata.num_row_groups):
            chunk = metadata.row_group(group).column(0)
            pages = list(parquet_pages._pages(content, chunk))
            assert sum(page.values for page in pages if page.kind != 2) == chunk.num_values
            assert all(one.content_at + one.compressed < other.content_at for one, other in pairwise(pages))
            assert pages[-1].content_at + pages[-1].compressed <= metadata.row_group(group).column(
                0
            ).total_compressed_size + min(page.content_at for page in pages)


@pytest.mark.parametrize("rest", [bytes(200_000), gzip.compress(b"") * 2_000], ids=["zeros", "empty members"])
def test_time_passes_also_in_a_gzip_file_that_gives_no_more_content(rest: bytes) -> None:
    clock = iter(range(10**9))

    found = read(JsonLines(), gzip.compress(b'{"a":1}\n') + rest, "a.gz", seconds=100, clock=lambda: next(clock))

    assert "longer than 100 s to read (max_seconds)" in found[1]


def test_nulls_that_stand_for_tensors_are_few_at_a_time_or_refused() -> None:
    """An extension type hides the fixed size of its storage; with 100 000 in place of 20 000 it took 4 GB."""
    content = parquet(pa.table({"text": pa.array([None] * 10_000, pa.list_(pa.int8()))}), store_schema=False)
    content = with_arrow_schema(content, pa.schema([("text", pa.fixed_shape_tensor(pa.int8(), (20_000,)))]))
    assert len(content) < 1_000

    with arrow_memory() as most:
        read(Parquet(TEXT, []), content)

    assert most() < 4 * parquet_pages.BATCH_BYTES


def test_a_page_without_compression_counts_with_the_bytes_that_it_has() -> None:
    """Its header may say that it has one byte, and Arrow holds all its bytes."""
    content = shared_page(leaves=80, page_bytes=8 * MIB, claimed=1)

    with arrow_memory() as most:
        rows, reason = read(Parquet(TEXT, []), content)

    assert (rows, "bytes of memory to decode" in reason) == (0, True)
    assert most() < 4 * parquet_pages.BATCH_BYTES


def test_vectors_as_pyarrow_writes_them_by_default_are_read() -> None:
    """A row group of 1 000 000 rows, pyarrow's default, with lists of 25 numbers: 200 MB decoded, a batch 2 MB."""
    thousand = pa.array(range(1_000))
    numbers = pa.concat_arrays([thousand] * 25_000)
    offsets = pa.array(range(0, 25_000_001, 25), pa.int32())
    table = pa.table({"list": pa.ListArray.from_arrays(offsets, numbers)})

    assert read(Parquet(pa.schema([("list", pa.list_(pa.int64()))]), []), parquet(table)) == (1_000_000, "")


def shared_page(*, leaves: int, page_bytes: int, claimed: int) -> bytes:
    """A file of one column ``text``, a structure of texts that share one page; its header says another size."""

    def varint(number: int) -> bytes:
        out = b""
        while number > 0x7F:
            out += bytes([number & 0x7F | 0x80])
            number >>= 7
        return out + bytes([number])

    def structure(*fields: tuple[int, int, bytes]) -> bytes:
        out, last = b"", 0
        for field, kind, value in fields:
            out += bytes([(field - last) << 4 | kind]) + value
            last = field
        return out + b"\0"

    def i32(field: int, number: int) -> tuple[int, int, bytes]:
        return field, 5, varint(number << 1)

    def i64(field: int, number: int) -> tuple[int, int, bytes]:
        return field, 6, varint(number << 1)

    def text(value: bytes) -> bytes:
        return varint(len(value)) + value

    def several(field: int, kind: int, items: list[bytes]) -> tuple[int, int, bytes]:
        return field, 9, bytes([0xF0 | kind]) + varint(len(items)) + b"".join(items)

    names = [b"l%d" % number for number in range(leaves)]
    page = struct.pack("<I", page_bytes - 4) + b"x" * (page_bytes - 4)
    header = structure(
        *(i32(1, 0), i32(2, claimed), i32(3, page_bytes)),
        (5, 12, structure(i32(1, 1), i32(2, 0), i32(3, 3), i32(4, 3))),
    )
    size = len(header) + page_bytes
    elements = [
        structure((4, 8, text(b"root")), i32(5, 1)),
        structure(i32(3, 0), (4, 8, text(b"text")), i32(5, leaves)),
        *(structure(i32(1, 6), i32(3, 0), (4, 8, text(name))) for name in names),
    ]
    chunks = [
        structure(
            i64(2, 4),
            (
                3,
                12,
                structure(
                    *(i32(1, 6), several(2, 5, [b"\0"]), several(3, 8, [text(b"text"), text(name)])),
                    *(i32(4, 0), i64(5, 1), i64(6, size), i64(7, size), i64(9, 4)),
                ),
            ),
        )
        for name in names
    ]
    group = structure(several(1, 12, chunks), i64(2, 100), i64(3, 1))
    footer = structure(i32(1, 2), several(2, 12, elements), i64(3, 1), several(4, 12, [group]))
    return b"PAR1" + header + page + footer + struct.pack("<I", len(footer)) + b"PAR1"
