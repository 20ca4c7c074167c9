"""Arrow values that Spark's tasks make from Python values, without pandas.

``pa.array``, ``pa.scalar`` and every other function that takes a Python value import pandas, if it is installed, to
recognise its nulls. That is 340 modules and half a second in each Python worker that Spark starts, more than all other
imports of a task. So a task makes the few values that it needs from their bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]


def text_scalar(value: str) -> pa.StringScalar:
    """Make a string."""
    data = value.encode()
    return pa.Array.from_buffers(pa.string(), 1, [None, integers([0, len(data)]).buffers()[1], pa.py_buffer(data)])[0]


def repeated_text(value: str | None, count: int) -> pa.StringArray:
    """Make an array that repeats a string, or null."""
    return pa.nulls(count, pa.string()) if value is None else pa.repeat(text_scalar(value), count)


def bool_scalar(value: bool) -> pa.BooleanScalar:
    """Make a boolean."""
    return pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(bytes([value]))])[0]


def int_scalar(value: int) -> pa.Int32Scalar:
    """Make an integer of 32 bits."""
    return integers([value])[0]


def long_scalar(value: int) -> pa.Int64Scalar:
    """Make an integer of 64 bits."""
    return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(array("q", [value]))])[0]


def integers(values: Iterable[int]) -> pa.Int32Array:
    """Make an array of integers of 32 bits."""
    data = array("i", values)
    return pa.Array.from_buffers(pa.int32(), len(data), [None, pa.py_buffer(data)])


def bool_array(values: Sequence[bool]) -> pa.BooleanArray:
    """Make an array of booleans."""
    return pa.Array.from_buffers(pa.uint8(), len(values), [None, pa.py_buffer(bytes(values))]).cast(pa.bool_())


def binary_array(values: Sequence[bytes | None]) -> pa.BinaryArray:
    """Make an array of bytes and nulls."""
    lengths = accumulate((len(value or b"") for value in values), initial=0)
    buffers = [None, integers(lengths).buffers()[1], pa.py_buffer(b"".join(value or b"" for value in values))]
    found = pa.Array.from_buffers(pa.binary(), len(values), buffers)
    is_null = bool_array([value is None for value in values])
    return pc.if_else(is_null, pa.nulls(len(values), pa.binary()), found)


def one_list(values: pa.Array) -> pa.ListArray:
    """Make an array of one list, which has all the values."""
    return pa.ListArray.from_arrays(integers([0, len(values)]), values)


def no_rows(schema: pa.Schema) -> pa.Table:
    """Make a table without rows. ``Schema.empty_table`` would make its arrays from Python lists."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
