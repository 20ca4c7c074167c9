"""Exactly once for tables that cannot take message ids in their own commits: a ledger beside them, written first.

1. The batch's rows are staged as files that the table does not name.
2. The ledger admits the batch: one commit names its messages and where the rows are. It is refused if anybody else was
   admitted since the look-up. From here on the batch will be in the table, whoever dies.
3. The table takes the staged rows, once however often it is told to: each application has a number, and the table
   remembers in the same commit the highest one it took.

A process that dies after step 2 leaves a batch half-done; the next look-up, by anybody, finishes it before it answers.
So at most the newest batch of the ledger is ever half-done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqs_lease.spark.sinks.sink import Staged


@dataclass(frozen=True, slots=True)
class Application:
    """Which batch a table is told to take.

    Attributes:
        ledger_id: The ledger that numbers the batches: another one may start again at 1.
        number: Rises by each batch that the ledger admits; a table that took this number, or a higher one, of this
            ledger has the batch.
        batch_id: The batch.
    """

    ledger_id: str
    number: int
    batch_id: str


class TargetTable(Protocol):
    """An open table that takes staged rows."""

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        """See :meth:`.sink.Table.stage`. What it writes must outlive this process."""

    def apply(self, location: str, application: Application) -> int | None:
        """Take the rows at a location, all or none, and once: nothing happens if the table has this application.

        Several processes may do this at the same time, and another one than the one that staged the rows.

        Returns:
            The version of the table that has them, where it has versions.

        Raises:
            TableError: It cannot be written; it is tried again by whoever looks next.
        """

    def version(self) -> int | None:
        """The table's version now, where it has versions."""

    def discard(self, location: str) -> None:
        """Remove staged rows that the ledger does not name. It never fails because of what it cannot remove."""


class Target(Protocol):
    """Says which table, and how it is to be written."""

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> TargetTable:
        """See :meth:`.sink.Sink.open`."""
