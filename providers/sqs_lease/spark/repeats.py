"""Messages that say the same under different message ids: a table knows them by what they say, where a source tells.

The table's rows have their message ids. Only what it is asked for, and what it keeps of a batch, is by the keys: once
it has a message of a key, all others are repeats. A rejected message is kept by its id: one that says the same rightly
is still wanted.
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
"""The column of a batch's messages that names what a message says; null where only its id names it."""


@dataclass(frozen=True, slots=True)
class KeyedLookUp:
    """What the table knew, by message ids; and its own answer. See :class:`.sinks.sink.LookUp`."""

    asked: LookUp
    known: pa.Table

    @property
    def version(self) -> int | None:
        """See :class:`.sinks.sink.LookUp`."""
        return self.asked.version


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a batch.

    Attributes:
        message_ids: Its messages, each once.
        keys: The key of each: its message id where nothing else names it.
    """

    message_ids: pa.Array
    keys: pa.Array

    @classmethod
    def of_batch(cls, messages: pa.Table) -> Keys | None:
        """Those of a batch's messages, as :func:`with_keys` says them; None where they have none but their ids."""
        if KEY not in messages.column_names:
            return None
        message_ids, keys = (messages[name].combine_chunks() for name in ("message_id", KEY))
        return cls(message_ids, pc.coalesce(keys, message_ids))

    def of(self, message_ids: pa.ChunkedArray) -> pa.ChunkedArray:
        """The keys of some messages."""
        return _taken(self.keys, pc.index_in(message_ids, self.message_ids))

    def firsts(self, message_ids: pa.ChunkedArray) -> pa.ChunkedArray:
        """Of some messages the first one of each key."""
        keys = self.of(message_ids).combine_chunks()
        is_first = pc.equal(pc.index_in(keys, keys), pa.array(range(len(keys)), pa.int32()))
        return message_ids.filter(pa.chunked_array([is_first]))


@dataclass(frozen=True, slots=True)
class KeyedTable:
    """A table that is asked, and told, by keys: see :class:`.sinks.sink.Table`."""

    table: Table[Any]
    keys: Keys

    def look_up(self, messages: pa.Table) -> KeyedLookUp:
        """See :meth:`.sinks.sink.Table.look_up`."""
        message_ids = messages["message_id"]
        keys = self.keys.of(message_ids)
        either = pc.unique(together(keys, message_ids))
        # A repeat was sent at another time.
        asked = self.table.look_up(message_table(LOOKED_UP, either))
        found = asked.known["message_id"].combine_chunks()
        # By its own id first: a reject stays one, whatever has its key by now.
        row = pc.coalesce(pc.index_in(message_ids, found), pc.index_in(keys, found))
        is_known = pc.is_valid(row)
        known = asked.known.take(row.filter(is_known)).set_column(0, KNOWN.field(0), message_ids.filter(is_known))
        # A repeat is not counted as brought by a batch: the first message of its key is that is no reject.
        is_reject = pc.equal(known["outcome"], REJECTED)
        rejects = known["message_id"].filter(is_reject)
        is_first = is_among(known["message_id"], together(rejects, self.keys.firsts(without(message_ids, rejects))))
        by = pc.if_else(is_first, known["batch_id"], "")
        return KeyedLookUp(asked, known.set_column(1, KNOWN.field(1), by))

    def commit(self, looked_up: KeyedLookUp, admission: Admission) -> int | None:
        """See :meth:`.sinks.sink.Table.commit`."""
        entries = admission.entries
        is_rejected = pc.equal(entries["outcome"], REJECTED)
        names = pc.if_else(is_rejected, entries["message_id"], self.keys.of(entries["message_id"]))
        # With the times at which they were sent, by which a ledger knows that a driver's clock is wrong.
        keyed = entries.set_column(0, entries.schema.field(0), names)
        return self.table.commit(looked_up.asked, Admission(admission.batch_id, keyed, admission.staged))


def with_keys(messages: pa.Table, keys: Sequence[str | None]) -> pa.Table:
    """Say in :data:`KEY` what names messages: see :data:`.sources.source.KeysOf`."""
    return messages.append_column(KEY, pa.array(keys, pa.string()))


def repeated(message_ids: pa.ChunkedArray) -> pa.Table:
    """Messages of which the table has another one with their key, as :data:`.sinks.sink.KNOWN`: by no batch."""
    return message_table(KNOWN, message_ids, batch_id="", outcome=INGESTED)


def _taken(values: pa.Array, position: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([values.take(position.combine_chunks())], pa.string())
