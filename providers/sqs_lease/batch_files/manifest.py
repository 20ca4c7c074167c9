"""A batch's messages as a file, for batches too large to travel through an orchestrator's own database.

The format, version 1: one Parquet file, a row a message in the order of the batch, with the columns of :data:`SCHEMA`.
The key ``sqs_lease_manifest`` of the file's metadata is a JSON object::

    {"version": 1, "batch_id": "...", "queue_url": "..."}

It contains no receipt handles: a reader of the file can neither delete nor release a message. A file that ends early
has no footer, and is not a manifest. A reader ignores columns and keys that it does not know, and refuses a version
that it does not know.

The writer checks whether each body is one JSON object (:mod:`sqs_lease.batch_files.json_syntax`), in 1 µs for 1 KB. It
has the body at hand, and Spark, which reads the file as it is, would take much that is not JSON.

This module is independent of orchestrators: a path is anything that opens files as :class:`pathlib.Path` does, for
example Airflow's ``ObjectStoragePath``. It needs pyarrow and jiter: ``pip install "sqs-lease[manifest]"``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from sqs_lease.batch_files.json_syntax import NotJsonError, decode_object
from sqs_lease.core.messages import Message, Receipt, attributes_from_plain, plain_attributes

METADATA_KEY: Final = b"sqs_lease_manifest"
"""The key of the file's metadata that makes it a manifest."""

VERSION: Final = 1
"""The version of the format that is written, and the newest that is read."""

ROW_GROUP_MESSAGES: Final = 10_000
"""Messages of one row group, at most: Spark reads these in parallel, never parts of one."""

_ROW_GROUP_CHARACTERS: Final = 16 * 1024 * 1024

_ROWS_AT_ONCE: Final = 1_000

SCHEMA: Final = pa.schema(
    [
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("body", pa.string(), nullable=False),
        # When it was sent; null if the service did not say.
        pa.field("sent_at", pa.timestamp("us", tz="UTC")),
        pa.field("receive_count", pa.int32(), nullable=False),
        # The service's own attributes, a JSON object of strings.
        pa.field("attributes", pa.string(), nullable=False),
        # The sender's, in the shape of the SQS API with {"base64": "..."} in place of bytes; null without any.
        pa.field("message_attributes", pa.string()),
        # Why the body is not one JSON object (RFC 8259); null if it is one.
        pa.field("not_json", pa.string()),
    ]
)
"""The columns. Half a surrogate pair in a body, which SQS refuses and UTF-8 cannot express, is written as ``?``."""

HALF_A_PAIR: Final = "not valid JSON: half a surrogate pair"
"""Why a body is not JSON that the file does not have as it came."""

_READ: Final = ["message_id", "body", "attributes", "message_attributes"]
"""What messages are made of."""

_AGAIN: Final = "receive the batch again"


class ManifestError(ValueError):
    """The file is not a readable manifest; the text says which file and what to do."""


class ManifestPath(Protocol):
    """Where a manifest is: anything that opens files in binary mode as :class:`pathlib.Path` does."""

    def open(self, mode: str) -> Any:
        """Open the file as a context manager that gives a binary file."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a manifest.

    Attributes:
        batch_id: Names the batch.
        queue_url: The queue that its messages were received from.
        messages: The messages in the order of the batch; their receipt handles are empty.
    """

    batch_id: str
    queue_url: str
    messages: tuple[Message, ...]


def write_manifest(path: ManifestPath, *, batch_id: str, queue_url: str, messages: Iterable[Message]) -> None:
    """Write a manifest. It blocks.

    On a local path readers can see the file while it is written, and will refuse it; so name it to them afterwards.

    Args:
        path: The file, whose directory exists.
        batch_id: Names the batch.
        queue_url: The queue.
        messages: The messages, taken as they are written; their receipt handles are left out.

    Raises:
        OSError: The file cannot be written.
    """
    header = {"version": VERSION, "batch_id": batch_id, "queue_url": queue_url}
    schema = SCHEMA.with_metadata({METADATA_KEY: json.dumps(header).encode()})
    with (
        path.open("wb") as file,
        pq.ParquetWriter(file, schema, compression="lz4", use_dictionary=["not_json"]) as writer,
    ):
        for group in _row_groups(messages):
            writer.write_table(message_table(group).cast(schema))


def _row_groups(messages: Iterable[Message]) -> Iterator[list[Message]]:
    group: list[Message] = []
    characters = 0
    for message in messages:
        group.append(message)
        characters += len(message.body)
        if len(group) >= ROW_GROUP_MESSAGES or characters >= _ROW_GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def message_table(messages: Sequence[Message]) -> Any:
    """Return messages as an Arrow table of :data:`SCHEMA`."""
    return pa.table(
        [
            [message.message_id for message in messages],
            _texts([message.body for message in messages]),
            [message.sent_at for message in messages],
            [message.receive_count for message in messages],
            [_json_text(dict(message.attributes)) for message in messages],
            [_attributes_text(message.message_attributes) for message in messages],
            [why_not_json(message.body) for message in messages],
        ],
        schema=SCHEMA,
    )


def why_not_json(body: str) -> str | None:
    """Say why a body is not one JSON object (RFC 8259), without quoting it; None if it is one."""
    try:
        decode_object(body)
    except NotJsonError as error:
        return str(error)
    return None


def rows_of(path: object, file: pq.ParquetFile, names: list[str], *, group: int | None = None) -> pa.Table:
    """Read columns of a manifest.

    Args:
        path: Names the file in errors.
        file: The file.
        names: The columns.
        group: The row group; None, the default, for all of them.

    Raises:
        ManifestError: It lacks a column of :data:`SCHEMA`, or one of these has something else in it.
    """
    try:
        for name in SCHEMA.names:
            file.schema_arrow.field(name)
        rows = file.read(columns=names) if group is None else file.read_row_group(group, columns=names)
        return rows.select(names).cast(pa.schema([SCHEMA.field(name) for name in names]))
    except (pa.ArrowException, KeyError, ValueError):
        # Not the error itself: it may quote a body.
        raise ManifestError(f"{path} has a row that is not a message: {_AGAIN}") from None


@contextmanager
def opened_manifest(file: Any, *, name: object) -> Iterator[pq.ParquetFile]:
    """Open a manifest for reading columns of it.

    Args:
        file: Its path, or the open file.
        name: Names it in errors.

    Raises:
        OSError: The file cannot be read.
        ManifestError: It is not a manifest, is not whole, or has a version that this release does not know.
    """
    try:
        manifest = pq.ParquetFile(file)
        schema = manifest.schema_arrow
    except (pa.ArrowException, ValueError) as error:
        raise ManifestError(
            f"{name} is not a manifest of sqs-lease, was not written to its end, or was cut off: {_AGAIN}"
        ) from error
    with manifest:
        _header(name, schema.metadata)
        yield manifest


def read_manifest(path: ManifestPath) -> Manifest:
    """Read a manifest. It blocks.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: The file does not exist.
        OSError: The file cannot be read.
        ManifestError: It is not a manifest, is not whole, or has a version that this release does not know.
    """
    with path.open("rb") as opened, opened_manifest(opened, name=path) as file:
        header = _header(path, file.schema_arrow.metadata)
        columns = rows_of(path, file, _READ)
        try:
            # In pieces: no other thread runs while rows are made.
            pieces = columns.to_batches(max_chunksize=_ROWS_AT_ONCE)
            messages = tuple(_message(row) for piece in pieces for row in piece.to_pylist())
        except (pa.ArrowException, KeyError, TypeError, ValueError, RecursionError):
            # Not the error itself: it may quote a body.
            raise ManifestError(f"{path} has a row that is not a message: {_AGAIN}") from None
    return Manifest(header.get("batch_id", ""), header.get("queue_url", ""), messages)


def _header(path: object, metadata: Mapping[bytes, bytes] | None) -> Mapping[str, Any]:
    """Return what a manifest's metadata say of the batch.

    Args:
        path: Names the file in errors.
        metadata: The metadata of the file's Arrow schema.

    Raises:
        ManifestError: It is not a manifest, or has a version that this release does not know.
    """
    try:
        header: Any = json.loads((metadata or {}).get(METADATA_KEY, b"null"))
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ManifestError(f"{path} is not a manifest of sqs-lease, but another Parquet file")
    if header.get("version") != VERSION:
        raise ManifestError(
            f"{path} is a manifest of version {header.get('version')!r}, and this release of sqs-lease reads version "
            f"{VERSION}: read it with the release that wrote it, or a newer one"
        )
    if not all(isinstance(header.get(name, ""), str) for name in ("batch_id", "queue_url")):
        raise ManifestError(f"{path} is a manifest without a batch or a queue: {_AGAIN}")
    return header


def _message(row: Mapping[str, Any]) -> Message:
    message_attributes, attributes = row["message_attributes"], json.loads(row["attributes"])
    if not isinstance(attributes, dict):
        raise TypeError("attributes")
    return Message(
        Receipt(row["message_id"], ""),
        row["body"],
        attributes,
        {} if message_attributes is None else attributes_from_plain(json.loads(message_attributes)),
    )


def _texts(texts: Sequence[str]) -> Any:
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        return pa.array([text.encode("utf-8", "replace") for text in texts], pa.string())


def _attributes_text(attributes: Mapping[str, Mapping[str, Any]]) -> str | None:
    return _json_text(plain_attributes(attributes)) if attributes else None


def _json_text(attributes: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(attributes).decode()
    except UnicodeEncodeError:
        # Half a surrogate pair, which Python's own writes with escapes.
        return json.dumps(attributes, separators=(",", ":"))
