"""Statistics of a file for Delta's log, by which readers can skip the file.

The driver makes them from the Parquet footer when it reads the file's message ids. A task does not, because pyarrow
imports pandas for some of the values (:mod:`sqs_lease.spark.arrow_values`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from itertools import islice
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

# Delta's writers keep statistics of so many columns by default, with so many characters of a string.
_COLUMNS_WITH_STATISTICS: Final = 32
_SHOWN_CHARACTERS: Final = 32
_LAST_CHARACTER: Final = "\U0010ffff"


def statistics_of(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Make the statistics from a Parquet footer: rows, nulls, and least and greatest values.

    Values are given only for integers, strings, dates and times. Floats may hide a NaN, which is greater than all other
    values, and for other types readers do not agree on an order in JSON.
    """
    nulls: dict[str, Any] = {}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for index, path in enumerate(islice(_leaves(metadata.schema.to_arrow_schema()), _COLUMNS_WITH_STATISTICS)):
        chunks = [metadata.row_group(group).column(index) for group in range(metadata.num_row_groups)]
        found = [chunk.statistics for chunk in chunks]
        # Parquet has columns inside arrays and maps, for which Delta has no statistics.
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
    """Yield the paths of a Parquet file's columns, in its order; None for a column inside an array or a map."""
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
    """Return the least and the greatest value of a column in Delta's notation; None if they are unknown."""
    if not found or not all(one.has_min_max for one in found):
        return None
    try:
        low = _shown(min(one.min for one in found), found[0])
        high = _shown(max(one.max for one in found), found[0], up=True)
    except (OverflowError, ValueError, NotImplementedError):
        # Python cannot hold every time, and pyarrow before 23 fails for a decimal that is stored as an integer.
        return None
    return None if low is None or high is None else (low, high)


def _put(target: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        target = target.setdefault(name, {})
    target[path[-1]] = value


def _shown(value: object, statistics: pq.Statistics, *, up: bool = False) -> int | str | None:
    """Write a bound in Delta's notation; None if it has none. ``up``: a bound that is cut must not become less."""
    kind = json.loads(statistics.logical_type.to_json())
    if isinstance(value, str):
        if len(value) <= _SHOWN_CHARACTERS:
            return value
        if up and value[_SHOWN_CHARACTERS] == _LAST_CHARACTER:
            return None
        return value[:_SHOWN_CHARACTERS] + (_LAST_CHARACTER if up else "")
    if isinstance(value, datetime):
        # Times in Parquet are in UTC, or without a zone.
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return f"{text}Z" if kind.get("isAdjustedToUTC") else text
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, int) and not isinstance(value, bool) and kind["Type"] in {"Int", "None"}:
        return value
    return None
