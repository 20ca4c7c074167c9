"""The order of messages that a FIFO queue took within one millisecond, as microseconds of the time they were sent.

The service says that time in milliseconds, and tells the messages of one message group apart by sequence numbers.
Tables keep the newest message of a key by its time alone. So of the messages of a group that were sent in the same
millisecond, the second gets one microsecond more, the third two, and so on.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

SEQUENCE_NUMBER: Final = "SequenceNumber"
"""The attribute that a message of a FIFO queue has."""

_GROUP: Final = "MessageGroupId"
# All that fit before the next millisecond.
_MOST: Final = 999

Place = tuple[str, int]
"""A message group, and the place in it."""


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
