"""Makes records of JSON texts with Arrow's reader, several times as fast as Spark; what may differ it leaves to Spark.

Whether a text is JSON by the letter, `json_syntax` decides. It makes Python's values of a text, which takes as long as
all the rest, so most texts are asked in another way, which needs two parsers and is as strict:

- msgspec says that a text is one JSON value and nothing else, and the text begins with a brace. Arrow reads many texts
  as one, and would not notice that two texts are three records.
- Arrow reads no value in any other notation than that of RFC 8259, which msgspec skips over in parts. It refuses a
  name that stands twice, if it is the name of a column or of a nested field. So it is told to refuse all other names,
  too. A number that no double holds it refuses, or reads as infinite, which counts as refused.

Where either refuses anything, all texts that were asked together are asked one by one. There is a test that compares.

Arrow's reader is strict with types as well: it takes a value only where the column's type is what the JSON says.
Whatever it takes, Spark takes too, and makes the same of it; there is a test that compares the two. All else is left:
values that Spark would convert, and all that is rejected for another reason than its syntax, which only Spark names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from typing import Final

import msgspec
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

from sqs_lease.batch_files.json_syntax import why_not_json
from sqs_lease.spark.arrow_values import bool_scalar, no_rows, one_list, repeated_text, text_scalar
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

_OBJECT: Final = r"^[ \t\r\n]*\{"
_ONE_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)

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
    """Reads JSON objects, one a text. It is pickled to Spark's tasks.

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
        if not all(isinstance(kind, _SAME) or kind == StringType() for _, kind in types_in(columns)):
            return None
        schema = arrow_schema(columns)
        return cls(columns, schema, pa.schema([pa.field(field.name, _read_as(field.type)) for field in schema]))

    def __call__(self, bodies: pa.Array) -> tuple[pa.Table, pa.Array, pa.Array]:
        """See :class:`.source.ArrowParser`."""
        tables, taken, reasons = [no_rows(self.schema)], [pa.nulls(0, pa.bool_())], [pa.nulls(0, pa.string())]
        # Few enough texts at once that what is made of them is small.
        rows = max(1, len(bodies) * _READ_BYTES // max(bodies.nbytes, _READ_BYTES))
        for start in range(0, len(bodies), rows):
            table, fits, reason = self._checked(bodies.slice(start, rows))
            tables.append(table)
            taken.append(fits)
            reasons.append(reason)
        return pa.concat_tables(tables), pa.concat_arrays(taken), pa.concat_arrays(reasons)

    def _checked(self, texts: pa.Array) -> tuple[pa.Table, pa.Array, pa.Array]:
        """Read texts of which nothing is known yet."""
        if _are_objects(texts):
            try:
                return *self.read(texts, closed=True), pa.nulls(len(texts), pa.string())
            except _Refused:
                pass
        reasons = _column(map(why_not_json, texts.to_pylist()))
        is_json = pc.is_null(reasons)
        runs = [(no_rows(self.schema), pa.nulls(0, pa.bool_())), *self._in_runs(texts.filter(is_json))]
        fits = pa.concat_arrays([of_run for _, of_run in runs])
        return pa.concat_tables([table for table, _ in runs]), pc.replace_with_mask(is_json, is_json, fits), reasons

    def _in_runs(self, texts: pa.Array) -> Iterator[tuple[pa.Table, pa.Array]]:
        """Read as many texts at once as Arrow does not refuse; what it does is left, alone where it says which.

        They were checked for syntax.
        """
        start, length, refused = 0, len(texts), 0
        refused_at: int | None = None
        while start < len(texts):
            run = texts.slice(start, length)
            left = 0
            if start == refused_at:
                left = 1
            elif (refused - _REFUSED_AT_FIRST) * _TEXTS_A_REFUSAL > start:
                left = len(texts) - start
            else:
                try:
                    yield self.read(run)
                    start += len(run)
                    length = 2 * len(run)
                except _Refused as refusal:
                    refused += 1
                    if refusal.row is not None and refusal.row < len(run):
                        refused_at = start + refusal.row
                        length = refusal.row or _LEFT_AT_ONCE
                    elif len(run) > _LEFT_AT_ONCE:
                        length = len(run) // 2
                    else:
                        left = len(run)
            if left:
                yield no_rows(self.schema), pa.repeat(bool_scalar(False), left)
                start += left

    def read(self, texts: pa.Array, *, closed: bool = False) -> tuple[pa.Table, pa.Array]:
        """The records of some texts, and which texts have one; raises where Arrow refuses any, or Spark might.

        Args:
            texts: Each of them is one JSON object.
            closed: Whether other names than those of columns are refused, too; they are ignored by default.
        """
        joined = _joined(texts)
        if _may_have_long_number(texts, joined):
            raise _Refused(None)
        try:
            read = pj.read_json(
                pa.BufferReader(joined),
                pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
                pj.ParseOptions(
                    explicit_schema=self.read_as,
                    newlines_in_values=True,
                    unexpected_field_behavior="error" if closed else "ignore",
                ),
            )
            if closed and any(map(_has_infinite, read.columns)):
                # Arrow reads most numbers that no double holds as infinite. The slow check says which text has one.
                raise _Refused(None)
            # In one block, so a column has one chunk; combine_chunks() would copy it.
            if read.num_rows != len(texts) or any(column.num_chunks != 1 for column in read.columns):
                raise _Refused(None)
            arrays = [column.chunk(0) for column in read.columns]
            fields = self.columns.fields
            fits = reduce(
                pc.and_, (_fits(its, of.dataType, of.nullable) for its, of in zip(arrays, fields, strict=True))
            )
            if all(field.nullable for field in fields):
                # With a value for no column it is another kind of message, which Spark rejects.
                fits = pc.and_(fits, reduce(pc.or_, map(pc.is_valid, arrays)))
            if not pc.all(fits).as_py():
                arrays = [array.filter(fits) for array in arrays]
            arrays = [_converted(its, kind) for its, kind in zip(arrays, self.schema.types, strict=True)]
            return pa.Table.from_arrays(arrays, schema=self.schema), fits
        except pa.ArrowException as error:
            found = _ROW.search(str(error))
            # Its text may quote a value.
            raise _Refused(int(found[1]) if found else None) from None


class _Refused(Exception):  # noqa: N818 - an answer
    """Arrow refused some texts; ``row`` is the first of them, where it says which."""

    def __init__(self, row: int | None) -> None:
        super().__init__(row)
        self.row = row


def _are_objects(texts: pa.Array) -> bool:
    """Whether each text is one JSON value and begins as an object; of what is inside of it, Arrow knows more."""
    if not pc.all(pc.match_substring_regex(texts, _OBJECT)).as_py():
        return False
    decode = _ONE_VALUE.decode
    try:
        for text in texts.to_pylist():
            decode(text)
    # msgspec's own are ValueErrors only from 0.21 on.
    except (ValueError, msgspec.DecodeError, RecursionError):
        return False
    return True


def _joined(texts: pa.Array) -> pa.Buffer:
    """The texts as lines."""
    return pc.binary_join(one_list(texts), text_scalar("\n"))[0].as_buffer()


def _column(reasons: Iterable[str | None]) -> pa.Array:
    runs = (repeated_text(reason, len(list(run))) for reason, run in groupby(reasons))
    return pa.concat_arrays([repeated_text(None, 0), *runs])


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


def _read_as(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow is to read; what it reads too freely it gets as text, or as a wider type, to be converted."""
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_decimal(kind):
        # It would keep more digits than the type has.
        return pa.decimal256(76, kind.scale)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _read_as(field.type)) for field in kind])
    return pa.list_(_read_as(kind.value_type)) if pa.types.is_list(kind) else kind


def _fits(values: pa.Array, kind: DataType, nullable: bool) -> pa.Array:
    """Which values are there where they must be, and are written as both read them."""
    fits = pa.repeat(bool_scalar(True), len(values))
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
    return pc.if_else(pc.is_valid(values), fits, bool_scalar(nullable))


def _has_infinite(values: pa.Array | pa.ChunkedArray) -> bool:
    if pa.types.is_floating(values.type):
        return bool(pc.any(pc.is_inf(values)).as_py())
    if pa.types.is_struct(values.type):
        return any(map(_has_infinite, values.flatten()))
    return pa.types.is_list(values.type) and _has_infinite(pc.list_flatten(values))


def _converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values as the column has them; raises what Arrow does where one cannot be converted."""
    if values.type == kind:
        return values
    if pa.types.is_timestamp(kind):
        zoned = pc.match_substring_regex(values, _ZONED)
        values = pc.if_else(zoned, values, pc.binary_join_element_wise(values, text_scalar("Z"), text_scalar("")))
    if pa.types.is_struct(kind):
        fields = [_converted(values.field(number), field.type) for number, field in enumerate(kind)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pc.is_null(values))
    if pa.types.is_list(kind):
        elements = _converted(values.values, kind.value_type)
        return pa.ListArray.from_arrays(values.offsets, elements, mask=pc.is_null(values))
    return values.cast(kind)
