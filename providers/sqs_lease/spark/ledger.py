"""The ledger of a table: which messages it has, batch by batch, as a small Delta table beside it, without jars.

Every batch that is admitted is one Parquet file and one commit, which is refused unless it follows directly on the
version that was looked at. The commit says what the file has in it (the range of the times at which its messages were
sent, the number of the admission), so most look-ups open few of the files.

A queue keeps a message for 14 days at most, and the dead-letter queue of a FIFO queue for as long again. Batches are
forgotten 29 days after they were admitted, all but the newest one: it may be half-done, and the next number counts on
from it. Days are counted by the times at which messages were sent, which the service says, as well as by the driver's
clock, so that a wrong clock makes nobody forget too early.

Many small files of a day are put together, because a look-up opens all files with messages of the same minutes.

:class:`LedgerSnapshot` is one version of it.
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
"""The columns of a file: what a sink keeps of each message of a batch, and what is the same for all of them."""


SMALL_FILES: Final = 64
"""So many files of one day are put together; they differ by the tenfold in how long a look-up takes."""

_TABLE: Final = Schema.from_arrow(FILE.append(pa.field(DAY, pa.date32(), nullable=False)))
# The log is nobody's history: what happened is in the rows.
_CONFIGURATION: Final[Mapping[str, str | None]] = {"delta.logRetentionDuration": "interval 2 days"}
# A property of the ledger: the id of its table.
_BOUND_TO: Final = "sqs_lease.table"
# The outcome of messages whose batch was given up: they are not known.
_ABANDONED: Final = "abandoned"
_ROW_GROUP_ENTRIES: Final = 250_000
_MOSTLY_DIFFERENT: Final = frozenset({"message_id", "sent_at"})


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Ledger:
    """A ledger in a directory of its own. It is created if it does not exist.

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
        return self.place.uri

    @property
    def place(self) -> Place:
        """Where it lies."""
        return Place.of_ledger(self.path, self.storage_options)

    def open(self, table: str | None = None) -> OpenLedger:
        """Find the ledger, or create it; several processes may do so at once.

        Args:
            table: The id of the table whose messages it is to know. From then on it is of no other one. None, the
                default: it is not asked.

        Raises:
            TableError: It can neither be found nor created there, or is the ledger of another table.
        """
        ledger = OpenLedger(self.place, self.clock, table or "")
        if load_table(ledger.place) is None:
            create_table(ledger.place, _TABLE, partition_by=[DAY], configuration=_CONFIGURATION)
        if table:
            ledger.bind()
        return ledger

    def unbind(self) -> None:
        """Let the ledger forget which table it is of; the next one that is opened with it takes it.

        Only where that table has the rows of the earlier one, for example because it was written anew under another id:
        it is taken to have all messages that the ledger knows.

        Raises:
            TableError: There is no ledger, or it cannot be read or written.
        """
        existing_table(self.place)
        OpenLedger(self.place, self.clock).bind()

    def abandon(self, batch_id: str) -> Abandoned:
        """Give up a batch that was admitted and that the table cannot take, so that later ones go on.

        Only where every ingestion into the table fails with an error about this batch, and what it complains of cannot
        be put right. Stop all ingestions into the table first. Nothing of the batch is in the table then, and its
        messages are not known any more: those that come again are ingested like new ones. A queue has them still,
        because the ingestion that admitted the batch ended with an error; should it have been told so and deleted
        them all the same, the staged rows are what is left of them, and stay where they are.

        Args:
            batch_id: The batch.

        Returns:
            What was given up.

        Raises:
            TableError: It is not the newest batch of the ledger, the only one that can be half-done; it had no rows to
                add; or there is no ledger, or it cannot be read or written, or changed meanwhile.
        """
        existing_table(self.place)
        snapshot = OpenLedger(self.place, self.clock).snapshot()
        newest, staged = snapshot.newest(), snapshot.staged()
        if newest is None or staged is None or staged.batch_id != batch_id:
            raise TableError(
                f"batch {batch_id} is not the newest of the ledger {self.place.uri}, or has no rows that wait: "
                "only a batch that the table still has to take can be given up"
            )
        try:
            snapshot.table.update(
                # The entries stay, and the number with them: the table must not take another batch for this one.
                updates={"outcome": f"'{_ABANDONED}'", "location": "NULL"},
                predicate=f"number = {newest.number}",
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError as error:
            raise TableError(
                f"batch {batch_id} was not given up: somebody else wrote the ledger {self.place.uri} at this "
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
        place: Where it is.
        clock: Gives the time now, with a zone.
        table: The id of the table that it is to be of; empty, the default, for any.
    """

    place: Place
    clock: Callable[[], datetime] = field(default=_now, repr=False)
    table: str = ""

    def bind(self) -> None:
        """Have it be the ledger of the table from now on, or of none.

        Raises:
            TableError: It knows the messages of another one; or it cannot be read or written.
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
                    writers.pause("somebody else wrote it")
                except (DeltaError, OSError) as error:
                    raise self.place.unusable("cannot be written", error) from error

    def snapshot(self) -> LedgerSnapshot:
        """The ledger as it is now.

        Raises:
            TableError: It cannot be read, or is of another table.
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
                "may not have: give each table a ledger of its own. If this table was made anew, give it a new ledger; "
                f"or, if it has the rows of that one, say so: Ledger({self.place.uri!r}).unbind()"
            )

    def admit(self, snapshot: LedgerSnapshot, batch_id: str, entries: pa.Table, location: str | None) -> Admitted:
        """Write a batch down, if nobody was admitted since the snapshot.

        Args:
            snapshot: What the entries were compared with.
            batch_id: The batch.
            entries: Its messages, as :data:`.sinks.sink.ENTRIES`, at least one, none of them known to the snapshot.
            location: Where its rows are staged; None where it has none.

        Raises:
            CommitConflict: Somebody else was; nothing is written.
            TableError: It cannot be written. It may have been all the same: a later snapshot knows.
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
                # With retries, delta-rs would accept a commit that was prepared for an older version.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError as error:
            # The refusal may answer the second request of a pair of which the first went through unheard.
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
        """The day under which messages are kept: today, or the day on which the last of them was sent if that is later.

        No message is sent after it was received, so then the driver's clock is slow.
        """
        sent_at = pc.max(entries["sent_at"]).as_py()
        now = self.clock().astimezone(UTC)
        return (now if sent_at is None else max(now, sent_at.astimezone(UTC))).date()

    def _forgotten_before(self, snapshot: LedgerSnapshot) -> date:
        """The first day that is remembered, by the driver's clock, or by the newest message if that clock is ahead."""
        sent_at = pc.max(snapshot.files["max.sent_at"]).as_py() if snapshot.files.num_rows else None
        now = self.clock().astimezone(UTC)
        return ((now if sent_at is None else min(now, sent_at.astimezone(UTC))) - REMEMBERED).date()

    def clean_up(self, seen: LedgerSnapshot) -> None:
        """Put small files together; and forget what is older than any message in a queue can be, in whole days.

        It may lose against another process, and leaves the work to that one, or to the next day. Trouble is logged
        and does no harm.

        Args:
            seen: A version that was looked at a moment ago, by which most calls see that there is nothing to do.
        """
        self._compact(seen)
        oldest = self._forgotten_before(seen)
        if not any(day < oldest for day in seen.days()):
            return
        try:
            snapshot = self.snapshot()
            days = snapshot.days()
            # Somebody may have made the ledger anew: then no file has a day.
            newest = days[-1] if days else None
            if newest is None or not any(day < oldest and day != newest for day in days):
                return
            removed = snapshot.table.delete(
                f"{DAY} < '{oldest.isoformat()}' AND {DAY} <> '{newest.isoformat()}'",
                commit_properties=CommitProperties(max_commit_retries=0),
            )
            # Files that left the ledger a week ago or longer, and those that never got into it.
            vacuumed = snapshot.table.vacuum(full=True, dry_run=False)
        except CommitFailedError:
            logger.debug("ledger %s: somebody else was faster than the clean-up", self.place.uri)
        except (DeltaError, OSError, TableError) as error:
            logger.warning("ledger %s was not cleaned up, which is tried again: %s", self.place.uri, error)
        else:
            logger.info(
                "ledger %s: forgot %d batches from before %s, removed %d files",
                self.place.uri,
                removed["num_removed_files"],
                oldest,
                len(vacuumed),
            )

    def _compact(self, seen: LedgerSnapshot) -> None:
        """Put the files of each day together that has many small ones. Others may admit batches meanwhile."""
        for day, files in Counter(seen.days()).items():
            if files < SMALL_FILES:
                continue
            try:
                table = self.snapshot().table
                table.optimize.compact(partition_filters=[(DAY, "=", day.isoformat())])
            except CommitFailedError:
                logger.debug("ledger %s: somebody else put its files together at this moment", self.place.uri)
            except (DeltaError, OSError, TableError) as error:
                logger.warning("ledger %s was not compacted, which is tried again: %s", self.place.uri, error)

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
                # What is the same for all of them takes more memory than they do.
                part = entries.slice(start, _ROW_GROUP_ENTRIES)
                given = {name: part[name] for name in ENTRIES.names[1:]}
                writer.write_table(message_table(FILE, part["message_id"], **given, **asdict(admitted)))
        size: int = filesystem.get_file_info(file).size
        return size


@dataclass(frozen=True, slots=True)
class Admitted:
    """One admission.

    Attributes:
        number: Its number; the ledger's first is 1.
        batch_id: The batch.
        location: Where its rows were staged; None where it had none.
    """

    number: int
    batch_id: str
    location: str | None


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A batch that was given up, or can be.

    Attributes:
        batch_id: The batch.
        message_ids: Its messages; once it was given up, the table neither has nor knows them.
        location: Where their rows are still staged, in the sink's own terms.
    """

    batch_id: str
    message_ids: tuple[str, ...]
    location: str


def statistics_of(admitted: Admitted, entries: pa.Table) -> dict[str, Any]:
    """What the log is to say of the file of an admission, so that most look-ups need not open it."""
    said = asdict(admitted)
    constant = {name: value for name, value in said.items() if value is not None}
    nulls = {name: entries.num_rows if value is None else 0 for name, value in said.items()}
    nulls["sent_at"] = entries["sent_at"].null_count
    lowest, highest = dict(constant), dict(constant)
    times = pc.min_max(entries["sent_at"])
    if times["min"].is_valid:
        lowest["sent_at"], highest["sent_at"] = (
            times[end].as_py().isoformat(timespec="microseconds").replace("+00:00", "Z") for end in ("min", "max")
        )
    return {"numRecords": entries.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _text(column: str) -> pds.Expression:
    """A column of texts, for a filter.

    It is cast, though it is of that type: a file that deltalake rewrote says that its texts are views of texts, and
    Arrow does not compare those with texts where it looks which rows of the file may be wanted.
    """
    return pds.field(column).cast(pa.string())


_NOT_ABANDONED: Final = _text("outcome") != _ABANDONED
_BUCKET_MICROSECONDS: Final = 60_000_000
# What a look-up holds in memory at once: of so many files a row group each, some 20 MB.
_FILES_AT_ONCE: Final = 4
_ROWS_AT_ONCE: Final = 100_000

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """One version of a ledger.

    Attributes:
        place: Where it is.
        table: The version. Nobody moves this handle on to a newer one.
        files: What the log says of each file: one row a file.
    """

    place: Place
    table: DeltaTable
    files: pa.Table

    @property
    def ledger_id(self) -> str:
        """Tells this ledger from another one in the same place."""
        return str(self.table.metadata().id)

    def bound_to(self) -> str:
        """The id of the table whose ledger it is; empty where nobody has said."""
        return str(self.table.metadata().configuration.get(_BOUND_TO, ""))

    def newest(self) -> Admitted | None:
        """The newest admission; None in an empty ledger."""
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
        """Of messages, as :data:`.sinks.sink.LOOKED_UP`, those in the ledger, as :data:`.sinks.sink.KNOWN`."""
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
        """How many messages were admitted under a batch id."""
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
        """The newest batch, if it has rows: the only one that can wait for the table still."""
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
        """Whether an admission has its rows at this location; False is certain."""
        return bool(pc.any(self._may_have("location", location)).as_py())

    def days(self) -> list[date]:
        """The day of each file, that of the newest admission last."""
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
        """Take something from the chosen files, of a few of which some rows are in memory at a time."""
        paths = self.files["path"].filter(chosen).to_pylist()
        try:
            # Reading ahead is for places where each read is a request. It holds all columns of a file.
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
        """Which files may have a value in a column: those of which the log does not exclude it."""
        low, high = self.files[f"min.{column}"], self.files[f"max.{column}"]
        within = pc.and_(pc.less_equal(low, value), pc.greater_equal(high, value))
        # Nothing but nulls has neither a lowest nor a highest value.
        empty = pc.equal(self.files[f"null_count.{column}"], self.files["num_records"])
        return pc.and_(pc.fill_null(within, True), pc.invert(pc.fill_null(empty, False)))

    def _overlapping(self, sent_at: pa.ChunkedArray) -> pa.ChunkedArray:
        """Which files may have messages that were sent in the same minutes as these."""
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
            # Unknown, or a message of which the time was not said when it was admitted.
            low is None or high is None or nulls != 0 or bisect_right(asked, high) > bisect_left(asked, low)
            for low, high, nulls in files
        ]
        return pa.chunked_array([overlapping], pa.bool_())


def _minutes(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.divide(times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), _BUCKET_MICROSECONDS)
