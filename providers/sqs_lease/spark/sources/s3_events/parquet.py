"""Format of Parquet files, which have types for their columns; see :mod:`.contents` for the other formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from sqs_lease.spark.sources.s3_events.allowance import Allowance
from sqs_lease.spark.sources.s3_events.contents import BATCH_ROWS, BadContentError, check_columns, faults_named
from sqs_lease.spark.sources.s3_events.parquet_pages import MOST_COLUMNS, require_small_footer, rows_at_once

_BUFFER_BYTES: Final = 1024 * 1024


@dataclass(frozen=True)
class Parquet:
    """Parquet files. Columns are matched by name, and converted if nothing is lost.

    Attributes:
        schema: The columns. Further columns of the file are ignored; columns that it lacks are null.
        required: The columns that the file must have.
    """

    schema: pa.Schema
    required: Sequence[str]

    def rows(self, file: IO[bytes], name: str, allowance: Allowance) -> Iterator[pa.RecordBatch]:
        """See :class:`.contents.Format`."""
        require_small_footer(file)
        with faults_named("Parquet"):
            content = pq.ParquetFile(
                pa.PythonFile(file, mode="r"),
                coerce_int96_timestamp_unit="us",
                pre_buffer=False,
                # Without a buffer size, all bytes of a column in a row group are read at once.
                buffer_size=_BUFFER_BYTES,
                # The longest list in the footer: of columns at every depth, or of row groups.
                thrift_container_size_limit=MOST_COLUMNS,
            )
            found = content.schema_arrow.names
        check_columns(found, self.schema, self.required, "file")
        columns = [name for name in self.schema.names if name in found]
        for batch in _batches(content, file, columns, allowance):
            converted = _converted(batch, self.schema)
            # The converted size, because what was read may be dictionaries.
            allowance.decompress(converted.nbytes)
            yield converted


def _batches(
    content: pq.ParquetFile, file: IO[bytes], columns: Sequence[str], allowance: Allowance
) -> Iterator[pa.RecordBatch]:
    with faults_named("Parquet"):
        wanted = pa.schema([content.schema_arrow.field(name) for name in columns])
        for group in range(content.num_row_groups):
            rows = rows_at_once(file, content.metadata, group, wanted, BATCH_ROWS, allowance)
            yield from content.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False)


def _converted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a file's columns to those of a schema, unless something would be lost."""
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
                # By way of a decimal with room for the largest integer, which Arrow demands.
                values = values.cast(_ANY_INTEGER)
            columns.append(values.cast(field.type))
        except pa.ArrowException:
            raise BadContentError(
                f"column {field.name}, of {values.type}, has a value that {field.type} cannot hold"
            ) from None
    converted = pa.RecordBatch.from_arrays(columns, schema=schema)
    try:
        # A string that is not UTF-8 would make the table unreadable for others.
        converted.validate(full=True)
    except pa.ArrowException:
        raise BadContentError(
            "damaged: a value is not of the type that the file says, such as a text in UTF-8"
        ) from None
    return converted


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a conversion between two types, and between the types inside them, is without loss or fails."""
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
    """Return the sort of a type: within one sort, conversions lose nothing or fail."""
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


_FITTING: Final = {
    "double": {"double", "float", "integer"},
    "float": {"float", "integer"},
    "decimal": {"decimal", "integer"},
}
_ANY_INTEGER: Final = pa.decimal128(20, 0)
