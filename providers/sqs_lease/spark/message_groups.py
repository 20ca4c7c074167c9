"""The order of the messages of a FIFO queue, as the times at which they were sent.

The service says when a message was sent in milliseconds, and tells the messages of one message group apart by sequence
numbers. Tables keep the newest message of a key by its time alone. So of the messages of a group that were sent in the
same millisecond, the second gets one microsecond more, the third two, and so on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

SEQUENCE_NUMBER: Final = "SequenceNumber"
"""The attribute that a message of a FIFO queue has."""

_GROUP: Final = "MessageGroupId"
# All that fit before the next millisecond.
_MOST: Final = 999
# The service's have 20.
_LONGEST_NUMBER: Final = 128

Place = tuple[str, int]
"""A message group, and the place in it."""


def place_of(attributes: str) -> Place | None:
    """Where a message stands in its group, by its attributes in a manifest; None for one that does not say."""
    try:
        said = msgspec.json.decode(attributes)
    except (ValueError, RecursionError):
        return None
    group, number = (said.get(_GROUP), said.get(SEQUENCE_NUMBER)) if isinstance(said, dict) else (None, None)
    if group is None or not isinstance(number, str | int):
        return None
    digits = number if isinstance(number, str) else format(number)
    return (str(group), int(digits)) if len(digits) <= _LONGEST_NUMBER and digits.isdecimal() else None


def in_order(sent_at: pa.ChunkedArray, places: Sequence[Place | None]) -> pa.ChunkedArray | None:
    """Times in microseconds by which messages have the order of their groups; None where they have it by their own."""
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
