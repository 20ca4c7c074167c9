"""Makes records of JSON texts in a task of Spark's: of many at once with Arrow's reader, of the others one by one.

This is the only parser of JSON bodies and lines. Arrow's reader is several times as fast as one that makes Python's
values, and it is strict: it takes a value only where the column's type is what the JSON says. So all texts of a group
are given to it first. Each text that it refuses is then read alone by :mod:`.json_values`, which knows all notations of
a value, and names what is wrong. It writes a record down as Arrow's reader takes it, so that reader makes all records.

Whether a text is JSON by the letter, `json_syntax` decides. It makes Python's values of a text, which takes as long as
all the rest, so most texts are asked in another way, which needs two parsers and is as strict:

- msgspec says that a text is one JSON value and nothing else, and the text begins with a brace. Arrow reads many texts
  as one, and would not notice that two texts are three records.
- Arrow reads no value in any other notation than that of RFC 8259, which msgspec skips over in parts. It refuses a
  name that stands twice, if it is the name of a column or of a nested field. So it is told to refuse all other names,
  too. A number that no double holds it refuses, or reads as infinite, which counts as refused.

Where either refuses anything, all texts that were asked together are asked one by one. There is a test that compares,
and another one that a text becomes the same record whether Arrow reads it among others or it is read alone.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from typing import Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.json as pj  # type: ignore[import-untyped]
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from sqs_lease.spark.arrow_values import (
    binary_array,
    bool_array,
    bool_scalar,
    int_scalar,
    integers,
    long_scalar,
    no_rows,
    one_list,
    repeated_text,
    text_scalar,
)
from sqs_lease.spark.columns import REASON
from sqs_lease.spark.json_syntax import NotJsonError, decode_object
from sqs_lease.spark.schemas import arrow_schema, relaxed, types_in
from sqs_lease.spark.sources.json_values import (
    BASE64,
    FIRST_MICROSECOND,
    LAST_MICROSECOND,
    MAP_KEY,
    MAP_VALUE,
    ObjectReader,
    decoded,
)

# Types of which Arrow's reader takes no value as JSON writes it.
_READ_ALONE: Final = (MapType, VariantType)

_READ_BYTES: Final = 16 * 1024 * 1024
_LEFT_AT_ONCE: Final = 32
"""Of so many texts that Arrow refuses together, each is read alone."""

_REFUSED_AT_FIRST: Final = 16
_TEXTS_A_REFUSAL: Final = 40
"""Where more than one text of so many is refused, asking again costs more than reading all of them alone."""

_OBJECT: Final = r"^[ \t\r\n]*\{"
_ONE_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)

_ROW: Final = re.compile(r" in row (\d+)$")

_DAY: Final = r"[1-9]\d{3}-\d{2}-\d{2}"
_ZONE: Final = r"(?:Z|[+-](?:0\d|1[0-7]):[0-5]\d)"
_DATE: Final = f"^{_DAY}$"
_LOCAL_MOMENT: Final = rf"^{_DAY}[T ]\d{{2}}:\d{{2}}:\d{{2}}(?:\.\d{{1,6}})?$"
_MOMENT: Final = rf"{_LOCAL_MOMENT[:-1]}{_ZONE}?$"
_ZONED: Final = f"{_ZONE}$"
_NOTATIONS: Final[Mapping[type[DataType], str]] = {
    BinaryType: BASE64,
    DateType: _DATE,
    TimestampNTZType: _LOCAL_MOMENT,
    TimestampType: _MOMENT,
}
"""The notation in which a type's values are read many at once."""

_UNKNOWN_FIELD: Final = "not in the schema: "
# How many unknown fields a reason names, and how much of each name.
_SHOWN_FIELDS: Final = 3
_SHOWN_CHARACTERS: Final = 63


@dataclass(frozen=True, slots=True)
class ArrowJson:
    """Reads JSON objects, one a text. It is pickled to Spark's tasks.

    Attributes:
        columns: The columns of a record that are read from fields of the object.
        schema: All columns, as Arrow has them; a VARIANT is the JSON text of its value.
        direct: The types that Arrow's reader reads from texts as they came; None where it does not read all columns.
        written: The types that it reads from texts as :mod:`.json_values` writes them.
        units: ``TIMESTAMP`` columns that are read from whole numbers -> how many microseconds one is.
        closed: Whether an object with a field that is not a column is rejected.
        rescued: Whether the last column of the schema is to save the texts of objects that do not fit the others.
    """

    columns: StructType
    schema: pa.Schema
    direct: pa.Schema | None
    written: pa.Schema
    units: Mapping[str, int] = field(default_factory=dict)
    closed: bool = False
    rescued: bool = False

    @classmethod
    def of(
        cls,
        columns: StructType,
        *,
        units: Mapping[str, int] | None = None,
        closed: bool = False,
        rescued: str | None = None,
    ) -> ArrowJson:
        """The parser for some columns; ``rescued`` names a further one, which saves the texts of what does not fit."""
        schema = arrow_schema(as_texts(columns))
        direct = None
        if not any(isinstance(kind, _READ_ALONE) for _, kind in types_in(columns)):
            numbers = set(units or ())
            direct = pa.schema(
                [pa.field(one.name, pa.int64() if one.name in numbers else _read_as(one.type)) for one in schema]
            )
        written = pa.schema([pa.field(one.name, _written_as(one.type)) for one in schema])
        if rescued is not None:
            schema = schema.append(pa.field(rescued, pa.string()))
        return cls(columns, schema, direct, written, units or {}, closed, rescued is not None)

    def __call__(self, bodies: pa.Array) -> tuple[pa.Table, pa.Array]:
        """See :class:`.source.ArrowParser`."""
        tables, reasons = [no_rows(self.schema)], [pa.nulls(0, pa.string())]
        # Few enough texts at once that what is made of them is small.
        rows = max(1, len(bodies) * _READ_BYTES // max(bodies.nbytes, _READ_BYTES))
        for start in range(0, len(bodies), rows):
            table, reason = self._read_group(bodies.slice(start, rows))
            tables.append(table)
            reasons.append(reason)
        return pa.concat_tables(tables), pa.concat_arrays(reasons)

    def _read_group(self, texts: pa.Array) -> tuple[pa.Table, pa.Array]:
        """Read texts of which nothing is known yet."""
        group = _Group(self, texts)
        if self.direct is not None and _are_objects(texts):
            try:
                table, fits = self.read(texts, closed=True)
            except _RefusedError:
                pass
            else:
                if table.num_rows == len(texts):
                    return self.with_saved(table, pa.nulls(len(texts), pa.string())), pa.nulls(len(texts), pa.string())
                group.add(table, 0, fits)
                return group.finish()
        group.check_syntax()
        if self.direct is not None:
            group.read_in_runs()
        return group.finish()

    def with_saved(self, table: pa.Table, saved: pa.Array) -> pa.Table:
        """The table with the column for what is saved, if there is one."""
        return table.append_column(self.schema.field(len(self.schema) - 1), saved) if self.rescued else table

    def read(self, texts: pa.Array, *, closed: bool = False) -> tuple[pa.Table, pa.Array]:
        """The records of some texts, and which texts have one; raises where Arrow refuses any.

        Args:
            texts: Each of them is one JSON object, as it came.
            closed: Whether other names than those of columns are refused, too; they are ignored by default.
        """
        arrays = self._columns_of(texts, self.direct, closed=closed)
        if closed and any(map(_has_infinite, arrays)):
            # Arrow reads most numbers that no double holds as infinite. The slow check says which text has one.
            raise _RefusedError(None)
        fields = self.columns.fields
        fits = reduce(pc.and_, (self._fits(its, of) for its, of in zip(arrays, fields, strict=True)))
        if not self.rescued and all(one.nullable for one in fields):
            # With a value for no column it is another kind of message, which is rejected.
            fits = pc.and_(fits, reduce(pc.or_, map(pc.is_valid, arrays)))
        if not pc.all(fits).as_py():
            arrays = [its.filter(fits) for its in arrays]
        try:
            columns = [
                _converted(self._in_microseconds(its, of.name), of.type)
                for its, of in zip(arrays, self.schema, strict=False)
            ]
        except pa.ArrowException:
            # Its text may quote a value.
            raise _RefusedError(None) from None
        return self._table(columns), fits

    def read_written(self, texts: Sequence[bytes]) -> pa.Table:
        """The records of texts that :mod:`.json_values` wrote."""
        if not texts:
            return self._table([pa.nulls(0, one.type) for one in self.schema][: len(self.columns.fields)])
        arrays = self._columns_of(binary_array(texts), self.written, closed=True)
        return self._table([_converted(its, of.type) for its, of in zip(arrays, self.schema, strict=False)])

    def _table(self, arrays: Sequence[pa.Array]) -> pa.Table:
        """The columns that are read."""
        return pa.Table.from_arrays(arrays, schema=pa.schema(list(self.schema)[: len(arrays)]))

    def _columns_of(self, texts: pa.Array, read_as: pa.Schema, *, closed: bool) -> list[pa.Array]:
        """Read texts with Arrow's reader."""
        joined = _joined(texts)
        try:
            read = pj.read_json(
                pa.BufferReader(joined),
                pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
                pj.ParseOptions(
                    explicit_schema=read_as,
                    newlines_in_values=True,
                    unexpected_field_behavior="error" if closed else "ignore",
                ),
            )
        except pa.ArrowException as error:
            found = _ROW.search(str(error))
            # Its text may quote a value.
            raise _RefusedError(int(found[1]) if found else None) from None
        # In one block, so a column has one chunk; combine_chunks() would copy it.
        if read.num_rows != len(texts) or any(column.num_chunks != 1 for column in read.columns):
            raise _RefusedError(None)
        return [column.chunk(0) for column in read.columns]

    def _fits(self, values: pa.Array, of: StructField) -> pa.Array:
        if (unit := self.units.get(of.name)) is None:
            return _fits(values, of.dataType, of.nullable)
        first, last = long_scalar(-(-FIRST_MICROSECOND // unit)), long_scalar(LAST_MICROSECOND // unit)
        fits = pc.and_(pc.greater_equal(values, first), pc.less_equal(values, last))
        return pc.if_else(pc.is_valid(values), fits, bool_scalar(of.nullable))

    def _in_microseconds(self, values: pa.Array, name: str) -> pa.Array:
        return pc.multiply(values, long_scalar(self.units[name])) if name in self.units else values


class _Group:
    """Texts that are read together, and what is found of each."""

    def __init__(self, parser: ArrowJson, texts: pa.Array) -> None:
        self._parser = parser
        self._texts = texts
        self._reasons: list[str | None] = [None] * len(texts)
        self._to_save: set[int] = set()
        self._tables: list[pa.Table] = []
        # Of the rows of these tables, one after the other, the texts that they are of.
        self._read = array("i")
        self._unread: Sequence[int] = range(len(texts))

    def check_syntax(self) -> None:
        """Reject what is not one JSON object, and what has fields that it must not have."""
        names = frozenset(self._parser.columns.names)
        for at, text in enumerate(self._texts.to_pylist()):
            try:
                unknown = [name for name in decode_object(text) if name not in names]
            except NotJsonError as error:
                self._reasons[at] = str(error)
                continue
            if unknown and self._parser.closed:
                shown = ", ".join(name[:_SHOWN_CHARACTERS] for name in unknown[:_SHOWN_FIELDS])
                self._reasons[at] = f"{_UNKNOWN_FIELD}{shown}"
            elif unknown and self._parser.rescued:
                self._to_save.add(at)
        self._unread = [at for at in self._unread if self._reasons[at] is None]

    def add(self, table: pa.Table, start: int, fits: pa.Array) -> None:
        """Take the records of the texts that fit, of a run of those that are not read yet."""
        self._tables.append(table)
        run = self._unread[start : start + len(fits)]
        self._read.extend(at for at, its in zip(run, fits.to_pylist(), strict=True) if its)

    def read_in_runs(self) -> None:
        """Read as many texts at once as Arrow does not refuse; what it does is left, alone where it says which.

        They were checked for syntax.
        """
        texts = self._texts.take(integers(self._unread)) if self._unread else self._texts.slice(0, 0)
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
                    self.add(*self._read_run(run, start))
                    start += len(run)
                    length = 2 * len(run)
                except _RefusedError as refusal:
                    refused += 1
                    if refusal.row is not None and refusal.row < len(run):
                        refused_at = start + refusal.row
                        length = refusal.row or _LEFT_AT_ONCE
                    elif len(run) > _LEFT_AT_ONCE:
                        length = len(run) // 2
                    else:
                        left = len(run)
            start += left

    def _read_run(self, run: pa.Array, start: int) -> tuple[pa.Table, int, pa.Array]:
        table, fits = self._parser.read(run)
        return table, start, fits

    def finish(self) -> tuple[pa.Table, pa.Array]:
        """Read alone what is not read yet: the records of all texts that have one, and the reasons of all others."""
        parser = self._parser
        read = set(self._read)
        alone = [at for at in self._unread if at not in read]
        if alone:
            reader = ObjectReader(parser.columns, parser.units, saves=parser.rescued)
            written = []
            for at, text in zip(alone, self._texts.take(integers(alone)).to_pylist(), strict=True):
                record, reason = reader.read(text)
                if record is None:
                    self._reasons[at] = reason
                    continue
                written.append(record)
                self._read.append(at)
                if reason is not None:
                    self._to_save.add(at)
            self._tables.append(parser.read_written(written))
        if not self._tables:
            return no_rows(parser.schema), _column(self._reasons)
        positions = integers(self._read)
        table = pa.concat_tables(self._tables)
        if len(self._tables) > 1:
            order = pc.sort_indices(positions)
            table, positions = table.take(order), positions.take(order)
        return parser.with_saved(table, self._saved(positions)), _column(self._reasons)

    def _saved(self, positions: pa.Array) -> pa.Array:
        is_saved = bool_array([at in self._to_save for at in positions.to_pylist()])
        return self._texts.take(pc.if_else(is_saved, positions, pa.nulls(len(positions), positions.type)))


@dataclass(frozen=True, slots=True)
class JsonRows:
    """Makes rows of rows that have a JSON text, where Spark hands them over: what ``mapInArrow`` calls.

    Attributes:
        parser: Reads the texts.
        text: The column of the texts. Where a row has a reason already, it may be null.
        rows: The columns of a record, then those that are carried over, among them the reason.
    """

    parser: ArrowJson
    text: str
    rows: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See ``DataFrame.mapInArrow``."""
        for batch in batches:
            if batch.num_rows:
                yield from self._parsed(batch).to_batches()

    def _parsed(self, batch: pa.RecordBatch) -> pa.Table:
        texts = batch.column(self.text).cast(pa.string())
        has_reason = REASON in batch.schema.names
        reasons = batch.column(REASON).cast(pa.string()) if has_reason else pa.nulls(len(texts), pa.string())
        is_given = pc.is_null(reasons)
        if pc.any(pc.and_(is_given, pc.is_null(texts))).as_py():
            raise ValueError("a row without a text has no reason")
        records, found = self.parser(texts.filter(is_given))
        reasons = pc.replace_with_mask(reasons, is_given, found)
        is_record = pc.is_null(reasons)
        number = pc.subtract(pc.cumulative_sum(is_record.cast(pa.int32())), int_scalar(1))
        records = records.combine_chunks().take(pc.if_else(is_record, number, pa.nulls(len(number), number.type)))
        columns = records.columns
        for of in list(self.rows)[len(columns) :]:
            columns.append((reasons if of.name == REASON else batch.column(of.name)).cast(of.type))
        return pa.Table.from_arrays(columns, schema=self.rows).combine_chunks()


def as_texts(columns: StructType) -> StructType:
    """The columns as tasks have them, all nullable: a VARIANT is its JSON text, and no text has a collation."""

    def single(kind: DataType) -> DataType:
        return StringType() if isinstance(kind, StringType | VariantType) else kind

    return StructType([StructField(one.name, relaxed(one.dataType, single)) for one in columns.fields])


class _RefusedError(Exception):
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
    line = text_scalar("\n").cast(texts.type)
    return pc.binary_join(one_list(texts), line)[0].as_buffer()


def _column(reasons: Iterable[str | None]) -> pa.Array:
    runs = (repeated_text(reason, len(list(run))) for reason, run in groupby(reasons))
    return pa.concat_arrays([repeated_text(None, 0), *runs])


def _read_as(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow is to read; what it reads too freely it gets as text, or as a wider type, to be converted."""
    if pa.types.is_temporal(kind) or pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _read_as(one.type)) for one in kind])
    return pa.list_(_read_as(kind.value_type)) if pa.types.is_list(kind) else _read_number_as(kind)


def _written_as(kind: pa.DataType) -> pa.DataType:
    """The type in which a value is written: see :mod:`.json_values`."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _written_as(one.type)) for one in kind])
    if pa.types.is_map(kind):
        entry = [pa.field(MAP_KEY, pa.string()), pa.field(MAP_VALUE, _written_as(kind.item_type))]
        return pa.list_(pa.struct(entry))
    return pa.list_(_written_as(kind.value_type)) if pa.types.is_list(kind) else _read_number_as(kind)


def _read_number_as(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        # It would keep more digits than the type has.
        return pa.decimal256(76, kind.scale)
    return kind


def _fits(values: pa.Array, kind: DataType, nullable: bool) -> pa.Array:
    """Say of each value whether it is there, where it must be, and in a notation that Arrow's casts read."""
    fits = pa.repeat(bool_scalar(True), len(values))
    if (notation := _NOTATIONS.get(type(kind))) is not None:
        fits = pc.match_substring_regex(values, notation)
    elif isinstance(kind, StructType):
        for number, one in enumerate(kind.fields):
            fits = pc.and_(fits, _fits(values.field(number), one.dataType, one.nullable))
    elif isinstance(kind, ArrayType):
        unfit = pc.invert(_fits(values.flatten(), kind.elementType, kind.containsNull))
        if pc.any(unfit).as_py():
            parents = pc.list_parent_indices(values).filter(unfit)
            fits = pc.invert(pc.is_in(integers(range(len(values))).cast(parents.type), parents))
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
    if pa.types.is_binary(kind):
        return binary_array([None if text is None else decoded(text) for text in values.to_pylist()])
    if pa.types.is_timestamp(kind) and pa.types.is_string(values.type):
        if kind.tz is not None:
            zoned = pc.match_substring_regex(values, _ZONED)
            values = pc.if_else(zoned, values, pc.binary_join_element_wise(values, text_scalar("Z"), text_scalar("")))
        moments = values.cast(kind)
        # A zone behind UTC can bring the last day of the year 9999 into the next one.
        if pc.any(pc.greater(moments.cast(pa.int64()), long_scalar(LAST_MICROSECOND))).as_py():
            raise pa.ArrowInvalid("beyond the year 9999")
        return moments
    if pa.types.is_struct(kind):
        fields = [_converted(values.field(number), one.type) for number, one in enumerate(kind)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pc.is_null(values))
    if pa.types.is_map(kind):
        entries = values.values
        keys, items = entries.field(0), _converted(entries.field(1), kind.item_type)
        return pa.MapArray.from_arrays(values.offsets, keys, items, type=kind, mask=pc.is_null(values))
    if pa.types.is_list(kind):
        elements = _converted(values.values, kind.value_type)
        return pa.ListArray.from_arrays(values.offsets, elements, type=kind, mask=pc.is_null(values))
    return values.cast(kind)
