"""Arrow values that a task of Spark's makes of Python's, without pandas.

``pa.array``, ``pa.scalar`` and whatever takes a value of Python's import pandas, where it is installed, to know its
nulls: 340 modules and half a second, more than all else that a task imports, in each Python worker that Spark starts.
So a task makes the few values that it needs of their bytes.
"""

from __future__ import annotations

from array import array

import pyarrow as pa  # type: ignore[import-untyped]


def text_scalar(value: str) -> pa.StringScalar:
    """A text."""
    data = value.encode()
    return pa.Array.from_buffers(pa.string(), 1, [None, _integers(0, len(data)).buffers()[1], pa.py_buffer(data)])[0]


def repeated_text(value: str | None, count: int) -> pa.StringArray:
    """As many times the same text, or null."""
    return pa.nulls(count, pa.string()) if value is None else pa.repeat(text_scalar(value), count)


def bool_scalar(value: bool) -> pa.BooleanScalar:
    """True or false."""
    return pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(bytes([value]))])[0]


def int_scalar(value: int) -> pa.Int32Scalar:
    """An integer of 32 bits."""
    return _integers(value)[0]


def one_list(values: pa.Array) -> pa.ListArray:
    """An array of one list, which has all the values."""
    return pa.ListArray.from_arrays(_integers(0, len(values)), values)


def no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows; ``Schema.empty_table`` makes arrays of Python's lists."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _integers(*values: int) -> pa.Int32Array:
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(array("i", values))])
