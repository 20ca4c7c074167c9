"""The protocols of a sink: a table that takes a batch's rows and message ids in one commit, and knows its messages.

`Sink` is a value that describes a table. ``open`` makes a `Table` from it. Ingestion then calls the methods of `Table`
in the order in which they stand here, and repeats ``look_up`` and ``commit`` after a conflict.

There are two ways to write a sink for another kind of table. If a transaction of the table can take rows and message
ids together (a database), implement these two protocols. If it cannot (files, a table format that commits one table at
a time), implement the smaller ones of `write_ahead`, which keeps the message ids in a ledger of its own.
`sqs_lease.testing.sink_contract` has the tests that both kinds must pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqs_lease.spark.batch_parts import BatchParts

INGESTED: Final = "ingested"
"""Outcome of a message whose records are in the table."""

EMPTY: Final = "empty"
"""Outcome of a valid message without a record, which is done."""

REJECTED: Final = "rejected"
"""Outcome of a message that was stored in the table of rejects instead, and is done."""

REMEMBERED: Final = timedelta(days=29)
"""The time for which a table remembers a batch after its admission.

SQS keeps a message for at most 14 days (its retention period). In the dead-letter queue of a standard queue, the time
before the move counts; in the dead-letter queue of a FIFO queue, the period starts again.
"""

STAGED_KEPT: Final = timedelta(days=2)
"""The age at which staged rows must be from a killed try: a lease of SQS lasts at most 12 hours."""

LOOKED_UP: Final = pa.schema(
    [pa.field("message_id", pa.string(), nullable=False), pa.field("sent_at", pa.timestamp("us", tz="UTC"))]
)
"""The columns of a look-up: messages, with the times at which they were sent; null if the service did not say."""

ENTRIES: Final = pa.schema(
    [
        *LOOKED_UP,
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
    ]
)
"""The columns of entries: what a table keeps of each message, with an outcome above and the reason for a reject."""

KNOWN: Final = pa.schema(
    [
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("batch_id", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
    ]
)
"""The columns of the answer to a look-up: the messages that the table knows, their batches and their outcomes."""


class CommitConflict(Exception):  # noqa: N818 - an answer to a commit rather than an error
    """Answer to a commit: another process committed after the look-up, and this commit changed nothing.

    The caller looks up again and tries again. The text, if there is one, names the other commit for the log.
    """


@dataclass(frozen=True, slots=True)
class Staged:
    """Rows that were written where no reader of the table sees them yet.

    Attributes:
        location: Their place, in the sink's own notation. Other processes must find them by it.
        message_ids: The message id of every row, read back from what was written (``string``).
    """

    location: str
    message_ids: pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class Admission:
    """Content of one commit to a table.

    Attributes:
        batch_id: The batch.
        entries: The messages of the batch that the table did not know, as :data:`ENTRIES`.
        staged: Their rows; None if no message has a row.
    """

    batch_id: str
    entries: pa.Table
    staged: Staged | None


class LookUp(Protocol):
    """Answer of a table at one moment."""

    @property
    def version(self) -> int | None:
        """The table's version, if it has versions."""

    @property
    def known(self) -> pa.Table:
        """The messages of the look-up that the table knows, as :data:`KNOWN`, each once."""


LookUpT = TypeVar("LookUpT", bound=LookUp)


class Table(Protocol[LookUpT]):
    """An open table. It belongs to the thread that opened it."""

    def look_up(self, messages: pa.Table) -> LookUpT:
        """Find the messages that the table knows.

        A commit that a killed process left half-done is completed first, so known messages are really in the table.

        Args:
            messages: As :data:`LOOKED_UP`, each once.

        Raises:
            TableError: The table cannot be read, or the half-done commit cannot be completed.
        """

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        """Write rows in exactly one Spark action, without changing the table.

        A try that fails must remove its rows. Several tries of one batch may run at the same time.

        Args:
            rows: The columns that the table was opened with, in that order.
            batch_id: The batch.
        """

    def commit(self, looked_up: LookUpT, admission: Admission) -> int | None:
        """Add the rows and the entries, all or none, if no other entries were committed since the look-up.

        Returns:
            The table's new version, if it has versions.

        Raises:
            CommitConflict: Another process committed first; this commit changed nothing.
            BatchIdReusedError: The table has messages of this batch id that were not among those looked up.
            TableError: The table cannot be written. If the commit succeeded all the same, the next look-up shows it.
        """

    def discard(self, staged: Staged) -> None:
        """Remove staged rows, unless a commit took them. It does not raise if it cannot remove them."""


Rest: TypeAlias = Callable[[pa.Table], DataFrame | None]
"""Takes the messages without rows from the tasks, as :data:`.batch_parts.LEFT`, and plans the rows of those that are
not rejected, with the columns for :meth:`Table.stage`. Returns None if all are rejected."""


@runtime_checkable
class PartsTable(Protocol):
    """A table that also takes rows which Spark's tasks make themselves (:mod:`..batch_parts`)."""

    def stage_parts(self, spark: SparkSession, parts: BatchParts, rest: Rest, batch_id: str) -> Staged | None:
        """Write the rows of a batch in one Spark action, and in a second one if tasks left messages.

        Otherwise see :meth:`Table.stage`.

        Args:
            spark: The session.
            parts: Makes rows, in the tasks.
            rest: Called once if tasks made no rows of some messages.
            batch_id: The batch.

        Returns:
            All rows; None if this table is not written in this way, so that :meth:`Table.stage` must be called.
        """


@runtime_checkable
class JudgingTable(Protocol):
    """A table that can tell before staging which rows it would refuse."""

    def judged(self, rows: DataFrame, reason: str) -> DataFrame:
        """Fill in the reason of each row that the table would refuse; ingestion then rejects its message.

        Args:
            rows: As for :meth:`Table.stage`, with one more column.
            reason: The name of that column: null for rows without a reason so far. A reason names a rule, and no value.
        """


class Sink(Protocol):
    """Says which table, and how it is to be written."""

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> Table[Any]:
        """Open the table, and create it if it does not exist.

        Args:
            spark: The session.
            columns: All columns of the table: those of a record and those that ingestion adds.
            widen: Whether to add columns that the table lacks; they must be nullable. The table may then also have
                nullable columns that are not in ``columns``, which stay null: another driver may have added them a
                moment ago.

        Raises:
            SchemaError: The table has other columns, or cannot have these.
            TableError: The table cannot be used.
        """
