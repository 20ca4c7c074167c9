"""Messages that come as objects or dicts, in groups, as columns; and the order of those of a FIFO queue.

The service says when a message was sent in milliseconds, and tells the messages of one message group apart by sequence
numbers. Tables keep the newest message of a key by its time alone. So of the messages of a group that were sent in the
same millisecond, the second gets one microsecond more, the third two, and so on.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from sqs_lease.core.messages import Message, plain_attributes

DEAD_LETTER_SOURCE: Final = "DeadLetterQueueSourceArn"
"""The attribute by which the service tells a message that came to its queue as a dead letter."""

SEQUENCE_NUMBER: Final = "SequenceNumber"
"""The attribute that a message of a FIFO queue has."""

_GROUP: Final = "MessageGroupId"
# All that fit before the next millisecond.
_MOST: Final = 999
_GROUP_MESSAGES: Final = 10_000
_GROUP_CHARACTERS: Final = 16 * 1024 * 1024


MESSAGES: Final = pa.schema(
    [
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("body", pa.string(), nullable=False),
        pa.field("sent_at", pa.timestamp("us", tz="UTC")),
        pa.field("receive_count", pa.int32(), nullable=False),
        pa.field("attributes", pa.string(), nullable=False),
        pa.field("message_attributes", pa.string()),
    ]
)
"""Messages as columns, called as in a manifest: see :mod:`sqs_lease.batch_files.manifest`."""


Place = tuple[str, int]
"""A message group, and the place in it."""


@dataclass(frozen=True, slots=True)
class Group:
    """Some messages of a batch, in their order.

    Attributes:
        messages: As :data:`MESSAGES`. The time is null where the service did not say, and the receive count is 1 then;
            half a surrogate pair in a body, which no file in UTF-8 can hold, is a ``?``.
        bodies: Their bodies as they came.
        from_dead_letter_queue: Whether the service says of any of them that it came to its queue as a dead letter.
        places: Of each its place in the FIFO queue; None for one of a standard queue.
    """

    messages: pa.Table
    bodies: Sequence[str]
    from_dead_letter_queue: bool = False
    places: Sequence[Place | None] = ()


def groups_of(messages: Iterable[Message | Mapping[str, Any]]) -> Iterator[Group]:
    """Take messages in groups of some thousand.

    Args:
        messages: :class:`Message` values, or dicts in the shape of the SQS API.

    Raises:
        TypeError: Something is no message.
        ValueError: A message lacks its id or body, or has an attribute that is no number and should be one.
    """
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
    table = pa.Table.from_arrays(
        [
            pa.array(message_ids, pa.string()),
            _texts(bodies),
            _times(message_ids, [of_one.get("SentTimestamp") for of_one in attributes]),
            _counts(message_ids, [of_one.get("ApproximateReceiveCount", "1") for of_one in attributes]),
            pa.array([_json_text(of_one) for of_one in attributes], pa.string()),
            pa.array([_json(of_one) if of_one else None for of_one in message_attributes], pa.string()),
        ],
        schema=MESSAGES,
    )
    is_dead_letter = any(DEAD_LETTER_SOURCE in of_one for of_one in attributes)
    return Group(table, bodies, is_dead_letter, places_of(attributes))


def _texts(texts: Sequence[str]) -> pa.Array:
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        return pa.array([text.encode("utf-8", "replace") for text in texts], pa.string())


def _json_text(attributes: Mapping[str, Any]) -> str:
    try:
        return msgspec.json.encode(attributes).decode()
    except UnicodeEncodeError:
        # Half a surrogate pair, which Python's own writes with escapes.
        return json.dumps(attributes)


def _json(message_attributes: Mapping[str, Any]) -> str:
    return json.dumps(plain_attributes(message_attributes), separators=(",", ":"))


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


def places_of(attributes: Iterable[Mapping[str, Any]]) -> list[Place | None]:
    """Where messages stand in their groups, by the service's attributes; None for one of a standard queue."""
    return [_place(of_one) for of_one in attributes]


def places_in_json(attributes: Iterable[str]) -> list[Place | None]:
    """The same, of attributes as a manifest has them."""
    return places_of(map(json.loads, attributes))


def in_order(sent_at: pa.ChunkedArray, places: Sequence[Place | None]) -> pa.ChunkedArray | None:
    """Times by which messages have the order of their groups.

    Args:
        sent_at: The times, in microseconds.
        places: Of each message its place.

    Returns:
        The times; None where they are as they were.
    """
    numbers: dict[tuple[str, int], set[int]] = defaultdict(set)
    milliseconds = sent_at.cast(pa.int64()).to_pylist()
    for at, place in zip(milliseconds, places, strict=True):
        if at is not None and place is not None:
            numbers[place[0], at].add(place[1])
    ranks = {
        (group, at, number): min(rank, _MOST)
        for (group, at), found in numbers.items()
        if len(found) > 1
        for rank, number in enumerate(sorted(found))
    }
    if not ranks:
        return None
    more = [
        0 if place is None else ranks.get((place[0], at, place[1]), 0)
        for at, place in zip(milliseconds, places, strict=True)
    ]
    return pc.add(sent_at.cast(pa.int64()), pa.chunked_array([more], pa.int64())).cast(sent_at.type)


def _place(attributes: Mapping[str, Any]) -> Place | None:
    group, number = attributes.get(_GROUP), str(attributes.get(SEQUENCE_NUMBER, ""))
    return (str(group), int(number)) if group is not None and number.isdecimal() else None
