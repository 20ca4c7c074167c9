"""Exactly once for tables that cannot take message ids in their own commits: a ledger beside them, written first.

1. The batch's rows are staged as files that the table does not name.
2. The ledger admits the batch: one commit names its messages and where the rows are. It is refused if anybody else was
   admitted since the look-up. From here on the batch will be in the table, whichever process dies.
3. The table takes the staged rows, once however often it is told to: each application has a number, and the table
   remembers in the same commit the highest one it took.

A process that dies after step 2 leaves a batch half-done; the next look-up, by anybody, finishes it before it answers.
So at most the newest batch of the ledger is ever half-done. Should the table never take it, :meth:`.Ledger.abandon`
gives it up, and its messages may come again.
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

    @property
    def mark(self) -> str:
        """See :class:`AppliedMarks`."""
        return f"{self.ledger_id}-{self.number:012d}"


@dataclass(frozen=True, slots=True)
class AppliedMarks:
    """Which applications a table is known to have taken, beside what the table itself remembers of them.

    A table may forget: Delta drops the numbers of applications at its next checkpoint when
    ``delta.setTransactionRetentionDuration`` has passed. A batch that is told to it again then would be there twice.
    The marks are files named ``<ledger>-<number>``, of which the newest of each ledger counts.

    Attributes:
        place: Where the table or its ledger lies.
        directory: Where they are, relative to it. Nothing else is in there.
    """

    place: Place
    directory: str

    def has(self, application: Application) -> bool:
        """Whether an application was taken, or a later one, which is admitted only after it.

        Raises:
            TableError: The directory cannot be listed.
        """
        try:
            return any(name >= application.mark for name in self._names(application))
        except (DeltaError, OSError) as error:
            raise self.place.unusable("cannot be read", error) from error

    def add(self, application: Application) -> None:
        """Write down that the table has an application; its rows may go from where they waited, and the marks before.

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
                    with suppress(OSError):  # another process removed it at this moment; a mark too many does no harm
                        files.delete_file(f"{self.directory}/{name}")
        except (DeltaError, OSError) as error:
            raise self.place.unusable("cannot be written", error) from error

    def remove_old_tries(self, directory: str, application: Application) -> None:
        """Remove what killed tries of any batch left, once nobody can be at work on it.

        Call it when the table has taken the newest admission, and that is marked: so all before it were taken, and
        nothing old will be asked for. How old files are is told by the time of the mark, which has the same clock: a
        driver's own may be days ahead, and would take what others write for old.

        Args:
            directory: The directory of all batches, relative to the place.
            application: The newest.
        """
        try:
            # None where a later one has taken its place.
            now = self.place.file_system().get_file_info(self._file_of(application)).mtime
            for batch in self._directories_in(directory) if now is not None else ():
                for one in self._directories_in(batch.path):
                    written = one.mtime or self._newest_in(one.path)
                    if written is not None and written < now - STAGED_KEPT:
                        self.place.remove(one.path)
        except (DeltaError, OSError) as error:
            logger.warning("what killed tries left in %s was not removed, which is tried again: %s", self.place, error)

    def _directories_in(self, directory: str) -> list[Any]:
        return [entry for entry in self.place.entries(directory) if entry.type == pafs.FileType.Directory]

    def _newest_in(self, directory: str) -> datetime | None:
        """When the newest file was written: a bucket has no directories, and so no time of theirs."""
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

    It may remove the rows that it durably has, and what other tries of their batch had staged before, for those are not
    admitted any more; and nothing else that somebody staged, for the ledger may have admitted it.
    """

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        """See :meth:`.sink.Table.stage`. What it writes must outlive this process."""

    def apply(self, location: str, application: Application) -> int | None:
        """Take the rows at a location, all or none, and once: nothing happens if the table has this application.

        Several processes may do this at the same time, and another one than the one that staged the rows.

        Returns:
            The version of the table that has them, where it has versions.

        Raises:
            TableError: It cannot be written; the next driver that looks tries it again.
        """

    def version(self) -> int | None:
        """The table's version now, where it has versions."""

    def discard(self, location: str) -> None:
        """Remove staged rows that the ledger does not name. It never fails because of what it cannot remove."""


@runtime_checkable
class CheckedTarget(Protocol):
    """A table that others may change while a batch is on its way into it."""

    def require_fit(self) -> None:
        """Look once more, right before a batch is admitted, whether the table takes rows as they were staged.

        Raises:
            SchemaError: It has other columns by now.
            TableError: It cannot be written any more.
        """


@runtime_checkable
class IdentifiedTarget(Protocol):
    """A table that can be told from others, so that its ledger is used for no other one."""

    def identity(self) -> str | None:
        """What the table keeps when it is renamed or moved, and another one never has; None where it is not known.

        Raises:
            TableError: It cannot be read.
        """


class Target(Protocol):
    """Says which table, and how it is to be written."""

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> TargetTable:
        """See :meth:`.sink.Sink.open`."""


@dataclass(frozen=True, slots=True)
class WriteAheadLookUp:
    """What the ledger knew at one moment; the table had all of it.

    Attributes:
        version: The table's version, where it has versions.
        known: As :data:`.sink.KNOWN`.
        snapshot: The ledger's version.
    """

    version: int | None
    known: pa.Table
    snapshot: LedgerSnapshot


@dataclass(frozen=True, slots=True)
class WriteAheadSink:
    """Makes a sink of a target and a ledger.

    Attributes:
        target: The table.
        ledger: Its ledger, which belongs to no other table: see :class:`IdentifiedTarget`.
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
            TableError: It cannot be opened, or is the ledger of another table.
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
            # Once it is admitted, all later batches wait for the table to take it.
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
            # Better left over than taken from a batch that was admitted.
            logger.warning("left over, perhaps: %s (%s)", staged.location, error)
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
