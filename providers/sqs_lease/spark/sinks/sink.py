"""What a sink is: a table that takes a batch's rows and its message ids in one commit, and knows which it has.

`Sink` is a value: it says which table. ``open`` makes a `Table` of it, and ingestion then calls the verbs of that in
the order they stand in here, ``look_up`` and ``commit`` again whenever somebody else was faster.

Who writes a sink for another kind of table has two ways. Where the table's own transactions can take rows and message
ids together (a database), implement these two protocols. Where they cannot (files, a table format that commits one
table at a time), implement the smaller ones of `write_ahead`, which keeps the message ids in a ledger of its own.
`sqs_lease.testing.sink_contract` holds the tests that both must pass.
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
"""Outcome of a message that has nothing to store, and is done."""

REJECTED: Final = "rejected"
"""Outcome of a message that was put into the rejects table instead, and is done."""

REMEMBERED: Final = timedelta(days=29)
"""How long after its admission a batch is known.

SQS keeps a message for 14 days at most (its retention period). In the dead-letter queue of a standard queue these days
go on; in that of a FIFO queue they begin anew.
"""

STAGED_KEPT: Final = timedelta(days=2)
"""When staged rows are taken for what a killed try left behind: SQS lets no lease last longer than 12 hours."""

LOOKED_UP: Final = pa.schema(
    [pa.field("message_id", pa.string(), nullable=False), pa.field("sent_at", pa.timestamp("us", tz="UTC"))]
)
"""What is asked of a table: messages, with the time they were sent; null where the service did not say."""

ENTRIES: Final = pa.schema(
    [
        *LOOKED_UP,
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
    ]
)
"""What a table keeps of each message of a batch: one of the outcomes above, and why it was rejected."""

KNOWN: Final = pa.schema(
    [
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("batch_id", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
    ]
)
"""What a table answers: the messages that it knows, by which batch, and what became of them."""


class CommitConflict(Exception):  # noqa: N818 - an answer to a commit rather than an error
    """Answer to a commit: another process committed after the look-up, and this commit changed nothing.

    The caller looks up again and tries again. The text, if there is one, names the other commit for the log.
    """


@dataclass(frozen=True, slots=True)
class Staged:
    """Rows that were written where no reader of the table sees them yet.

    Attributes:
        location: Where they are, in the sink's own terms; another process must find them by it.
        message_ids: The message id of every row, read back from what was written (``string``).
    """

    location: str
    message_ids: pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class Admission:
    """What one commit brings into a table.

    Attributes:
        batch_id: The batch.
        entries: Its messages that the table did not know, as :data:`ENTRIES`.
        staged: Their rows; None where none of them has any.
    """

    batch_id: str
    entries: pa.Table
    staged: Staged | None


class LookUp(Protocol):
    """What a table knew at one moment."""

    @property
    def version(self) -> int | None:
        """The table's version, where it has versions."""

    @property
    def known(self) -> pa.Table:
        """The messages asked for that the table knows, as :data:`KNOWN`: each once."""


LookUpT = TypeVar("LookUpT", bound=LookUp)


class Table(Protocol[LookUpT]):
    """An open table. It belongs to the thread that opened it."""

    def look_up(self, messages: pa.Table) -> LookUpT:
        """Find out which messages the table knows.

        A commit that somebody else left half-done is finished first, so what is known is really in the table.

        Args:
            messages: As :data:`LOOKED_UP`, each once.

        Raises:
            TableError: The table cannot be read, or the half-done commit cannot be finished.
        """

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        """Write rows in exactly one Spark action, and leave the table as it is.

        A try that fails leaves nothing behind. Tries of one batch may run at the same time.

        Args:
            rows: The columns that the table was opened with, in that order.
            batch_id: The batch.
        """

    def commit(self, looked_up: LookUpT, admission: Admission) -> int | None:
        """Add the rows and the entries, all or none, if no other entries were committed since the look-up.

        Returns:
            The table's new version, where it has versions.

        Raises:
            CommitConflict: Another process committed first; this commit changed nothing.
            BatchIdReusedError: The table has messages of this batch id that were not among those looked up.
            TableError: It cannot be written. If the entries were committed all the same, the next look-up shows it.
        """

    def discard(self, staged: Staged) -> None:
        """Remove staged rows, unless a commit took them. It never fails because of what it cannot remove."""


Rest: TypeAlias = Callable[[pa.Table], DataFrame | None]
"""Takes the messages that tasks made no rows of, as :data:`.batch_parts.LEFT`, and plans the rows of those among them
that are not rejected; the columns are those for :meth:`Table.stage`. None where all are rejected."""


@runtime_checkable
class PartsTable(Protocol):
    """A table that also takes rows which Spark's tasks make themselves."""

    def stage_parts(self, spark: SparkSession, parts: BatchParts, rest: Rest, batch_id: str) -> Staged | None:
        """Write the rows of a batch in one Spark action, and in one more where messages were left.

        Otherwise as :meth:`Table.stage`.

        Args:
            spark: The session.
            parts: Makes rows, in the tasks.
            rest: Called once where tasks made no rows of some messages.
            batch_id: The batch.

        Returns:
            All rows; None where this table is not written so, and :meth:`Table.stage` is to be called.
        """


@runtime_checkable
class JudgingTable(Protocol):
    """A table that knows beforehand which rows it would refuse."""

    def judged(self, rows: DataFrame, reason: str) -> DataFrame:
        """Say of each row why the table would refuse it; ingestion then rejects its message.

        Args:
            rows: As for :meth:`Table.stage`, with a column more.
            reason: The name of that: null for rows of which nothing is known yet. It is to name a rule, and no value.
        """


class Sink(Protocol):
    """Says which table, and how it is to be written."""

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> Table[Any]:
        """Look at the table, and create it if it does not exist.

        Args:
            spark: The session.
            columns: All columns of the table, those of `columns` included.
            widen: Whether columns that the table lacks are to be added to it; they must be nullable.
                Then the table may also have nullable columns that are not in `columns`, which stay null: another driver
                may have added them a moment ago.

        Raises:
            SchemaError: The table has other columns, or cannot have these.
            TableError: The table cannot be used.
        """
