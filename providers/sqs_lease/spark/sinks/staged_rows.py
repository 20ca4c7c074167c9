"""Rows that wait beside a ledger until a table that Spark itself writes has taken them, and the marks of those it took.

A batch's rows are Parquet files below ``_staged`` in the ledger's directory. When the table has them, that is marked by
an entry named after the application's number, and only then they are removed: so rows that are not there either have
their mark, or were removed by somebody else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import StructType

from sqs_lease.spark.batch import directory_name
from sqs_lease.spark.batch_parts import BatchParts
from sqs_lease.spark.columns import MESSAGE_ID
from sqs_lease.spark.errors import TableError
from sqs_lease.spark.ledger import Ledger
from sqs_lease.spark.paths import read_path
from sqs_lease.spark.sinks.sink import Rest, Staged
from sqs_lease.spark.sinks.staging import SharedDirectory, StagedDirectories, Staging, Written, remove_directory
from sqs_lease.spark.sinks.write_ahead import Application
from sqs_lease.spark.sources.arrow_types import arrow_schema

logger = logging.getLogger(__name__)

_INTRODUCTION: Final = "An error occurred while calling "
_STAGED: Final = "_staged"
_APPLIED: Final = "applied"
_NUMBER: Final = "number"


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows staged for one table.

    Attributes:
        spark: The session that writes and reads them.
        directory: An absolute path, or an address as Spark takes it (``s3a://bucket/orders-ledger/_staged``).
    """

    spark: SparkSession
    directory: str

    @classmethod
    def beside(cls, ledger: Ledger, spark: SparkSession) -> StagedRows:
        """Those of a ledger's table: below a name that begins with ``_``, which ``vacuum`` leaves alone."""
        # Spark calls it by the name of the file system that ships with it.
        address = f"s3a://{ledger.address.removeprefix('s3://')}" if ledger.address.startswith("s3://") else None
        return cls(spark, f"{address or ledger.address}/{_STAGED}")

    def write(self, rows: DataFrame, batch_id: str) -> Staged:
        """See :meth:`.sink.Table.stage`. The location ends with the number of rows."""
        if self._is_local:
            schema = arrow_schema(rows.schema)
            return self._written(batch_id, lambda place, beside: Staging(place, beside, schema).write(rows))
        directory = f"{self.directory}/{directory_name(batch_id)}/{uuid4().hex}"
        try:
            rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(directory)
            written = self._parquet(directory, f"{MESSAGE_ID} STRING").toArrow()
        except BaseException:
            self._remove(directory)
            raise
        message_ids = pa.chunked_array(written[MESSAGE_ID].cast(pa.string()).chunks, pa.string())
        return Staged(f"{directory}#{len(message_ids)}", message_ids)

    def write_parts(
        self,
        parts: BatchParts,
        rest: Rest,
        batch_id: str,
        columns: StructType,
        is_left: Callable[[pa.Table], pa.ChunkedArray],
    ) -> Staged | None:
        """See :class:`.sink.PartsTable`.

        Args:
            parts: The batch.
            rest: Plans the rows of messages that were left.
            batch_id: The batch.
            columns: Of the rows.
            is_left: See :class:`.staging.Staging`.

        Returns:
            All rows; None where the tasks cannot write, as they reach the directory only through Spark.
        """
        if not self._is_local:
            return None
        schema = arrow_schema(columns)
        return self._written(
            batch_id,
            lambda place, beside: Staging(place, beside, schema, is_left=is_left).write_parts(self.spark, parts, rest),
        )

    def read(self, location: str, columns: StructType) -> DataFrame | None:
        """The rows at a location; None where they are not all there any more.

        Args:
            location: What :meth:`write` returned, here or in another process.
            columns: The table's columns: those that the rows lack are null.
        """
        directory, _, count = location.rpartition("#")
        try:
            rows = self._parquet(directory, columns)
            # Parquet's footers say it.
            found = rows.count()
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return None
            raise
        return rows if found == int(count) else None

    def is_applied(self, application: Application) -> bool:
        """Whether the table is known to have taken an application; it may have taken one that nobody could mark."""
        marks = self._marks(application)
        if self._is_local:
            return any(_number(mark) >= application.number for mark in Path(marks).glob(f"{_NUMBER}=*"))
        try:
            found = self._parquet(marks, f"id BIGINT, {_NUMBER} BIGINT")
            return found.where(F.col(_NUMBER) >= application.number).count() > 0
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return False
            raise

    def mark_applied(self, application: Application) -> None:
        """Write down that the table has an application. Its rows may go now, and the marks before it."""
        marks = self._marks(application)
        mark = f"{marks}/{_NUMBER}={application.number}"
        if self._is_local:
            Path(mark).mkdir(parents=True, exist_ok=True)
            for other in Path(marks).glob(f"{_NUMBER}=*"):
                if _number(other) < application.number:
                    self._remove(str(other))
        else:
            self.spark.range(1).coalesce(1).write.mode("overwrite").parquet(mark)
            self._remove(f"{marks}/{_NUMBER}={application.number - 1}")

    def remove(self, location: str) -> None:
        """Remove rows that the table has taken, or will not be told to take."""
        self._remove(location.rpartition("#")[0])

    @property
    def _is_local(self) -> bool:
        return "://" not in self.directory

    def _marks(self, application: Application) -> str:
        return f"{self.directory}/{_APPLIED}-{application.ledger_id}"

    def _written(self, batch_id: str, write: Callable[[SharedDirectory, str], Written]) -> Staged:
        directory, message_ids = StagedDirectories(Path(self.directory)).write(batch_id, write)
        return Staged(f"{directory}#{len(message_ids)}", message_ids)

    def _parquet(self, directory: str, columns: StructType | str) -> DataFrame:
        return (
            self.spark.read.schema(columns)
            # The session may tolerate both, but a row left out here would be lost.
            .option("ignoreMissingFiles", "false")
            .option("ignoreCorruptFiles", "false")
            .parquet(read_path(directory) if self._is_local else directory)
        )

    def _remove(self, directory: str) -> None:
        """Remove a directory. It does no harm where that fails, so it must not fail the batch."""
        if self._is_local:
            remove_directory(Path(directory))
            return
        try:
            if not self._remove_by_hadoop(directory):
                logger.info("left over, as a Spark Connect client cannot remove it: %s", directory)
        except Exception as error:  # noqa: BLE001 - Hadoop's file systems raise whatever they like
            logger.warning("left over, and not part of the table: %s (%s)", directory, type(error).__name__)

    def _remove_by_hadoop(self, directory: str) -> bool:
        jvm, session = getattr(self.spark, "_jvm", None), getattr(self.spark, "_jsparkSession", None)
        if jvm is None or session is None:
            return False
        path = jvm.org.apache.hadoop.fs.Path(directory)
        path.getFileSystem(session.sessionState().newHadoopConf()).delete(path, True)
        return True


def _number(mark: Path) -> int:
    return int(mark.name.rpartition("=")[2])


def first_line(error: Exception) -> str:
    """What an error of Spark's says, without stack traces, plans, and rows, which follow in further lines."""
    first, _, rest = str(error).strip().partition("\n")
    # As Py4J introduces an exception of Java that PySpark does not know.
    return rest.partition("\n")[0].removeprefix(": ") if first.startswith(_INTRODUCTION) and rest else first


def gone(table: str, location: str, application: Application) -> TableError:
    """The error for rows that were admitted, are not known to be in the table, and are not there to be taken."""
    return TableError(
        f"table {table}: the rows of batch {application.batch_id}, which was admitted, have gone from "
        f"{location.rpartition('#')[0]}. Nothing but ingestion may remove what is there: restore it, or start a new "
        "table with a new ledger"
    )
