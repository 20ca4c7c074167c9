"""The ledger of a table: which messages it has, batch by batch, as a small Delta table beside it, without jars.

Every batch that is admitted is one Parquet file and one commit, which is refused unless it follows directly on the
version that was looked at. The commit says what the file has in it (the range of the times at which its messages were
sent, the number of the admission), so most look-ups open few of the files.

A queue keeps a message for 14 days at most. Batches are forgotten 15 days after they were admitted, all but the newest
one: it may be half-done, and the next number counts on from it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from sqs_lease.spark.errors import TableError
from sqs_lease.spark.sinks.ledger_files import DAY, FILE, Admitted, LedgerPlace, rows_of, statistics_of
from sqs_lease.spark.sinks.ledger_snapshot import LedgerSnapshot
from sqs_lease.spark.sinks.sink import Overtaken

logger = logging.getLogger(__name__)

REMEMBERED: Final = timedelta(days=15)
"""How long after its admission a batch is known: SQS keeps a message for 14 days at most (its retention period)."""

_TABLE: Final = Schema.from_arrow(FILE.append(pa.field(DAY, pa.date32(), nullable=False)))
# The log is nobody's history: what happened is in the rows.
_CONFIGURATION: Final[Mapping[str, str | None]] = {"delta.logRetentionDuration": "interval 2 days"}
_ROW_GROUP_ENTRIES: Final = 250_000
_MOSTLY_DIFFERENT: Final = frozenset({"message_id", "sent_at"})


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Ledger:
    """A ledger in a directory of its own. It is created where there is none.

    Inside a Delta table's directory, below a name that begins with ``_``, it is invisible to the table's readers and
    to ``vacuum``.

    Attributes:
        path: A directory that every driver reaches by this path, or an address as deltalake takes it
            (``s3://bucket/orders-ledger``).
        storage_options: How deltalake is to reach an address: keys, region, endpoint.
        clock: Gives the time now, with a zone.
    """

    path: str | Path
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    clock: Callable[[], datetime] = field(default=_now, repr=False)

    @property
    def address(self) -> str:
        """The path, absolute, or the address."""
        return self._place.address

    @property
    def _place(self) -> LedgerPlace:
        return LedgerPlace.of(self.path, self.storage_options)

    def open(self) -> OpenLedger:
        """Find the ledger, or create it; several processes may do so at once.

        Raises:
            TableError: It can neither be found nor created there.
        """
        ledger = OpenLedger(self._place, self.clock)
        if ledger.load() is None:
            ledger.create()
        return ledger


@dataclass(frozen=True, slots=True)
class OpenLedger:
    """A ledger that exists.

    Attributes:
        place: Where it is.
        clock: Gives the time now, with a zone.
    """

    place: LedgerPlace
    clock: Callable[[], datetime] = field(default=_now, repr=False)

    def snapshot(self) -> LedgerSnapshot:
        """The ledger as it is now.

        Raises:
            TableError: It cannot be read.
        """
        table = self.load()
        if table is None:
            raise TableError(f"the ledger {self.place.address} is gone: somebody removed it while it was used")
        return LedgerSnapshot(self.place, table, pa.table(table.get_add_actions(flatten=True)))

    def admit(self, snapshot: LedgerSnapshot, batch_id: str, entries: pa.Table, location: str | None) -> Admitted:
        """Write a batch down, if nobody was admitted since the snapshot.

        Args:
            snapshot: What the entries were compared with.
            batch_id: The batch.
            entries: Its messages, as :data:`.sink.ENTRIES`, at least one, none of them known to the snapshot.
            location: Where its rows are staged; None where it has none.

        Raises:
            Overtaken: Somebody else was; nothing is written.
            TableError: It cannot be written. It may have been all the same: a later snapshot knows.
        """
        newest = snapshot.newest()
        admitted = Admitted(newest.number + 1 if newest else 1, batch_id, location)
        day = self.clock().astimezone(UTC).date().isoformat()
        file = f"{DAY}={day}/{admitted.number:012d}-{uuid4().hex}.parquet"
        try:
            size = self._write(file, rows_of(admitted, entries))
            snapshot.table.create_write_transaction(
                [
                    AddAction(
                        path=file,
                        size=size,
                        partition_values={DAY: day},
                        modification_time=int(self.clock().timestamp() * 1000),
                        data_change=True,
                        stats=json.dumps(statistics_of(admitted, entries)),
                    )
                ],
                "append",
                _TABLE,
                partition_by=[DAY],
                # With retries, delta-rs would accept a commit that was prepared for an older version.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError as error:
            # The refusal may answer the second request of a pair of which the first went through unheard.
            now = self.snapshot()
            if now.has_file(file):
                return admitted
            if now.table.version() == snapshot.table.version():
                raise self.place.unusable("cannot be written", error) from error
            self.place.filesystem().delete_file(file)
            raise Overtaken from error
        except (DeltaError, OSError) as error:
            raise self.place.unusable("cannot be written", error) from error
        return admitted

    def clean_up(self, seen: LedgerSnapshot) -> None:
        """Forget what is older than any message in a queue can be: whole days, so at most once a day.

        It may lose against another process, and leaves the work to that one, or to the next day. Trouble is logged
        and does no harm.

        Args:
            seen: A version that was looked at a moment ago, by which most calls see that there is nothing to do.
        """
        oldest = (self.clock() - REMEMBERED).astimezone(UTC).date()
        if not any(day < oldest for day in seen.days()):
            return
        try:
            snapshot = self.snapshot()
            newest = snapshot.newest_day()
            if not any(day < oldest and day != newest for day in snapshot.days()):
                return
            removed = snapshot.table.delete(
                f"{DAY} < '{oldest.isoformat()}' AND {DAY} <> '{newest.isoformat()}'",
                commit_properties=CommitProperties(max_commit_retries=0),
            )
            # Files that left the ledger a week ago or longer, and those that never got into it.
            vacuumed = snapshot.table.vacuum(full=True, dry_run=False)
        except CommitFailedError:
            logger.debug("ledger %s: somebody else was faster than the clean-up", self.place.address)
        except (DeltaError, OSError, TableError) as error:
            logger.warning("ledger %s was not cleaned up, which is tried again: %s", self.place.address, error)
        else:
            logger.info(
                "ledger %s: forgot %d batches from before %s, removed %d files",
                self.place.address,
                removed["num_removed_files"],
                oldest,
                len(vacuumed),
            )

    def load(self) -> DeltaTable | None:
        """The newest version; None where there is no ledger."""
        try:
            return DeltaTable(self.place.address, storage_options=self.place.options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise self.place.unusable("cannot be read", error) from error

    def create(self) -> None:
        """Create the ledger, unless somebody else does at this moment."""
        if self.place.is_local and "%" in self.place.address:
            raise TableError(
                f"{self.place.address} has a % in it, which delta-rs takes for an escape: use another path"
            )
        try:
            DeltaTable.create(
                self.place.address,
                _TABLE,
                mode="ignore",
                partition_by=[DAY],
                configuration=_CONFIGURATION,
                storage_options=self.place.options,
                # With retries, two processes that create it at once both succeed, the second on top of the first.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError:
            logger.debug("ledger %s was created by somebody else at this moment", self.place.address)
        except (DeltaError, OSError) as error:
            raise self.place.unusable("cannot be created", error) from error

    def _write(self, file: str, rows: pa.Table) -> int:
        filesystem = self.place.filesystem()
        if self.place.is_local:
            filesystem.create_dir(str(Path(file).parent))
        with filesystem.open_output_stream(file) as stream:
            pq.write_table(
                rows,
                stream,
                row_group_size=_ROW_GROUP_ENTRIES,
                compression="zstd",
                use_dictionary=[name for name in FILE.names if name not in _MOSTLY_DIFFERENT],
            )
        size: int = filesystem.get_file_info(file).size
        return size
