"""Makes rows of the contents of objects whose files know the types of their columns: Parquet, ORC and Avro."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, Final, TypeAlias
from uuid import UUID

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from sqs_lease.spark.columns import STRANGE_TIME
from sqs_lease.spark.sources.s3_events.contents import BATCH_ROWS, BadContentError, check_columns, faults_named

Batches: TypeAlias = Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
"""Reads some columns of a file."""


@dataclass(frozen=True)
class Columnar:
    """Files that are matched by the names of their columns, and converted where nothing is lost.

    Attributes:
        schema: The columns; further ones of the file are ignored, and those that it has not are null.
        required: Those that the file must have.
        opened: Opens a file: the names of its columns, and what reads them.
    """

    schema: pa.Schema
    required: Sequence[str]
    opened: Callable[[IO[bytes]], tuple[Sequence[str], Batches]]

    def rows(self, file: IO[bytes], name: str) -> Iterator[pa.RecordBatch]:
        """See :class:`.contents.Format`."""
        found, batches = self.opened(file)
        check_columns(found, self.schema, self.required, "file")
        for batch in batches([name for name in self.schema.names if name in found]):
            yield _converted(batch, self.schema)


def parquet(file: IO[bytes]) -> tuple[Sequence[str], Batches]:
    """Open a Parquet file."""
    with faults_named("Parquet"):
        content = pq.ParquetFile(pa.PythonFile(file, mode="r"), coerce_int96_timestamp_unit="us", pre_buffer=False)
        found = content.schema_arrow.names

    def batches(wanted: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with faults_named("Parquet"):
            yield from content.iter_batches(BATCH_ROWS, columns=wanted, use_threads=False)

    return found, batches


def orc(file: IO[bytes]) -> tuple[Sequence[str], Batches]:
    """Open an ORC file. A stripe is in memory as a whole."""
    # Not a part of every build of pyarrow.
    from pyarrow.orc import ORCFile  # type: ignore[import-untyped]

    with faults_named("ORC"):
        content = ORCFile(pa.PythonFile(file, mode="r"))
        found = content.schema.names

    def batches(wanted: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for number in range(content.nstripes):
            with faults_named("ORC"):
                try:
                    stripe = content.read_stripe(number, columns=wanted)
                except pa.ArrowInvalid as error:
                    # It reads times in nanoseconds; what it cannot read so is not damaged.
                    if "nanosecond" not in str(error):
                        raise
                    raise BadContentError(
                        "a time beyond the years 1677 to 2262, which is as far as ORC is read"
                    ) from None
            for start in range(0, stripe.num_rows, BATCH_ROWS):
                yield stripe.slice(start, BATCH_ROWS)

    return found, batches


def avro(file: IO[bytes]) -> tuple[Sequence[str], Batches]:
    """Open an Avro file; of the logical types, those that Spark has are read."""
    # Only users of Avro need the package.
    import fastavro

    file.seek(0)
    with _avro_faults():
        content = fastavro.reader(file)
        written: Any = content.writer_schema
    if not isinstance(written, Mapping) or written.get("type") != "record":
        raise BadContentError("the values of the file are no records")
    found = {its["name"]: its["type"] for its in written["fields"]}

    def batches(wanted: Sequence[str]) -> Iterator[pa.RecordBatch]:
        named: dict[str, Any] = {}
        with _avro_faults():
            # All of them, in their order: a type is described where it is used first.
            types = {name: _avro_type(kind, named) for name, kind in found.items()}
        for name in wanted:
            if types[name] is None:
                raise BadContentError(f"column {name} is of a type that Spark does not have")
        schema = pa.schema([(name, types[name]) for name in wanted])
        while True:
            with _avro_faults():
                records: list[Any] = list(islice(content, BATCH_ROWS))
                columns = [pa.array([_avro_value(row[its.name]) for row in records], its.type) for its in schema]
            if not records:
                return
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return list(found), batches


def _converted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Make columns of a schema of those of a file, unless something would be lost."""
    columns = []
    for field in schema:
        if field.name not in batch.schema.names or pa.types.is_null(batch.column(field.name).type):
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        values = batch.column(field.name)
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if not _fits(values.type, field.type):
            raise BadContentError(f"column {field.name} is {values.type}, and must be {field.type}")
        try:
            if pa.types.is_integer(values.type) and pa.types.is_decimal(field.type):
                # Of any other decimal, Arrow wants room for the largest integer.
                values = values.cast(_ANY_INTEGER)
            columns.append(values.cast(field.type))
        except pa.ArrowException:
            raise BadContentError(
                f"column {field.name}, of {values.type}, has a value that {field.type} cannot hold"
            ) from None
    converted = pa.RecordBatch.from_arrays(columns, schema=schema)
    try:
        # A text that is not UTF-8 would make a table that others cannot read.
        converted.validate(full=True)
    except pa.ArrowException:
        raise BadContentError(
            "damaged: a value is not of the type that the file says, such as a text in UTF-8"
        ) from None
    return converted


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type are converted to another without loss, or that fails; so is what is inside of them."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    kind = _kind(wanted)
    if pa.types.is_null(found):
        return True
    if _kind(found) not in _FITTING.get(kind, {kind}):
        return False
    match kind:
        case "list":
            return _fits(found.value_type, wanted.value_type)
        case "map":
            return _fits(found.key_type, wanted.key_type) and _fits(found.item_type, wanted.item_type)
        case "struct":
            types = {field.name: field.type for field in found}
            return all(_fits(types[field.name], field.type) for field in wanted if field.name in types)
    return True


def _kind(kind: pa.DataType) -> str:
    """What sort of values a type has: within one sort, conversions lose nothing or fail."""
    sorts = {
        "integer": pa.types.is_integer,
        "double": pa.types.is_float64,
        "float": pa.types.is_floating,
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


_PYTHONS_YEARS: Final = re.compile(r"year -?\d+ is out of range|ordinal must be")
_FITTING: Final = {
    "double": {"double", "float", "integer"},
    "float": {"float", "integer"},
    "decimal": {"decimal", "integer"},
}
_ANY_INTEGER: Final = pa.decimal128(20, 0)

_AVRO: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_AVRO_LOGICAL: Final = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}
"""Of Avro 1.12 ("Logical Types"). Spark has no time of day, and no duration."""


def _avro_type(kind: Any, named: dict[str, Any]) -> Any:
    """The Arrow type for one that a file describes; None for one that Spark does not have. New names are added."""
    if isinstance(kind, str):
        return named.get(kind, _AVRO.get(kind))
    if isinstance(kind, list):
        translated = [_avro_type(one, named) for one in kind]
        others = [one for one in translated if one != pa.null()]
        return others[0] if len(others) == 1 else None
    described = _avro_described(kind, named)
    if "name" in kind:
        named[kind["name"]] = described
    return described


def _avro_described(kind: Mapping[str, Any], named: dict[str, Any]) -> Any:
    logical = kind.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(kind["precision"], kind.get("scale", 0))
    if logical is not None:
        return _AVRO_LOGICAL.get(logical)
    match kind["type"]:
        case "record":
            fields = [(its["name"], _avro_type(its["type"], named)) for its in kind["fields"]]
            return None if any(its is None for _, its in fields) else pa.struct(fields)
        case "array":
            element = _avro_type(kind["items"], named)
            return None if element is None else pa.list_(element)
        case "map":
            value = _avro_type(kind["values"], named)
            return None if value is None else pa.map_(pa.string(), value)
        case other:
            return _avro_type(other, named)


def _avro_value(value: Any) -> Any:
    """A value as pyarrow takes it, whatever it is inside of."""
    if isinstance(value, dict):
        return {name: _avro_value(its) for name, its in value.items()}
    if isinstance(value, list):
        return [_avro_value(its) for its in value]
    return str(value) if isinstance(value, UUID) else value


@contextmanager
def _avro_faults() -> Iterator[None]:
    try:
        yield
    except (OSError, ImportError, MemoryError):
        # Of the machine, and not of the file.
        raise
    except (OverflowError, ValueError) as error:
        # Python's own, of times and of dates.
        if isinstance(error, OverflowError) or _PYTHONS_YEARS.search(str(error)):
            raise BadContentError(STRANGE_TIME) from None
        raise BadContentError("not Avro, or damaged") from None
    except Exception:  # noqa: BLE001 - each codec's package has exceptions of its own
        raise BadContentError("not Avro, or damaged") from None
