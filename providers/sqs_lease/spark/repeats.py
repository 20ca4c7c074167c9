"""Messages that say the same under different message ids: a table knows them by what they say, where a source tells.

The table's rows have their message ids. Only what it is asked for, and what it keeps of a batch, is by the keys: once
it has a message of a key, all others are repeats. A rejected message is kept by its id: one that says the same rightly
is still wanted.

A message may have two more names (:class:`.sources.source.Names`): one by which it is a repeat, too, and one that the
table is to know once it has the message. The second is an entry more in the same commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from sqs_lease.spark.message_ids import is_among, said_of, together, without
from sqs_lease.spark.sinks.sink import INGESTED, KNOWN, LOOKED_UP, REJECTED, Admission, LookUp, Table
from sqs_lease.spark.sources.source import Names

KEY: Final = "key"
"""The column of a batch's messages that names what a message says; null where only its id names it."""

REPEATS: Final = "repeats"
"""The column of the names by which messages are repeats, too; null for most."""

ALSO: Final = "also"
"""The column of the names that the table is to know, too; null for most."""


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
        repeats: The name by which each is a repeat, too, or null.
        also: The name that the table is to know of each, too, or null.
    """

    message_ids: pa.Array
    keys: pa.Array
    repeats: pa.Array
    also: pa.Array

    @classmethod
    def of_batch(cls, messages: pa.Table) -> Keys | None:
        """Those of a batch's messages, as :func:`with_keys` says them; None where they have none but their ids."""
        if KEY not in messages.column_names:
            return None
        message_ids, keys, repeats, also = (
            messages[name].combine_chunks() for name in ("message_id", KEY, REPEATS, ALSO)
        )
        return cls(message_ids, pc.coalesce(keys, message_ids), repeats, also)

    def of(self, message_ids: pa.ChunkedArray) -> pa.ChunkedArray:
        """The keys of some messages."""
        return _taken(self.keys, pc.index_in(message_ids, self.message_ids))

    def others_of(self, message_ids: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """The further names of some messages: by which each is a repeat, too, and which the table is to know, too."""
        position = pc.index_in(message_ids, self.message_ids)
        return _taken(self.repeats, position), _taken(self.also, position)

    def firsts(self, message_ids: pa.ChunkedArray) -> pa.ChunkedArray:
        """Of some messages the first one of each key."""
        keys = self.of(message_ids).combine_chunks()
        is_first = pc.equal(pc.index_in(keys, keys), pa.array(range(len(keys)), pa.int32()))
        return message_ids.filter(pa.chunked_array([is_first]))

    def foremost(self, message_ids: pa.ChunkedArray) -> pa.ChunkedArray:
        """Of the first messages of each key those that no message before them makes repeats by another name."""
        firsts = self.firsts(message_ids)
        repeats, also = (names.combine_chunks() for names in self.others_of(firsts))
        if not pc.any(pc.is_valid(repeats)).as_py():
            return firsts
        position = pa.array(range(len(firsts)), pa.int32())
        before = [pc.index_in(repeats, names) for names in (self.of(firsts).combine_chunks(), also)]
        waits = [pc.and_(pc.is_valid(repeats), pc.fill_null(pc.less(its, position), False)) for its in before]
        return firsts.filter(pa.chunked_array([pc.invert(pc.or_(*waits))]))


@dataclass(frozen=True, slots=True)
class KeyedTable:
    """A table that is asked, and told, by keys: see :class:`.sinks.sink.Table`."""

    table: Table[Any]
    keys: Keys

    def look_up(self, messages: pa.Table) -> KeyedLookUp:
        """See :meth:`.sinks.sink.Table.look_up`."""
        message_ids = messages["message_id"]
        keys = self.keys.of(message_ids)
        repeats, also = self.keys.others_of(message_ids)
        any_of_them = pc.unique(together(keys, message_ids, repeats.drop_null(), also.drop_null()))
        # A repeat was sent at another time.
        asked = self.table.look_up(said_of(LOOKED_UP, any_of_them))
        found = asked.known["message_id"].combine_chunks()
        # By its own id first: a reject stays one, whatever has its key by now.
        own = pc.coalesce(pc.index_in(message_ids, found), pc.index_in(keys, found))
        row = pc.coalesce(own, pc.index_in(repeats, found))
        is_known = pc.is_valid(row)
        known = asked.known.take(row.filter(is_known)).set_column(0, KNOWN.field(0), message_ids.filter(is_known))
        # A repeat is not counted as brought by a batch: the first message of its key is that is no reject.
        is_reject = pc.equal(known["outcome"], REJECTED)
        rejects = known["message_id"].filter(is_reject)
        is_first = is_among(known["message_id"], together(rejects, self.keys.firsts(without(message_ids, rejects))))
        by = pc.if_else(pc.and_(is_first, pc.is_valid(own.filter(is_known))), known["batch_id"], "")
        return KeyedLookUp(asked, known.set_column(1, KNOWN.field(1), by))

    def commit(self, looked_up: KeyedLookUp, admission: Admission) -> int | None:
        """See :meth:`.sinks.sink.Table.commit`."""
        entries = admission.entries
        is_rejected = pc.equal(entries["outcome"], REJECTED)
        names = pc.if_else(is_rejected, entries["message_id"], self.keys.of(entries["message_id"]))
        # With the times at which they were sent, by which a ledger knows that a driver's clock is wrong.
        keyed = entries.set_column(0, entries.schema.field(0), names)
        keyed = pa.concat_tables([keyed, self._further(looked_up, keyed, entries.filter(pc.invert(is_rejected)))])
        return self.table.commit(looked_up.asked, Admission(admission.batch_id, keyed, admission.staged))

    def _further(self, looked_up: KeyedLookUp, keyed: pa.Table, taken: pa.Table) -> pa.Table:
        """Entries for the further names of messages, but for names that the table has or is given."""
        _, also = self.keys.others_of(taken["message_id"])
        names = pa.chunked_array([pc.unique(also.drop_null())], pa.string())
        names = without(names, together(keyed["message_id"], looked_up.asked.known["message_id"]))
        return said_of(keyed.schema, names, outcome=INGESTED)


def with_keys(messages: pa.Table, keys: Sequence[str | Names | None]) -> pa.Table:
    """Say in :data:`KEY`, :data:`REPEATS` and :data:`ALSO` what names messages: see :data:`.sources.source.KeysOf`."""
    names = [Names(key) if isinstance(key, str) else key for key in keys]
    for column, attribute in {KEY: "name", REPEATS: "repeats", ALSO: "also"}.items():
        values = [getattr(its, attribute, None) for its in names]
        messages = messages.append_column(column, pa.array(values, pa.string()))
    return messages


def repeated(message_ids: pa.ChunkedArray) -> pa.Table:
    """Messages of which the table has another one with their key, as :data:`.sinks.sink.KNOWN`: by no batch."""
    return said_of(KNOWN, message_ids, batch_id="", outcome=INGESTED)


def _taken(values: pa.Array, position: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([values.take(position.combine_chunks())], pa.string())
