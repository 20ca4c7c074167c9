"""What Dagster's own keys say of the table that messages are ingested into: its storage, its name, its columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import dagster as dg

STORAGE_KIND: Final = "dagster/storage_kind"
TABLE_NAME: Final = "dagster/table_name"
COLUMN_SCHEMA: Final = "dagster/column_schema"

_STORAGES: Final = {"native-delta": "delta"}
"""The storage of kinds of sinks whose name says more than that."""

_COLUMN: Final = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>\w+))(?:\s*:\s*|\s+)(?P<type>[A-Za-z_].*?)"
    r"(?P<required>\s+NOT\s+NULL)?(?:\s+COMMENT\s+'(?P<comment>(?:[^'\\]|\\.)*)')?\s*",
    re.IGNORECASE | re.DOTALL,
)
_PIECE: Final = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|[<(]|[>)]|,|[^`'<>(),]+")


def storage_kind(spec: Mapping[str, Any]) -> str:
    """Return the storage of an ingestion's table, e.g. ``delta``.

    Args:
        spec: The ingestion, see ``sqs_lease/ingestion/spec.py``.
    """
    kind = str(spec["sink"]["kind"])
    return _STORAGES.get(kind, kind)


def table_metadata(spec: Mapping[str, Any]) -> dict[str, dg.MetadataValue]:
    """Describe the table of an ingestion, as far as its spec tells.

    Args:
        spec: The ingestion.

    Returns:
        By key: ``dagster/storage_kind``; ``dagster/table_name`` where the table has one; ``dagster/column_schema``
        where the spec has a schema that messages cannot add to.
    """
    metadata: dict[str, dg.MetadataValue] = {STORAGE_KIND: dg.MetadataValue.text(storage_kind(spec))}
    table = spec["sink"].get("table")
    if isinstance(table, str):
        metadata[TABLE_NAME] = dg.MetadataValue.text(table)
    columns = _columns(spec["source"])
    if columns is not None:
        metadata[COLUMN_SCHEMA] = dg.MetadataValue.table_schema(dg.TableSchema(columns))
    return metadata


def _columns(source: Mapping[str, Any]) -> list[dg.TableColumn] | None:
    """The columns of a source's records; None where they are not known before."""
    while "source" in source:
        source = source["source"]
    schema = source.get("schema")
    if not isinstance(schema, str) or source.get("new_fields") == "add":
        return None
    found = [_COLUMN.fullmatch(part) for part in _parts(schema)]
    columns = [_column(match) for match in found if match is not None]
    # A schema that is not understood as a whole is Spark's to read.
    return columns if columns and len(columns) == len(found) else None


def _column(match: re.Match[str]) -> dg.TableColumn:
    quoted, comment = match["quoted"], match["comment"]
    return dg.TableColumn(
        match["plain"] if quoted is None else quoted.replace("``", "`"),
        match["type"],
        description=None if comment is None else re.sub(r"\\(.)", r"\1", comment),
        constraints=dg.TableColumnConstraints(nullable=match["required"] is None),
    )


def _parts(schema: str) -> Iterator[str]:
    """The parts of a schema between the commas that are within nothing else."""
    depth, part = 0, ""
    for piece in _PIECE.findall(schema):
        depth += (piece in "<(") - (piece in ">)")
        if piece == "," and depth == 0:
            yield part
            part = ""
        else:
            part += piece
    yield part
