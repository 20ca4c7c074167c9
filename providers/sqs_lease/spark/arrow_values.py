"""Arrow values that Spark's tasks make from Python values, without pandas.

``pa.array``, ``pa.scalar`` and every other function that takes a Python value import pandas, if it is installed, to
recognise its nulls. That is 340 modules and half a second in each Python worker that Spark starts, more than all other
imports of a task. So a task makes the few values that it needs from their bytes.
"""

from __future__ import annotations

from array import array

import pyarrow as pa  # type: ignore[import-untyped]


def text_scalar(value: str) -> pa.StringScalar:
    """Make a string."""
    data = value.encode()
    return pa.Array.from_buffers(pa.string(), 1, [None, _integers(0, len(data)).buffers()[1], pa.py_buffer(data)])[0]


def repeated_text(value: str | None, count: int) -> pa.StringArray:
    """Make an array that repeats a string, or null."""
    return pa.nulls(count, pa.string()) if value is None else pa.repeat(text_scalar(value), count)


def bool_scalar(value: bool) -> pa.BooleanScalar:
    """Make a boolean."""
    return pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(bytes([value]))])[0]


def int_scalar(value: int) -> pa.Int32Scalar:
    """Make an integer of 32 bits."""
    return _integers(value)[0]


def one_list(values: pa.Array) -> pa.ListArray:
    """Make an array of one list, which has all the values."""
    return pa.ListArray.from_arrays(_integers(0, len(values)), values)


def no_rows(schema: pa.Schema) -> pa.Table:
    """Make a table without rows. ``Schema.empty_table`` would make its arrays from Python lists."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _integers(*values: int) -> pa.Int32Array:
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(array("i", values))])
