"""A batch's messages as a file, for batches too large to travel through an orchestrator's own database.

The format, version 1: one Parquet file, a row a message in the order of the batch, with the columns of :data:`SCHEMA`.
The key ``sqs_lease_manifest`` of the file's metadata is a JSON object::

    {"version": 1, "batch_id": "...", "queue_url": "..."}

It contains no receipt handles: a reader of the file can neither delete nor release a message. A file that ends early
has no footer, and is not a manifest. A reader ignores columns and keys that it does not know, and refuses a version
that it does not know.

The writer does not inspect bodies: it makes columns of the texts as they come, and takes 5 to 6 µs of processor time a
message of 1 kB. The tasks that parse the bodies check whether they are JSON, on all cores; in the writer that check
took 10 µs more, on one core. (Both measured on a busy machine, best of 7.)

This module is independent of orchestrators: a path is anything that opens files as :class:`pathlib.Path` does, for
example Airflow's ``ObjectStoragePath``. It needs pyarrow: ``pip install "sqs-lease[manifest]"``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from sqs_lease.core.messages import (
    LAST_MILLISECOND,
    MOST_RECEIVES,
    Message,
    Receipt,
    attributes_from_plain,
    plain_attributes,
    whole_number,
)

METADATA_KEY: Final = b"sqs_lease_manifest"
"""The key of the file's metadata that makes it a manifest."""

VERSION: Final = 1
"""The version of the format that is written, and the newest that is read."""

ROW_GROUP_MESSAGES: Final = 10_000
"""Messages of one row group, at most: Spark reads these in parallel, never parts of one."""

_ROW_GROUP_CHARACTERS: Final = 16 * 1024 * 1024

_ROWS_AT_ONCE: Final = 1_000
_MAPPINGS: Final = (dict, Mapping)  # dict first: a check against the abstract class is slow, and made for each message
# The texts that `whole_number` reads as a number.
_WHOLE_NUMBER: Final = r"^[0-9]{1,18}$"

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
        # Whether the body was changed: half a surrogate pair in it, which UTF-8 cannot express, is written as "?".
        pa.field("altered", pa.bool_(), nullable=False),
    ]
)
"""The columns."""

_READ: Final = ["message_id", "body", "attributes", "message_attributes"]
"""The columns from which messages are made."""

_AGAIN: Final = "receive the batch again"


class ManifestError(ValueError):
    """An error: the file is not a readable manifest; the text names the file and the remedy."""


class ManifestPath(Protocol):
    """The path of a manifest: any object that opens files in binary mode as :class:`pathlib.Path` does."""

    def open(self, mode: str) -> Any:
        """Open the file as a context manager that gives a binary file."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a manifest.

    Attributes:
        batch_id: The id that the host gave the leased batch; empty without one. It is not the ``batch_id`` of an
            ingestion, which is named after its messages and its source.
        queue_url: The queue from which its messages were received.
        messages: The messages in the order of the batch; their receipt handles are empty.
    """

    batch_id: str
    queue_url: str
    messages: tuple[Message, ...]


def write_manifest(
    path: ManifestPath, *, batch_id: str, queue_url: str, messages: Iterable[Message | Mapping[str, Any]]
) -> None:
    """Write a manifest. It blocks.

    On a local path readers can see the file while it is written, and will refuse it; so give them its path afterwards.

    Args:
        path: The file; its directory must exist.
        batch_id: The id of the leased batch; see :class:`Manifest`.
        queue_url: The queue.
        messages: The messages, as for :func:`message_tables`; it iterates over them while it writes.

    Raises:
        OSError: The file cannot be written.
        TypeError, ValueError: See :func:`message_tables`.
    """
    write_tables(path, batch_id=batch_id, queue_url=queue_url, tables=message_tables(messages))


def write_tables(path: ManifestPath, *, batch_id: str, queue_url: str, tables: Iterable[pa.Table]) -> None:
    """Write a manifest of the row groups that :func:`message_tables` gives; otherwise as :func:`write_manifest`."""
    header = {"version": VERSION, "batch_id": batch_id, "queue_url": queue_url}
    schema = SCHEMA.with_metadata({METADATA_KEY: json.dumps(header).encode()})
    with path.open("wb") as file, pq.ParquetWriter(file, schema, compression="lz4", use_dictionary=False) as writer:
        for table in tables:
            writer.write_table(table.cast(schema))


def message_tables(messages: Iterable[Message | Mapping[str, Any]]) -> Iterator[pa.Table]:
    """Make Arrow tables of messages, each of :data:`SCHEMA` and as large as a row group of a manifest.

    Args:
        messages: :class:`Message` values, or mappings in the shape of the SQS API (``MessageId``, ``Body``,
            ``Attributes``, ``MessageAttributes``), also mixed. Receipt handles are left out.

    Raises:
        TypeError: A value is not a message, or JSON has no value for one of its attributes.
        ValueError: A message lacks its id or body.
    """
    # One loop and no object for a message: it is the only Python that a whole batch goes through in a driver.
    message_ids: list[str] = []
    bodies: list[str] = []
    attributes: list[Mapping[str, Any]] = []
    senders: list[str | None] = []
    characters = 0
    for position, message in enumerate(messages):
        if isinstance(message, Message):
            message_id, body = message.receipt.message_id, message.body
            said, sent = message.attributes, message.message_attributes
        elif isinstance(message, _MAPPINGS):
            try:
                message_id, body = message["MessageId"], message["Body"]
            except KeyError as error:
                raise ValueError(
                    f"messages[{position}] has no {error}: expected a message in the shape of the SQS API, "
                    "with MessageId and Body"
                ) from None
            said, sent = message.get("Attributes") or {}, message.get("MessageAttributes") or {}
        else:
            raise TypeError(f"messages[{position}] must be a Message or a dict, not {type(message).__name__}")
        if not isinstance(message_id, str):
            raise TypeError(f"the message id of messages[{position}] must be a str, not {type(message_id).__name__}")
        if not message_id:
            raise ValueError(f"messages[{position}] has an empty message id")
        if not isinstance(body, str):
            raise TypeError(f"the body of messages[{position}] ({message_id}) must be a str, not {type(body).__name__}")
        if not isinstance(said, _MAPPINGS):
            raise TypeError(f"the attributes of messages[{position}] ({message_id}) must be a mapping")
        sender = _json_text(plain_attributes(sent)) if sent else None
        message_ids.append(message_id)
        bodies.append(body)
        attributes.append(said)
        senders.append(sender)
        characters += len(body) + (0 if sender is None else len(sender))
        if len(bodies) >= ROW_GROUP_MESSAGES or characters >= _ROW_GROUP_CHARACTERS:
            yield _table(message_ids, bodies, attributes, senders)
            message_ids, bodies, attributes, senders, characters = [], [], [], [], 0
    if bodies:
        yield _table(message_ids, bodies, attributes, senders)


def _table(
    message_ids: list[str], bodies: list[str], attributes: list[Mapping[str, Any]], senders: list[str | None]
) -> pa.Table:
    texts, altered = _texts(bodies)
    columns = [
        pa.array(message_ids, pa.string()),
        texts,
        _times([said.get("SentTimestamp") for said in attributes]),
        _receive_counts([said.get("ApproximateReceiveCount") for said in attributes]),
        pa.array([_json_text(said) for said in attributes], pa.string()),
        pa.array(senders, pa.string()),
        altered,
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _times(milliseconds: list[object]) -> pa.Array:
    """See :attr:`Message.sent_at`."""
    numbers = _whole_numbers(milliseconds)
    numbers = pc.if_else(pc.less_equal(numbers, LAST_MILLISECOND), numbers, None)
    return pc.multiply(numbers, 1000).cast(SCHEMA.field("sent_at").type)


def _receive_counts(counts: list[object]) -> pa.Array:
    """See :attr:`Message.receive_count`."""
    numbers = pc.fill_null(_whole_numbers(counts), 1)
    return pc.min_element_wise(pc.max_element_wise(numbers, 1), MOST_RECEIVES).cast(pa.int32())


def _whole_numbers(values: list[object]) -> pa.Array:
    """Return numbers as :func:`whole_number` reads them; at once if they are texts, as from the service."""
    try:
        texts = pa.array(values, pa.string())
    except (pa.ArrowException, TypeError, UnicodeError):
        return pa.array(map(whole_number, values), pa.int64())
    return pc.if_else(pc.match_substring_regex(texts, _WHOLE_NUMBER), texts, None).cast(pa.int64())


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
        # Not by Arrow's threads: up to pyarrow 23, every second process that ends soon after such a read is aborted.
        if group is None:
            rows = file.read(columns=names, use_threads=False)
        else:
            rows = file.read_row_group(group, columns=names, use_threads=False)
        return rows.select(names).cast(pa.schema([SCHEMA.field(name) for name in names]))
    except (pa.ArrowException, KeyError, ValueError):
        # Not the error itself: it may quote a body.
        raise ManifestError(f"{path} has a row that is not a message: {_AGAIN}") from None


@contextmanager
def opened_manifest(file: Any, *, name: object) -> Iterator[pq.ParquetFile]:
    """Open a manifest for reading columns of it.

    Args:
        file: Its path, or the open file.
        name: Its name in errors.

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


def join_manifests(path: ManifestPath, manifests: Iterable[Path]) -> None:
    """Write one manifest with the messages of several, in their order, row group by row group. It blocks.

    Args:
        path: The file; its directory must exist.
        manifests: The files to join.

    Raises:
        OSError: A file cannot be read or written.
        ManifestError: As for :func:`read_manifest`.
    """
    write_tables(path, batch_id="", queue_url="", tables=chain.from_iterable(map(_tables, manifests)))


def _tables(path: Path) -> Iterator[pa.Table]:
    with opened_manifest(path, name=path) as file:
        for group in range(file.num_row_groups):
            yield rows_of(path, file, SCHEMA.names, group=group)


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
    """Return the batch's part of a manifest's metadata.

    Args:
        path: The name of the file in errors.
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


def _texts(texts: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """Return texts as a column, and a column that marks the changed ones."""
    try:
        return pa.array(texts, pa.string()), pa.repeat(False, len(texts))
    except UnicodeEncodeError:
        encoded = [text.encode("utf-8", "replace") for text in texts]
        altered = [one != text.encode("utf-8", "surrogatepass") for one, text in zip(encoded, texts, strict=True)]
        return pa.array(encoded, pa.string()), pa.array(altered)


def _json_text(attributes: Mapping[str, Any]) -> str:
    attributes = attributes if isinstance(attributes, dict) else dict(attributes)
    try:
        return msgspec.json.encode(attributes).decode()
    except UnicodeEncodeError:
        # Half a surrogate pair, which Python's own encoder writes with escapes.
        return json.dumps(attributes, separators=(",", ":"))
