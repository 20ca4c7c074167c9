"""Looks at JSON bodies in the driver: their syntax, and which fields they have. Without Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from sqs_lease.batch_files.json_syntax import NotJsonError, decode, decode_object

MOST_COLUMNS: Final = 1000
"""Wider than this no table grows by itself: objects with names such as ids would add columns without end."""

SHOWN_FIELDS: Final = 3
"""How many unknown fields a reason names."""

SHOWN_CHARACTERS: Final = 63
"""How much of each name."""

UNKNOWN_FIELD: Final = "not in the schema: "
"""How the reason starts when a message has fields that are no columns; their names follow."""


class AnyJsonChecker:
    """Takes every JSON value."""

    def reasons(self, bodies: Sequence[str]) -> list[str | None]:
        """See :class:`.source.Checker`."""
        return [_reason(body) for body in bodies]


class ObjectChecker:
    """Takes JSON objects, whatever is in them."""

    def reasons(self, bodies: Sequence[str]) -> list[str | None]:
        """See :class:`.source.Checker`."""
        return [self._reason(body) for body in bodies]

    def _reason(self, body: str) -> str | None:
        try:
            return self.judge(decode_object(body))
        except NotJsonError as error:
            return str(error)

    def judge(self, _record: Mapping[str, Any]) -> str | None:
        """Say why an object cannot be a record."""
        return None


class PlainChecker(ObjectChecker):
    """Takes JSON objects, and knows that a manifest has named all other bodies."""

    def reasons_by_syntax(self, not_json: pa.ChunkedArray) -> pa.ChunkedArray:
        """See :class:`.source.SyntaxChecker`."""
        return not_json


class ClosedChecker(ObjectChecker):
    """Refuses fields that are no columns.

    Args:
        columns: The names of the columns.
    """

    def __init__(self, columns: Collection[str]) -> None:
        self._columns = frozenset(columns)

    def judge(self, record: Mapping[str, Any]) -> str | None:
        """See :class:`ObjectChecker`."""
        if record.keys() <= self._columns:
            return None
        unknown = [name[:SHOWN_CHARACTERS] for name in record if name not in self._columns]
        return f"{UNKNOWN_FIELD}{', '.join(unknown[:SHOWN_FIELDS])}"


class OpenChecker(ObjectChecker):
    """Collects fields that are no columns yet, and refuses those that cannot become one.

    Args:
        columns: The names of the columns.
        can_be_column: Whether a field of that name may become a column.
    """

    def __init__(self, columns: Collection[str], can_be_column: Callable[[str], bool]) -> None:
        self._known = {name.lower(): name for name in columns}
        self._names = set(columns)
        self._can_be_column = can_be_column
        self.new_fields: set[str] = set()

    def judge(self, record: Mapping[str, Any]) -> str | None:
        """See :class:`ObjectChecker`."""
        if record.keys() <= self._names:
            return None
        new = [name for name, value in record.items() if name not in self._names and _has_value(value)]
        taken = dict(self._known)
        for name in new:
            if not self._can_be_column(name):
                return "a field that is not in the schema has a name that no column can have"
            if name.lower() in taken:
                return f"the field {name} differs from the column {taken[name.lower()]} in upper and lower case only"
            taken[name.lower()] = name
        if len(taken) > MOST_COLUMNS:
            return f"its new fields would make the table wider than {MOST_COLUMNS} columns"
        self._known = taken
        self._names.update(new)
        self.new_fields.update(new)
        return None


def _reason(body: str) -> str | None:
    try:
        decode(body)
    except NotJsonError as error:
        return str(error)
    return None


def _has_value(value: Any) -> bool:
    """Whether there is anything that Spark could infer a type from."""
    if isinstance(value, dict):
        return any(map(_has_value, value.values()))
    if isinstance(value, list):
        return any(map(_has_value, value))
    return value is not None
