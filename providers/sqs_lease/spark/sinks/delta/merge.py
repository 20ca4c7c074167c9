"""Puts staged rows into a table by key: the newest message of each key wins, in whichever order messages arrive."""

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
    """Replace rows by newer ones of the same keys, and add those whose keys the table does not have, in one commit.

    A message sent later wins. Of messages sent in the same millisecond, one that comes in a later batch wins, and
    within a batch the one with more microseconds, and then with the greater id; of the rows of one message the last
    one. One without a time is the oldest.

    The newest rows of the batch are held in the driver while the table's files that have some of their keys are
    written anew. Nothing is committed where all of them are older than what the table has.

    Raises:
        CommitFailedError: Somebody else committed meanwhile.
    """
    schema = pa.schema(table.schema().to_arrow())
    newest = newest_rows(storage, files, schema, keys)
    values = {quoted(name): f"s.{quoted(name)}" for name in newest.schema.names}
    # The newest message replaces the whole row, also what it does not know of.
    values |= {quoted(name): "NULL" for name in schema.names if name not in newest.schema.names}
    (
        table.merge(
            newest,
            same_key(keys),
            source_alias="s",
            target_alias="t",
            # Held as a whole, so that files of other keys are not read.
            streamed_exec=False,
            commit_properties=commit_properties,
        )
        .when_matched_update(values, predicate=IS_AS_NEW)
        .when_not_matched_insert(values)
        .execute()
    )


def newest_rows(storage: Place, files: Sequence[StagedFile], schema: pa.Schema, keys: Sequence[str]) -> pa.Table:
    """The newest row of each key among staged ones; of all columns, only what is needed to find them is read first."""
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
