"""Nested values that a task made as the JSON texts that PostgreSQL stores, without a Python object for any of them.

What cannot be written here is left to Spark, whose ``to_json`` means the same: numbers may have other digits, such as
``1e+30`` for ``1.0E30``, and are equal as PostgreSQL compares them.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from sqs_lease.spark.schemas import types_in

_NUMBERS: Final = (BooleanType, ByteType, DecimalType, IntegerType, LongType, ShortType)
# Of times, Spark writes the milliseconds only. A collated text is a text, too.
_WRITTEN: Final = (*_NUMBERS, ArrayType, DateType, DoubleType, StringType, StructType)
_ESCAPES: Final = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
# JSON has no such character but as an escape, so a text with one is not to be stored.
_CONTROL: Final = "[\\x00-\\x1f]"
_UNWRITABLE: Final = "\x01"


def can_write(kind: DataType) -> bool:
    """Whether the values of a nested type are written here as Spark means them."""
    return all(isinstance(inner, _WRITTEN) for _, inner in types_in(kind))


def json_texts(values: pa.Array, kind: DataType) -> pa.Array:
    """Values as JSON texts; null where a value is null. See :func:`is_unwritable`."""
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
    """Of which texts of :func:`json_texts` Spark is to write the values instead."""
    return pc.fill_null(pc.match_substring_regex(texts, _CONTROL), False)


def _not_null(values: pa.Array, kind: DataType) -> pa.Array:
    return pc.fill_null(json_texts(values, kind), "null")


def _escaped(texts: pa.Array) -> pa.Array:
    for character, escape in _ESCAPES:
        if pc.any(pc.match_substring(texts, character)).as_py():
            texts = pc.replace_substring(texts, character, escape)
    return texts
