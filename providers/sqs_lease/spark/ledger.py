"""The ledger of a table: the ids of the messages that the table has, batch by batch.

A message may give no row, one row or thousands of rows, so the table itself cannot say which messages it has. The
ledger can: it is a small Delta table beside the table, written by ``deltalake`` without jars, whatever format the table
has.

**Admission.** Each batch that is admitted is one Parquet file and one commit. The commit is refused unless it follows
directly on the version that was looked at. That takes ``max_commit_retries=0``: by default delta-rs accepts a commit
that was made from an older version, and two batches with a message in common would both be admitted. After a refusal
the caller looks again and tries again. Admissions are numbered; the number goes on to the table
(:mod:`.sinks.write_ahead`).

**Look-up.** The commit also has statistics of the file: the range of the times at which its messages were sent, and the
number of the admission. ``SentTimestamp`` belongs to a message and does not change when SQS delivers it again, so a
look-up opens only files with messages of the same minutes. There is one exception: in the dead-letter queue of a FIFO
queue a message has another time, so a batch of dead letters is looked up without times, in all files.

**Compaction.** When a day has 64 files, they are rewritten as one. Look-ups over 1 000 overlapping small files took
0.68 s, and 0.05 s after that.

**Forgetting.** SQS keeps a message for at most 14 days, and the dead-letter queue of a FIFO queue keeps it for as long
again. So batches are forgotten 29 days after their admission, except the newest: the table may still have to take it,
and the next number follows on its number. Days are counted by the times at which messages were sent as well as by the
driver's clock. With the clock alone, a driver whose clock is weeks ahead would remove entries that are still needed.

**The owner.** The ledger keeps the id of its table (Delta's and Iceberg's own id, because a path changes when a table
is moved). With another table it would report messages as stored that are not, and the queue would delete them, so it
refuses. We cannot find out whether a new table has the rows of the old one; a user says so with :meth:`Ledger.unbind`.

:class:`LedgerSnapshot` is one version of the ledger.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.dataset as pds  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from sqs_lease.spark.delta_places import create_table, existing_table, load_table
from sqs_lease.spark.errors import TableError
from sqs_lease.spark.message_ids import mapped, message_table, slices
from sqs_lease.spark.places import Place
from sqs_lease.spark.sinks.sink import ENTRIES, KNOWN, REMEMBERED, CommitConflict
from sqs_lease.spark.waits import while_contended

logger = logging.getLogger(__name__)

DAY: Final = "admitted_on"
"""The column by which a ledger is partitioned: the day of the admission, in UTC."""

FILE: Final = pa.schema(
    [
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("sent_at", pa.timestamp("us", tz="UTC")),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("batch_id", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("location", pa.string()),
    ]
)
"""The columns of a file: the entry of each message of a batch, and the values that all of them share."""


SMALL_FILES: Final = 64
"""The number of files of one day that are compacted. A look-up is then about ten times as fast."""

_TABLE: Final = Schema.from_arrow(FILE.append(pa.field(DAY, pa.date32(), nullable=False)))
# The rows have the history, so Delta's log need not keep it.
_CONFIGURATION: Final[Mapping[str, str | None]] = {"delta.logRetentionDuration": "interval 2 days"}
# The property of the ledger with the id of its table.
_BOUND_TO: Final = "sqs_lease.table"
# The outcome of messages whose batch was given up: a look-up does not find them.
_ABANDONED: Final = "abandoned"
_ROW_GROUP_ENTRIES: Final = 250_000
_MOSTLY_DIFFERENT: Final = frozenset({"message_id", "sent_at"})


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Ledger:
    """A ledger in a directory of its own, which is created if it does not exist.

    Inside a Delta table's directory, below a name that begins with ``_``, it is invisible to the table's readers and
    to ``vacuum``.

    Attributes:
        path: A directory that every driver reaches by this path, or an address as deltalake takes it
            (``s3://bucket/orders-ledger``).
        storage_options: Deltalake's options for an address: keys, region, endpoint.
        clock: Returns the current time, with a zone.
    """

    path: str | Path
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    clock: Callable[[], datetime] = field(default=_now, repr=False)

    @property
    def address(self) -> str:
        """The absolute path, or the address."""
        return self.place.uri

    @property
    def place(self) -> Place:
        """The location."""
        return Place.of_ledger(self.path, self.storage_options)

    def open(self, table: str | None = None) -> OpenLedger:
        """Find the ledger, or create it; several processes may do so at once.

        Args:
            table: The id of its table. From then on the ledger refuses every other table. None, the default, opens it
                without this check.

        Raises:
            TableError: It can neither be found nor created, or is the ledger of another table.
        """
        ledger = OpenLedger(self.place, self.clock, table or "")
        if load_table(ledger.place) is None:
            create_table(ledger.place, _TABLE, partition_by=[DAY], configuration=_CONFIGURATION)
        if table:
            ledger.bind()
        return ledger

    def unbind(self) -> None:
        """Make the ledger forget its table; it will belong to the next table that is opened with it.

        Use it only if that table has the rows of the earlier one, for example because it was rewritten under another
        id: ingestion takes it that the table has all messages in the ledger.

        Raises:
            TableError: There is no ledger, or it cannot be read or written.
        """
        existing_table(self.place)
        OpenLedger(self.place, self.clock).bind()

    def abandon(self, batch_id: str) -> Abandoned:
        """Give up a batch that was admitted but that the table cannot take, so that later batches can go on.

        Use it only if every ingestion into the table fails with an error about this batch and you cannot remove the
        cause. Stop all ingestions into the table first. The table then has nothing of the batch, and the ledger does
        not know its messages: those that come again are ingested like new ones. The queue still has them, because the
        ingestion that admitted the batch ended with an error. If its caller deleted them all the same, only the staged
        rows are left; they stay where they are.

        Args:
            batch_id: The batch.

        Returns:
            The batch that was given up.

        Raises:
            TableError: The batch is not the newest of the ledger (only the newest can be half-done), or it had no rows
                to add; or there is no ledger, it cannot be read or written, or it changed meanwhile.
        """
        existing_table(self.place)
        snapshot = OpenLedger(self.place, self.clock).snapshot()
        newest, staged = snapshot.newest(), snapshot.staged()
        if newest is None or staged is None or staged.batch_id != batch_id:
            raise TableError(
                f"batch {batch_id} is not the newest of the ledger {self.place.uri}, or has no rows that wait: only a "
                "batch that the table still has to take can be given up"
            )
        try:
            snapshot.table.update(
                # The entries stay, with the number: a later batch with the same number would count as taken.
                updates={"outcome": f"'{_ABANDONED}'", "location": "NULL"},
                predicate=f"number = {newest.number}",
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError as error:
            raise TableError(
                f"batch {batch_id} was not given up: another process wrote the ledger {self.place.uri} at this "
                "moment. Stop all ingestions into the table, and try again"
            ) from error
        except (DeltaError, OSError) as error:
            raise self.place.unusable("cannot be written", error) from error
        logger.warning(
            "ledger %s: batch %s was given up: %d messages", self.place.uri, batch_id, len(staged.message_ids)
        )
        return staged


@dataclass(frozen=True, slots=True)
class OpenLedger:
    """A ledger that exists.

    Attributes:
        place: Its location.
        clock: Returns the current time, with a zone.
        table: The id of its table; empty, the default, for any table.
    """

    place: Place
    clock: Callable[[], datetime] = field(default=_now, repr=False)
    table: str = ""

    def bind(self) -> None:
        """Write down that it is the ledger of the table; without a table, that it is the ledger of none.

        Raises:
            TableError: It has the messages of another table; or it cannot be read or written.
        """
        with while_contended(f"ledger {self.place.uri}") as writers:
            while (now := self._read()).bound_to() != self.table:
                if now.files.num_rows:
                    self._require_own(now)
                try:
                    now.table.alter.set_table_properties(
                        {_BOUND_TO: self.table},
                        raise_if_not_exists=False,
                        commit_properties=CommitProperties(max_commit_retries=0),
                    )
                except CommitFailedError:
                    writers.pause("another process wrote it")
                except (DeltaError, OSError) as error:
                    raise self.place.unusable("cannot be written", error) from error

    def snapshot(self) -> LedgerSnapshot:
        """Read the newest version of the ledger.

        Raises:
            TableError: It cannot be read, or is the ledger of another table.
        """
        now = self._read()
        self._require_own(now)
        return now

    def _read(self) -> LedgerSnapshot:
        table = existing_table(self.place, was_there=True)
        return LedgerSnapshot(self.place, table, pa.table(table.get_add_actions(flatten=True)))

    def _require_own(self, now: LedgerSnapshot) -> None:
        bound_to = now.bound_to()
        if self.table and bound_to not in {"", self.table}:
            raise TableError(
                f"the ledger {self.place.uri} is of another table ({bound_to}), whose messages this one ({self.table}) "
                "may not have: give each table a ledger of its own. If this table replaces that one, give it a new "
                f"ledger; or, if it has the rows of that one, say so: Ledger({self.place.uri!r}).unbind()"
            )

    def admit(self, snapshot: LedgerSnapshot, batch_id: str, entries: pa.Table, location: str | None) -> Admitted:
        """Admit a batch, if no other batch was admitted since the snapshot.

        Args:
            snapshot: The version with which the entries were compared.
            batch_id: The batch.
            entries: Its messages, as :data:`.sinks.sink.ENTRIES`: at least one, and none that the snapshot has.
            location: The place of its staged rows; None if it has none.

        Raises:
            CommitConflict: Another batch was admitted; nothing is written.
            TableError: It could not be written, or there was no answer. A later snapshot shows which.
        """
        newest = snapshot.newest()
        admitted = Admitted(newest.number + 1 if newest else 1, batch_id, location)
        day = self._day_of(entries).isoformat()
        file = f"{DAY}={day}/{admitted.number:012d}-{uuid4().hex}.parquet"
        try:
            size = self._write(file, admitted, entries)
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
                # With retries, delta-rs would accept a commit that was made from an older version.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError as error:
            # The client may have sent the commit twice, because the answer to the first request was lost. The refusal
            # then answers the second request, although the first one committed.
            now = self.snapshot()
            if pc.any(pc.equal(now.files["path"], file)).as_py():
                return admitted
            if now.table.version() == snapshot.table.version():
                raise self.place.unusable("cannot be written", error) from error
            self.place.file_system().delete_file(file)
            other = now.newest()
            raise CommitConflict(
                f"batch {other.batch_id if other else 'unknown'} was admitted to the ledger {self.place.uri}"
            ) from error
        except (DeltaError, OSError) as error:
            raise self.place.unusable("cannot be written", error) from error
        return admitted

    def _day_of(self, entries: pa.Table) -> date:
        """Return the day of an admission: today, or the day on which its last message was sent if that is later.

        A message cannot be sent after it was received, so in the second case the driver's clock is slow.
        """
        sent_at = pc.max(entries["sent_at"]).as_py()
        now = self.clock().astimezone(UTC)
        return (now if sent_at is None else max(now, sent_at.astimezone(UTC))).date()

    def _forgotten_before(self, snapshot: LedgerSnapshot) -> date:
        """Return the first day to remember: by the driver's clock, or by the newest message if that clock is ahead."""
        sent_at = pc.max(snapshot.files["max.sent_at"]).as_py() if snapshot.files.num_rows else None
        now = self.clock().astimezone(UTC)
        return ((now if sent_at is None else min(now, sent_at.astimezone(UTC))) - REMEMBERED).date()

    def clean_up(self, seen: LedgerSnapshot) -> None:
        """Compact small files, and forget whole days that are older than any message in a queue can be.

        If another process does the same at this moment, it leaves the work to that process, or to the next call. Errors
        are only logged, because nothing depends on this work.

        Args:
            seen: A recent version, which tells most calls that there is nothing to do.
        """
        self._compact(seen)
        oldest = self._forgotten_before(seen)
        if not any(day < oldest for day in seen.days()):
            return
        try:
            snapshot = self.snapshot()
            days = snapshot.days()
            # The ledger may have been replaced by a new one meanwhile, without any file.
            newest = days[-1] if days else None
            if newest is None or not any(day < oldest and day != newest for day in days):
                return
            removed = snapshot.table.delete(
                f"{DAY} < '{oldest.isoformat()}' AND {DAY} <> '{newest.isoformat()}'",
                commit_properties=CommitProperties(max_commit_retries=0),
            )
            # Removes files that left the ledger a week ago or longer, and files that never got into it.
            vacuumed = snapshot.table.vacuum(full=True, dry_run=False)
        except CommitFailedError:
            logger.debug("ledger %s: another process was faster than the clean-up", self.place.uri)
        except (DeltaError, OSError, TableError) as error:
            logger.warning("ledger %s was not cleaned up; the next batch tries again: %s", self.place.uri, error)
        else:
            logger.info(
                "ledger %s: forgot %d batches from before %s, removed %d files",
                self.place.uri,
                removed["num_removed_files"],
                oldest,
                len(vacuumed),
            )

    def _compact(self, seen: LedgerSnapshot) -> None:
        """Compact the files of each day that has many. Other processes may admit batches meanwhile."""
        for day, files in Counter(seen.days()).items():
            if files < SMALL_FILES:
                continue
            try:
                table = self.snapshot().table
                table.optimize.compact(partition_filters=[(DAY, "=", day.isoformat())])
            except CommitFailedError:
                logger.debug("ledger %s: another process compacted it at this moment", self.place.uri)
            except (DeltaError, OSError, TableError) as error:
                logger.warning("ledger %s was not compacted; the next batch tries again: %s", self.place.uri, error)

    def _write(self, file: str, admitted: Admitted, entries: pa.Table) -> int:
        filesystem = self.place.file_system()
        if self.place.is_local:
            filesystem.create_dir(str(Path(file).parent))
        repeating = [name for name in FILE.names if name not in _MOSTLY_DIFFERENT]
        with (
            filesystem.open_output_stream(file) as stream,
            pq.ParquetWriter(stream, FILE, compression="zstd", use_dictionary=repeating) as writer,
        ):
            for start in range(0, entries.num_rows, _ROW_GROUP_ENTRIES):
                # A part at a time: the columns that all entries share take more memory than the entries.
                part = entries.slice(start, _ROW_GROUP_ENTRIES)
                given = {name: part[name] for name in ENTRIES.names[1:]}
                writer.write_table(message_table(FILE, part["message_id"], **given, **asdict(admitted)))
        size: int = filesystem.get_file_info(file).size
        return size


@dataclass(frozen=True, slots=True)
class Admitted:
    """One admission.

    Attributes:
        number: Its number; the first of a ledger is 1.
        batch_id: The batch.
        location: The place of its staged rows; None if it had none.
    """

    number: int
    batch_id: str
    location: str | None


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A batch that was given up, or that can be given up.

    Attributes:
        batch_id: The batch.
        message_ids: Its messages. After it was given up, neither the table nor the ledger has them.
        location: The place of their staged rows, in the sink's notation.
    """

    batch_id: str
    message_ids: tuple[str, ...]
    location: str


def statistics_of(admitted: Admitted, entries: pa.Table) -> dict[str, Any]:
    """Return the statistics of an admission's file for the log, so that most look-ups need not open the file."""
    values = asdict(admitted)
    constant = {name: value for name, value in values.items() if value is not None}
    nulls = {name: entries.num_rows if value is None else 0 for name, value in values.items()}
    nulls["sent_at"] = entries["sent_at"].null_count
    lowest, highest = dict(constant), dict(constant)
    times = pc.min_max(entries["sent_at"])
    if times["min"].is_valid:
        lowest["sent_at"], highest["sent_at"] = (
            times[end].as_py().isoformat(timespec="microseconds").replace("+00:00", "Z") for end in ("min", "max")
        )
    return {"numRecords": entries.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _text(column: str) -> pds.Expression:
    """Return a column of strings, for a filter.

    The cast looks superfluous. But files that deltalake rewrote have string views, and Arrow cannot compare these with
    strings when it decides which rows of a file a filter may want.
    """
    return pds.field(column).cast(pa.string())


_NOT_ABANDONED: Final = _text("outcome") != _ABANDONED
_BUCKET_MICROSECONDS: Final = 60_000_000
# A look-up holds a row group of so many files in memory at once, some 20 MB.
_FILES_AT_ONCE: Final = 4
_ROWS_AT_ONCE: Final = 100_000

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """One version of a ledger.

    Attributes:
        place: Its location.
        table: The version. This handle is never updated to a newer version.
        files: The log's statistics, one row for each file.
    """

    place: Place
    table: DeltaTable
    files: pa.Table

    @property
    def ledger_id(self) -> str:
        """The id of the ledger; another ledger in the same place has another id."""
        return str(self.table.metadata().id)

    def bound_to(self) -> str:
        """Return the id of the ledger's table; empty if unset."""
        return str(self.table.metadata().configuration.get(_BOUND_TO, ""))

    def newest(self) -> Admitted | None:
        """Return the newest admission; None in an empty ledger."""
        if not self.files.num_rows:
            return None
        highest = pc.max(self.files["max.number"]).as_py()
        (row,) = self._scan(
            pc.equal(self.files["max.number"], highest),
            lambda scanner: scanner.head(1).to_pylist(),
            columns=["number", "batch_id", "location"],
            where=pds.field("number") == highest,
            rows_at_once=1_000,
        )
        return Admitted(row["number"], row["batch_id"], row["location"])

    def find(self, messages: pa.Table) -> pa.Table:
        """Find messages (:data:`.sinks.sink.LOOKED_UP`) in the ledger, and return them as :data:`.sinks.sink.KNOWN`."""
        return mapped(map(self._find, slices(messages)), KNOWN)

    def _find(self, messages: pa.Table) -> pa.Table:
        overlapping = self._overlapping(messages["sent_at"])
        if not pc.any(overlapping).as_py():
            return KNOWN.empty_table()
        message_ids = messages["message_id"].combine_chunks()
        found: pa.Table = self._scan(
            overlapping,
            lambda scanner: scanner.to_table(),
            columns=KNOWN.names,
            where=_text("message_id").isin(message_ids) & _NOT_ABANDONED,
        )
        return found.cast(KNOWN)

    def count_of(self, batch_id: str) -> int:
        """Count the messages that were admitted under a batch id."""
        may_have = self._may_have("batch_id", batch_id)
        if not pc.any(may_have).as_py():
            return 0
        return self._scan(
            may_have,
            lambda scanner: int(scanner.count_rows()),
            columns=["batch_id", "outcome"],
            where=(_text("batch_id") == batch_id) & _NOT_ABANDONED,
        )

    def staged(self) -> Abandoned | None:
        """Return the newest batch, if it has rows. It is the only one that may still wait for the table."""
        newest = self.newest()
        if newest is None or newest.location is None:
            return None
        message_ids = self._scan(
            pc.equal(self.files["max.number"], newest.number),
            lambda scanner: scanner.to_table()["message_id"].to_pylist(),
            columns=["message_id", "number"],
            where=pds.field("number") == newest.number,
        )
        return Abandoned(newest.batch_id, tuple(message_ids), newest.location)

    def may_name(self, location: str) -> bool:
        """Whether an admission may have its rows at this location; False is certain."""
        return bool(pc.any(self._may_have("location", location)).as_py())

    def days(self) -> list[date]:
        """Return the day of each file, the newest admission last."""
        days: list[date] = self.files.sort_by("max.number")[f"partition.{DAY}"].to_pylist()
        return days

    def _scan(
        self,
        chosen: pa.ChunkedArray,
        take: Callable[[pds.Scanner], _Result],
        *,
        columns: list[str],
        where: pds.Expression,
        rows_at_once: int = _ROWS_AT_ONCE,
    ) -> _Result:
        """Scan the chosen files, with a few rows of a few files in memory at a time."""
        paths = self.files["path"].filter(chosen).to_pylist()
        try:
            # Reading ahead holds all columns of a file in memory. It pays only if each read is a request.
            reading = pds.ParquetFragmentScanOptions(pre_buffer=not self.place.is_local)
            files = pds.dataset(
                paths,
                schema=FILE,
                format=pds.ParquetFileFormat(default_fragment_scan_options=reading),
                filesystem=self.place.file_system(),
            )
            return take(
                files.scanner(
                    columns=columns,
                    filter=where,
                    batch_size=rows_at_once,
                    batch_readahead=1,
                    fragment_readahead=_FILES_AT_ONCE,
                )
            )
        except (OSError, pa.ArrowInvalid) as error:
            raise self.place.unusable("cannot be read", error) from error

    def _may_have(self, column: str, value: str) -> pa.ChunkedArray:
        """Return which files may have a value in a column: those whose statistics do not exclude it."""
        low, high = self.files[f"min.{column}"], self.files[f"max.{column}"]
        within = pc.and_(pc.less_equal(low, value), pc.greater_equal(high, value))
        # A column of nulls has neither a lowest nor a highest value.
        empty = pc.equal(self.files[f"null_count.{column}"], self.files["num_records"])
        return pc.and_(pc.fill_null(within, True), pc.invert(pc.fill_null(empty, False)))

    def _overlapping(self, sent_at: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return which files may have messages that were sent in the same minutes as these."""
        if sent_at.null_count:
            return pa.chunked_array([pa.repeat(True, self.files.num_rows)])
        asked = sorted(pc.unique(_minutes(sent_at)).to_pylist())
        files = zip(
            _minutes(self.files["min.sent_at"]).to_pylist(),
            _minutes(self.files["max.sent_at"]).to_pylist(),
            self.files["null_count.sent_at"].to_pylist(),
            strict=True,
        )
        overlapping = [
            # The range is unknown, or the file has a message without a time.
            low is None or high is None or nulls != 0 or bisect_right(asked, high) > bisect_left(asked, low)
            for low, high, nulls in files
        ]
        return pa.chunked_array([overlapping], pa.bool_())


def _minutes(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.divide(times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), _BUCKET_MICROSECONDS)
