"""Spark's types in PostgreSQL: which column takes which type, and how values are written for COPY.

``jsonb`` needs text, and a Python object for each value would cost more than everything else. So a task joins the JSON
texts of nested values column by column with Arrow. Values that cannot be written so (times and maps inside nested
values, control characters, numbers that JSON does not have) are left to Spark's ``to_json``. Both write the same
values; a number may have other digits, such as ``1e+30`` for ``1.0E30``, which PostgreSQL compares as equal.
"""

from __future__ import annotations

import json
import re
from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.schemas import quoted, types_in

_TYPES: Final[dict[type[DataType], tuple[str, ...]]] = {
    BooleanType: ("boolean",),
    ByteType: ("smallint", "integer", "bigint"),
    ShortType: ("smallint", "integer", "bigint"),
    IntegerType: ("integer", "bigint"),
    LongType: ("bigint",),
    FloatType: ("real", "double precision"),
    DoubleType: ("double precision",),
    DecimalType: ("numeric",),
    StringType: ("text", "character varying"),
    BinaryType: ("bytea",),
    DateType: ("date",),
    TimestampType: ("timestamp with time zone",),
    TimestampNTZType: ("timestamp without time zone",),
    StructType: ("jsonb", "json"),
    ArrayType: ("jsonb", "json"),
    MapType: ("jsonb", "json"),
    VariantType: ("jsonb", "json"),
}
"""The types of PostgreSQL for each type of Spark, as ``format_type`` writes them; the first is used for new columns.

An existing column may have one of the others: also a ``numeric`` with at least as many digits on both sides of the
point, and a ``varchar`` without a length.
"""

_JSON: Final = (StructType, ArrayType, MapType, VariantType)
_JSON_OPTIONS: Final = {"timeZone": "UTC", "ignoreNullFields": "false"}
# The escape of NUL, unless its backslash is itself escaped.
_ESCAPED_NUL: Final = r"(?<!\\)((?:\\\\)*)\\u0000"


_NUMBERS: Final = (BooleanType, ByteType, DecimalType, IntegerType, LongType, ShortType)
# Without times, of which Spark writes only the milliseconds. Strings with a collation are included.
_WRITTEN: Final = (*_NUMBERS, ArrayType, DateType, DoubleType, StringType, StructType)
_ESCAPES: Final = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
# JSON has these characters only as escapes, so a text with one of them must not be stored.
_CONTROL: Final = "[\\x00-\\x1f]"
_AFTER_CONTROLS: Final = 0x20
_UNWRITABLE: Final = "\x01"


def postgres_type(name: str, kind: DataType) -> str:
    """Return the type of a new column.

    Raises:
        SchemaError: PostgreSQL has no type for it, or for a type inside it.
    """
    for path, inner in types_in(kind, name):
        # Not isinstance: CHAR and VARCHAR are subclasses of Spark's string type, but have lengths.
        if type(inner) not in _TYPES:
            raise SchemaError(f"column {path}: a PostgreSQL table cannot store the type {inner.simpleString()}")
    return f"numeric({kind.precision},{kind.scale})" if isinstance(kind, DecimalType) else _TYPES[type(kind)][0]


def takes(stored: str, kind: DataType) -> bool:
    """Whether a column of a type, as ``format_type`` writes it, takes every value of one of Spark's types."""
    if isinstance(kind, DecimalType):
        digits = re.fullmatch(r"numeric\((\d+),(-?\d+)\)", stored)
        if digits is None:
            return stored == "numeric"
        precision, scale = int(digits[1]), int(digits[2])
        return scale >= kind.scale and precision - scale >= kind.precision - kind.scale
    return stored in _TYPES.get(type(kind), ())


def is_json(kind: DataType) -> bool:
    """Whether values of a type are stored as JSON."""
    return isinstance(kind, _JSON)


def written(name: str, kind: DataType) -> Column:
    """Prepare a column for COPY: nested values as JSON texts, all others as they are."""
    column = F.col(quoted(name))
    if isinstance(kind, _JSON):
        text = F.to_json(column, _JSON_OPTIONS)
        # jsonb cannot have NUL, like text.
        column = F.when(
            F.contains(text, F.lit("\\u0000")), F.regexp_replace(text, _ESCAPED_NUL, "$1\\\\ufffd")
        ).otherwise(text)
    return column.alias(name)


def can_write(kind: DataType) -> bool:
    """Whether :func:`json_texts` writes the values of a nested type as Spark would."""
    return all(isinstance(inner, _WRITTEN) for _, inner in types_in(kind))


def json_texts(values: pa.Array, kind: DataType) -> pa.Array:
    """Write values as JSON texts; null for null. Check the result with :func:`is_unwritable`."""
    if isinstance(kind, StructType):
        members = [
            pc.binary_join_element_wise(
                f"{json.dumps(field.name, ensure_ascii=False)}:", _not_null(values.field(number), field.dataType), ""
            )
            for number, field in enumerate(kind.fields)
        ]
        if not members:
            return pc.if_else(pc.is_valid(values), "{}", pa.scalar(None, pa.string()))
        joined = pc.binary_join_element_wise("{", pc.binary_join_element_wise(*members, ","), "}", "")
        return pc.if_else(pc.is_valid(values), joined, pa.scalar(None, pa.string()))
    if isinstance(kind, ArrayType):
        lengths = pc.fill_null(pc.list_value_length(values), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))])
        elements = _not_null(values.flatten(), kind.elementType)
        lists = pa.ListArray.from_arrays(offsets.cast(pa.int32()), elements)
        joined = pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", "")
        return pc.if_else(pc.is_valid(values), joined, pa.scalar(None, pa.string()))
    if isinstance(kind, DoubleType):
        return pc.if_else(pc.is_finite(values), values.cast(pa.string()), _UNWRITABLE)
    if isinstance(kind, _NUMBERS):
        return values.cast(pa.string())
    return pc.binary_join_element_wise('"', _escaped(values.cast(pa.string())), '"', "")


def is_unwritable(texts: pa.Array) -> pa.Array:
    """Return which texts of :func:`json_texts` are unusable, so that Spark must write the values."""
    data = np.frombuffer(bytes_of(texts), np.uint8)
    if not len(data) or data.min() >= _AFTER_CONTROLS:
        return pa.repeat(False, len(texts))
    return pc.fill_null(pc.match_substring_regex(texts, _CONTROL), False)


def bytes_of(texts: pa.Array) -> pa.Buffer:
    """Return the bytes of all strings, one after the other, without a copy."""
    _, offsets, data = texts.buffers()
    if not len(texts) or data is None:
        return pa.py_buffer(b"")
    is_large = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    kind = pa.int64() if is_large else pa.int32()
    starts = pa.Array.from_buffers(kind, len(texts) + 1, [None, offsets], offset=texts.offset)
    first, end = starts[0].as_py(), starts[-1].as_py()
    return data.slice(first, end - first)


def _not_null(values: pa.Array, kind: DataType) -> pa.Array:
    return pc.fill_null(json_texts(values, kind), "null")


def _escaped(texts: pa.Array) -> pa.Array:
    data = bytes_of(texts).to_pybytes()
    for character, escape in _ESCAPES:
        if character.encode() in data:
            texts = pc.replace_substring(texts, character, escape)
    return texts
