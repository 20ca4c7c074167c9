"""Exactly once for tables that cannot take message ids in their own commits: a ledger is written ahead of the table.

No table format commits two tables at once, so the ledger of message ids comes first:

1. The batch's rows are staged as files that the table does not name.
2. The ledger admits the batch: one commit has the ids of its messages and the location of the rows. It is refused if
   another batch was admitted since the look-up. From here on the batch will be in the table, whichever process dies.
3. The table takes the staged rows: once, however often it is told to. Each admission has a number, and the table
   remembers the highest number that it took, in the same commit as the rows.

A process that dies after step 2 leaves the batch half-done. The next look-up, by any process, completes it before it
answers. So only the newest batch of a ledger can be half-done, and a reader of the table sees a batch whole or not at
all.

A table may refuse an admitted batch for good: a rule was added between step 1 and step 3, or the staged rows were
removed. Then every later batch waits. A process cannot decide whether the table has taken a part, so a person gives the
batch up with :meth:`.Ledger.abandon`, and its messages may come again.

A table in PostgreSQL needs none of this, because one transaction takes rows and ids.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.fs as pafs  # type: ignore[import-untyped]
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqs_lease.spark.batch_parts import BatchParts
from sqs_lease.spark.errors import BatchIdReusedError, TableError
from sqs_lease.spark.ledger import Admitted, Ledger, LedgerSnapshot, OpenLedger
from sqs_lease.spark.places import Place
from sqs_lease.spark.sinks.sink import STAGED_KEPT, Admission, JudgingTable, PartsTable, Rest, Staged

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Application:
    """An admitted batch for the table to take.

    Attributes:
        ledger_id: The ledger that numbers the batches; another ledger starts again at 1.
        number: The number of the admission. A table that took this number of this ledger, or a higher one, has the
            batch.
        batch_id: The batch.
    """

    ledger_id: str
    number: int
    batch_id: str

    @property
    def mark(self) -> str:
        """See :class:`AppliedMarks`."""
        return f"{self.ledger_id}-{self.number:012d}"


@dataclass(frozen=True, slots=True)
class AppliedMarks:
    """Marks of the applications that a table has taken, besides the table's own memory of them.

    A table may forget: Delta drops the numbers of applications at a checkpoint after
    ``delta.setTransactionRetentionDuration``. If it were then told to take the batch again, the batch would be there
    twice. The marks are files named ``<ledger>-<number>``; the newest of each ledger counts.

    Attributes:
        place: The location of the table, or of its ledger.
        directory: The directory of the marks, relative to the place. It has no other files.
    """

    place: Place
    directory: str

    def has(self, application: Application) -> bool:
        """Whether an application was taken, or a later one, which can only come after it.

        Raises:
            TableError: The directory cannot be listed.
        """
        try:
            return any(name >= application.mark for name in self._names(application))
        except (DeltaError, OSError) as error:
            raise self.place.unusable("cannot be read", error) from error

    def add(self, application: Application) -> None:
        """Write down that the table has an application. Its staged rows may then be removed, and older marks are.

        Raises:
            TableError: The file cannot be written.
        """
        try:
            files = self.place.file_system()
            if self.place.is_local:
                files.create_dir(self.directory, recursive=True)
            with files.open_output_stream(self._file_of(application)) as stream:
                stream.write(b"applied\n")
            for name in self._names(application):
                if name < application.mark:
                    with suppress(OSError):  # another process removed it at this moment; an old mark does no harm
                        files.delete_file(f"{self.directory}/{name}")
        except (DeltaError, OSError) as error:
            raise self.place.unusable("cannot be written", error) from error

    def remove_old_tries(self, directory: str, application: Application) -> None:
        """Remove the files of killed tries of any batch, when they are so old that no process can still use them.

        Call it when the table has taken the newest admission and the mark of that is written: then all admissions
        before it were taken as well, and nothing needs old files. The age of files is counted from the time of that
        mark, which comes from the clock of the same file system. A driver's own clock may be days ahead, and the files
        of other drivers would look old.

        Args:
            directory: The directory of all batches, relative to the place.
            application: The newest application.
        """
        try:
            # None if a later mark has replaced it.
            now = self.place.file_system().get_file_info(self._file_of(application)).mtime
            for batch in self._directories_in(directory) if now is not None else ():
                for one in self._directories_in(batch.path):
                    written = one.mtime or self._newest_in(one.path)
                    if written is not None and written < now - STAGED_KEPT:
                        self.place.remove(one.path)
        except (DeltaError, OSError) as error:
            logger.warning(
                "files of killed tries in %s were not removed; the next batch tries again: %s", self.place, error
            )

    def _directories_in(self, directory: str) -> list[Any]:
        return [entry for entry in self.place.entries(directory) if entry.type == pafs.FileType.Directory]

    def _newest_in(self, directory: str) -> datetime | None:
        """Return the time of the newest file: a bucket has no directories, and so no times of directories."""
        selector = pafs.FileSelector(directory, allow_not_found=True, recursive=True)
        found = self.place.file_system().get_file_info(selector)
        return max((file.mtime for file in found if file.mtime is not None), default=None)

    def _file_of(self, application: Application) -> str:
        return f"{self.directory}/{application.mark}"

    def _names(self, application: Application) -> list[str]:
        names = (entry.base_name for entry in self.place.entries(self.directory))
        return [name for name in names if name.startswith(f"{application.ledger_id}-")]


class TargetTable(Protocol):
    """An open table that takes staged rows.

    It may remove staged rows that it has taken, and the staged rows of other tries of the same batch, which cannot be
    admitted any more. It must not remove any other staged rows: the ledger may have admitted them.
    """

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        """See :meth:`.sink.Table.stage`. The files must outlive this process."""

    def apply(self, location: str, application: Application) -> int | None:
        """Take the rows at a location, all or none, and once: nothing happens if the table has this application.

        Several processes may call it at the same time, and other processes than the one that staged the rows.

        Returns:
            The version of the table that has the rows, if it has versions.

        Raises:
            TableError: The table cannot be written; the next driver that looks up tries again.
        """

    def version(self) -> int | None:
        """Return the table's version, if it has versions."""

    def discard(self, location: str) -> None:
        """Remove staged rows that the ledger does not have. It does not raise if it cannot remove them."""


@runtime_checkable
class CheckedTarget(Protocol):
    """A table that may be changed while a batch is on its way into it."""

    def require_fit(self) -> None:
        """Check once more, right before a batch is admitted, that the table takes rows as they were staged.

        Raises:
            SchemaError: The table has other columns by now.
            TableError: The table cannot be written any more.
        """


@runtime_checkable
class IdentifiedTarget(Protocol):
    """A table with an id, so that its ledger is not used for another table."""

    def identity(self) -> str | None:
        """Return the id, which stays when the table is renamed or moved; None if it is unknown.

        Raises:
            TableError: The table cannot be read.
        """


class Target(Protocol):
    """The description of a table, and of how to write it."""

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> TargetTable:
        """See :meth:`.sink.Sink.open`."""


@dataclass(frozen=True, slots=True)
class WriteAheadLookUp:
    """Answer of the ledger at one moment. The table had taken all its batches.

    Attributes:
        version: The table's version, if it has versions.
        known: The messages that the ledger has, as :data:`.sink.KNOWN`.
        snapshot: The version of the ledger.
    """

    version: int | None
    known: pa.Table
    snapshot: LedgerSnapshot


@dataclass(frozen=True, slots=True)
class WriteAheadSink:
    """Sink from a target and a ledger.

    Attributes:
        target: The table.
        ledger: Its ledger, which must not belong to another table: see :class:`IdentifiedTarget`.
    """

    target: Target
    ledger: Ledger

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> WriteAheadTable:
        """See :meth:`.sink.Sink.open`."""
        return WriteAheadTable.of(self.target.open(spark, columns, widen=widen), self.ledger)


@dataclass(frozen=True, slots=True)
class WriteAheadTable:
    """An open table and its ledger: see :class:`.sink.Table`."""

    target: TargetTable
    ledger: OpenLedger

    @classmethod
    def of(cls, target: TargetTable, ledger: Ledger) -> WriteAheadTable:
        """Open the ledger of an open table.

        Raises:
            TableError: The ledger cannot be opened, or belongs to another table.
        """
        return cls(target, ledger.open(target.identity() if isinstance(target, IdentifiedTarget) else None))

    def look_up(self, messages: pa.Table) -> WriteAheadLookUp:
        """See :meth:`.sink.Table.look_up`."""
        snapshot = self.ledger.snapshot()
        newest = snapshot.newest()
        if newest is not None:
            self._apply(snapshot.ledger_id, newest)
        return WriteAheadLookUp(self.target.version(), snapshot.find(messages), snapshot)

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        """See :meth:`.sink.Table.stage`."""
        return self.target.stage(rows, batch_id)

    def stage_parts(self, spark: SparkSession, parts: BatchParts, rest: Rest, batch_id: str) -> Staged | None:
        """See :class:`.sink.PartsTable`."""
        if not isinstance(self.target, PartsTable):
            return None
        return self.target.stage_parts(spark, parts, rest, batch_id)

    def judged(self, rows: DataFrame, reason: str) -> DataFrame:
        """See :class:`.sink.JudgingTable`."""
        return self.target.judged(rows, reason) if isinstance(self.target, JudgingTable) else rows

    def commit(self, looked_up: WriteAheadLookUp, admission: Admission) -> int | None:
        """See :meth:`.sink.Table.commit`."""
        snapshot, batch_id = looked_up.snapshot, admission.batch_id
        before = snapshot.count_of(batch_id)
        if before != pc.sum(pc.equal(looked_up.known["batch_id"], batch_id), min_count=0).as_py():
            raise BatchIdReusedError(
                f"batch id {batch_id} stands for other messages already: {before} of them are in the ledger "
                f"{self.ledger.place.uri}. Leave batch_id out, or give every batch an id of its own"
            )
        location = None if admission.staged is None else admission.staged.location
        if location is not None and isinstance(self.target, CheckedTarget):
            # The last chance: after the admission, all later batches wait until the table takes this one.
            self.target.require_fit()
        admitted = self.ledger.admit(snapshot, batch_id, admission.entries, location)
        version = self._apply(snapshot.ledger_id, admitted)
        self.ledger.clean_up(snapshot)
        return version

    def discard(self, staged: Staged) -> None:
        """See :meth:`.sink.Table.discard`."""
        try:
            named = self.ledger.snapshot().may_name(staged.location)
        except TableError as error:
            # The batch may have been admitted, so its rows must stay.
            logger.warning("staged rows may be left over: %s (%s)", staged.location, error)
            return
        if not named:
            self.target.discard(staged.location)

    def _apply(self, ledger_id: str, admitted: Admitted) -> int | None:
        if admitted.location is None:
            return self.target.version()
        application = Application(ledger_id, admitted.number, admitted.batch_id)
        try:
            return self.target.apply(admitted.location, application)
        except TableError as error:
            raise TableError(
                f"{error}. Batch {admitted.batch_id} was admitted and waits for the table, and so does every later "
                "batch; the next ingestion tries again. If it can never be added, give it up: "
                f"Ledger({self.ledger.place.uri!r}).abandon({admitted.batch_id!r})"
            ) from error
