"""Local paths as Spark takes them, differently for writing and for reading, and files that are there as a whole."""

from __future__ import annotations

import os
import re
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


def write_path(path: Path | str) -> str:
    """The address of one local file or directory for Spark to write.

    With the scheme, because a path without one belongs to the cluster's default file system; not
    percent-encoded, because Hadoop does not decode it.
    """
    return f"file://{path}"


def write_whole(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all, in place of what was there, and survives a power failure."""
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
    """Plan to read Parquet files, all of them: a row that is left out would be lost.

    Args:
        spark: The session, which may tolerate files that are missing or damaged.
        path: A local file or directory, in which Hadoop looks for patterns; or an address.
        columns: Those wanted; None for all.
    """
    reader = spark.read if columns is None else spark.read.schema(columns)
    address = str(path) if "://" in str(path) else write_path(re.sub(r"([\\*?\[\]{}])", r"\\\1", str(path)))
    return reader.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false").parquet(address)
