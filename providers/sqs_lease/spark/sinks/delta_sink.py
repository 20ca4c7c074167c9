"""A Delta table on a file system: executors write Parquet files, the driver adds them in one commit, without jars."""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote
from uuid import uuid4

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import StructType

from sqs_lease.spark.batch import directory_name
from sqs_lease.spark.columns import BATCH_ID, MESSAGE_ID
from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.paths import read_path, write_path
from sqs_lease.spark.sinks.delta_schema import delta_schema, differences, unsupported
from sqs_lease.spark.sinks.sink import Overtaken, Staged

logger = logging.getLogger(__name__)

_FILES: Final = "batches"
_LOG: Final = "_delta_log"


@dataclass(frozen=True)
class DeltaSnapshot:
    """One version of the table."""

    table: DeltaTable

    @property
    def version(self) -> int:
        """The version."""
        return self.table.version()

    def version_of(self, batch_id: str) -> int | None:
        """The version recorded as the batch's application transaction."""
        return self.table.transaction_version(batch_id)

    def find(self, message_ids: DataFrame) -> dict[str, str]:
        """Semi-join with the table's files; the ids looked for are broadcast, so the table is never shuffled."""
        files = _named(self.table)
        if not files:
            return {}
        stored = (
            message_ids.sparkSession.read.schema(f"{MESSAGE_ID} STRING, {BATCH_ID} STRING")
            # The session may tolerate both, but a message overlooked here would be stored twice.
            .option("ignoreMissingFiles", "false")
            .option("ignoreCorruptFiles", "false")
            .parquet(*map(read_path, files))
        )
        found = stored.join(F.broadcast(message_ids), MESSAGE_ID, "left_semi").toArrow()
        return dict(zip(found[MESSAGE_ID].to_pylist(), found[BATCH_ID].to_pylist(), strict=True))


@dataclass(frozen=True)
class DeltaSink:
    """A Delta table in a directory.

    Every try of a batch writes into a directory of its own, ``batches/<batch>/<try>``. Files there that no
    commit names belong to nobody's table: a try that fails removes its own, a try that commits removes
    those that earlier, killed tries of the same batch left behind. What remains after a kill when the
    batch never comes back as a whole goes with ``DeltaTable(path).vacuum(full=True, dry_run=False)``.

    Attributes:
        path: The table's directory, which the driver and all executors reach by this path; it is created
            where it does not exist.
    """

    path: str | Path

    def __post_init__(self) -> None:
        if "://" in str(self.path):
            raise TableError(
                f"{self.path} is not a directory: give the path of one on a file system that the driver and "
                "all executors share"
            )

    @property
    def root(self) -> Path:
        """The table's directory, absolute."""
        return Path(self.path).absolute()

    def open(self, columns: StructType) -> DeltaSnapshot:
        """See :class:`.sinks.Sink`."""
        schema = delta_schema(columns)
        self._check_path()
        table = self._load()
        if table is None:
            self._require_empty()
            try:
                # Without retries: with them two drivers that create the table at once both succeed, the
                # second on top of the first.
                DeltaTable.create(
                    str(self.root),
                    schema,
                    mode="ignore",
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            except CommitFailedError:
                logger.info("table %s was created by somebody else at this moment", self.root)
            except (DeltaError, OSError) as error:
                raise self._unusable("cannot be created", error) from error
            table = self._load()
            if table is None:
                raise TableError(f"table {self.root} was created, and is gone again")
        if asked := unsupported(table.metadata()):
            raise TableError(f"table {self.root} cannot be written: {'; '.join(asked)}. Ingest into another one")
        if differs := differences(table.schema(), columns):
            raise SchemaError(
                f"the schema does not fit table {self.root}: {'; '.join(differs)}. Change the schema or the "
                "table, or ingest into another one"
            )
        return DeltaSnapshot(table)

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        """See :class:`.sinks.Sink`."""
        directory = self.root / _FILES / directory_name(batch_id) / uuid4().hex
        try:
            rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(
                write_path(directory)
            )
            message_ids: list[str] = []
            for file in _written(directory):
                message_ids += pq.read_table(file, columns=[MESSAGE_ID])[MESSAGE_ID].to_pylist()
        except BaseException:
            _remove(directory)
            raise
        return Staged(str(directory), tuple(message_ids))

    def commit(self, snapshot: DeltaSnapshot, staged: Staged, batch_id: str) -> int:
        """See :class:`.sinks.Sink`."""
        version = snapshot.version + 1
        directory = Path(staged.location)
        rows = {file: _row_count(file) for file in _written(directory)}
        if sum(rows.values()) != len(staged.message_ids):
            # Another try of the same batch was committed and has tidied up, or somebody deletes files here.
            raise self._refusal(snapshot, OSError(f"files have gone from {directory}"))
        try:
            snapshot.table.create_write_transaction(
                [_add_action(file, count, self.root) for file, count in rows.items() if count],
                "append",
                snapshot.table.schema(),
                commit_properties=CommitProperties(
                    # With retries, delta-rs would accept a commit that was prepared for an older version.
                    max_commit_retries=0,
                    # Its version says which version of the table has the batch.
                    app_transactions=[Transaction(batch_id, version)],
                ),
            )
        except CommitFailedError as error:
            raise self._refusal(snapshot, error) from error
        except (DeltaError, OSError) as error:
            raise self._unusable("cannot be written", error) from error
        self._tidy(directory)
        return version

    def discard(self, staged: Staged) -> None:
        """See :class:`.sinks.Sink`."""
        directory = Path(staged.location)
        table = self._load()
        # A commit may have been carried out although its answer was an error.
        if table is not None and any(file.is_relative_to(directory) for file in _named(table)):
            return
        _remove(directory)

    def _tidy(self, committed: Path) -> None:
        """Remove what other tries of a batch wrote, once this one is committed.

        None of them can be committed any more: one that is still running is refused because the table
        has changed, and finds the batch's messages in it.
        """
        for other in committed.parent.iterdir():
            if other != committed:
                _remove(other)

    def _load(self) -> DeltaTable | None:
        try:
            return DeltaTable(str(self.root))
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise self._unusable("cannot be read", error) from error

    def _check_path(self) -> None:
        if "%" in str(self.root):
            raise TableError(f"{self.root} has a % in it, which delta-rs takes for an escape: use another path")
        if self.root.exists() and not self.root.is_dir():
            raise TableError(f"{self.root} is a file: give the path of a directory for the table")

    def _require_empty(self) -> None:
        # Another driver may be creating the table at this moment.
        if self.root.is_dir() and any(entry.name != _LOG for entry in self.root.iterdir()):
            raise TableError(
                f"{self.root} has files in it, but is no Delta table: give the path of a table, or of a "
                "directory that is empty or does not exist"
            )

    def _refusal(self, snapshot: DeltaSnapshot, error: Exception) -> Exception:
        """Why a commit failed: the table has moved on, or there is something wrong with it."""
        now = self._load()
        if now is not None and now.version() > snapshot.version:
            return Overtaken()
        return self._unusable("cannot be written", error)

    def _unusable(self, what: str, error: Exception) -> TableError:
        return TableError(
            f"table {self.root} {what}: {error}. Check that this process may read and write the directory, "
            "and that the disk is not full"
        )


def _named(table: DeltaTable) -> list[Path]:
    """The files of the table; delta-rs percent-encodes them."""
    return [Path(unquote(file)) for file in table.file_uris()]


def _written(directory: Path) -> list[Path]:
    return sorted(directory.rglob("part-*.parquet"))


def _row_count(file: Path) -> int:
    count: int = pq.read_metadata(file).num_rows
    return count


def _add_action(file: Path, rows: int, root: Path) -> AddAction:
    status = file.stat()
    return AddAction(
        path=file.relative_to(root).as_posix(),
        size=status.st_size,
        partition_values={},
        modification_time=int(status.st_mtime * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": rows}),
    )


def _remove(directory: Path) -> None:
    """Remove a try's files, which no table has. They do no harm where that fails, so it must not fail the batch."""
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        # Nothing was written yet, or another try of the same batch was committed and has tidied up.
        pass
    except OSError as error:
        logger.warning("left over, and not part of the table: %s (%s)", directory, error)
    # The batch's directory stays while other tries have theirs in it.
    with suppress(OSError):
        directory.parent.rmdir()
