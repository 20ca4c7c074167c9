"""Parsing of a batch's messages into staged rows, rejects and messages that have nothing to store, in one pass."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it

from sqs_lease.spark import batch_file
from sqs_lease.spark.batch_file import REASONS, BatchFile
from sqs_lease.spark.columns import BATCH_ID, MESSAGE_ID, NOTHING_TO_STORE, REASON
from sqs_lease.spark.errors import IngestionError
from sqs_lease.spark.message_ids import NO_IDS, is_among, only, repeated_ids, together, without
from sqs_lease.spark.sinks.sink import JudgingTable, PartsTable, Rest, Staged, Table
from sqs_lease.spark.sources.source import ArrowParser
from sqs_lease.spark.spark_errors import SPARK_ERRORS, cannot_run_this, why_cannot_run

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parsed:
    """The messages of a batch that a table does not know, parsed.

    Attributes:
        staged: Their rows; None if they have no rows.
        ingested: The messages that have rows, each once.
        empty: Those that have nothing to store, each once.
        rejected: Those that are no records, as :data:`.batch_file.REASONS`, found by the driver or by tasks.
    """

    staged: Staged | None
    ingested: pa.ChunkedArray
    empty: pa.ChunkedArray
    rejected: pa.Table

    @property
    def rows(self) -> int:
        """How many rows are staged."""
        return 0 if self.staged is None else len(self.staged.message_ids)


Parse: TypeAlias = Callable[[Table[Any], pa.ChunkedArray, str], Parsed]
"""Parses and stages what belongs into a table: it gets the table, the ids of messages to leave out, and the batch's."""


@dataclass(frozen=True, slots=True)
class MessageParser:
    """Parses the messages of a batch as a source says.

    Attributes:
        spark: The session.
        batch: The messages.
        plan: Plans the parsing, as :meth:`.source.Source.parse`.
        by_tasks: Reads the messages without Spark's rows in between, where the table takes their rows; None where it is
            to be planned.
    """

    spark: SparkSession
    batch: BatchFile
    plan: Callable[[DataFrame], DataFrame]
    by_tasks: ArrowParser | None = None

    def parse(self, table: Table[Any], known: pa.ChunkedArray, batch_id: str) -> Parsed:
        """See :data:`Parse`. Messages that have rows and a reject are rejected: then the others are parsed again."""
        torn = REASONS.empty_table()
        everything = self.batch.messages[batch_file.MESSAGE_ID]
        while True:
            rejected = pa.concat_tables([self.batch.rejected, torn])
            done = together(known, rejected["message_id"])
            if pc.all(is_among(everything, done)).as_py():
                return Parsed(None, NO_IDS, NO_IDS, rejected)
            staged, reasons = self._stage(table, together(known, torn["message_id"]), batch_id)
            try:
                nothing = pc.equal(reasons["reason"], NOTHING_TO_STORE)
                seen = _each_once(reasons.filter(pc.invert(nothing)))
                if staged.message_ids.equals(everything):
                    # One row for each message, as it mostly is: then no id is worked out, or kept, a second time.
                    staged, ingested = replace(staged, message_ids=everything), everything
                else:
                    ingested = _ids_once(staged.message_ids)
                torn_now = only(seen, ingested)
                if not torn_now.num_rows:
                    empty = pa.chunked_array([pc.unique(reasons["message_id"].filter(nothing))], pa.string())
                    # Of several parts of a message, one may give nothing and another one rows.
                    empty = without(empty, together(seen["message_id"], ingested))
                    rejected = pa.concat_tables([rejected, seen])
                    if len(ingested):
                        return Parsed(staged, ingested, empty, rejected)
                    table.discard(staged)
                    return Parsed(None, NO_IDS, empty, rejected)
            except BaseException:
                table.discard(staged)
                raise
            logger.info("batch %s: %d messages are parsed out, they have records and rejects", batch_id, len(torn_now))
            table.discard(staged)
            torn = pa.concat_tables([torn, torn_now])

    def _stage(self, table: Table[Any], others: pa.ChunkedArray, batch_id: str) -> tuple[Staged, pa.Table]:
        """Stage the rows of all messages that the driver accepted, without others; say which of them are rejected."""
        observed: list[Observation] = []
        rejected: list[pa.Table] = []

        def plan(messages: DataFrame) -> DataFrame:
            observed.append(Observation())
            return self._rows(table, messages, observed[-1], batch_id)

        def rest(left: pa.Table) -> DataFrame | None:
            is_rejected = pc.is_valid(left["reason"])
            rejected.append(left.filter(is_rejected).cast(REASONS))
            to_judge = left["message_id"].filter(pc.invert(is_rejected))
            return plan(self.batch.only(self.batch.accepted(self.spark), to_judge)) if len(to_judge) else None

        try:
            staged = self._stage_parts(table, rest, others, batch_id)
            if staged is None:
                observed.clear()
                rejected.clear()
                messages = self.batch.accepted(self.spark)
                staged = table.stage(plan(self.batch.without(messages, others) if len(others) else messages), batch_id)
        except SPARK_ERRORS as error:
            if not cannot_run_this(error):
                raise
            raise IngestionError(why_cannot_run(error)) from error
        try:
            # Empty where Spark did not observe anything; the reconciliation then finds what is missing.
            reasons = [row for observation in observed for row in json.loads(observation.get.get("reasons", "[]"))]
            seen = [[row[MESSAGE_ID] for row in reasons], [row[REASON] for row in reasons]]
            return staged, pa.concat_tables([*rejected, pa.Table.from_arrays(seen, schema=REASONS)])
        except BaseException:
            table.discard(staged)
            raise

    def _stage_parts(self, table: Table[Any], rest: Rest, others: pa.ChunkedArray, batch_id: str) -> Staged | None:
        """Let tasks read the messages themselves, where they reach the file, and source and table can do that."""
        if self.by_tasks is None or not self.batch.is_shared or not isinstance(table, PartsTable):
            return None
        return table.stage_parts(self.spark, self.batch.parts(self.by_tasks, others, batch_id), rest, batch_id)

    def _rows(self, table: Table[Any], messages: DataFrame, observation: Observation, batch_id: str) -> DataFrame:
        reason = F.when(F.col(REASON).isNotNull(), F.struct(MESSAGE_ID, REASON))
        rows = self.plan(messages).withColumn(BATCH_ID, F.lit(batch_id))
        return (
            (table.judged(rows, REASON) if isinstance(table, JudgingTable) else rows)
            # As a text: Spark 4.0 gives an observed array to Python as an object of Java.
            .observe(observation, F.to_json(F.collect_list(reason)).alias("reasons"))
            .where(F.col(REASON).isNull())
            .drop(REASON)
        )


def parse_rejects(
    spark: SparkSession, batch: BatchFile, reasons: pa.Table, table: Table[Any], known: pa.ChunkedArray, batch_id: str
) -> Parsed:
    """See :data:`Parse`, for a table of rejects: messages that were rejected for reasons are records of that."""
    wanted = without(reasons, known)
    if not wanted.num_rows:
        return Parsed(None, NO_IDS, NO_IDS, REASONS.empty_table())
    staged = table.stage(batch.rejects(spark, wanted).withColumn(BATCH_ID, F.lit(batch_id)), batch_id)
    return Parsed(staged, _ids_once(staged.message_ids), NO_IDS, REASONS.empty_table())


def _ids_once(message_ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the messages of some rows, each once. If each has one row, the column itself is returned."""
    return pa.chunked_array([pc.unique(message_ids)], pa.string()) if len(repeated_ids(message_ids)) else message_ids


def _each_once(reasons: pa.Table) -> pa.Table:
    """One reason a message; of several the one that is the first in the alphabet."""
    first = reasons.group_by("message_id", use_threads=False).aggregate([("reason", "min")])
    return first.select(["message_id", "reason_min"]).rename_columns(REASONS.names).cast(REASONS)
