"""Makes records of JSON texts with Arrow's reader, several times as fast as Spark; what may differ it leaves to Spark.

Arrow's reader is strict: it takes a value only where the column's type is what the JSON says. Whatever it takes, Spark
takes too, and makes the same of it; there is a test that compares the two. Everything else is left: values that Spark
would convert, all that is rejected, and so the reasons too, which only Spark gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.json as pj  # type: ignore[import-untyped]
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from sqs_lease.spark.schemas import arrow_schema, types_in

# Not FLOAT, which the two round differently; nor BINARY, MAP and TIMESTAMP_NTZ, which Arrow does not read or not so.
_SAME: Final = (
    *(ArrayType, BooleanType, DateType, DecimalType, DoubleType),
    *(IntegerType, LongType, ShortType, StructType, TimestampType),
)
_MOST_BYTES: Final = 50_000
"""A longer text may have a name of more than 50 000 characters, which Spark refuses."""

_NUMBER_CHARACTERS: Final = 1_000
"""A longer number is refused by Spark."""

_READ_BYTES: Final = 16 * 1024 * 1024
_LEFT_AT_ONCE: Final = 32
"""Of so many texts that Arrow refuses together, nobody asks which one it was."""

_REFUSED_AT_FIRST: Final = 16
_TEXTS_A_REFUSAL: Final = 200
"""Where more than one text of so many is refused, asking again costs more than Spark does."""

_ROW: Final = re.compile(r" in row (\d+)$")

_DAY: Final = r"[1-9]\d{3}-\d{2}-\d{2}"
_ZONE: Final = r"(?:Z|[+-](?:0\d|1[0-7]):[0-5]\d)"
_DATE: Final = f"^{_DAY}$"
_MOMENT: Final = rf"^{_DAY}[T ]\d{{2}}:\d{{2}}:\d{{2}}(?:\.\d{{1,6}})?{_ZONE}?$"
_ZONED: Final = f"{_ZONE}$"

_OF_NUMBERS: Final = b"0123456789.eE+-"
_STRIDE: Final = 200
_SAMPLED: Final = bytes(ord("0") if byte in _OF_NUMBERS else ord("x") for byte in range(256))
_IN_A_ROW: Final = b"0" * (_NUMBER_CHARACTERS // _STRIDE - 1)


@dataclass(frozen=True, slots=True)
class ArrowJson:
    """Reads JSON objects, one a text, that were checked for syntax before. It is pickled to Spark's tasks.

    Attributes:
        columns: The columns of a record.
        schema: The same, as Arrow has them.
        read_as: What Arrow's reader is asked for.
    """

    columns: StructType
    schema: pa.Schema
    read_as: pa.Schema

    @classmethod
    def of(cls, columns: StructType) -> ArrowJson | None:
        """The reader for these columns; None where Arrow does not read one of their types as Spark does."""
        # Not the subclasses of StringType, nor its collations.
        is_same = all(isinstance(kind, _SAME) or kind == StringType() for _, kind in types_in(columns))
        if not is_same:
            return None
        read_as = pa.schema([pa.field(field.name, _read_as(field.dataType)) for field in columns.fields])
        return cls(columns, arrow_schema(columns), read_as)

    def __call__(self, bodies: pa.Array) -> tuple[pa.Table, pa.Array]:
        """See :class:`.source.ArrowParser`."""
        tables, taken = [self.schema.empty_table()], [pa.array([], pa.bool_())]
        for part in _parts(bodies):
            for table, fits in _in_runs(self, part):
                tables.append(table)
                taken.append(fits)
        return pa.concat_tables(tables), pa.concat_arrays(taken)

    def read(self, texts: pa.Array) -> tuple[pa.Table, pa.Array]:
        """The records of some texts, and which texts have one.

        Raises:
            _Refused: Arrow refuses any of them, or Spark might.
        """
        joined = _joined(texts)
        if _may_have_long_number(texts, joined):
            raise _Refused(None)
        try:
            read = pj.read_json(
                pa.BufferReader(joined),
                pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
                pj.ParseOptions(
                    explicit_schema=self.read_as, newlines_in_values=True, unexpected_field_behavior="ignore"
                ),
            )
            if read.num_rows != len(texts):
                raise _Refused(None)
            fits = reduce(
                pc.and_,
                (_fits(_whole(read[field.name]), field.dataType, field.nullable) for field in self.columns.fields),
            )
            if all(field.nullable for field in self.columns.fields):
                # With a value for no column it is another kind of message, which Spark rejects.
                fits = pc.and_(fits, reduce(pc.or_, (pc.is_valid(_whole(read[name])) for name in self.schema.names)))
            if not pc.all(fits).as_py():
                read = read.filter(fits)
            arrays = [_converted(_whole(read[field.name]), field.dataType) for field in self.columns.fields]
            return pa.Table.from_arrays(arrays, schema=self.schema), fits
        except pa.ArrowException as error:
            found = _ROW.search(str(error))
            # Its text may quote a value.
            raise _Refused(int(found[1]) if found else None) from None


def _in_runs(reader: ArrowJson, texts: pa.Array) -> Iterator[tuple[pa.Table, pa.Array]]:
    """Read as many texts at once as Arrow does not refuse; those that it does are left, alone where it says which."""
    start, length, refused = 0, len(texts), 0
    nothing = reader.schema.empty_table()
    refused_at: int | None = None
    while start < len(texts):
        if start == refused_at or (refused - _REFUSED_AT_FIRST) * _TEXTS_A_REFUSAL > start:
            stop = start + 1 if start == refused_at else len(texts)
            yield nothing, pa.repeat(False, stop - start)
            start = stop
            continue
        run = texts.slice(start, length)
        try:
            yield reader.read(run)
        except _Refused as refusal:
            refused += 1
            if refusal.row is not None and refusal.row < len(run):
                refused_at = start + refusal.row
                length = refusal.row or _LEFT_AT_ONCE
            elif len(run) > _LEFT_AT_ONCE:
                length = len(run) // 2
            else:
                yield nothing, pa.repeat(False, len(run))
                start += len(run)
            continue
        start += len(run)
        length = 2 * len(run)


class _Refused(Exception):  # noqa: N818 - an answer
    """Arrow refused some texts; ``row`` is the first of them, where it says which."""

    def __init__(self, row: int | None) -> None:
        super().__init__(row)
        self.row = row


def _parts(bodies: pa.Array) -> Iterator[pa.Array]:
    """Few enough texts at once that what is made of them is small."""
    rows = max(1, len(bodies) * _READ_BYTES // max(bodies.nbytes, _READ_BYTES))
    for start in range(0, len(bodies), rows):
        yield bodies.slice(start, rows)


def _joined(texts: pa.Array) -> pa.Buffer:
    """The texts as lines."""
    as_one_list = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    return pc.binary_join(as_one_list, "\n")[0].as_buffer()


def _may_have_long_number(texts: pa.Array, joined: pa.Buffer) -> bool:
    """Whether there may be a name or a number in the texts that is longer than Spark takes."""
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest <= _NUMBER_CHARACTERS:
        return False
    if longest > _MOST_BYTES:
        return True
    # A longer number would have as many of these in a row, and nothing but its own characters in between.
    everything = memoryview(joined)
    sampled = bytes(everything[::_STRIDE]).translate(_SAMPLED)
    found = sampled.find(_IN_A_ROW)
    while found >= 0:
        between = everything[found * _STRIDE : (found + len(_IN_A_ROW) - 1) * _STRIDE]
        if not bytes(between).translate(None, _OF_NUMBERS):
            return True
        found = sampled.find(_IN_A_ROW, found + 1)
    return False


def _read_as(kind: DataType) -> pa.DataType:
    """The type that Arrow is to read; what it reads too freely it gets as text, or as a wider type, to be converted."""
    if isinstance(kind, DateType | TimestampType):
        return pa.string()
    if isinstance(kind, DecimalType):
        # It would keep more digits than the type has.
        return pa.decimal256(76, kind.scale)
    if isinstance(kind, StructType):
        return pa.struct([pa.field(field.name, _read_as(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(_read_as(kind.elementType))
    return arrow_schema(StructType().add("value", kind)).field(0).type


def _fits(values: pa.Array, kind: DataType, nullable: bool) -> pa.Array:
    """Which values are there where they must be, and are written as both read them."""
    fits = pa.repeat(True, len(values))
    if isinstance(kind, DateType | TimestampType):
        fits = pc.match_substring_regex(values, _DATE if isinstance(kind, DateType) else _MOMENT)
    elif isinstance(kind, StructType):
        for number, field in enumerate(kind.fields):
            fits = pc.and_(fits, _fits(values.field(number), field.dataType, field.nullable))
    elif isinstance(kind, ArrayType):
        unfit = pc.invert(_fits(values.flatten(), kind.elementType, kind.containsNull))
        if pc.any(unfit).as_py():
            parents = pc.list_parent_indices(values).filter(unfit)
            fits = pc.invert(pc.is_in(pa.array(range(len(values)), parents.type), parents))
    return pc.if_else(pc.is_valid(values), fits, nullable)


def _converted(values: pa.Array, kind: DataType) -> pa.Array:
    """Values as the column has them.

    Raises:
        pa.ArrowException: One cannot be converted.
    """
    if isinstance(kind, DateType):
        return values.cast(pa.date32())
    if isinstance(kind, TimestampType):
        zoned = pc.match_substring_regex(values, _ZONED)
        in_utc = pc.if_else(zoned, values, pc.binary_join_element_wise(values, "Z", ""))
        return in_utc.cast(pa.timestamp("us", tz="UTC"))
    if isinstance(kind, DecimalType):
        return values.cast(pa.decimal128(kind.precision, kind.scale))
    if isinstance(kind, StructType) and _needs_conversion(kind):
        fields = [_converted(values.field(number), field.dataType) for number, field in enumerate(kind.fields)]
        return pa.StructArray.from_arrays(fields, kind.names, mask=pc.is_null(values))
    if isinstance(kind, ArrayType) and _needs_conversion(kind):
        elements = _converted(values.values, kind.elementType)
        return pa.ListArray.from_arrays(values.offsets, elements, mask=pc.is_null(values))
    return values


def _needs_conversion(kind: DataType) -> bool:
    return any(isinstance(inner, DateType | DecimalType | TimestampType) for _, inner in types_in(kind))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
