"""The ingestion of a batch into a table by Spark, in a process of its own.

The job is ``python -m sqs_lease.spark.job``; this module does not import Spark, which may be in another environment or
on a cluster. :func:`ingest_with_spark` starts it beside the step, and follows its output. If a Pipes client starts it
elsewhere (EMR, Databricks), use the parts one by one: :func:`stored_batch`, ``job_arguments``, :func:`reported_result`
and :func:`settle_ingestion`. The asset's metadata has Dagster's own keys for a table: storage, name, columns.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import uuid4

import dagster as dg
from upath import UPath

from sqs_lease.batch_files.manifest_extra import require_manifests
from sqs_lease.batch_files.manifests import temporary_manifest
from sqs_lease.blocking import LeasedBatch
from sqs_lease.dagster._internals import Context, add_metadata
from sqs_lease.ingestion.job import JobError, JobProcess, job_arguments, job_command, job_environment, read_result
from sqs_lease.ingestion.lost_watch import ending_when_lost
from sqs_lease.ingestion.result import ResultError, StoredResult
from sqs_lease.ingestion.spec import IngestionSpec

logger = logging.getLogger(__name__)

STORAGE_KIND: Final = "dagster/storage_kind"
TABLE_NAME: Final = "dagster/table_name"
COLUMN_SCHEMA: Final = "dagster/column_schema"

_STORAGES: Final = {"native-delta": "delta"}
"""The storage of sinks with a kind that is not named like it."""

_COLUMN: Final = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>\w+))(?:\s*:\s*|\s+)(?P<type>[A-Za-z_].*?)"
    r"(?P<required>\s+NOT\s+NULL)?(?:\s+COMMENT\s+'(?P<comment>(?:[^'\\]|\\.)*)')?\s*",
    re.IGNORECASE | re.DOTALL,
)
_PIECE: Final = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|[<(]|[>)]|,|[^`'<>(),]+")


def storage_kind(spec: Mapping[str, Any]) -> str:
    """Return the storage of an ingestion's table, e.g. ``delta``, from its spec (``sqs_lease/ingestion/spec.py``)."""
    kind = str(spec["sink"]["kind"])
    return _STORAGES.get(kind, kind)


def table_metadata(spec: Mapping[str, Any]) -> dict[str, dg.MetadataValue]:
    """Describe the table of an ingestion from its spec.

    Returns:
        By key: ``dagster/storage_kind``; ``dagster/table_name`` if the table has one; ``dagster/column_schema`` if the
        spec has a schema that messages cannot add to.
    """
    metadata: dict[str, dg.MetadataValue] = {STORAGE_KIND: dg.MetadataValue.text(storage_kind(spec))}
    table = spec["sink"].get("table")
    if isinstance(table, str):
        metadata[TABLE_NAME] = dg.MetadataValue.text(table)
    columns = _columns(spec["source"])
    if columns is not None:
        metadata[COLUMN_SCHEMA] = dg.MetadataValue.table_schema(dg.TableSchema(columns))
    return metadata


def _columns(source: Mapping[str, Any]) -> list[dg.TableColumn] | None:
    """Return the columns of a source's records; None if they are not known before."""
    while "source" in source:
        source = source["source"]
    schema = source.get("schema")
    if not isinstance(schema, str) or source.get("new_fields") == "add":
        return None
    found = [_COLUMN.fullmatch(part) for part in _parts(schema)]
    columns = [_column(match) for match in found if match is not None]
    # If a part of the schema is not understood here, only Spark can read it.
    return columns if columns and len(columns) == len(found) else None


def _column(match: re.Match[str]) -> dg.TableColumn:
    quoted, comment = match["quoted"], match["comment"]
    return dg.TableColumn(
        match["plain"] if quoted is None else quoted.replace("``", "`"),
        match["type"],
        description=None if comment is None else re.sub(r"\\(.)", r"\1", comment),
        constraints=dg.TableColumnConstraints(nullable=match["required"] is None),
    )


def _parts(schema: str) -> Iterator[str]:
    """Split a schema at its outermost commas."""
    depth, part = 0, ""
    for piece in _PIECE.findall(schema):
        depth += (piece in "<(") - (piece in ">)")
        if piece == "," and depth == 0:
            yield part
            part = ""
        else:
            part += piece
    yield part


PREFIX: Final = "ingestion/"

END_SECONDS: Final = 25.0
"""How long a job that is told to end may take; it gives up waiting for Spark after twenty seconds itself."""

_LEVELS: Final = ("INFO", "WARNING", "ERROR", "CRITICAL")
"""The first words of the lines of the job's own log."""

_NOTHING: Final = StoredResult(
    batch_id="",
    received=0,
    ingested=0,
    empty=0,
    duplicates=0,
    rejected=0,
    rows=0,
    table_version=None,
    rejects_stored=False,
    batchItemFailures=(),
)


def ingest_with_spark(
    context: dg.AssetExecutionContext | dg.OpExecutionContext,
    batch: LeasedBatch,
    *,
    spec: Mapping[str, Any],
    spark: str = "local[2]",
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> StoredResult:
    """Bring the messages of a lease into a table by Spark, each exactly once; in an op or asset, within the lease.

    For example::

        @dg.asset
        def orders(context: dg.AssetExecutionContext, orders_queue: SqsQueueResource) -> None:
            with orders_queue.lease(context, max_messages=2000) as batch:
                ingest_with_spark(
                    context,
                    batch,
                    spec={
                        "version": 1,
                        "source": {"kind": "json", "schema": "order_id BIGINT NOT NULL, total DOUBLE"},
                        "sink": {"kind": "delta", "path": "/data/orders"},
                        "workspace": "/data/batches",
                    },
                )

    Messages that are not valid records are failed with their reasons, unless the spec has ``rejects``; the others are
    deleted at the end of the lease. The run's log has the job's log lines, with the progress of its Spark jobs; the
    step's output has the rest. The materialization (or the output of an op) gets :func:`ingestion_metadata` and
    :func:`table_metadata <sqs_lease.dagster.spark.table_metadata>`.

    A run that is terminated cancels the Spark jobs and ends the process before its messages are given back. The job
    ends by itself if the step's process is killed, or if all leases were lost. Records are not stored twice when the
    messages are received again.

    Args:
        context: The context of the op or asset.
        batch: The batch that ``lease`` gives; if it is empty, no job is started.
        spec: Source, sink and workspace, see ``sqs_lease/ingestion/spec.py``. It holds no secrets.
        spark: Where Spark runs: ``local[2]`` (the default: in the job's process, with that many cores), another master
            (``spark://host:7077``), or a Connect server (``sc://host:15002``).
        python: The Python of an environment with ``sqs-lease[spark]``; by default this one.
        environment: Further environment variables of the job, for ``{"env": "NAME"}`` in the spec. It has those of this
            process, apart from Dagster's own.

    Returns:
        The outcomes of the messages.

    Raises:
        SpecError: The spec cannot be used.
        JobError: The job failed, or all messages were settled or lost; the text is the job's last error.
        ModuleNotFoundError: A package that writes manifests is not installed.
    """
    IngestionSpec.parse(spec)
    if len(batch) == 0:
        context.log.info("No messages, so no Spark job is started")
        result = _NOTHING
    else:
        require_manifests("ingest_with_spark()", "dagster,manifest")
        result = _run(context, batch, spec, spark, python, environment or {})
    settle_ingestion(context, batch, result)
    add_metadata(context, table_metadata(spec))
    return result


def settle_ingestion(context: Context, batch: LeasedBatch, result: StoredResult) -> None:
    """Fail the messages that a job rejected, and add its numbers as metadata; within the lease.

    Args:
        context: The context of the op or asset.
        batch: The batch that ``lease`` gave.
        result: The job's result for it.

    Raises:
        KeyError: The result is of another batch.
    """
    batch.fail_each(result.failures())
    add_metadata(context, ingestion_metadata(result))
    context.log.info(
        "%d messages: %d ingested (%d rows), %d empty, %d duplicates, %d rejected; version %s of the table",
        result.received,
        result.ingested,
        result.rows,
        result.empty,
        result.duplicates,
        result.rejected,
        result.table_version,
    )


def ingestion_metadata(result: StoredResult) -> dict[str, dg.MetadataValue]:
    """Describe the outcome of a batch, as numbers that Dagster plots.

    Returns:
        By key: ``ingestion/received``, ``ingestion/ingested``, ``ingestion/empty``, ``ingestion/duplicates`` and
        ``ingestion/rejected``, in messages; ``ingestion/rows``, the rows that the batch added; and
        ``ingestion/table_version``, if the table has versions; and ``ingestion/objects_cleaned``,
        ``ingestion/objects_left`` and ``ingestion/objects_failed``, if the source cleans up. See
        :class:`StoredResult <sqs_lease.ingestion.result.StoredResult>`.
    """
    numbers = {
        "received": result.received,
        "ingested": result.ingested,
        "empty": result.empty,
        "duplicates": result.duplicates,
        "rejected": result.rejected,
        "rows": result.rows,
    }
    if result.table_version is not None:
        numbers["table_version"] = result.table_version
    if (objects := result.objects) is not None:
        numbers |= {
            "objects_cleaned": objects.cleaned,
            "objects_left": objects.left,
            "objects_failed": objects.failed,
        }
    return {f"{PREFIX}{name}": dg.MetadataValue.int(number) for name, number in numbers.items()}


@contextmanager
def stored_batch(batch: LeasedBatch, directory: str) -> Iterator[str]:
    """Keep the messages of a lease in a file for a job that runs elsewhere, for the time of the block.

    Args:
        batch: The batch that ``lease`` gives.
        directory: The directory of the file: a path or URI that the job reaches, too, such as ``s3://bucket/batches``
            (which needs ``s3fs`` here). The file has all bodies, but no receipt handles.

    Yields:
        Its URI, for the job's ``--manifest``.

    Raises:
        ModuleNotFoundError: A package that writes manifests is not installed.
        OSError: The file cannot be written.
    """
    require_manifests("stored_batch()", "dagster,manifest")
    path = (UPath(directory) if "://" in directory else Path(directory)) / f"{uuid4().hex}.parquet"
    if isinstance(path, Path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_manifest(path, list(batch), batch_id="", queue_url=batch.queue_url):
        yield str(path)


class PipesReport(Protocol):
    """The reports of a job through Pipes."""

    def get_custom_messages(self) -> Sequence[Any]:
        """Return the messages that the job reported for itself."""


def reported_result(reported: PipesReport) -> StoredResult:
    """Return the result that a job reported through Pipes.

    Args:
        reported: The result of the Pipes client's ``run``, or the session of ``open_pipes_session`` after its block.

    Raises:
        JobError: It did not report a result, so it may not be done; its messages must be given back.
    """
    for message in reported.get_custom_messages():
        if isinstance(message, str):
            try:
                return StoredResult.decode(message)
            except ResultError:
                continue
    raise JobError(
        "the job ended without an error, and reported no result: start it with this release of sqs-lease, and with "
        "the environment variables or arguments of Dagster Pipes"
    )


def _run(
    context: dg.AssetExecutionContext | dg.OpExecutionContext,
    batch: LeasedBatch,
    spec: Mapping[str, Any],
    spark: str,
    python: str,
    environment: Mapping[str, str],
) -> StoredResult:
    with tempfile.TemporaryDirectory(prefix="sqs-lease-") as temporary:
        manifest, result = Path(temporary) / "messages.parquet", Path(temporary) / "result.json"
        run_id = context.op_execution_context.run_id
        with (
            temporary_manifest(manifest, list(batch), batch_id=run_id, queue_url=batch.queue_url),
            JobProcess(
                job_command(python, spark, job_arguments(spec, [str(manifest)], str(result))),
                {**job_environment(os.environ, leave_out="DAGSTER"), **environment},
                grace_seconds=END_SECONDS,
            ) as job,
        ):
            context.log.info("Ingesting %d messages on %s by process %d", len(batch), spark, job.pid)
            with ending_when_lost(lambda: batch.report().held > 0, job.end) as lost:
                try:
                    job.follow(partial(_hand_on, context))
                except JobError as error:
                    if lost.is_set():
                        raise JobError(_lost(batch)) from error
                    raise
        return read_result(result)


def _hand_on(context: dg.AssetExecutionContext | dg.OpExecutionContext, line: str) -> None:
    """Write a line of the job's own log to the run's log, and any other one to the output, which Dagster keeps too."""
    level, _, text = line.partition(" ")
    if level in _LEVELS:
        try:
            context.log.log(level, "%s", text)
        except Exception:
            # Each of these lines is an event in Dagster's database. If that is away for a while, the job goes on.
            logger.exception("A line of the job's log is in the output only")
        else:
            return
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _lost(batch: LeasedBatch) -> str:
    return (
        f"the messages of {batch.queue_url} are no longer held, so their ingestion was stopped: all were settled or "
        "lost. Committed rows are in the table, and are not stored twice when the messages are received again"
    )
