"""What a sink is: a table that takes a batch's rows in one commit, and knows which messages it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType


class Overtaken(Exception):  # noqa: N818 - an answer to a commit rather than an error
    """The table changed after the snapshot was taken: nothing was committed. Look again, then try again."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Rows that were written where no reader of the table sees them yet.

    Attributes:
        location: Where they are, in the sink's own terms.
        message_ids: The message id of every row, read back from what was written.
    """

    location: str
    message_ids: tuple[str, ...]


class Snapshot(Protocol):
    """The table at one version."""

    @property
    def version(self) -> int:
        """The version."""

    def version_of(self, batch_id: str) -> int | None:
        """The version that committed the batch; None where that did not happen."""

    def find(self, message_ids: DataFrame) -> Mapping[str, str]:
        """Look messages up.

        Args:
            message_ids: One column, ``MESSAGE_ID`` of :mod:`.columns`.

        Returns:
            Message id -> batch id, of those messages that the table holds.
        """


SnapshotT = TypeVar("SnapshotT", bound=Snapshot)


class Sink(Protocol[SnapshotT]):
    """Stores records, each message once. Ingestion calls the verbs in the order they stand here."""

    def open(self, columns: StructType) -> SnapshotT:
        """Look at the table as it is now; create it where there is none.

        Args:
            columns: All columns of the table, those of :mod:`.columns` included.

        Raises:
            SchemaError: The table has other columns, or cannot have these.
            TableError: The table cannot be used.
        """

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        """Write rows, in exactly one Spark action, and leave the table as it is."""

    def commit(self, snapshot: SnapshotT, staged: Staged, batch_id: str) -> int:
        """Add staged rows to the table, all or none, if it still is what the snapshot shows.

        The batch id is recorded in the same commit.

        Returns:
            The new version.

        Raises:
            Overtaken: The table changed since; nothing was committed.
            TableError: It cannot be written.
        """

    def discard(self, staged: Staged) -> None:
        """Remove staged rows, unless the table has them."""
