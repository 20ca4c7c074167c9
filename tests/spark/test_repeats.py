"""Messages that say the same under different message ids are stored once, where a source tells that they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from sqs_lease.spark import JsonSource, Ledger, SnsEnvelope
from sqs_lease.spark.batch_file import REASONS
from sqs_lease.spark.loading import Loaded, Loading
from sqs_lease.spark.message_ids import NO_IDS
from sqs_lease.spark.parsing import Parsed
from sqs_lease.spark.repeats import KeyedTable, Keys, with_keys
from sqs_lease.spark.sinks.sink import INGESTED, REJECTED, Admission
from sqs_lease.spark.sinks.write_ahead import WriteAheadTable
from sqs_lease.testing.sink_subject import asked, entries, record
from tests.spark.samples import Place, message, rows
from tests.spark.sinks.delta.tables import open_table
from tests.spark.sinks.memory_sink import MemoryStore, MemoryTable, PlainRows
from tests.spark.sources.s3_messages import in_sns
from tests.spark.test_ledger import DAY, HOUR, NOON, Clock


@dataclass(frozen=True)
class EachIsARow:
    """Makes a row of each message, and rejects those called bad."""

    message_ids: list[str]

    def parse(self, table: Any, left_out: pa.ChunkedArray, batch_id: str) -> Parsed:
        wanted = [one for one in self.message_ids if one not in left_out.to_pylist()]
        bad = [one for one in wanted if one.startswith("bad")]
        good = [record(one, 1, batch_id=batch_id) for one in wanted if one not in bad]
        rejected = pa.table([bad, ["bad"] * len(bad)], schema=REASONS)
        if not good:
            return Parsed(None, NO_IDS, NO_IDS, rejected)
        staged = table.stage(PlainRows(good), batch_id)
        return Parsed(staged, staged.message_ids, NO_IDS, rejected)


def load(store: MemoryStore, batch_id: str, keys: Mapping[str, str | None], *, stored: bool = False) -> Loaded:
    messages = asked(*keys)
    known_by = Keys.of_batch(with_keys(messages, list(keys.values())))
    store_rejects = (lambda _: None) if stored else None
    table = MemoryTable(store)
    loading = Loading(table, batch_id, messages, messages["message_id"], known_by, store_rejects=store_rejects)
    return loading.load(EachIsARow(list(keys)).parse)


def test_the_first_message_of_a_key_is_stored_and_all_others_are_known() -> None:
    store = MemoryStore()
    first = load(store, "b", {"m1": "x", "m2": "y", "m3": "x", "m4": None})
    later = load(store, "c", {"m5": "y", "m6": "z", "m7": "x", "m4": None})

    assert (first.ingested, first.known["message_id"].to_pylist()) == (3, ["m3"])
    assert (later.ingested, sorted(later.known["message_id"].to_pylist())) == (1, ["m4", "m5", "m7"])
    assert sorted(later.known["batch_id"].to_pylist()) == ["b", "b", "b"]
    assert [row["_message_id"] for row in store.rows] == ["m1", "m2", "m4", "m6"]


def test_a_batch_that_comes_again_is_reported_as_the_first_time() -> None:
    store = MemoryStore()
    batch: dict[str, str | None] = {"m1": "x", "m2": "x", "m3": "y"}
    load(store, "b", batch)

    again = load(store, "b", batch)

    assert (again.ingested, again.rows) == (0, 0)
    by_batch = dict(zip(again.known["message_id"].to_pylist(), again.known["batch_id"].to_pylist(), strict=True))
    assert by_batch == {"m1": "b", "m2": "", "m3": "b"}


@pytest.mark.parametrize("stored", [False, True], ids=["reported", "stored"])
def test_a_key_of_which_the_message_was_rejected_may_come_again(stored: bool) -> None:
    store = MemoryStore()
    assert load(store, "b", {"bad": "x"}, stored=stored).rejected.num_rows == 1
    assert load(store, "c", {"m1": "x"}, stored=stored).ingested == 1
    again = load(store, "d", {"bad": "x", "m2": "x"}, stored=stored)
    assert (again.ingested, again.rejected.num_rows, again.known.num_rows) == (0, 0, 2)


@pytest.mark.parametrize("stored", [False, True], ids=["reported", "stored"])
def test_of_the_messages_of_a_key_in_a_batch_the_first_good_one_is_stored(stored: bool) -> None:
    store = MemoryStore()
    batch: dict[str, str | None] = {"bad1": "x", "bad2": "x", "m1": "x", "m2": "x", "m3": "y", "bad3": "y"}

    loaded = load(store, "b", batch, stored=stored)

    assert (loaded.ingested, loaded.rejected["message_id"].to_pylist()) == (2, ["bad1", "bad2"])
    assert sorted(loaded.known["message_id"].to_pylist()) == ["bad3", "m2"]
    assert [row["_message_id"] for row in store.rows] == ["m3", "m1"]


@pytest.mark.parametrize("stored", [False, True], ids=["reported", "stored"])
def test_a_good_message_is_stored_beside_one_of_its_key_that_was_rejected_earlier(stored: bool) -> None:
    """As where the first try of a batch ended between its commits."""
    store = MemoryStore()
    load(store, "b", {"bad1": "x"}, stored=stored)

    loaded = load(store, "b", {"bad1": "x", "bad2": "x", "m1": "x", "m2": "x"}, stored=stored)

    assert (loaded.ingested, [row["_message_id"] for row in store.rows]) == (1, ["m1"])
    again = load(store, "b", {"bad1": "x", "bad2": "x", "m1": "x", "m2": "x"}, stored=stored)
    assert (again.ingested, again.known.num_rows, len(store.rows)) == (0, 4, 1)


def test_rejects_that_were_stored_are_reported_again_beside_a_good_message_of_their_key() -> None:
    store = MemoryStore()
    batch: dict[str, str | None] = {"bad1": "x", "m1": "x", "bad2": "y", "bad3": "y", "m2": "x"}
    assert load(store, "b", batch, stored=True).rejected["message_id"].to_pylist() == ["bad1", "bad2", "bad3"]

    again = load(store, "b", batch, stored=True)

    said = {one["message_id"]: (one["batch_id"], one["outcome"]) for one in again.known.to_pylist()}
    rejected = dict.fromkeys(["bad1", "bad2", "bad3"], ("b", REJECTED))
    assert said == {"m1": ("b", INGESTED), "m2": ("", INGESTED), **rejected}


def test_fields_name_a_message_in_whatever_order_they_stand() -> None:
    source = JsonSource("id BIGINT, version INT", dedupe_by=["id", "version"])
    assert source.keys is not None
    one, same, other, *without = source.keys(
        [
            '{"id": 1, "version": 2}',
            '{"version": 2, "more": [], "id": 1}',
            '{"id": 2, "version": 1}',
            '{"id": 1}',
            '{"id": 1, "version": null}',
            "not JSON",
        ]
    )
    assert one == same != other
    assert without == [None] * 3
    published = SnsEnvelope(source).keys
    assert published is not None
    assert published([in_sns('{"id": 1, "version": 2}'), "{}"]) == [one, None]
    assert SnsEnvelope(JsonSource("id BIGINT")).keys is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("id", "put brackets around the one"),
        # Read a second time it is empty, and then all messages have the same key.
        (iter(["id"]), "not list_iterator"),
        # Without an order: another process would have other keys for the same messages.
        ({"id", "version"}, "not set"),
        # No object has such a field, so no repeat would be found.
        ([1], "1 is not a name"),
        ([""], "'' is not a name"),
        (None, "not NoneType"),
    ],
)
def test_the_fields_of_a_key_are_a_list_of_names(fields: Any, says: str) -> None:
    with pytest.raises(TypeError, match=f"dedupe_by is a list of fields.*{says}"):
        JsonSource("id BIGINT", dedupe_by=fields)


def test_numbers_that_differ_behind_a_doubles_digits_are_not_the_same() -> None:
    keys = JsonSource("at DECIMAL(38, 20)", dedupe_by=["at"]).keys
    assert keys is not None
    one, *same = keys(['{"at": 0.1}', '{"at": 0.10}', '{"at": 1e-1}'])
    others = keys(
        ['{"at": 0.1000000000000000001}', '{"at": "0.1"}', '{"at": "1E-1"}', '{"at": [0.1]}', '{"at": 1e-400}']
    )
    assert same == [one] * 2
    assert len({one, *others}) == 6
    assert keys(['{"at": 1e-99999999999999999999}']) == [None]


@pytest.mark.processes
def test_messages_of_which_the_times_differ_by_nanoseconds_are_all_stored(place: Place) -> None:
    source = JsonSource("at DECIMAL(19, 9) NOT NULL", dedupe_by=["at"])
    times = ["1732550000.123456789", "1732550000.123456788", "1732550000.123456789"]

    result = place.ingest([message(f"m{n}", f'{{"at": {at}}}') for n, at in enumerate(times)], source=source)

    assert (result.ingested, result.duplicates) == (2, 1)
    assert [str(row["at"]) for row in rows(place.table)] == times[:2]


@pytest.mark.processes
def test_a_message_that_is_sent_again_is_stored_once(place: Place) -> None:
    source = JsonSource("id BIGINT NOT NULL", dedupe_by=["id"])
    first = place.ingest(
        [message("m1", '{"id": 1}'), message("m2", '{"id": 1}'), message("m3", '{"id": 2}')], source=source
    )
    later = place.ingest([message("m4", '{"id": 2}'), message("m5", '{"id": 3}')], source=source)
    redelivered = place.ingest([message("m5", '{"id": 3}', receive_count=2)], source=source)

    assert (first.ingested, first.duplicates) == (2, 1)
    assert (later.ingested, later.duplicates) == (1, 1)
    assert (redelivered.ingested, redelivered.duplicates) == (0, 1)
    assert [row["_message_id"] for row in rows(place.table)] == ["m1", "m3", "m5"]


@pytest.mark.processes
def test_a_message_that_is_sent_again_days_later_is_stored_once(place: Place) -> None:
    source = JsonSource("id BIGINT NOT NULL", dedupe_by=["id"])
    days_later = {"SentTimestamp": str(1_700_000_000_123 + 9 * 86_400_000)}
    place.ingest([message("m1", '{"id": 1}')], source=source)

    again = place.ingest([replace(message("m2", '{"id": 1}'), attributes=days_later)], source=source)

    assert (again.ingested, again.duplicates) == (0, 1)
    assert [row["_message_id"] for row in rows(place.table)] == ["m1"]


@pytest.mark.parametrize("wrong", [40 * DAY, -40 * DAY], ids=str)
def test_a_driver_with_a_wrong_clock_makes_no_ledger_forget_keys(tmp_path: Path, wrong: timedelta) -> None:
    clock = Clock()
    table = WriteAheadTable(open_table(tmp_path / "table"), Ledger(tmp_path / "ledger", clock=clock).open())

    def brings(name: str, sent_at: datetime) -> bool:
        """Whether a message is new to the table, which has it then."""
        messages = asked(name, sent_at=sent_at)
        keys = Keys.of_batch(with_keys(messages, [f"the key of {name}"]))
        assert keys is not None
        keyed = KeyedTable(table, keys)
        looked_up = keyed.look_up(messages)
        if looked_up.known.num_rows:
            return False
        keyed.commit(looked_up, Admission(f"batch of {name}", entries([name], sent_at=sent_at), None))
        return True

    assert brings("first", NOON - 14 * DAY)
    assert brings("second", NOON)
    clock.now += wrong
    assert brings("third", NOON + HOUR)
    clock.now = NOON + 2 * HOUR
    assert brings("fourth", clock.now)

    assert [name for name in ("first", "second", "third", "fourth") if brings(name, clock.now)] == []
