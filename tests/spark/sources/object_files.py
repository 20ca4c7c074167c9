"""Objects as their producers write them."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import orc


def orc_file(table: pa.Table) -> bytes:
    """An ORC file."""
    sink = io.BytesIO()
    orc.write_table(table, sink)
    return sink.getvalue()


def avro_file(schema: Any, *values: Any, codec: str = "null") -> bytes:
    """An Avro file of values of a schema."""
    sink = io.BytesIO()
    fastavro.writer(sink, schema, values, codec=codec)
    return sink.getvalue()
