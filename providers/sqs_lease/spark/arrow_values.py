"""Arrow values that a task of Spark's makes of Python's, without pandas.

``pa.array``, ``pa.scalar`` and whatever takes a value of Python's import pandas, where it is installed, to know its
nulls: 340 modules and half a second, more than all else that a task imports, in each Python worker that Spark starts.
So a task makes the few values that it needs of their bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]


def text_scalar(value: str) -> pa.StringScalar:
    """A text."""
    data = value.encode()
    return pa.Array.from_buffers(pa.string(), 1, [None, integers([0, len(data)]).buffers()[1], pa.py_buffer(data)])[0]


def repeated_text(value: str | None, count: int) -> pa.StringArray:
    """As many times the same text, or null."""
    return pa.nulls(count, pa.string()) if value is None else pa.repeat(text_scalar(value), count)


def bool_scalar(value: bool) -> pa.BooleanScalar:
    """True or false."""
    return pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(bytes([value]))])[0]


def int_scalar(value: int) -> pa.Int32Scalar:
    """An integer of 32 bits."""
    return integers([value])[0]


def long_scalar(value: int) -> pa.Int64Scalar:
    """An integer of 64 bits."""
    return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(array("q", [value]))])[0]


def integers(values: Iterable[int]) -> pa.Int32Array:
    """Integers of 32 bits."""
    data = array("i", values)
    return pa.Array.from_buffers(pa.int32(), len(data), [None, pa.py_buffer(data)])


def bool_array(values: Sequence[bool]) -> pa.BooleanArray:
    """Many times true or false."""
    return pa.Array.from_buffers(pa.uint8(), len(values), [None, pa.py_buffer(bytes(values))]).cast(pa.bool_())


def binary_array(values: Sequence[bytes | None]) -> pa.BinaryArray:
    """Bytes, or nulls."""
    lengths = accumulate((len(value or b"") for value in values), initial=0)
    buffers = [None, integers(lengths).buffers()[1], pa.py_buffer(b"".join(value or b"" for value in values))]
    found = pa.Array.from_buffers(pa.binary(), len(values), buffers)
    is_null = bool_array([value is None for value in values])
    return pc.if_else(is_null, pa.nulls(len(values), pa.binary()), found)


def one_list(values: pa.Array) -> pa.ListArray:
    """An array of one list, which has all the values."""
    return pa.ListArray.from_arrays(integers([0, len(values)]), values)


def no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows; ``Schema.empty_table`` makes arrays of Python's lists."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
