"""Rows that wait beside a ledger until a table that Spark itself writes has taken them, and the marks of those it took.

A batch's rows are Parquet files below ``_staged`` in the ledger's directory. When the table has them, that is marked
beside them, and only then they are removed: so rows that are not there either have their mark, or were removed by
somebody else. Spark writes and reads the rows; all else is done through the ledger's own file system.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake.exceptions import DeltaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqs_lease.spark.batch_parts import BatchParts
from sqs_lease.spark.columns import MESSAGE_ID
from sqs_lease.spark.paths import read_parquet
from sqs_lease.spark.places import Place
from sqs_lease.spark.schemas import arrow_schema
from sqs_lease.spark.sinks.sink import Rest, Staged
from sqs_lease.spark.sinks.staging import Staging, Written, new_try, nothing_left, stage_directory
from sqs_lease.spark.sinks.write_ahead import Application, AppliedMarks

_STAGED: Final = "_staged"
_S3A: Final = re.compile("^s3://")
_NOTHING_THERE: Final = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")


def is_empty(location: str) -> bool:
    """Whether no row was staged at a location: nothing may be there then, and a table has nothing to take."""
    return location.endswith("#0")


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows staged for one table."""

    spark: SparkSession
    place: Place

    def write(self, rows: DataFrame, batch_id: str) -> Staged:
        """See :meth:`.sink.Table.stage`. The location ends with the number of rows."""
        if self.place.is_local:
            return self._written(batch_id, rows.schema, lambda staging: staging.write(rows))
        directory = f"{self.directory}/{new_try(batch_id)}"
        try:
            rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(directory)
            written = read_parquet(self.spark, directory, f"{MESSAGE_ID} STRING").toArrow()
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

        Returns:
            All rows; None where the tasks cannot write, as they reach the directory only through Spark.
        """
        if not self.place.is_local:
            return None
        return self._written(batch_id, columns, lambda staging: staging.write_parts(self.spark, parts, rest), is_left)

    def read(self, location: str) -> DataFrame | None:
        """The rows at a location; None where they are not all there any more.

        Args:
            location: What :meth:`write` returned, here or in another process.
        """
        directory, _, count = location.rpartition("#")
        try:
            rows = read_parquet(self.spark, directory)
            # Parquet's footers say it.
            found = rows.count()
        except AnalysisException as error:
            if error.getCondition() in _NOTHING_THERE:
                return None
            raise
        return rows if found == int(count) else None

    def is_applied(self, application: Application) -> bool:
        """Whether the table is known to have taken an application; it may have taken one that nobody could mark."""
        try:
            return self._marks.has(application)
        except (DeltaError, OSError) as error:
            raise self.place.unusable("cannot be read", error) from error

    def mark_applied(self, application: Application) -> None:
        """Write down that the table has an application. Its rows may go now, and the marks before it."""
        try:
            self._marks.add(application)
        except (DeltaError, OSError) as error:
            raise self.place.unusable("cannot be written", error) from error

    def remove(self, location: str) -> None:
        """Remove rows that the table has taken, or will not be told to take."""
        self._remove(location.rpartition("#")[0])

    @property
    def directory(self) -> str:
        """An absolute path, or an address as Spark takes it: below a name that ``vacuum`` leaves alone."""
        # Spark calls it by the name of the file system that ships with it.
        return f"{_S3A.sub('s3a://', self.place.uri)}/{_STAGED}"

    @property
    def _marks(self) -> AppliedMarks:
        return AppliedMarks(self.place, f"{_STAGED}/applied")

    def _written(
        self,
        batch_id: str,
        columns: StructType,
        write: Callable[[Staging], Written],
        is_left: Callable[[pa.Table], pa.ChunkedArray] = nothing_left,
    ) -> Staged:
        root, schema = Path(self.directory), arrow_schema(columns)
        directory, message_ids = stage_directory(root, batch_id, schema, write, is_left)
        return Staged(f"{directory}#{len(message_ids)}", message_ids)

    def _remove(self, directory: str) -> None:
        self.place.remove(f"{_STAGED}{directory.removeprefix(self.directory)}")
