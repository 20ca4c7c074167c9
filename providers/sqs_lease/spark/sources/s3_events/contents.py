"""Makes rows of the contents of objects: JSON lines, CSV and Parquet, a record batch at a time. Without S3 and Spark.

Each format has the Arrow schema of the rows it gives, and gives them for one open file. What is wrong with a file is
found when the rows are taken; no text of an error quotes it.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final, Protocol

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.csv as pa_csv  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from sqs_lease.batch_files.json_syntax import NotJsonError, decode_object

LINE: Final = "_sqs_lease_line"
"""The one column of JSON lines."""

LONGEST_LINE_BYTES: Final = 16 * 1024 * 1024
"""Of one JSON line. The rows of a CSV file are limited by its blocks."""

_BLOCK_BYTES = 4 * 1024 * 1024
_BATCH_ROWS = 10_000
_GZIP_SUFFIX = ".gz"
# What Python puts in place of bytes that are not UTF-8.
_NOT_UTF_8 = "\ufffd"

# What pyarrow says of a value and of a row, of which only the places are repeated.
_BAD_VALUE = re.compile(r"In CSV column #(\d+): (?:Row #(\d+): )?")
_BAD_ROW = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
_HAS_ZONE = r"\d:\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"


class BadContentError(ValueError):
    """An object that is not of its format, or not of the schema; the text says where, without quoting it."""


class Format(Protocol):
    """A format of files."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""

    def rows(self, file: IO[bytes], name: str) -> Iterator[pa.RecordBatch]:
        """Read a file from its start.

        Args:
            file: A file that can seek.
            name: Its name, whose suffix tells of compression.

        Raises:
            BadContentError: The file is not of this format, or not of the schema.
        """


@dataclass(frozen=True)
class JsonLines:
    """One JSON object a line, checked for syntax; blank lines are skipped."""

    @property
    def schema(self) -> pa.Schema:
        """The line's text."""
        return pa.schema([pa.field(LINE, pa.string())])

    def rows(self, file: IO[bytes], name: str) -> Iterator[pa.RecordBatch]:
        """See :class:`Format`."""
        with _decompressed(file, name) as lines:
            texts: list[bytes] = []
            size = number = 0
            while line := lines.readline(LONGEST_LINE_BYTES + 1):
                number += 1
                if len(line) > LONGEST_LINE_BYTES:
                    raise BadContentError(f"line {number} is longer than {LONGEST_LINE_BYTES} bytes")
                text = line.strip(b" \t\r\n")
                if not text:
                    continue
                try:
                    decode_object(text)
                except NotJsonError as error:
                    raise BadContentError(f"line {number}: {error}") from None
                texts.append(text)
                size += len(text)
                if size >= _BLOCK_BYTES or len(texts) >= _BATCH_ROWS:
                    yield self._batch(texts)
                    texts, size = [], 0
            if texts:
                yield self._batch(texts)

    def _batch(self, texts: list[bytes]) -> pa.RecordBatch:
        # Checked as UTF-8 with the syntax.
        return pa.RecordBatch.from_arrays([pa.array(texts, pa.binary()).cast(pa.string())], schema=self.schema)


@dataclass(frozen=True)
class Csv:
    """Comma-separated values in UTF-8, with a header that names the columns.

    An empty value is null, in a column of strings only where it stands without quotes. A timestamp without a zone is
    in UTC.

    Attributes:
        schema: The columns; further ones of the file are ignored, and those that it has not are null.
        required: Those that the file must have.
        delimiter: What stands between values.
    """

    schema: pa.Schema
    required: Sequence[str]
    delimiter: str = ","

    def rows(self, file: IO[bytes], name: str) -> Iterator[pa.RecordBatch]:
        """See :class:`Format`."""
        header = self._header(file, name)
        if not header:
            return
        _check_columns(header, self.schema, self.required, "header")
        file.seek(0)
        with _decompressed(file, name) as content:
            try:
                for batch in self._reader(content):
                    yield self._finished(batch)
            except pa.ArrowInvalid as error:
                raise BadContentError(_csv_fault(str(error), header)) from None

    def _header(self, file: IO[bytes], name: str) -> list[str]:
        with _decompressed(file, name) as content:
            # What follows the header is decoded in part, and is not looked at.
            text = io.TextIOWrapper(io.BufferedReader(_Raw(content)), "utf-8-sig", errors="replace", newline="")
            try:
                header = next((row for row in csv.reader(text, delimiter=self.delimiter) if row), [])
            except csv.Error:
                header = [_NOT_UTF_8]
        if any(_NOT_UTF_8 in column for column in header):
            raise BadContentError("the header is not CSV in UTF-8")
        return header

    def _reader(self, content: IO[bytes]) -> Any:
        # Timestamps are read as text first: pyarrow takes them either all with a zone, or all without.
        types = {field.name: pa.string() if _is_zoned(field.type) else field.type for field in self.schema}
        return pa_csv.open_csv(
            pa.PythonFile(content, mode="r"),
            read_options=pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            parse_options=pa_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                column_types=types,
                include_columns=self.schema.names,
                include_missing_columns=True,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def _finished(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field in self.schema:
            values = batch.column(field.name)
            if _is_zoned(field.type):
                values = _in_utc(values, field.name)
            elif pa.types.is_floating(field.type) and not pc.all(pc.is_finite(values), min_count=0).as_py():
                raise BadContentError(f"column {field.name} has a number that is infinite or NaN")
            columns.append(values)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True)
class Parquet:
    """Parquet files. They are matched by the names of their columns, and converted where nothing is lost.

    Attributes:
        schema: The columns; further ones of the file are ignored, and those that it has not are null.
        required: Those that the file must have.
    """

    schema: pa.Schema
    required: Sequence[str]

    def rows(self, file: IO[bytes], name: str) -> Iterator[pa.RecordBatch]:  # noqa: D102 - as everywhere
        with _faults_named("Parquet"):
            content = pq.ParquetFile(pa.PythonFile(file, mode="r"), coerce_int96_timestamp_unit="us", pre_buffer=False)
            found = content.schema_arrow.names
        _check_columns(found, self.schema, self.required, "file")
        wanted = [field.name for field in self.schema if field.name in found]
        with _faults_named("Parquet"):
            for batch in content.iter_batches(_BATCH_ROWS, columns=wanted, use_threads=False):
                yield self._converted(batch)

    def _converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field in self.schema:
            if field.name not in batch.schema.names:
                columns.append(pa.nulls(batch.num_rows, field.type))
                continue
            values = batch.column(field.name)
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            if _kind(values.type) not in _FITTING.get(_kind(field.type), {_kind(field.type)}):
                raise BadContentError(f"column {field.name} is {values.type}, and must be {field.type}")
            try:
                columns.append(values.cast(field.type))
            except pa.ArrowException:
                raise BadContentError(
                    f"column {field.name}, of {values.type}, has a value that {field.type} cannot hold"
                ) from None
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class _Raw(io.RawIOBase):
    """Lends a file to a wrapper that closes what it wraps."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read = self._file.read(len(buffer))
        buffer[: len(read)] = read
        return len(read)


@contextmanager
def _decompressed(file: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    file.seek(0)
    if not name.endswith(_GZIP_SUFFIX):
        yield file
        return
    with _faults_named("gzip"), gzip.GzipFile(fileobj=file, mode="rb") as content:
        # For the types, a GzipFile is no IO[bytes].
        yield content  # type: ignore[misc]


@contextmanager
def _faults_named(what: str) -> Iterator[None]:
    """Tell what is wrong with the bytes from what is wrong with the disk that they are on."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise BadContentError(f"not {what}, or cut off") from None
    except pa.ArrowInvalid:
        raise BadContentError(f"not {what}, or damaged") from None
    except OSError as error:
        # pyarrow's own errors have no number.
        if error.errno is not None:
            raise
        raise BadContentError(f"not {what}, or damaged") from None


def _check_columns(found: Sequence[str], schema: pa.Schema, required: Sequence[str], where: str) -> None:
    twice = [name for name in schema.names if found.count(name) > 1]
    if twice:
        raise BadContentError(f"the {where} names the column {twice[0]} twice")
    if not set(found) & set(schema.names):
        raise BadContentError(f"the {where} has none of the schema's columns")
    absent = [name for name in required if name not in found]
    if absent:
        raise BadContentError(f"the {where} has no column {', '.join(absent)}, which is required")


def _csv_fault(said: str, header: Sequence[str]) -> str:
    if match := _BAD_VALUE.search(said):
        row = f"row {match[2]}: " if match[2] else ""
        return f"{row}column {header[int(match[1])]} is not of the type in the schema"
    if match := _BAD_ROW.search(said):
        row = f"row {match[1]}" if match[1] else "a row"
        return f"{row} has {match[3]} values, and the header {match[2]}"
    if "straddl" in said:
        return f"a row is longer than {_BLOCK_BYTES} bytes, or has a quote that does not end"
    return "not CSV"


def _is_zoned(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def _in_utc(texts: pa.Array, name: str) -> pa.Array:
    zoned = pc.match_substring_regex(texts, _HAS_ZONE)
    complete = pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", ""))
    try:
        return complete.cast(pa.timestamp("us", tz="UTC"))
    except pa.ArrowInvalid:
        raise BadContentError(f"column {name} is not of the type in the schema") from None


def _kind(kind: pa.DataType) -> str:
    """What sort of values a type has: within one sort, conversions lose nothing or fail."""
    sorts = {
        "integer": pa.types.is_integer,
        "fraction": pa.types.is_floating,
        "decimal": pa.types.is_decimal,
        "text": lambda it: pa.types.is_string(it) or pa.types.is_large_string(it) or pa.types.is_string_view(it),
        "bytes": lambda it: pa.types.is_binary(it) or pa.types.is_large_binary(it) or pa.types.is_fixed_size_binary(it),
        "timestamp": pa.types.is_timestamp,
        "date": pa.types.is_date,
        "list": lambda it: pa.types.is_list(it) or pa.types.is_large_list(it) or pa.types.is_fixed_size_list(it),
        "map": pa.types.is_map,
        "struct": pa.types.is_struct,
    }
    return next((name for name, test in sorts.items() if test(kind)), str(kind))


_FITTING: Final = {"fraction": {"fraction", "integer"}, "decimal": {"decimal", "integer"}}
