"""What the key of an object says about its records, as the directories of Hive do: ``orders/day=2026-01-31/file``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.types import StructType

from sqs_lease.spark.columns import NULL_DIRECTORY
from sqs_lease.spark.schemas import arrow_schema
from sqs_lease.spark.sources.s3_events.contents import BadContentError


@dataclass(frozen=True)
class PathColumns:
    """Columns whose values are in the keys."""

    schema: pa.Schema
    required: tuple[str, ...]

    @classmethod
    def of(cls, columns: StructType) -> PathColumns:
        """Translate them from Spark's."""
        return cls(arrow_schema(columns), tuple(its.name for its in columns.fields if not its.nullable))

    def values(self, key: str) -> dict[str, Any]:
        """Read a key. A name that it has twice counts where it stands last; all but the file's own name is looked at.

        Returns:
            The value of each column.

        Raises:
            BadContentError: A column is missing, or not of its type.
        """
        directories = key.split("/")[:-1]
        found = {name: value for name, equals, value in (one.partition("=") for one in directories) if equals}
        values = {field.name: self._value(field, found.get(field.name)) for field in self.schema}
        if absent := [name for name in self.required if values[name] is None]:
            raise BadContentError(f"the key has no {', '.join(absent)}, which is required")
        return values

    def _value(self, field: pa.Field, text: str | None) -> Any:
        if text is None or text == NULL_DIRECTORY:
            return None
        # Hive writes what no directory can be called as %XX.
        plain = unquote(text)
        try:
            return pa.scalar(plain, pa.string()).cast(field.type).as_py()
        except (pa.ArrowException, ValueError, OverflowError):
            # Python has no day in the year 0.
            raise BadContentError(f"the key's {field.name} is not of the type in the schema") from None


NO_PATH_COLUMNS: Final = PathColumns(pa.schema([]), ())
"""Keys say nothing."""
