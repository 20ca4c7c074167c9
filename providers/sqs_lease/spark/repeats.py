"""Duplicates with different message ids, found by a key.

S3 may notify twice, under two message ids, and a redrive gives new ids. ``dedupe_by``, and the objects of S3
notifications, give a key that is the same for such duplicates. The key takes the place of the message id in the entries
of a table and in a look-up, and only there; the table's rows have the message ids. So every sink recognises duplicates
without knowing about keys. Once the table has a message of a key, all others are duplicates. A rejected message has its
own id as entry, because a valid message with the same key must still be stored.

There is a price: a duplicate may have been sent at any time, so the look-up reads the whole ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from sqs_lease.spark.message_ids import is_among, message_table, together, without
from sqs_lease.spark.sinks.sink import INGESTED, KNOWN, LOOKED_UP, REJECTED, Admission, LookUp, Table

KEY: Final = "key"
"""The column of a batch's messages with the key of a message; null if the message id is the key."""


@dataclass(frozen=True, slots=True)
class KeyedLookUp:
    """Answer of a table by message ids, with its own answer by keys: see :class:`.sinks.sink.LookUp`."""

    by_keys: LookUp
    known: pa.Table

    @property
    def version(self) -> int | None:
        """See :class:`.sinks.sink.LookUp`."""
        return self.by_keys.version


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a batch.

    Attributes:
        message_ids: Its messages, each once.
        keys: The key of each; its message id if it has no other.
    """

    message_ids: pa.Array
    keys: pa.Array

    @classmethod
    def of_batch(cls, messages: pa.Table) -> Keys | None:
        """Take the keys that :func:`with_keys` added; None if the message ids are the only keys."""
        if KEY not in messages.column_names:
            return None
        message_ids, keys = (messages[name].combine_chunks() for name in ("message_id", KEY))
        return cls(message_ids, pc.coalesce(keys, message_ids))

    def of(self, message_ids: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the keys of some messages."""
        return _taken(self.keys, pc.index_in(message_ids, self.message_ids))

    def firsts(self, message_ids: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the first message of each key."""
        keys = self.of(message_ids).combine_chunks()
        is_first = pc.equal(pc.index_in(keys, keys), pa.array(range(len(keys)), pa.int32()))
        return message_ids.filter(pa.chunked_array([is_first]))


@dataclass(frozen=True, slots=True)
class KeyedTable:
    """A table whose entries are keys: see :class:`.sinks.sink.Table`."""

    table: Table[Any]
    keys: Keys

    def look_up(self, messages: pa.Table) -> KeyedLookUp:
        """See :meth:`.sinks.sink.Table.look_up`."""
        message_ids = messages["message_id"]
        keys = self.keys.of(message_ids)
        either = pc.unique(together(keys, message_ids))
        # Without times, because a duplicate was sent at another time.
        by_keys = self.table.look_up(message_table(LOOKED_UP, either))
        found = by_keys.known["message_id"].combine_chunks()
        # By its own id first: a reject stays a reject, even if the table has a message of its key by now.
        row = pc.coalesce(pc.index_in(message_ids, found), pc.index_in(keys, found))
        is_known = pc.is_valid(row)
        known = by_keys.known.take(row.filter(is_known)).set_column(0, KNOWN.field(0), message_ids.filter(is_known))
        # A duplicate does not count as stored by its batch. Only the first message of a key counts, if it is not a
        # reject.
        is_reject = pc.equal(known["outcome"], REJECTED)
        rejects = known["message_id"].filter(is_reject)
        is_first = is_among(known["message_id"], together(rejects, self.keys.firsts(without(message_ids, rejects))))
        by = pc.if_else(is_first, known["batch_id"], "")
        return KeyedLookUp(by_keys, known.set_column(1, KNOWN.field(1), by))

    def commit(self, looked_up: KeyedLookUp, admission: Admission) -> int | None:
        """See :meth:`.sinks.sink.Table.commit`."""
        entries = admission.entries
        is_rejected = pc.equal(entries["outcome"], REJECTED)
        names = pc.if_else(is_rejected, entries["message_id"], self.keys.of(entries["message_id"]))
        # The entries keep the times of the messages: by them a ledger notices that a driver's clock is wrong.
        keyed = entries.set_column(0, entries.schema.field(0), names)
        return self.table.commit(looked_up.by_keys, Admission(admission.batch_id, keyed, admission.staged))


def with_keys(messages: pa.Table, keys: Sequence[str | None]) -> pa.Table:
    """Add the column :data:`KEY`: see :data:`.sources.source.KeysOf`."""
    return messages.append_column(KEY, pa.array(keys, pa.string()))


def repeated(message_ids: pa.ChunkedArray) -> pa.Table:
    """Return duplicates as :data:`.sinks.sink.KNOWN`, without a batch."""
    return message_table(KNOWN, message_ids, batch_id="", outcome=INGESTED)


def _taken(values: pa.Array, position: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([values.take(position.combine_chunks())], pa.string())
