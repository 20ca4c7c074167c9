"""Formats of the contents of objects: rows from JSON and CSV, a record batch at a time, without S3 and Spark.

A format has the Arrow schema of its rows, and yields the rows of one open file. Errors of a file are found while its
rows are taken; no error text quotes its content.

Avro, ORC and XML are missing on purpose, because the writer of an object chooses its size after decompression. fastavro
(1.13) decompresses each block as a whole, and fills a list with as many nulls as a count of a few bytes says; it has no
limit for either. pyarrow (26) reads a stripe of ORC as a whole, and some damaged files end the process. XML needs a
parser and a second set of rules for numbers and times, besides those of JSON.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final, Protocol

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.csv as pa_csv  # type: ignore[import-untyped]

from sqs_lease.spark.json_syntax import NotJsonError, decode_object
from sqs_lease.spark.sources.s3_events.allowance import Allowance, OverAllowanceError, SpoolFullError

LINE: Final = "_sqs_lease_line"
"""The one column of JSON lines."""

LONGEST_DOCUMENT_BYTES: Final = 64 * 1024 * 1024
"""The largest JSON document, because it is in memory as a whole."""

MOST_OBJECTS: Final = 1_000_000
"""The most objects in a JSON document, at every depth: in memory each takes many times its bytes."""

LONGEST_LINE_BYTES: Final = 16 * 1024 * 1024
"""The longest JSON record. The rows of a CSV file are limited by the size of a block."""

MOST_COLUMNS: Final = 10_000
"""The most columns of a CSV file."""

_BLOCK_BYTES = 4 * 1024 * 1024
_READ_BYTES = 128 * 1024
BATCH_ROWS: Final = 10_000
"""The most rows in a record batch of a format."""

_GZIP_SUFFIX = ".gz"
# The deepest nesting of JSON.
_DEEPEST = 200
# Python's replacement for bytes that are not UTF-8.
_NOT_UTF_8 = "\ufffd"

# Pyarrow's texts about a value and about a row. Only their positions are repeated, because the rest may quote content.
_BAD_VALUE = re.compile(r"In CSV column #(\d+): (?:Row #(\d+): )?")
_BAD_ROW = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
# Msgspec's text about an element that is not an object, with its position.
_ELEMENT = re.compile(r"^(?:Expected `object`, got `(?P<kind>\w+)`)?.*`\$\[(?P<place>\d+)\]`")
_KINDS = {"array": "an array", "str": "a string", "bool": "true or false", "null": "null"}
_HAS_ZONE = r"\d:\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"


class BadContentError(ValueError):
    """An object is not of its format, or not of the schema; the text says where, without quoting it."""


class Format(Protocol):
    """A format of files."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""

    def rows(self, file: IO[bytes], name: str, allowance: Allowance) -> Iterator[pa.RecordBatch]:
        """Read a file from its start.

        Args:
            file: A file that can seek.
            name: Its name, with the suffix for compression.
            allowance: The limits of the message, against which the content is counted while it is read.

        Raises:
            BadContentError: The file is not of this format, or not of the schema.
            OverAllowanceError: The message is over one of its limits.
        """


class _Texts(ABC):
    """Format with texts as rows; the check of their syntax has also checked that they are UTF-8."""

    @property
    def schema(self) -> pa.Schema:
        """The text of one record."""
        return pa.schema([pa.field(LINE, pa.string())])

    @abstractmethod
    def texts(self, content: IO[bytes]) -> Iterator[bytes]:
        """Yield the texts of a file's records."""

    def rows(self, file: IO[bytes], name: str, allowance: Allowance) -> Iterator[pa.RecordBatch]:
        """See :class:`Format`."""
        waiting: list[bytes] = []
        size = 0
        with decompressed(file, name, allowance) as content:
            for text in self.texts(content):
                waiting.append(text)
                size += len(text)
                if size >= _BLOCK_BYTES or len(waiting) >= BATCH_ROWS:
                    yield self._batch(waiting)
                    waiting, size = [], 0
        if waiting:
            yield self._batch(waiting)

    def _batch(self, texts: list[bytes]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(texts, pa.binary()).cast(pa.string())], schema=self.schema)


@dataclass(frozen=True)
class JsonLines(_Texts):
    """JSON lines: one object in each line, checked for syntax; blank lines are skipped."""

    def texts(self, content: IO[bytes]) -> Iterator[bytes]:
        """Yield the lines that are not blank."""
        number = 0
        while line := content.readline(LONGEST_LINE_BYTES + 1):
            number += 1
            if len(line) > LONGEST_LINE_BYTES:
                raise BadContentError(f"line {number} is longer than {LONGEST_LINE_BYTES} bytes")
            if text := line.strip(b" \t\r\n"):
                try:
                    decode_object(text)
                except NotJsonError as error:
                    raise BadContentError(f"line {number}: {error}") from None
                yield text


@dataclass(frozen=True)
class Csv:
    """Comma-separated values in UTF-8, with a header that names the columns.

    An empty value is null; in a column of strings only if it has no quotes. A timestamp without a zone is in UTC.

    Attributes:
        schema: The columns. Further columns of the file are ignored; columns that it lacks are null.
        required: The columns that the file must have.
        delimiter: The character between values.
    """

    schema: pa.Schema
    required: Sequence[str]
    delimiter: str = ","

    def rows(self, file: IO[bytes], name: str, allowance: Allowance) -> Iterator[pa.RecordBatch]:
        """See :class:`Format`."""
        header = self._header(file, name, allowance)
        if not header:
            return
        check_columns(header, self.schema, self.required, "header")
        with decompressed(file, name, allowance) as content:
            try:
                for block in self._reader(content, header):
                    # In slices: added columns could be many times the bytes of a block of short lines.
                    for start in range(0, block.num_rows, BATCH_ROWS):
                        yield self._finished(block.slice(start, BATCH_ROWS))
            except pa.ArrowInvalid as error:
                raise BadContentError(_csv_fault(str(error), header)) from None

    def _header(self, file: IO[bytes], name: str, allowance: Allowance) -> list[str]:
        with decompressed(file, name, allowance) as content:
            head = content.read(_BLOCK_BYTES)
        # The text after the header is decoded in part, and ignored.
        lines = io.TextIOWrapper(io.BytesIO(head), "utf-8-sig", errors="replace", newline="")
        is_cut = len(head) == _BLOCK_BYTES
        try:
            header = next((row for row in csv.reader(lines, delimiter=self.delimiter) if row), [])
        except csv.Error:
            header = [_NOT_UTF_8]
        if is_cut and not lines.read(1):
            raise BadContentError(f"the header does not end within {_BLOCK_BYTES} bytes")
        if len(header) > MOST_COLUMNS:
            raise BadContentError(f"the header names more than {MOST_COLUMNS} columns")
        if any(_NOT_UTF_8 in column for column in header):
            raise BadContentError("the header is not CSV in UTF-8")
        return header

    def _reader(self, content: IO[bytes], header: Sequence[str]) -> Any:
        # Timestamps are read as strings first, because pyarrow takes a column only if all or none have a zone.
        types = {field.name: pa.string() if is_zoned(field.type) else field.type for field in self.schema}
        return pa_csv.open_csv(
            pa.PythonFile(content, mode="r"),
            read_options=pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            parse_options=pa_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                column_types=types,
                include_columns=[name for name in self.schema.names if name in header],
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def _finished(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field in self.schema:
            if field.name not in batch.schema.names:
                columns.append(pa.nulls(batch.num_rows, field.type))
                continue
            values = batch.column(field.name)
            if is_zoned(field.type):
                values = in_utc(values, field.name)
            elif pa.types.is_floating(field.type) and not pc.all(pc.is_finite(values), min_count=0).as_py():
                raise BadContentError(f"column {field.name} has a number that is infinite or NaN")
            columns.append(values)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True)
class JsonDocument(_Texts):
    """One JSON value, over any number of lines: an array of objects, which are records, or one object.

    The rows are the texts of the objects, as in :class:`JsonLines`.

    Attributes:
        may_be_empty: Whether a file without a value is a file without records, and not an error.
    """

    may_be_empty: bool = True

    def texts(self, content: IO[bytes]) -> Iterator[bytes]:
        """Yield the objects."""
        text = content.read(LONGEST_DOCUMENT_BYTES + 1).strip(b" \t\r\n")
        if len(text) > LONGEST_DOCUMENT_BYTES:
            raise BadContentError(f"longer than {LONGEST_DOCUMENT_BYTES} bytes: write one object a line, as jsonl")
        if not text:
            if not self.may_be_empty:
                raise BadContentError("the body is empty")
            return
        if text.count(b"{") > MOST_OBJECTS:
            raise BadContentError(f"more than {MOST_OBJECTS} objects: write one object a line, as jsonl")
        records = _elements(text) if text.startswith(b"[") else [text]
        for number, record in enumerate(records, 1):
            if len(record) > LONGEST_LINE_BYTES:
                raise BadContentError(f"record {number} is longer than {LONGEST_LINE_BYTES} bytes")
            try:
                decode_object(record)
            except NotJsonError as error:
                raise BadContentError(f"record {number}: {error}") from None
            yield record


class _Counted(io.RawIOBase):
    """Content whose bytes are counted when they are read."""

    def __init__(self, content: IO[bytes] | gzip.GzipFile, allowance: Allowance) -> None:
        self._content = content
        self._allowance = allowance

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read = self._content.read(len(buffer))
        self._allowance.decompress(len(read))
        buffer[: len(read)] = read
        return len(read)


class _Timed:
    """Compressed file that checks the clock: zeros after its end, or empty members, take time but give no content."""

    def __init__(self, file: IO[bytes], allowance: Allowance) -> None:
        self._file = file
        self._allowance = allowance
        self.seek = file.seek

    def read(self, size: int = -1) -> bytes:
        self._allowance.look_at_the_clock()
        return self._file.read(size)


@contextmanager
def decompressed(file: IO[bytes], name: str, allowance: Allowance) -> Iterator[IO[bytes]]:
    """Open a file from its start, through gzip if its name says so, and count the bytes that are read."""
    file.seek(0)
    if not name.endswith(_GZIP_SUFFIX):
        yield io.BufferedReader(_Counted(file, allowance), _READ_BYTES)
        return
    with faults_named("gzip"), gzip.GzipFile(fileobj=_Timed(file, allowance), mode="rb") as content:
        yield io.BufferedReader(_Counted(content, allowance), _READ_BYTES)


@contextmanager
def faults_named(what: str) -> Iterator[None]:
    """Turn errors about the bytes into :class:`BadContentError`; errors about the disk that they are on pass."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise BadContentError(f"not {what}, or cut off") from None
    except (BadContentError, OverAllowanceError, SpoolFullError, ImportError, MemoryError):
        raise
    except Exception as error:  # damaged bytes make pyarrow raise whatever its parts raise
        # pyarrow's own errors have no number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise BadContentError(f"not {what}, or damaged") from None


def check_columns(found: Sequence[str], schema: pa.Schema, required: Sequence[str], where: str) -> None:
    """Raise :class:`BadContentError` if the names of a file's columns do not fit a schema."""
    twice = [name for name in schema.names if found.count(name) > 1]
    if twice:
        raise BadContentError(f"the {where} names the column {twice[0]} twice")
    if not set(found) & set(schema.names):
        raise BadContentError(f"the {where} has none of the schema's columns")
    absent = [name for name in required if name not in found]
    if absent:
        raise BadContentError(f"the {where} has no column {', '.join(absent)}, which is required")


class _AnyObject(msgspec.Struct):
    """Any JSON object."""


def _elements(text: bytes) -> list[bytes]:
    """Return the texts of the elements of a JSON array. Only the array is checked here, not the elements."""
    try:
        # Ends at the first element that is not an object: millions of numbers would take many times their bytes.
        msgspec.json.decode(text, type=list[_AnyObject])
    except msgspec.ValidationError as error:
        element = _ELEMENT.search(str(error))
        record = f"record {int(element['place']) + 1}: " if element else ""
        kind = f", but {_KINDS.get(element['kind'], 'a number')}" if element else ""
        raise BadContentError(f"{record}not a JSON object{kind}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The error follows below.
        pass
    try:
        return [bytes(element) for element in msgspec.json.decode(text, type=list[msgspec.Raw])]
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadContentError("not valid JSON: the array does not end, or has something else in it") from None
    except RecursionError:
        raise BadContentError(f"not JSON that can be stored: nested more than {_DEEPEST} levels deep") from None


def _csv_fault(error_text: str, header: Sequence[str]) -> str:
    if match := _BAD_VALUE.search(error_text):
        row = f"row {match[2]}: " if match[2] else ""
        return f"{row}column {header[int(match[1])]} is not of the type in the schema"
    if match := _BAD_ROW.search(error_text):
        row = f"row {match[1]}" if match[1] else "a row"
        return f"{row} has {match[3]} values, and the header {match[2]}"
    if "straddl" in error_text:
        return f"a row is longer than {_BLOCK_BYTES} bytes, or has a quote that does not end"
    return "not CSV"


def is_zoned(kind: pa.DataType) -> bool:
    """Whether values of a type are timestamps with a zone."""
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def in_utc(texts: pa.Array, name: str) -> pa.Array:
    """Parse timestamps of the column ``name``; those without a zone are in UTC."""
    zoned = pc.match_substring_regex(texts, _HAS_ZONE)
    complete = pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", ""))
    try:
        return complete.cast(pa.timestamp("us", tz="UTC"))
    except pa.ArrowInvalid:
        raise BadContentError(f"column {name} is not of the type in the schema") from None
