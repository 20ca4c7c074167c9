"""Rows in the binary format of COPY, made column by column, without texts for numbers and times.

PostgreSQL's strings cannot have the character NUL (U+0000), and its range of times is not Spark's. Such a value must
not cost a message or stop a batch. So NUL, and bytes that are not UTF-8, become the replacement character U+FFFD; dates
and timestamps outside the years 1 to 9999 become ``infinity`` and ``-infinity``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from sqs_lease.spark.sinks.postgres.types import bytes_of

SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""The bytes before the rows, without any option of the format."""

END: Final = b"\xff\xff"
"""The bytes after the rows."""

Numbers: TypeAlias = npt.NDArray[Any]

_NUMBERS: Final = {
    "boolean": ">u1",
    "smallint": ">i2",
    "integer": ">i4",
    "bigint": ">i8",
    "real": ">f4",
    "double precision": ">f8",
}
_NUMERIC: Final = "numeric"
_TEXTS: Final = ("text", "character varying", "json")
_JSONB: Final = "jsonb"
# The only version of jsonb's binary format: 1, with text.
_JSONB_VERSION: Final = "\x01"

_LENGTH: Final = ">i4"
_NULL_LENGTH: Final = -1

_UNIX = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_FIRST = datetime(1, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)

# A numeric is a sequence of digits to this base, in two bytes each.
_BASE: Final = 10_000
_BASE_DIGITS: Final = 4
_HALF: Final = np.uint64(32)
_LOWER_HALF: Final = np.uint64(2**32 - 1)
_NEGATIVE: Final = 0x4000


def to_binary(batch: pa.RecordBatch, kinds: Sequence[str]) -> pa.Buffer:
    """Encode rows, without the bytes before and after them.

    Args:
        batch: The rows. Nested values are JSON texts.
        kinds: The types of the columns in the table, as ``format_type`` writes them; they must fit the values.
    """
    parts: list[Numbers | pa.Array] = [_always(len(kinds), ">i2", batch.num_rows)]
    for column, kind in zip(batch.columns, kinds, strict=True):
        parts += _field(column, kind)
    pieces: list[pa.Array] = []
    for are_numbers, group in groupby(parts, lambda part: isinstance(part, np.ndarray)):
        together = list(group)
        pieces += [_side_by_side(together)] if are_numbers else together
    joined = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))
    return bytes_of(joined)


def _field(column: pa.Array, kind: str) -> Iterator[Numbers | pa.Array]:
    """Yield the lengths of a column's values, and the values."""
    if kind in _NUMBERS or kind in ("date", "timestamp with time zone", "timestamp without time zone"):
        return _fixed(_numbers(column, kind), column)
    if kind.startswith(_NUMERIC):
        return _fixed(_numeric(column), column)
    if kind in _TEXTS:
        return _varying(_storable(column))
    if kind == _JSONB:
        around = [pa.scalar(text, pa.large_string()) for text in (_JSONB_VERSION, "")]
        return _varying(pc.binary_join_element_wise(around[0], _storable(column), around[1]))
    return _varying(column)


def _fixed(values: Numbers, column: pa.Array) -> Iterator[Numbers | pa.Array]:
    size = values.dtype.itemsize
    if not column.null_count:
        yield _always(size, _LENGTH, len(values))
        yield values
        return
    is_there = column.is_valid().to_numpy(zero_copy_only=False)
    yield np.where(is_there, size, _NULL_LENGTH).astype(_LENGTH)
    yield _binary(np.where(is_there, size, 0), values[is_there])


def _varying(column: pa.Array) -> Iterator[Numbers | pa.Array]:
    values = column.cast(pa.large_binary())
    lengths = pc.fill_null(pc.binary_length(values), _NULL_LENGTH)
    yield lengths.to_numpy(zero_copy_only=False).astype(_LENGTH)
    yield pc.fill_null(values, b"") if values.null_count else values


def _always(value: int, kind: str, count: int) -> Numbers:
    return np.broadcast_to(np.array(value, kind), count)


def _side_by_side(columns: Sequence[Numbers]) -> pa.Array:
    """Join the bytes of the values of each row."""
    kind = np.dtype([(str(number), column.dtype) for number, column in enumerate(columns)])
    rows = np.empty(len(columns[0]), kind)
    for number, column in enumerate(columns):
        rows[str(number)] = column
    return _binary(np.broadcast_to(kind.itemsize, len(rows)), rows)


def _binary(lengths: Numbers, values: Numbers) -> pa.Array:
    """Make an array of bytes from values, with the given number of bytes in each row."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    data = np.ascontiguousarray(values).view(np.uint8)
    return pa.Array.from_buffers(
        pa.large_binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)], null_count=0
    )


def _numbers(column: pa.Array, kind: str) -> Numbers:
    if kind == "date":
        return _times(column.cast(pa.date32()).cast(pa.int32()), timedelta(days=1), ">i4")
    if kind not in _NUMBERS:
        zone = column.type.tz
        return _times(column.cast(pa.timestamp("us", zone)).cast(pa.int64()), timedelta(microseconds=1), ">i8")
    if pa.types.is_float32(column.type) and kind == "double precision":
        # By way of the shortest text: 0.1, and not 0.10000000149011612.
        column = column.cast(pa.string()).cast(pa.float64())
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    return _filled(column).astype(_NUMBERS[kind])


def _times(column: pa.Array, unit: timedelta, kind: str) -> Numbers:
    """Translate units since 1970 to units since 2000, PostgreSQL's epoch."""
    values = _filled(column)
    first, last = (limit // unit for limit in (_FIRST - _UNIX, _LAST - _UNIX))
    infinite = np.iinfo(values.dtype)
    limited = np.where(values < first, infinite.min, np.where(values > last, infinite.max, values))
    is_finite = (values >= first) & (values <= last)
    return np.subtract(limited, (_EPOCH - _UNIX) // unit, where=is_finite, out=limited).astype(kind)


def _filled(column: pa.Array) -> Numbers:
    filled: Numbers = (pc.fill_null(column, 0) if column.null_count else column).to_numpy(zero_copy_only=False)
    return filled


def _numeric(column: pa.Array) -> Numbers:
    """Encode decimals with all zeros that their type allows; the server drops leading and trailing zeros."""
    precision, scale = column.type.precision, column.type.scale
    whole, fraction = -(-(precision - scale) // _BASE_DIGITS), -(-scale // _BASE_DIGITS)
    kind = [("count", ">i2"), ("weight", ">i2"), ("sign", ">i2"), ("scale", ">i2"), ("digits", ">i2", whole + fraction)]
    numbers = np.zeros(len(column), kind)
    numbers["count"], numbers["weight"], numbers["scale"] = whole + fraction, whole - 1, scale
    words = np.frombuffer(column.buffers()[1], "<u8")[2 * column.offset :][: 2 * len(column)]
    low, high = words[0::2], words[1::2]
    is_negative = high.view("<i8") < 0
    numbers["sign"] = np.where(is_negative, _NEGATIVE, 0)
    high = np.where(is_negative, ~high + (low == 0), high)
    low = np.where(is_negative, ~low + np.uint64(1), low)
    parts = [high >> _HALF, high & _LOWER_HALF, low >> _HALF, low & _LOWER_HALF]
    for position in reversed(range(whole + fraction)):
        # The last digit to the base 10 000 may stand for fewer decimals.
        decimals = scale % _BASE_DIGITS if position == whole + fraction - 1 and scale % _BASE_DIGITS else _BASE_DIGITS
        remainder = _divide(parts, np.uint64(10**decimals))
        numbers["digits"][:, position] = remainder * np.uint64(10 ** (_BASE_DIGITS - decimals))
    return numbers


def _divide(parts: list[Numbers], divisor: np.uint64) -> Numbers:
    """Divide numbers of several parts, the highest first, in place; return the remainders."""
    remainder = np.zeros(len(parts[0]), np.uint64)
    for number, part in enumerate(parts):
        current = (remainder << _HALF) | part
        parts[number], remainder = np.divmod(current, divisor)
    return remainder


def _storable(column: pa.Array) -> pa.Array:
    texts = column.cast(pa.large_string())
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        values = texts.cast(pa.large_binary()).to_pylist()
        texts = pa.array(
            [None if value is None else value.decode(errors="replace") for value in values], pa.large_string()
        )
    return pc.replace_substring(texts, "\0", "\ufffd") if b"\0" in bytes_of(texts).to_pybytes() else texts
