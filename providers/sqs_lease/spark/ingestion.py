"""Brings a batch of messages into a table, each message once: the order of steps that makes that hold.

1. The messages are written to a manifest, and bodies that are not even well-formed are rejected.
2. The table is looked at as it is at one version: which of the messages does it hold already?
3. Spark parses the others in one pass. Records are staged as files that the table does not name yet,
   rejects are observed on the way.
4. Every message must be accounted for: stored, already there, or rejected. Otherwise nothing is committed.
5. One commit names the files and the batch id. It is refused if the table is no longer at the version of
   step 2; then the steps from there are repeated, and only messages that came in meanwhile are parsed out.

So a batch can be killed at any point and handed over again, to this process or another, and several
processes can ingest into one table. A message may be deleted from its queue when ``ingest`` returned
without naming it as rejected, not before.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import StructType

from sqs_lease.core.messages import Message
from sqs_lease.spark import batch_file as manifests
from sqs_lease.spark.batch import Batch
from sqs_lease.spark.batch_file import Manifest, write_manifest
from sqs_lease.spark.columns import BATCH_ID, MESSAGE_ID, REASON, table_columns
from sqs_lease.spark.errors import BatchIdReusedError, ReconciliationError, TableError
from sqs_lease.spark.results import IngestResult
from sqs_lease.spark.settings import INGESTION, session_settings
from sqs_lease.spark.sinks.sink import Overtaken, SnapshotT, Staged
from sqs_lease.spark.sources.source import Source

logger = logging.getLogger(__name__)

# Every refusal means that somebody else's commit went through; so many in a row, and something is wrong.
_COMMIT_TRIES = 100
_NAMED_MESSAGES = 3


def ingest(
    spark: SparkSession,
    messages: Iterable[Message | Mapping[str, Any]],
    *,
    source: Source,
    sink: Any,
    workspace: str | Path,
    batch_id: str | None = None,
) -> IngestResult:
    """Store a batch of messages, each exactly once.

    Args:
        spark: A session of any kind; not used by another thread at the same time.
        messages: The batch: :class:`Message` values, or dicts in the shape of the SQS API (``MessageId``,
            ``Body``, ``Attributes``), such as an Airflow task gets by XCom. May be empty.
        source: What the messages are, for example ``JsonSource("id BIGINT NOT NULL, name STRING")``.
        sink: Where the records go, for example ``DeltaSink("/data/orders")``.
        workspace: Directory of the manifests, which the driver and all executors reach by this path. A
            manifest stays as the record of its batch; remove those that are older than the queue's
            retention period.
        batch_id: The batch's name. None, the default, names it after its messages, their receive counts
            and the schema, so that a repeated try is known as such. With a name of your own, the same
            name must always stand for the same messages.

    Returns:
        What became of the messages; for a batch that was committed before, what was reported then.

    Raises:
        BatchIdReusedError: The batch id was committed with other messages.
        ReconciliationError: Not every message is accounted for; nothing was committed.
        SchemaError: The schema cannot be used, or does not fit the table.
        TableError: The table cannot be used.
        WorkspaceError: The manifest cannot be written.
        TypeError, ValueError: ``messages`` holds something that is no message.
    """
    batch = Batch.of(messages)
    if batch_id is not None and not batch_id.strip():
        raise ValueError("batch_id is empty: leave it out, or give the batch a name")
    record = source.columns(spark)
    columns = table_columns(record)
    batch_id = batch_id or batch.default_id(record.json())
    if not batch.messages:
        return IngestResult(batch_id, 0, 0, 0, {}, None)
    # Before anything is written: a table that cannot be used is the likeliest mistake.
    sink.open(columns)
    manifest = write_manifest(batch, batch_id=batch_id, workspace=workspace, rejection=source.rejection)
    with session_settings(spark, INGESTION):
        stored = _Ingestion(spark, source, sink, record, columns, manifest, batch_id).store()
    brought = sum(1 for brought_by in stored.found.values() if brought_by == batch_id)
    result = IngestResult(
        batch_id=batch_id,
        received=batch.received,
        ingested=brought + stored.added,
        duplicates=len(stored.found) - brought + batch.repeated,
        rejected=stored.rejected,
        table_version=stored.version,
    )
    _report(result)
    return result


@dataclass(frozen=True, slots=True)
class _Stored:
    """How a batch ended: what the table held of it already and from which batch, what was added and rejected."""

    found: Mapping[str, str]
    added: int
    rejected: Mapping[str, str]
    version: int


@dataclass(frozen=True, slots=True)
class _Parsed:
    """One pass of Spark over the messages that are not in the table; no staged rows where all of them are."""

    staged: Staged | None
    rejected: Mapping[str, str]

    def overlaps(self, found: Mapping[str, str]) -> bool:
        """Whether messages were staged that the table has by now."""
        return self.staged is not None and not found.keys().isdisjoint(self.staged.message_ids)


@dataclass(frozen=True, slots=True)
class _Ingestion(Generic[SnapshotT]):
    """One batch on its way from the manifest to the table."""

    spark: SparkSession
    source: Source
    sink: Any
    record: StructType
    columns: StructType
    manifest: Manifest
    batch_id: str

    def store(self) -> _Stored:
        """Steps 2 to 5, until nobody came in between."""
        message_ids = self.manifest.message_ids(self.spark)
        parsed: _Parsed | None = None
        committed = False
        try:
            for _ in range(_COMMIT_TRIES):
                snapshot = self.sink.open(self.columns)
                found = snapshot.find(message_ids)
                if parsed is None or parsed.overlaps(found):
                    if parsed is not None:
                        self._discard(parsed)
                        parsed = None
                    parsed = self._parse(found)
                rejected = self._reconcile(found, parsed)
                recorded = snapshot.version_of(self.batch_id)
                if parsed.staged is None or not parsed.staged.message_ids:
                    return _Stored(found, 0, rejected, snapshot.version if recorded is None else recorded)
                if recorded is not None:
                    raise BatchIdReusedError(
                        f"batch {self.batch_id} was committed as version {recorded} of the table, but "
                        f"{len(parsed.staged.message_ids)} of its messages are not there: rows were deleted "
                        "since, or the id stood for other messages. Leave batch_id out, or use a new one, to "
                        "store them"
                    )
                try:
                    version = self.sink.commit(snapshot, parsed.staged, self.batch_id)
                except Overtaken:
                    logger.info("batch %s: the table changed meanwhile, looking again", self.batch_id)
                    continue
                committed = True
                return _Stored(found, len(parsed.staged.message_ids), rejected, version)
            raise TableError(
                f"batch {self.batch_id} was not committed: the table changed {_COMMIT_TRIES} times while it "
                "was tried. Let fewer processes write it at once, in larger batches"
            )
        finally:
            if parsed is not None and not committed:
                self._discard(parsed)

    def _parse(self, found: Mapping[str, str]) -> _Parsed:
        """Step 3."""
        if self.manifest.accepted_ids <= found.keys():
            return _Parsed(None, {})
        messages = self.manifest.accepted(self.spark)
        if found:
            stored = self.spark.createDataFrame(pa.table({manifests.MESSAGE_ID: list(found)}))
            messages = messages.join(F.broadcast(stored), manifests.MESSAGE_ID, "left_anti")
        observation = Observation()
        reject = F.when(F.col(REASON).isNotNull(), F.struct(MESSAGE_ID, REASON))
        rows = (
            self.source.parse(messages, self.record)
            .observe(observation, F.collect_list(reject).alias("rejects"))
            .where(F.col(REASON).isNull())
            .drop(REASON)
            .withColumn(BATCH_ID, F.lit(self.batch_id))
        )
        staged = self.sink.stage(rows, self.batch_id)
        try:
            # Empty where Spark did not observe anything; the reconciliation then finds what is missing.
            rejects = observation.get.get("rejects", [])
            return _Parsed(staged, {row[MESSAGE_ID]: row[REASON] for row in rejects})
        except BaseException:
            self.sink.discard(staged)
            raise

    def _reconcile(self, found: Mapping[str, str], parsed: _Parsed) -> dict[str, str]:
        """Step 4: account for every message exactly once.

        It compares the ids themselves rather than their numbers, and takes those of the records from what
        was written: observations have been seen to be empty without an error.

        Returns:
            All rejects, of the driver and of Spark.

        Raises:
            ReconciliationError: A message is missing, or counted twice.
        """
        rejected = {
            message_id: reason
            for message_id, reason in (*self.manifest.rejected.items(), *parsed.rejected.items())
            if message_id not in found
        }
        written = () if parsed.staged is None else parsed.staged.message_ids
        accounted = Counter(chain(found, rejected, written))
        expected = self.manifest.accepted_ids | self.manifest.rejected.keys()
        wrong = sorted(
            (expected - accounted.keys())
            | (accounted.keys() - expected)
            | {message_id for message_id, times in accounted.items() if times > 1}
        )
        if wrong:
            raise ReconciliationError(
                f"batch {self.batch_id} does not add up, so nothing of it was committed: of {len(expected)} "
                f"messages {len(written)} were written, {len(rejected)} rejected and {len(found)} in the table "
                f"already; {len(wrong)} are missing, counted twice or unknown, for example "
                f"{', '.join(wrong[:_NAMED_MESSAGES])}. This is a fault of the source or of Spark, not of the "
                "messages: run the batch again, and report it if that does not help"
            )
        return rejected

    def _discard(self, parsed: _Parsed) -> None:
        if parsed.staged is not None:
            self.sink.discard(parsed.staged)


def _report(result: IngestResult) -> None:
    logger.info(
        "batch %s: %d received, %d ingested, %d duplicates, %d rejected; table version %s",
        result.batch_id,
        result.received,
        result.ingested,
        result.duplicates,
        len(result.rejected),
        result.table_version,
    )
    for message_id, reason in islice(result.rejected.items(), _NAMED_MESSAGES):
        logger.warning("rejected, for example: message %s: %s", message_id, reason)
