"""Parts of a batch's file that Spark's tasks read and parse themselves, without Spark's rows in between.

Each task reads row groups of the batch's file with Arrow, makes records of the bodies with the source's
:data:`.source.ArrowParser`, and writes the rows with Arrow. So no row passes from Python to the JVM and back. A message
without a row comes back in :data:`LEFT`: with the reason why it is rejected, or without one if a rule of the table may
refuse its row. Then Spark plans that row in a second job, in which the table names the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqs_lease.spark.arrow_values import repeated_text
from sqs_lease.spark.columns import BATCH_ID, MESSAGE_ID, SENT_AT
from sqs_lease.spark.sources.source import ArrowParser

# The bytes of one task. It holds few of its rows at a time, so it may be large. Each start of a task costs up to a
# second in a session with packages of jars, because PySpark reads the directories of all of them again.
_TASK_BYTES: Final = 1024 * 1024 * 1024
# The same where the number of cores is unknown.
_SMALL_TASK_BYTES: Final = 32 * 1024 * 1024
_BYTES_AT_ONCE: Final = 16 * 1024 * 1024
_BODY: Final = "body"
_READ: Final = ["message_id", "sent_at", _BODY]

CHOSEN: Final = pa.schema([("is_wanted", pa.bool_())])
"""One row for each message of a part, in their order: whether it is wanted."""

LEFT: Final = pa.schema([pa.field("message_id", pa.string(), nullable=False), pa.field("reason", pa.string())])
"""Messages of which tasks write no rows, and why they are rejected; null where Spark is to make and judge the rows."""


@dataclass(frozen=True, slots=True)
class Made:
    """Result of parsing some messages.

    Attributes:
        rows: The columns of a record and those of every table; one row for each message.
        rejected: The messages without a row, as :data:`LEFT`, with reasons.
    """

    rows: pa.Table
    rejected: pa.Table


@dataclass(frozen=True, slots=True)
class BatchParts:
    """Instructions for tasks that make rows of a batch. Spark pickles them to the tasks.

    Attributes:
        path: The batch's file, which all executors reach; its row groups are the parts.
        chosen: An Arrow file with one record batch for each part, as :data:`CHOSEN`: which messages are wanted. None if
            all are. By position, because comparing ids took three times as long for five million messages.
        parser: Makes the rows.
        batch_id: The id of the ingestion's batch, which its rows get as a column.
        count: How many parts there are.
        size: The file's size in bytes.
    """

    path: str
    chosen: str | None
    parser: ArrowParser
    batch_id: str
    count: int
    size: int

    @classmethod
    def of(cls, path: Path, *, chosen: Path | None, parser: ArrowParser, batch_id: str) -> BatchParts:
        """Take all parts of a batch's file."""
        count = pq.read_metadata(path).num_row_groups
        size = path.stat().st_size
        return cls(str(path), None if chosen is None else str(chosen), parser, batch_id, count, size)

    def tasks(self, spark: SparkSession) -> int:
        """Return the number of tasks: one for each core, and a multiple of that if they would be too large."""
        try:
            cores = spark.sparkContext.defaultParallelism
        except PySparkException:
            # A Spark Connect client does not know.
            return min(self.count, -(-self.size // _SMALL_TASK_BYTES))
        return min(self.count, cores * -(-self.size // (cores * _TASK_BYTES)))

    def read(self, parts: Iterable[int]) -> Iterator[Made]:
        """Make rows of some parts, numbered from 0, a few messages at a time."""
        with pq.ParquetFile(self.path) as file:
            for part in parts:
                is_wanted = self._is_wanted(part)
                if is_wanted is not None and not pc.any(is_wanted).as_py():
                    continue
                start = 0
                for messages in _messages(file, part):
                    end = start + messages.num_rows
                    wanted = messages if is_wanted is None else messages.filter(is_wanted[start:end])
                    start = end
                    if wanted.num_rows:
                        yield self._made(wanted)

    def _is_wanted(self, part: int) -> pa.Array | None:
        if self.chosen is None:
            return None
        with pa.OSFile(self.chosen) as file:
            return pa.ipc.open_file(file).get_batch(part).column(0)

    def _made(self, messages: pa.RecordBatch) -> Made:
        rows, reasons = self.parser(messages[_BODY])
        of_rows = messages if rows.num_rows == messages.num_rows else messages.filter(pc.is_null(reasons))
        rows = (
            rows.append_column(MESSAGE_ID, of_rows["message_id"])
            .append_column(SENT_AT, of_rows["sent_at"])
            .append_column(BATCH_ID, repeated_text(self.batch_id, rows.num_rows))
        )
        rejected = pa.Table.from_arrays([messages["message_id"], reasons], names=LEFT.names)
        return Made(rows, rejected.filter(pc.is_valid(reasons)).cast(LEFT))


def _messages(file: pq.ParquetFile, part: int) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a part, in batches so small that a task never holds many bytes."""
    group = file.metadata.row_group(part)
    (size,) = (
        group.column(number).total_uncompressed_size
        for number in range(group.num_columns)
        if group.column(number).path_in_schema == _BODY
    )
    at_once = max(1, min(group.num_rows, group.num_rows * _BYTES_AT_ONCE // max(size, 1)))
    yield from file.iter_batches(at_once, row_groups=[part], columns=_READ, use_threads=False)
