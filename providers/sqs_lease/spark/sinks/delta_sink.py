"""A Delta table on a file system: executors write Parquet files, the driver adds them in one commit, without jars."""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqs_lease.spark.batch import directory_name
from sqs_lease.spark.columns import MESSAGE_ID
from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.paths import write_path
from sqs_lease.spark.sinks.delta_schema import delta_schema, differences, unsupported
from sqs_lease.spark.sinks.ledger import Ledger
from sqs_lease.spark.sinks.sink import Staged
from sqs_lease.spark.sinks.write_ahead import Application, WriteAheadSink, WriteAheadTable

logger = logging.getLogger(__name__)

_FILES: Final = "batches"
_LOG: Final = "_delta_log"
_LEDGER: Final = "_sqs_lease/ledger"
# Every refusal means that somebody else's commit went through.
_COMMIT_TRIES: Final = 100


@dataclass(frozen=True)
class DeltaSink:
    """A Delta table in a directory, with its ledger inside of it.

    Attributes:
        path: The table's directory, which the driver and all executors reach by this path; it is created
            where it does not exist.
    """

    path: str | Path

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> WriteAheadTable:
        """See :meth:`.sink.Sink.open`."""
        sink = WriteAheadSink(DeltaTarget(self.path), Ledger(Path(self.path) / _LEDGER))
        return sink.open(spark, columns, widen=widen)


@dataclass(frozen=True)
class DeltaTarget:
    """A Delta table in a directory, which is appended to.

    Every try of a batch writes into a directory of its own, ``batches/<batch>/<try>``. Files there that no
    commit names belong to nobody's table: a try that fails removes its own. What remains after a kill goes with
    ``DeltaTable(path).vacuum(full=True, dry_run=False)``.

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

    def open(self, spark: SparkSession, columns: StructType, *, widen: bool) -> OpenDelta:
        """See :meth:`.write_ahead.Target.open`."""
        table = OpenDelta(Path(self.path).absolute())
        table.prepare(columns)
        return table


@dataclass(frozen=True)
class OpenDelta:
    """The table in a directory: see :class:`.write_ahead.TargetTable`."""

    root: Path

    def prepare(self, columns: StructType) -> None:
        """Create the table where there is none, and check that it takes these columns."""
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
            table = self._existing()
        if asked := unsupported(table.metadata()):
            raise TableError(f"table {self.root} cannot be written: {'; '.join(asked)}. Ingest into another one")
        if differs := differences(table.schema(), columns):
            raise SchemaError(
                f"the schema does not fit table {self.root}: {'; '.join(differs)}. Change the schema or the "
                "table, or ingest into another one"
            )

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        """See :meth:`.write_ahead.TargetTable.stage`."""
        location = f"{_FILES}/{directory_name(batch_id)}/{uuid4().hex}"
        directory = self.root / location
        try:
            rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(
                write_path(directory)
            )
            message_ids = [
                chunk
                for file in _written(directory)
                for chunk in pq.read_table(file, columns=[MESSAGE_ID])[MESSAGE_ID].chunks
            ]
        except BaseException:
            _remove(directory)
            raise
        return Staged(location, pa.chunked_array(message_ids, pa.string()))

    def apply(self, location: str, application: Application) -> int | None:
        """See :meth:`.write_ahead.TargetTable.apply`."""
        transaction = f"sqs-lease:{application.ledger_id}"
        actions = None
        for _ in range(_COMMIT_TRIES):
            table = self._existing()
            taken = table.transaction_version(transaction)
            if taken is not None and taken >= application.number:
                return table.version()
            if actions is None:
                actions = self._add_actions(location)
            try:
                table.create_write_transaction(
                    actions,
                    "append",
                    table.schema(),
                    commit_properties=CommitProperties(
                        # With retries, delta-rs would accept the same application a second time.
                        max_commit_retries=0,
                        app_transactions=[Transaction(transaction, application.number)],
                    ),
                )
            except CommitFailedError:
                logger.info("table %s changed meanwhile, looking again", self.root)
            except (DeltaError, OSError) as error:
                raise self._unusable("cannot be written", error) from error
            else:
                return table.version() + 1
        raise TableError(
            f"table {self.root} changed {_COMMIT_TRIES} times while batch {application.batch_id} was to be added: "
            "let fewer processes write it at once. The batch is added when the next one is looked up"
        )

    def version(self) -> int | None:
        """See :meth:`.write_ahead.TargetTable.version`."""
        return self._existing().version()

    def discard(self, location: str) -> None:
        """See :meth:`.write_ahead.TargetTable.discard`."""
        _remove(self.root / location)

    def _add_actions(self, location: str) -> list[AddAction | RemoveAction]:
        try:
            files = [(file, _row_count(file)) for file in _written(self.root / location)]
        except OSError as error:
            raise self._unusable("cannot be written", error) from error
        if not files:
            raise TableError(f"table {self.root}: the rows of an admitted batch have gone from {location}")
        return [_add_action(file, count, self.root) for file, count in files if count]

    def _existing(self) -> DeltaTable:
        table = self._load()
        if table is None:
            raise TableError(f"table {self.root} is gone: somebody removed it while it was used")
        return table

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

    def _unusable(self, what: str, error: Exception) -> TableError:
        return TableError(
            f"table {self.root} {what}: {error}. Check that this process may read and write the directory, "
            "and that the disk is not full"
        )


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
