"""What a Delta table keeps of a file so that readers may skip it, made by the task that wrote the file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from itertools import islice
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

# Delta's writers look at as many columns by default, and at so many characters of each.
_COLUMNS_WITH_STATISTICS: Final = 32
_SHOWN_CHARACTERS: Final = 32
_LAST_CHARACTER: Final = "\U0010ffff"


def statistics_of(metadata: pq.FileMetaData) -> dict[str, Any]:
    """What Delta keeps of a file, from its Parquet footer: rows, nulls, and least and greatest values.

    Values only of integers, texts, dates and times: floats may hide a NaN, which is greater than all, and the others
    have no order in JSON that all readers agree on.
    """
    nulls: dict[str, Any] = {}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for index, path in enumerate(islice(_leaves(metadata.schema.to_arrow_schema()), _COLUMNS_WITH_STATISTICS)):
        chunks = [metadata.row_group(group).column(index) for group in range(metadata.num_row_groups)]
        found = [chunk.statistics for chunk in chunks]
        # What is inside of arrays and maps is no column.
        if path is None or not found or any(one is None or not one.has_null_count for one in found):
            continue
        _put(nulls, path, sum(one.null_count for one in found))
        if bounds := _bounds(
            [one for one, chunk in zip(found, chunks, strict=True) if one.null_count < chunk.num_values]
        ):
            _put(least, path, bounds[0])
            _put(greatest, path, bounds[1])
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}


def _leaves(fields: Iterable[pa.Field], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...] | None]:
    """The columns that a Parquet file has, in its order; None for one inside of an array or a map."""
    for field in fields:
        kind = field.type
        if pa.types.is_struct(kind):
            yield from _leaves(kind, (*above, field.name))
        elif pa.types.is_list(kind):
            yield from (None for _ in _leaves([kind.value_field]))
        elif pa.types.is_map(kind):
            yield from (None for _ in _leaves([kind.key_field, kind.item_field]))
        else:
            yield (*above, field.name)


def _bounds(found: Sequence[pq.Statistics]) -> tuple[int | str, int | str] | None:
    """The least and the greatest value of a column as Delta writes them; None where it has none."""
    if not found or not all(one.has_min_max for one in found):
        return None
    try:
        low = _shown(min(one.min for one in found), found[0])
        high = _shown(max(one.max for one in found), found[0], up=True)
    except (OverflowError, ValueError, NotImplementedError):
        # A time that Python has no value for; or, for pyarrow before 23, a decimal that is stored as an integer.
        return None
    return None if low is None or high is None else (low, high)


def _put(target: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        target = target.setdefault(name, {})
    target[path[-1]] = value


def _shown(value: object, statistics: pq.Statistics, *, up: bool = False) -> int | str | None:
    """A bound as Delta writes it; None where it has none. ``up`` where it may become greater, but not less."""
    kind = json.loads(statistics.logical_type.to_json())
    if isinstance(value, str):
        if len(value) <= _SHOWN_CHARACTERS:
            return value
        if up and value[_SHOWN_CHARACTERS] == _LAST_CHARACTER:
            return None
        return value[:_SHOWN_CHARACTERS] + (_LAST_CHARACTER if up else "")
    if isinstance(value, datetime):
        # Parquet's times are in UTC, or belong to no time zone.
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return f"{text}Z" if kind.get("isAdjustedToUTC") else text
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, int) and not isinstance(value, bool) and kind["Type"] in {"Int", "None"}:
        return value
    return None
