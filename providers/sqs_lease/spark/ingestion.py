"""Ingestion of a batch of messages into a table, each message once: the order of steps that guarantees this.

1. Write the messages to a file. Reject bodies that the source does not even want to parse.
2. Ask the table which of the messages it knows.
3. Parse the others in one pass and stage their rows where no reader of the table sees them. If source and table allow
   it, Spark's tasks read the messages, write the rows themselves (:mod:`.batch_parts`), and answer with the rejects.
   Otherwise Spark plans it, and rejects and messages without anything to store are observed in the same pass.
4. Require that every message is known, ingested, empty or rejected. Otherwise nothing is committed. The comparison is
   by id, and the ids of rows come from the written files: Spark's observations were seen to be empty without an error.
5. Store the rejects in their own table, if there is one, in the same way.
6. Commit the rows and the messages to the table, in one commit. It is refused if another process committed since step
   2; then the steps from there are repeated, and only messages that came in meanwhile are parsed out.
7. If the table refuses rows, or they cannot be written, repeat steps 2 to 6 with parts of the batch until the messages
   of these rows are known (:mod:`.refusals`). These are rejected; all others are in the table.
8. Only then, if the source is told to, clean up what the messages were read from. If this is interrupted, the clean-up
   happens when the batch comes again, because the table knows its messages then.

So a batch can be killed at any point and ingested again, in this process or another, and several processes can ingest
into one table. A message may be deleted from its queue when ``ingest`` has returned and does not name it in
``partial_batch_response()``, not before.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it

from sqs_lease.core.failure_rules import printable
from sqs_lease.core.functions import require_function
from sqs_lease.ingestion.result import CleanUp, StoredResult
from sqs_lease.spark.arguments import require_methods
from sqs_lease.spark.batch_file import MESSAGE_ID, REASONS, RECEIVE_COUNT, BatchFile, Messages, written_batch
from sqs_lease.spark.columns import REJECT, table_columns
from sqs_lease.spark.errors import NothingToInferError, TableError
from sqs_lease.spark.job_watch import StillHeld, watched_jobs
from sqs_lease.spark.loading import Loaded, Loading
from sqs_lease.spark.message_ids import NO_IDS, filtered, message_table, together, without
from sqs_lease.spark.parsing import MessageParser, parse_rejects
from sqs_lease.spark.repeats import Keys
from sqs_lease.spark.session import INGESTION, runs_tasks_here, session_settings
from sqs_lease.spark.sinks.jars import require_spark
from sqs_lease.spark.sinks.sink import EMPTY, INGESTED, REJECTED, Sink, Table
from sqs_lease.spark.sources.source import IS_STORED, ArrowSource, CleanerOf, CleaningSource, KeyedSource, Source
from sqs_lease.spark.spark_errors import kind_of
from sqs_lease.spark.waits import LIMIT_SECONDS, Waits, waiting_at_most

logger = logging.getLogger(__name__)

NOTHING_TO_INFER: Final = "no schema is pinned yet, and it has no field from which one could be inferred"
"""The reason for all messages of a first batch without any record."""

_NAMED_MESSAGES: Final = 3
_NAMED_AT_ONCE: Final = 100_000


@dataclass(frozen=True, slots=True)
class IngestResult:
    """Result of one batch. ``ingested + empty + duplicates + len(rejected) == received`` always holds.

    Attributes:
        batch_id: The id of the batch.
        received: The number of messages of the batch, repetitions included.
        ingested: The number of messages with records in the table because of this batch. It is the same number when the
            batch is ingested again after its commit.
        empty: The number of valid messages without a record, which are done because of this batch. It is the same
            number when the batch is ingested again.
        duplicates: The number of messages that were done already because of another batch, or that occur in this batch
            more than once.
        rejected: Message id -> why the message is not a valid record. The reasons name columns and byte positions, and
            never quote a body.
        rows: The number of rows that this call added to the table: 0 for a batch that was committed before.
        table_version: A version of the table that has the batch: the one that its commit made or, if this call added
            nothing, the newest one at the look-up. None for an empty batch, which does not look at the table, and for a
            table without versions.
        rejects_stored: Whether the rejected messages are in a table of rejects, and so are done.
        objects: The result of the clean-up of the objects that the batch was read from; None if the source leaves them.
        waited_seconds: The time that this call waited for other writers of the same tables. It is not compared when two
            results are compared.
    """

    batch_id: str
    received: int
    ingested: int
    empty: int
    duplicates: int
    rejected: Mapping[str, str]
    rows: int
    table_version: int | None
    rejects_stored: bool
    objects: CleanUp | None = None
    waited_seconds: float = field(default=0.0, compare=False)

    def failures(self) -> dict[str, str]:
        """Return the messages that are not done, and why: the rejected ones, unless they were stored."""
        return {} if self.rejects_stored else dict(self.rejected)

    def partial_batch_response(self) -> dict[str, list[dict[str, str]]]:
        """Name the messages that are not done, in the shape of AWS Lambda. Return it from the task that did the work.

        Returns:
            ``{"batchItemFailures": [{"itemIdentifier": message id, "reason": text}, ...]}``: the rejected messages,
            unless they were stored. These are released, and all other messages of the batch are deleted. ``reason`` is
            an addition to AWS's shape; it goes with a message that is dead-lettered.
        """
        items = [{"itemIdentifier": message_id, "reason": reason} for message_id, reason in self.failures().items()]
        return {"batchItemFailures": items}

    def stored(self) -> StoredResult:
        """Return the result in the form without Spark, for the process that started the ingestion."""
        return StoredResult(
            batch_id=self.batch_id,
            received=self.received,
            ingested=self.ingested,
            empty=self.empty,
            duplicates=self.duplicates,
            rejected=len(self.rejected),
            rows=self.rows,
            table_version=self.table_version,
            rejects_stored=self.rejects_stored,
            batchItemFailures=self.partial_batch_response()["batchItemFailures"],
            objects=self.objects,
        )


def ingest(
    spark: SparkSession,
    messages: Messages,
    *,
    source: Source[Any],
    sink: Sink,
    workspace: str | Path | None = None,
    batch_id: str | None = None,
    rejects: Sink | None = None,
    still_held: StillHeld | None = None,
    longest_wait_seconds: float = LIMIT_SECONDS,
) -> IngestResult:
    """Store a batch of messages, each exactly once.

    Args:
        spark: A session of any kind. No other thread may use it at the same time.
        messages: The batch: :class:`Message` values, or dicts in the shape of the SQS API (``MessageId``,
            ``Body``, ``Attributes``), such as an Airflow task gets by XCom; or the path of the manifest that they are
            in (:mod:`sqs_lease.batch_files.manifest`). May be empty.
        source: How to read the messages, for example ``JsonSource("id BIGINT NOT NULL, name STRING")``.
        sink: The table for the records, for example ``DeltaSink("/data/orders")``.
        workspace: A directory for the file of the batch, which the driver and all executors reach by this path. The
            file is removed at the end; the next process removes the files of killed ones. None, the default, for a
            local session, whose file is in a private temporary directory, and if driver and executors share no
            directory: then the driver sends the messages to the executors. That takes the memory of the whole batch in
            the driver, and all rows pass through Spark, which takes longer.
        batch_id: The name of the batch. None, the default, names it after its messages, their receive counts and the
            source, so that a repeated try is recognised. A name of your own must always stand for the same messages.
        rejects: The table for rejected messages, for example ``DeltaSink("/data/orders-rejected")``, with the columns
            ``body`` and ``reason`` besides those of every table. The messages are done then. They are stored before the
            records are committed. If a process dies in between and you correct the source before the next try, a
            message that is valid by then is in both tables. None, the default, only reports rejected messages to the
            caller.
        still_held: Returns a true value while the messages are still held. It is called every few seconds in a thread
            of its own, and right before a commit. After the first false value the Spark jobs are cancelled and nothing
            more is committed.
        longest_wait_seconds: The longest wait for other writers of the same table: refused commits, locks of
            PostgreSQL, the lock of a pinned schema. 10 minutes by default.

    Returns:
        The result. For a batch that was committed before, the result of that time.

    Raises:
        BatchIdReusedError: The batch id was committed with other messages.
        LeaseLostError: The messages are no longer held.
        ManifestError: The manifest cannot be used.
        ReconciliationError: Not every message is accounted for; nothing was committed.
        SchemaError: The schema cannot be used, or does not fit the table.
        TableError: The table cannot be used, no jars were tested with this Spark and this sink, or other processes
            write the table for longer than ``longest_wait_seconds``.
        WorkspaceError: The file of the batch cannot be written.
        TypeError, ValueError: ``messages`` has an element that is not a message; or another argument is not what it
            should be, for example ``spark`` no session, or ``still_held`` an ``async def``.
    """
    if not hasattr(spark, "createDataFrame"):
        raise TypeError(
            f"spark is not a session, but {type(spark).__name__}; local_session() is one within its block: "
            "with local_session() as spark: ingest(spark, ...)"
        )
    require_methods(source, "source", "source, such as JsonSource(...)", "checker", "columns", "parse")
    require_methods(sink, "sink", "sink, such as DeltaSink(...)", "open")
    if rejects is not None:
        require_methods(rejects, "rejects", "sink, such as DeltaSink(...)", "open")
    if still_held is not None:
        require_function(still_held, "still_held")
    if batch_id is not None:
        _require_name(batch_id)
    if not longest_wait_seconds > 0:
        raise ValueError(f"longest_wait_seconds must be more than 0, not {longest_wait_seconds}")
    for one in (sink, rejects):
        require_spark(one, spark.version)
    checker = source.checker()
    keys_of = source.keys if isinstance(source, KeyedSource) else None
    with (
        written_batch(
            messages,
            workspace=workspace,
            checker=checker,
            keys_of=keys_of,
            runs_tasks_here=runs_tasks_here(spark),
        ) as batch,
        session_settings(spark, INGESTION),
        waiting_at_most(Waits(longest_wait_seconds)) as waits,
    ):
        if batch is None:
            batch_id = batch_id or default_id(source.identity, NO_IDS, NO_IDS)
            return IngestResult(batch_id, 0, 0, 0, 0, {}, 0, None, rejects is not None)
        message_ids = batch.messages[MESSAGE_ID]
        batch_id = batch_id or default_id(source.identity, message_ids, batch.messages[RECEIVE_COUNT])
        name = f"batch {batch_id}"
        with watched_jobs(spark, name, still_held) as watch:
            try:
                record = source.columns(batch.accepted(spark), checker)
            except NothingToInferError:
                result = _all_rejected(spark, batch, batch_id, rejects, watch.require_held)
                _report(result)
                return result
            # Opened before anything is parsed, because a table that cannot be used is the likeliest mistake.
            table = sink.open(spark, table_columns(record), widen=source.widens)
            store_rejects = None if rejects is None else _rejects_store(spark, batch, batch_id, rejects)
            by_tasks = source.arrow_parser(record) if isinstance(source, ArrowSource) else None
            cleaner = source.cleaner if isinstance(source, CleaningSource) else None
            keys = Keys.of_batch(batch.messages)
            loading = Loading(
                table,
                batch_id,
                batch.looked_up,
                message_ids,
                keys,
                asks_of_rejects=cleaner is not None,
                store_rejects=store_rejects,
                before_commit=watch.require_held,
            )
            loaded = loading.load(
                MessageParser(spark, batch, lambda given: source.parse(given, record), by_tasks).parse
            )
            result = _result(batch, batch_id, loaded, rejects_stored=rejects is not None, waited_seconds=waits.seconds)
            if cleaner is not None:
                result = replace(result, objects=_clean_up(cleaner, spark, batch, loaded, name, watch.look))
    _report(result)
    return result


def _require_name(batch_id: object) -> None:
    if not isinstance(batch_id, str):
        raise TypeError(f"batch_id must be a text, not {type(batch_id).__name__}")
    if not batch_id.strip():
        raise ValueError("batch_id is empty: leave it out, or give the batch a name")
    if "\0" in batch_id or any("\ud800" <= character <= "\udfff" for character in batch_id):
        raise ValueError("batch_id has NUL or half a surrogate pair in it, which not every table can store")


def default_id(source: str, message_ids: pa.ChunkedArray, receive_counts: pa.ChunkedArray) -> str:
    """Name a batch after its content.

    The same messages in the same order with the same receive counts, for the same source, are the same batch: a task
    that is tried again finds what its first try committed. A redelivery has a higher receive count, and a corrected
    schema is another source, so rejected messages get another chance.

    Args:
        source: The identity of the source: :attr:`.source.Source.identity`.
        message_ids: The messages, each once.
        receive_counts: The receive count of each.
    """
    digest = hashlib.sha256(source.encode())
    # In parts: as one string they would take more memory than everything else that the driver keeps of a batch.
    messages = pa.table([message_ids, receive_counts], names=["id", "count"])
    for part in messages.to_batches(_NAMED_AT_ONCE):
        # The last buffer of an empty array is not its text.
        if part.num_rows:
            words = pc.binary_join_element_wise(part["id"], part["count"].cast(pa.string()), " ")
            lines = pc.binary_join_element_wise("", words, "\n")
            digest.update(lines.buffers()[-1])
    return digest.hexdigest()[:32]


def _clean_up(
    cleaner: CleanerOf,
    spark: SparkSession,
    batch: BatchFile,
    loaded: Loaded,
    name: str,
    is_held: Callable[[], bool],
) -> CleanUp:
    """Clean up after the commit. Errors are only reported, because the messages are done by now."""
    earlier = loaded.known.filter(pc.equal(loaded.known["outcome"], REJECTED))
    rejected = together(loaded.rejected["message_id"], earlier["message_id"])
    try:
        if not is_held():
            return CleanUp(0, 0, 0, "its messages are no longer held: their next receiver cleans up")
        messages = batch.accepted(spark)
        if len(rejected):
            left = batch.only(messages, rejected).withColumn(IS_STORED, F.lit(False))
            stored = batch.without(messages, rejected).withColumn(IS_STORED, F.lit(True)).union(left)
        else:
            stored = messages.withColumn(IS_STORED, F.lit(True))
        cleaned = cleaner(stored)
    except Exception as error:  # noqa: BLE001 - there are many kinds, and the batch is in the table
        cleaned = CleanUp(0, 0, 0, kind_of(error))
    logger.info("%s: of its objects %d are cleaned up, %d were left", name, cleaned.cleaned, cleaned.left)
    if cleaned.error is not None:
        logger.warning(
            "%s is stored, and %s objects could not be cleaned up: %s", name, cleaned.failed or "its", cleaned.error
        )
    return cleaned


def _all_rejected(
    spark: SparkSession, batch: BatchFile, batch_id: str, rejects: Sink | None, require_held: Callable[[], object]
) -> IngestResult:
    """Reject a batch without any field from which a schema could be inferred; there may be no table yet."""
    message_ids = batch.messages[MESSAGE_ID]
    others = without(message_ids, batch.rejected["message_id"])
    reasons = pa.concat_tables([batch.rejected, message_table(REASONS, others, reason=NOTHING_TO_INFER)])
    if rejects is not None:
        store = _rejects_store(spark, batch, batch_id, rejects)
        require_held()
        store(reasons)
    message_ids_and_reasons = zip(*(column.to_pylist() for column in reasons.columns), strict=True)
    found = {message_id: printable(reason) for message_id, reason in message_ids_and_reasons}
    return IngestResult(
        batch_id, batch.received, 0, 0, batch.received - len(found), found, 0, None, rejects is not None
    )


def _rejects_store(spark: SparkSession, batch: BatchFile, batch_id: str, rejects: Sink) -> Callable[[pa.Table], object]:
    table = rejects.open(spark, table_columns(REJECT), widen=False)
    return partial(_store_rejects, table, spark, batch, batch_id)


def _store_rejects(table: Table[Any], spark: SparkSession, batch: BatchFile, batch_id: str, reasons: pa.Table) -> None:
    """Store the rejected messages of a batch in the table of rejects."""
    loading = Loading(table, batch_id, batch.looked_up, reasons["message_id"])
    loaded = loading.load(partial(parse_rejects, spark, batch, reasons))
    if loaded.rejected.num_rows:
        message_id, reason = (column[0].as_py() for column in loaded.rejected.columns)
        raise TableError(
            f"batch {batch_id}: the table of rejects does not take {loaded.rejected.num_rows} messages, for example "
            f"{printable(message_id)} ({printable(reason)}): remove its rules"
        )


def _result(
    batch: BatchFile, batch_id: str, loaded: Loaded, *, rejects_stored: bool, waited_seconds: float
) -> IngestResult:
    """Combine the work of this call and of earlier ones under the same batch id."""
    is_ours = pc.equal(loaded.known["batch_id"], batch_id)
    ingested, empty, rejected = (
        pc.and_(is_ours, pc.equal(loaded.known["outcome"], of)) for of in (INGESTED, EMPTY, REJECTED)
    )
    all_ingested = loaded.ingested + pc.sum(ingested, min_count=0).as_py()
    all_empty = loaded.empty + pc.sum(empty, min_count=0).as_py()
    reported = [loaded.rejected, filtered(loaded.known, rejected)] if rejects_stored else [loaded.rejected]
    reasons = {
        message_id: printable(reason or "")
        for table in reported
        for message_id, reason in zip(table["message_id"].to_pylist(), table["reason"].to_pylist(), strict=True)
    }
    return IngestResult(
        batch_id=batch_id,
        received=batch.received,
        ingested=all_ingested,
        empty=all_empty,
        duplicates=batch.received - all_ingested - all_empty - len(reasons),
        rejected=reasons,
        rows=loaded.rows,
        table_version=loaded.version,
        rejects_stored=rejects_stored,
        waited_seconds=waited_seconds,
    )


def _report(result: IngestResult) -> None:
    logger.info(
        "batch %s: %d received, %d ingested as %d rows, %d empty, %d duplicates, %d rejected; table version %s",
        result.batch_id,
        result.received,
        result.ingested,
        result.rows,
        result.empty,
        result.duplicates,
        len(result.rejected),
        result.table_version,
    )
    for message_id, reason in islice(result.rejected.items(), _NAMED_MESSAGES):
        logger.warning("rejected, for example: message %s: %s", printable(message_id), reason)
