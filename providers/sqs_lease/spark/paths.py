"""Local paths in the notations that Spark needs for writing and for reading, and files that are written whole."""

from __future__ import annotations

import os
import re
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


def write_path(path: Path | str) -> str:
    """Return the address of a local file or directory for Spark to write.

    It has the scheme, because a path without one belongs to the cluster's default file system. It is not
    percent-encoded, because Hadoop does not decode it.
    """
    return f"file://{path}"


def write_whole(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all, replaces an older one, and survives a power failure."""
    partial = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_parquet(spark: SparkSession, path: Path | str, columns: str | StructType | None = None) -> DataFrame:
    """Plan to read Parquet files. A missing or damaged file is an error: rows that were left out would be lost.

    Args:
        spark: The session, whose own settings may tolerate missing or damaged files.
        path: A local file or directory (escaped here, because Hadoop takes it for a pattern), or an address.
        columns: The columns to read; None for all.
    """
    reader = spark.read if columns is None else spark.read.schema(columns)
    address = str(path) if "://" in str(path) else write_path(re.sub(r"([\\*?\[\]{}])", r"\\\1", str(path)))
    return reader.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false").parquet(address)
