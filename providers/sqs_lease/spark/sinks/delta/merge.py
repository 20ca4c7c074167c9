"""Merge of staged rows into a table by key: the newest message of each key wins, whatever order messages arrive in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable

from sqs_lease.spark.columns import MESSAGE_ID, SENT_AT
from sqs_lease.spark.places import Place
from sqs_lease.spark.schemas import quoted
from sqs_lease.spark.sinks.delta.files import read_rows
from sqs_lease.spark.sinks.staging import StagedFile
from sqs_lease.spark.sinks.table_sql import IS_AS_NEW, same_key

_ROW: Final = "_row"
_BEFORE_ALL: Final = -(2**63)


def merge_newest(
    table: DeltaTable,
    storage: Place,
    files: Sequence[StagedFile],
    keys: Sequence[str],
    commit_properties: CommitProperties,
) -> None:
    """Replace rows by newer ones with the same keys, and add rows with new keys, in one commit.

    The message that was sent last wins. Of messages that were sent in the same millisecond, the one in the later batch
    wins; within a batch the one with more microseconds, and then the one with the greater id; of the rows of one
    message the last one. A message without a time is the oldest.

    The driver holds the newest rows of the batch in memory while it rewrites the table's files with some of their keys.
    If the table has newer rows of all keys, there is no commit.

    Raises:
        CommitFailedError: Another process committed meanwhile.
    """
    schema = pa.schema(table.schema().to_arrow())
    newest = newest_rows(storage, files, schema, keys)
    values = {quoted(name): f"s.{quoted(name)}" for name in newest.schema.names}
    # The newest message replaces the whole row, including columns that it does not have.
    values |= {quoted(name): "NULL" for name in schema.names if name not in newest.schema.names}
    (
        table.merge(
            newest,
            same_key(keys),
            source_alias="s",
            target_alias="t",
            # Without streaming, deltalake knows all keys beforehand, and does not read files with other keys only.
            streamed_exec=False,
            commit_properties=commit_properties,
        )
        .when_matched_update(values, predicate=IS_AS_NEW)
        .when_not_matched_insert(values)
        .execute()
    )


def newest_rows(storage: Place, files: Sequence[StagedFile], schema: pa.Schema, keys: Sequence[str]) -> pa.Table:
    """Return the newest row of each key among staged rows; the columns that decide this are read first."""
    deciding = list(dict.fromkeys((*keys, SENT_AT, MESSAGE_ID)))
    found = pa.concat_tables([read_rows(storage, file, schema, deciding) for file in files])
    sent_at = pc.fill_null(found[SENT_AT].cast(pa.int64()), _BEFORE_ALL)
    rows = pa.array(range(len(found)), pa.int64())
    order = pc.sort_indices(
        pa.table({"sent_at": sent_at, "message_id": found[MESSAGE_ID], "row": rows}),
        sort_keys=[("sent_at", "ascending"), ("message_id", "ascending"), ("row", "ascending")],
    )
    ordered = found.select(list(keys)).append_column(_ROW, rows).take(order)
    newest = ordered.group_by(list(keys), use_threads=False).aggregate([(_ROW, "last")])[f"{_ROW}_last"]
    wins = pc.is_in(rows, newest.combine_chunks())
    return pa.concat_tables(_winners(storage, files, schema, wins))


def _winners(storage: Place, files: Sequence[StagedFile], schema: pa.Schema, wins: pa.Array) -> Iterator[Any]:
    start = 0
    for file in files:
        rows = read_rows(storage, file, schema, schema.names)
        yield rows.filter(wins.slice(start, len(rows)))
        start += len(rows)
