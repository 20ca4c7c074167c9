"""Messages in groups, as columns: whether they come as objects, as dicts or as a manifest file."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

from sqs_lease.core.messages import Message
from sqs_lease.manifest import FORMAT, VERSION, ManifestError, ManifestPath

Messages: TypeAlias = Iterable[Message | Mapping[str, Any]] | str | os.PathLike[str] | ManifestPath
"""A batch: :class:`Message` values, dicts in the shape of the SQS API, or the manifest that they are in."""

_GROUP_MESSAGES: Final = 10_000
_GROUP_CHARACTERS: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Group:
    """Some messages of a batch, column by column, in their order.

    Attributes:
        message_ids: Their ids, none of them empty.
        bodies: Their bodies.
        sent_at: When each was sent (``timestamp[us, UTC]``); null where the service did not say.
        receive_counts: How often each was received (``int32``); 1 where the service did not say.
        message_attributes: The sender's attributes of each in the shape of the SQS API, as JSON text in which bytes
            are ``{"base64": "..."}``; None for a message that has none.
    """

    message_ids: Sequence[str]
    bodies: Sequence[str]
    sent_at: pa.Array
    receive_counts: pa.Array
    message_attributes: Sequence[str | None]


def groups_of(messages: Messages) -> Iterator[Group]:
    """Read a batch in groups of some thousand messages.

    Raises:
        FileNotFoundError, OSError: The manifest cannot be read.
        ManifestError: It is no manifest, or is not whole.
        TypeError: Something is no message.
        ValueError: A message lacks its id or body, or has an attribute that is no number and should be one.
    """
    if isinstance(messages, str | os.PathLike):
        return _manifest_groups(Path(messages))
    if isinstance(messages, Iterable):
        return _object_groups(messages)
    return _manifest_groups(messages)


def _object_groups(messages: Iterable[Message | Mapping[str, Any]]) -> Iterator[Group]:
    given: list[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]] = []
    characters = 0
    for position, message in enumerate(messages):
        fields = _fields(message, position)
        given.append(fields)
        characters += len(fields[1])
        if len(given) >= _GROUP_MESSAGES or characters >= _GROUP_CHARACTERS:
            yield _group(given)
            given, characters = [], 0
    if given:
        yield _group(given)


def _fields(message: object, position: int) -> tuple[str, str, Mapping[str, Any], Mapping[str, Any]]:
    if isinstance(message, Message):
        fields = (message.message_id, message.body, message.attributes, message.message_attributes)
    elif isinstance(message, Mapping):
        try:
            fields = (
                message["MessageId"],
                message["Body"],
                message.get("Attributes") or {},
                message.get("MessageAttributes") or {},
            )
        except KeyError as error:
            raise ValueError(
                f"messages[{position}] has no {error}: expected a message in the shape of the SQS API, "
                "with MessageId and Body"
            ) from None
    else:
        raise TypeError(f"messages[{position}] must be a Message or a dict, not {type(message).__name__}")
    message_id, body = fields[:2]
    if not isinstance(message_id, str) or not message_id:
        raise ValueError(f"messages[{position}] has an empty message id")
    if not isinstance(body, str):
        raise TypeError(f"the body of messages[{position}] ({message_id}) must be a str, not {type(body).__name__}")
    return fields


def _group(given: Sequence[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]]) -> Group:
    message_ids, bodies, attributes, message_attributes = zip(*given, strict=True)
    return Group(
        message_ids,
        bodies,
        _times(message_ids, [of_one.get("SentTimestamp") for of_one in attributes]),
        _counts(message_ids, [of_one.get("ApproximateReceiveCount", "1") for of_one in attributes]),
        [_json(of_one) if of_one else None for of_one in message_attributes],
    )


def _json(message_attributes: Mapping[str, Any]) -> str:
    return json.dumps(message_attributes, separators=(",", ":"), default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a message attribute cannot be a {type(value).__name__}")


class _Attributes(msgspec.Struct, gc=False):
    """Those of the service's attributes that are used here."""

    SentTimestamp: str | None = None
    ApproximateReceiveCount: str = "1"


class _Line(msgspec.Struct, gc=False):
    """One message of a manifest; names as the SQS API has them."""

    MessageId: str
    Body: str
    Attributes: _Attributes | None = None
    MessageAttributes: msgspec.Raw = msgspec.Raw(b"{}")


class _Header(msgspec.Struct):
    """The first line of a manifest."""

    format: str
    version: int
    messages: int


_NO_ATTRIBUTES: Final = _Attributes()
_NOTHING: Final = frozenset({b"{}", b"null"})
_BLOCK_BYTES: Final = 16 * 1024 * 1024


def _manifest_groups(path: ManifestPath) -> Iterator[Group]:
    decoder = msgspec.json.Decoder(_Line)
    read = 0
    with path.open("rb") as file:
        expected = _expected(path, file.readline())
        # Whole lines: a block, and what its last line lacks.
        while block := file.read(_BLOCK_BYTES):
            block += file.readline()
            try:
                lines = decoder.decode_lines(block)
            except (msgspec.DecodeError, UnicodeDecodeError):
                # Not the error itself: it may quote a body.
                raise ManifestError(f"{path} has a line that is no message: receive the batch again") from None
            read += len(lines)
            yield _manifest_group(path, lines)
    if read != expected:
        raise ManifestError(
            f"{path} has {read} of its {expected} messages: it was not written to its end, or was cut off; receive "
            "the batch again"
        )


def _expected(path: ManifestPath, line: bytes) -> int:
    try:
        header = msgspec.json.decode(line, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError):
        header = None
    if header is None or header.format != FORMAT:
        raise ManifestError(f"{path} is not a manifest of sqs-lease: its first line must be a header of {FORMAT!r}")
    if header.version != VERSION:
        raise ManifestError(
            f"{path} is a manifest of version {header.version}, and this release of sqs-lease reads version {VERSION}: "
            "read it with the release that wrote it, or a newer one"
        )
    return header.messages


def _manifest_group(path: ManifestPath, lines: Sequence[_Line]) -> Group:
    message_ids = [line.MessageId for line in lines]
    if not all(message_ids):
        raise ManifestError(f"{path} has a message with an empty id: receive the batch again")
    attributes = [line.Attributes or _NO_ATTRIBUTES for line in lines]
    return Group(
        message_ids,
        [line.Body for line in lines],
        _times(message_ids, [of_one.SentTimestamp for of_one in attributes]),
        _counts(message_ids, [of_one.ApproximateReceiveCount for of_one in attributes]),
        [None if (raw := bytes(line.MessageAttributes)) in _NOTHING else raw.decode() for line in lines],
    )


def _times(message_ids: Sequence[str], milliseconds: list[Any]) -> pa.Array:
    numbers = _numbers(message_ids, milliseconds, pa.int64(), "SentTimestamp")
    return numbers.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def _counts(message_ids: Sequence[str], counts: list[Any]) -> pa.Array:
    return _numbers(message_ids, counts, pa.int32(), "ApproximateReceiveCount")


def _numbers(message_ids: Sequence[str], given: list[Any], kind: pa.DataType, name: str) -> pa.Array:
    """The service's attributes are strings, and are turned into numbers all at once where they really are."""
    try:
        return pa.array(given, pa.string()).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        numbers: list[int | None] = []
        for message_id, value in zip(message_ids, given, strict=True):
            try:
                numbers.append(None if value is None else int(value))
            except (TypeError, ValueError):
                raise ValueError(f"the attribute {name} of message {message_id} is no number") from None
        return pa.array(numbers, kind)
