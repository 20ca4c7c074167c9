"""Tries of a batch begin while others write, and take away what these have written: each message is done once.

No Spark: the rows and the table that takes them are in memory; the loop around them is real.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from sqs_lease.spark import RowsRefusedError, Staged, TableError
from sqs_lease.spark.batch_file import REASONS
from sqs_lease.spark.columns import BATCH_ID, MESSAGE_ID
from sqs_lease.spark.loading import Loaded, Loading
from sqs_lease.spark.message_ids import without
from sqs_lease.spark.parsing import Parsed
from sqs_lease.spark.repeats import Keys
from sqs_lease.spark.waits import Waits, waiting_at_most
from sqs_lease.testing.sink_subject import COLUMNS, asked
from tests.form import FULL_FORM
from tests.spark.sinks.memory_sink import MemoryStore, MemoryTable


class Killed(BaseException):
    """The process has ended: nothing of its code runs any more."""


@dataclass
class World:
    """A table, the messages of a batch, and what becomes of them.

    Attributes:
        random: Decides all.
        ids: The messages.
        refused: Messages of which the table refuses the rows.
        rejected: Those that are no records.
        empty: Those that have nothing to store.
        keys: By which the table knows them; None for their ids.
        stores_rejects: Whether rejected messages are done.
    """

    random: Random
    ids: Sequence[str]
    refused: set[str]
    rejected: set[str]
    empty: set[str]
    keys: dict[str, str] | None
    stores_rejects: bool
    store: MemoryStore = field(default_factory=lambda: MemoryStore(COLUMNS))
    depth: int = 0
    others: int = 0
    was_killed: bool = False

    def load(self, batch_id: str, ids: Sequence[str]) -> Loaded:
        messages = asked(*ids)
        keys = None
        if self.keys is not None:
            keys = Keys(pa.array(ids), pa.array([self.keys[one] for one in ids]))
        loading = Loading(
            MemoryTable(self.store),
            batch_id,
            messages,
            messages["message_id"],
            keys,
            store_rejects=(lambda _: self.let_others_work()) if self.stores_rejects else None,
        )
        return loading.load(partial(self.parse, ids))

    def parse(self, ids: Sequence[str], _table: Any, known: pa.ChunkedArray, batch_id: str) -> Parsed:
        """Stage rows of what is not known; others may be at work meanwhile."""
        wanted = without(pa.chunked_array([ids], pa.string()), known).to_pylist()
        before = {message_id for message_id, its in self.store.entries.items() if its["batch_id"] == batch_id}
        self.let_others_work()
        after = {message_id for message_id, its in self.store.entries.items() if its["batch_id"] == batch_id}
        rejected = [one for one in wanted if one in self.rejected]
        good = [one for one in wanted if one not in self.rejected | self.empty]
        if after != before:
            # Another try of the batch has tidied up.
            match self.random.randrange(4):
                case 0:
                    raise TableError("the files are gone")
                case 1:
                    raise RowsRefusedError("it failed", rule="unknown", is_certain=False)
                case 2:
                    good = [one for one in good if self.random.random() < 0.5]
        if refused := [one for one in good if one in self.refused]:
            named = refused if self.random.random() < 0.3 else ()
            raise RowsRefusedError("refused", rule="a constraint", message_ids=named)
        empty = [one for one in wanted if one in self.empty]
        ingested = pa.chunked_array([good], pa.string())
        staged = None
        if good:
            location = f"{batch_id}/{len(self.store.staged)}-{self.random.random()}"
            self.store.staged[location] = [{"id": 1, MESSAGE_ID: one, BATCH_ID: batch_id} for one in good]
            staged = Staged(location, ingested)
        reasons = pa.table([rejected, ["no record"] * len(rejected)], schema=REASONS)
        return Parsed(staged, ingested, pa.chunked_array([empty], pa.string()), reasons)

    def let_others_work(self) -> None:
        if self.depth and self.random.random() < 0.1:
            raise Killed
        if self.depth == 3 or self.random.random() > 0.35:
            return
        self.depth += 1
        self.others += 1
        try:
            if self.random.random() < 0.7:
                self.load("b", self.ids)
            else:
                self.load(f"c{self.others}", [one for one in self.ids if self.random.random() < 0.5] or self.ids[:1])
        except Killed:
            self.was_killed = True
        finally:
            self.depth -= 1


def some(random: Random, ids: Sequence[str], share: float) -> set[str]:
    return {one for one in ids if random.random() < share}


@settings(max_examples=2_000 if FULL_FORM else 150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 11), st.booleans(), st.booleans())
def test_each_message_is_done_once_whatever_other_tries_take_away(
    random: Random, count: int, has_keys: bool, stores_rejects: bool
) -> None:
    ids = [f"m{number}" for number in range(count)]
    key_of = {one: f"k{random.randrange(4)}" if has_keys and random.random() < 0.5 else one for one in ids}
    rejected = some(random, ids, 0.1)
    empty = some(random, ids, 0.1) - rejected
    refused = some(random, ids, 0.15)
    world = World(random, ids, refused, rejected, empty, key_of if has_keys else None, stores_rejects)

    with waiting_at_most(Waits(sleep=lambda _: None)):
        loaded = world.load("b", ids)

    assert loaded.known.num_rows + loaded.ingested + loaded.empty + loaded.rejected.num_rows == count
    assert set(loaded.rejected["message_id"].to_pylist()) <= world.refused | world.rejected
    stored = [row[MESSAGE_ID] for row in world.store.rows]
    assert max(Counter(key_of[one] for one in stored).values(), default=0) <= 1
    # A message that is neither stored nor rejected had nothing to store, or the key of a message that is done.
    done = {key_of[one] for one in stored} | {key_of[one] for one in world.empty}
    assert {one for one in ids if key_of[one] not in done} <= world.refused | world.rejected
    assert world.was_killed or not world.store.staged
