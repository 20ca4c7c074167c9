"""The durable record of a batch: one Parquet file of its messages, which Spark then reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it

from sqs_lease.core.messages import Message
from sqs_lease.spark import columns
from sqs_lease.spark.batch import Batch, directory_name
from sqs_lease.spark.errors import BatchIdReusedError, WorkspaceError
from sqs_lease.spark.paths import read_path

MESSAGE_ID: Final = "message_id"
BODY: Final = "body"
SENT_AT: Final = "sent_at"
RECEIVE_COUNT: Final = "receive_count"
REJECTED: Final = "rejected"

_SCHEMA: Final = pa.schema(
    [
        pa.field(MESSAGE_ID, pa.string(), nullable=False),
        pa.field(BODY, pa.string(), nullable=False),
        pa.field(SENT_AT, pa.timestamp("us", tz="UTC")),
        pa.field(RECEIVE_COUNT, pa.int32(), nullable=False),
        pa.field(REJECTED, pa.string()),
    ]
)
_SPARK_SCHEMA: Final = (
    f"{MESSAGE_ID} STRING, {BODY} STRING, {SENT_AT} TIMESTAMP, {RECEIVE_COUNT} INT, {REJECTED} STRING"
)
# Spark reads row groups in parallel, never parts of one.
_ROW_GROUP_MESSAGES = 10_000


@dataclass(frozen=True, slots=True)
class Manifest:
    """A batch on disk.

    The file stays when the batch is done: it is the record of what was received. Nothing reads it again
    once the batch's messages are settled, so whoever runs the ingestion decides how long to keep it.

    Attributes:
        path: The file.
        accepted_ids: The messages that Spark is to parse.
        rejected: The messages that the driver rejected, with the reason.
    """

    path: Path
    accepted_ids: frozenset[str]
    rejected: Mapping[str, str]

    def accepted(self, spark: SparkSession) -> DataFrame:
        """The messages that Spark is to parse, as rows of the five columns of this module."""
        return self._read(spark).where(f"{REJECTED} IS NULL")

    def message_ids(self, spark: SparkSession) -> DataFrame:
        """The ids of all messages, as rows of one column that is called as in the table."""
        return self._read(spark).select(F.col(MESSAGE_ID).alias(columns.MESSAGE_ID))

    def _read(self, spark: SparkSession) -> DataFrame:
        return (
            spark.read.schema(_SPARK_SCHEMA)
            # The session may tolerate both, but a message left out here would be lost.
            .option("ignoreMissingFiles", "false")
            .option("ignoreCorruptFiles", "false")
            .parquet(read_path(self.path))
        )


def write_manifest(
    batch: Batch, *, batch_id: str, workspace: str | Path, rejection: Callable[[str], str | None]
) -> Manifest:
    """Write the batch's manifest, or take the one that an earlier try of the same batch wrote.

    The file appears whole or not at all.

    Args:
        batch: The messages, at least one.
        batch_id: The batch's name, from which the file's is made.
        workspace: Directory of the manifests, which the driver and all executors reach by this path; it
            is created where it does not exist.
        rejection: Says why a body cannot be a record; None for one that can.

    Raises:
        BatchIdReusedError: There is a manifest of this batch id with other messages.
        WorkspaceError: The directory cannot be written, or the manifest that is there cannot be read.
    """
    directory = Path(workspace).absolute() / directory_name(batch_id)
    path = directory / "manifest.parquet"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _write(batch, path, rejection)
        manifest = _load(path)
    except OSError as error:
        raise WorkspaceError(
            f"the manifest of batch {batch_id} cannot be written to {directory} "
            f"({error.strerror or error}): make workspace= a directory that this process can write and all "
            "executors can read"
        ) from error
    except pa.ArrowInvalid as error:
        raise WorkspaceError(
            f"{path} is not a manifest that can be read: remove it, and the next try writes it again"
        ) from error
    if manifest.accepted_ids | manifest.rejected.keys() != {message.message_id for message in batch.messages}:
        raise BatchIdReusedError(
            f"batch id {batch_id} stands for other messages already (see {path}): leave batch_id out, or "
            "give every batch an id of its own"
        )
    return manifest


def _write(batch: Batch, path: Path, rejection: Callable[[str], str | None]) -> None:
    partial = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with pq.ParquetWriter(partial, _SCHEMA, compression="zstd") as writer:
            messages = iter(batch.messages)
            while group := list(islice(messages, _ROW_GROUP_MESSAGES)):
                writer.write_table(_table(group, rejection))
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _table(messages: list[Message], rejection: Callable[[str], str | None]) -> Any:
    return pa.table(
        {
            MESSAGE_ID: [message.message_id for message in messages],
            # Python's strings may hold half a surrogate pair, which no file in UTF-8 can.
            BODY: [message.body.encode("utf-8", "replace") for message in messages],
            SENT_AT: [message.sent_at for message in messages],
            RECEIVE_COUNT: [message.receive_count for message in messages],
            REJECTED: [rejection(message.body) for message in messages],
        },
        schema=_SCHEMA,
    )


def _load(path: Path) -> Manifest:
    table = pq.read_table(path, columns=[MESSAGE_ID, REJECTED])
    message_ids = table[MESSAGE_ID].to_pylist()
    reasons = table[REJECTED].to_pylist()
    rejected = {
        message_id: reason for message_id, reason in zip(message_ids, reasons, strict=True) if reason is not None
    }
    return Manifest(path, frozenset(message_ids) - rejected.keys(), rejected)
