"""The ledger knows each message once, opens few files, refuses a driver that comes late, and forgets after a while."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest.mock import patch

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from sqs_lease.spark import CommitConflict, Ledger, TableError
from sqs_lease.spark.ledger import SMALL_FILES, Abandoned, Admitted, LedgerSnapshot, OpenLedger
from sqs_lease.spark.sinks.sink import EMPTY, ENTRIES, INGESTED, KNOWN, LOOKED_UP, REJECTED

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@dataclass
class Clock:
    now: datetime = NOON

    def __call__(self) -> datetime:
        return self.now


@dataclass(frozen=True)
class Book:
    """A ledger, its clock, and shorter words for what the tests do with it."""

    path: Path
    clock: Clock = field(default_factory=Clock)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.path, clock=self.clock)

    def open(self) -> OpenLedger:
        return self.ledger.open()

    def admit(
        self, batch_id: str, messages: dict[str, datetime | None], *, location: str | None = "somewhere"
    ) -> Admitted:
        ledger = self.open()
        return ledger.admit(ledger.snapshot(), batch_id, entries(messages), location)

    def find(self, messages: dict[str, datetime | None]) -> dict[str, str]:
        known = self.open().snapshot().find(asked(messages))
        assert known.schema == KNOWN
        return dict(zip(known["message_id"].to_pylist(), known["batch_id"].to_pylist(), strict=True))

    def clean_up(self) -> None:
        ledger = self.open()
        ledger.clean_up(ledger.snapshot())

    def files(self) -> list[Path]:
        """The files that the ledger has, in the order of their numbers."""
        uris = DeltaTable(self.path).file_uris()
        return sorted((Path(uri) for uri in uris), key=lambda file: file.name)


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "ledger")


def asked(messages: dict[str, datetime | None]) -> pa.Table:
    return pa.table({"message_id": list(messages), "sent_at": list(messages.values())}, schema=LOOKED_UP)


def entries(messages: dict[str, datetime | None], outcome: str = INGESTED) -> pa.Table:
    count = len(messages)
    columns = [list(messages), list(messages.values()), [outcome] * count, [None] * count]
    return pa.table(columns, schema=ENTRIES)


def test_a_new_ledger_knows_nothing(book: Book) -> None:
    assert book.find({"a": NOON}) == {}
    assert book.open().snapshot().newest() is None


def test_a_message_is_known_by_the_batch_that_brought_it(book: Book) -> None:
    book.admit("first", {"a": NOON, "b": NOON})
    book.admit('it\'s; the "second" ünïcödé', {"c'\"\n": NOON})

    assert book.find({"b": NOON, "c'\"\n": NOON, "d": NOON}) == {"b": "first", "c'\"\n": 'it\'s; the "second" ünïcödé'}


def test_the_outcome_and_the_reason_come_back(book: Book) -> None:
    ledger = book.open()
    ids = ["a", "b", "c"]
    table = pa.table([ids, [NOON] * 3, [INGESTED, EMPTY, REJECTED], [None, None, "too long"]], schema=ENTRIES)
    ledger.admit(ledger.snapshot(), "batch", table, None)

    known = ledger.snapshot().find(asked(dict.fromkeys(ids, NOON))).sort_by("message_id").to_pylist()

    assert [(row["outcome"], row["reason"]) for row in known] == [
        (INGESTED, None),
        (EMPTY, None),
        (REJECTED, "too long"),
    ]


def test_the_newest_admission_says_where_its_rows_are(book: Book) -> None:
    book.admit("first", {"a": NOON}, location="batches/first/1")
    assert book.open().snapshot().newest() == Admitted(1, "first", "batches/first/1")

    book.admit("second", {"b": NOON - 30 * DAY}, location=None)
    assert book.open().snapshot().newest() == Admitted(2, "second", None)


def test_an_admission_from_an_outdated_snapshot_is_refused_and_leaves_nothing(book: Book) -> None:
    ledger = book.open()
    snapshot = ledger.snapshot()
    book.admit("first", {"a": NOON})

    with pytest.raises(CommitConflict):
        ledger.admit(snapshot, "second", entries({"a": NOON}), "somewhere")

    assert book.find({"a": NOON}) == {"a": "first"}
    assert sorted(book.path.rglob("*.parquet")) == book.files()


def test_a_refusal_of_a_commit_that_did_go_through_does_not_count(book: Book) -> None:
    """A store that answers a repeated request with a conflict, because the first one was carried out."""
    ledger = book.open()
    snapshot = ledger.snapshot()
    write = DeltaTable.create_write_transaction

    def twice(*args: Any, **options: Any) -> None:
        write(*args, **options)
        raise CommitFailedError("already exists")

    with patch.object(DeltaTable, "create_write_transaction", twice):
        assert ledger.admit(snapshot, "first", entries({"a": NOON}), None).number == 1
    assert book.find({"a": NOON}) == {"a": "first"}


def test_a_failure_with_an_unknown_outcome_keeps_the_file(book: Book) -> None:
    ledger = book.open()
    write = DeltaTable.create_write_transaction

    def unheard(*args: Any, **options: Any) -> None:
        write(*args, **options)
        raise DeltaError("connection reset")

    with (
        patch.object(DeltaTable, "create_write_transaction", unheard),
        pytest.raises(TableError, match=f"ledger {book.path} cannot be written .connection reset."),
    ):
        ledger.admit(ledger.snapshot(), "first", entries({"a": NOON}), None)
    assert book.find({"a": NOON}) == {"a": "first"}


@contextmanager
def unreadable(files: Sequence[Path]) -> Iterator[None]:
    hidden = [file.rename(file.with_suffix(".hidden")) for file in files]
    yield
    for file in hidden:
        file.rename(file.with_suffix(".parquet"))


def test_a_look_up_opens_only_files_of_the_minutes_in_which_its_messages_were_sent(book: Book) -> None:
    for number in range(4):
        book.admit(f"batch {number}", {f"m{number}": NOON + number * HOUR, f"n{number}": NOON + number * HOUR})
    files = book.files()

    with unreadable([files[0], files[2]]):
        # Two ranges with a gap: the file in between is not opened either.
        assert book.find({"m1": NOON + HOUR, "m3": NOON + 3 * HOUR}) == {"m1": "batch 1", "m3": "batch 3"}
        with pytest.raises(TableError, match="cannot be read"):
            book.find({"m2": NOON + 2 * HOUR})
        # No time is any time.
        with pytest.raises(TableError, match="cannot be read"):
            book.find({"m1": None})
    assert book.find({"m0": None, "m2": None}) == {"m0": "batch 0", "m2": "batch 2"}


def test_a_message_that_came_without_a_time_is_found_by_any_time(book: Book) -> None:
    book.admit("without", {"a": None})
    book.admit("mixed", {"b": None, "c": NOON})
    book.admit("with", {"d": NOON})

    assert book.find({"a": NOON + 9 * DAY, "b": NOON + 9 * DAY}) == {"a": "without", "b": "mixed"}


def test_a_batch_id_tells_how_many_messages_it_brought(book: Book) -> None:
    book.admit("b", {"1": NOON, "2": NOON})
    book.admit("a", {"3": NOON})
    book.admit("c", {"4": NOON})
    book.admit("b", {"5": NOON})

    snapshot = book.open().snapshot()
    assert [snapshot.count_of(batch_id) for batch_id in ("a", "b", "c", "aa")] == [1, 3, 1, 0]


def test_a_location_is_named_by_the_admission_that_has_it(book: Book) -> None:
    book.admit("a", {"1": NOON}, location="batches/a/2")
    book.admit("b", {"2": NOON}, location=None)

    snapshot = book.open().snapshot()
    assert snapshot.may_name("batches/a/2")
    assert not snapshot.may_name("batches/a/1")


def test_a_compacted_ledger_still_knows_everything(book: Book) -> None:
    for number in range(5):
        book.admit(f"batch {number}", {f"m{number}": NOON + number * HOUR}, location=f"at {number}")
    table = DeltaTable(book.path)
    table.optimize.compact()
    assert len(book.files()) == 1

    snapshot = book.open().snapshot()
    assert snapshot.newest() == Admitted(5, "batch 4", "at 4")
    assert snapshot.count_of("batch 3") == 1
    assert snapshot.may_name("at 1")
    assert book.find({"m2": NOON + 2 * HOUR}) == {"m2": "batch 2"}
    assert book.admit("batch 5", {"m5": NOON}).number == 6


def test_batches_are_forgotten_when_no_queue_can_have_their_messages_any_more(book: Book) -> None:
    book.admit("old", {"old": NOON})
    book.clock.now += DAY
    book.admit("a day younger", {"younger": NOON + DAY})
    book.clock.now = NOON + 29 * DAY
    book.admit("new", {"new": book.clock.now})

    book.clean_up()
    # It is the thirtieth day only when all of the first one is 29 days ago.
    assert book.find({"old": None, "younger": None, "new": None}).keys() == {"old", "younger", "new"}

    book.clock.now += 12 * HOUR
    book.admit("newer", {"newer": book.clock.now})
    book.clean_up()
    assert book.find({"old": None, "younger": None, "new": None}).keys() == {"younger", "new"}
    version = DeltaTable(book.path).version()
    book.clean_up()
    assert DeltaTable(book.path).version() == version


def test_the_newest_batch_is_never_forgotten(book: Book) -> None:
    book.admit("old", {"old": None})
    book.clock.now += DAY
    book.admit("newest", {"newest": None}, location="half done")
    book.clock.now += 100 * DAY

    book.clean_up()

    snapshot = book.open().snapshot()
    assert snapshot.newest() == Admitted(2, "newest", "half done")
    assert book.find({"old": None, "newest": None}).keys() == {"newest"}
    assert book.admit("next", {"next": book.clock.now}).number == 3


@pytest.mark.parametrize("wrong", [16 * DAY, 400 * DAY, -16 * DAY, -400 * DAY], ids=str)
def test_a_driver_with_a_wrong_clock_makes_no_ledger_forget(book: Book, wrong: timedelta) -> None:
    book.admit("first", {"first": NOON - 14 * DAY})
    book.admit("second", {"second": NOON})

    book.clock.now += wrong
    book.admit("third", {"third": NOON + HOUR})
    book.clean_up()
    book.clock.now = NOON + 2 * HOUR
    book.admit("fourth", {"fourth": book.clock.now})
    book.clean_up()

    everything = dict.fromkeys(["first", "second", "third", "fourth"])
    assert book.find(everything).keys() == everything.keys()


def test_many_small_files_of_a_day_are_put_together(book: Book) -> None:
    for number in range(SMALL_FILES + 1):
        book.admit(f"batch {number}", {f"m{number}": NOON + timedelta(seconds=number)}, location=f"at {number}")
        book.clean_up()

    assert len(book.files()) < 5
    snapshot = book.open().snapshot()
    assert snapshot.newest() == Admitted(SMALL_FILES + 1, f"batch {SMALL_FILES}", f"at {SMALL_FILES}")
    assert snapshot.count_of("batch 3") == 1
    assert book.find({"m7": NOON + timedelta(seconds=7)}) == {"m7": "batch 7"}


def test_a_driver_that_looked_before_the_clean_up_is_refused_and_looks_again(book: Book) -> None:
    book.admit("old", {"old": NOON})
    book.clock.now += 40 * DAY
    book.admit("new", {"new": book.clock.now})
    ledger = book.open()
    snapshot = ledger.snapshot()
    book.clean_up()

    with pytest.raises(CommitConflict):
        ledger.admit(snapshot, "next", entries({"next": NOON}), None)
    assert ledger.admit(ledger.snapshot(), "next", entries({"next": NOON}), None).number == 3


def test_a_clean_up_that_comes_late_leaves_it_to_the_others(book: Book, caplog: pytest.LogCaptureFixture) -> None:
    book.admit("old", {"old": NOON})
    book.clock.now += 40 * DAY
    book.admit("new", {"new": book.clock.now})
    delete = DeltaTable.delete

    def overtaken(table: DeltaTable, *args: Any, **options: Any) -> dict[str, Any]:
        book.admit("between", {"between": book.clock.now})
        return delete(table, *args, **options)

    with patch.object(DeltaTable, "delete", overtaken):
        book.clean_up()

    assert book.find({"old": None, "new": None, "between": None}).keys() == {"old", "new", "between"}
    assert not caplog.records
    book.clean_up()
    assert "old" not in book.find({"old": None})


def test_trouble_with_the_clean_up_does_no_harm(book: Book, caplog: pytest.LogCaptureFixture) -> None:
    book.admit("old", {"old": NOON})
    book.clock.now += 40 * DAY
    book.admit("new", {"new": book.clock.now})

    with patch.object(DeltaTable, "delete", side_effect=DeltaError("no permission")):
        book.clean_up()

    assert f"ledger {book.path} was not cleaned up; the next batch tries again: no permission" in caplog.text


def test_the_clean_up_of_a_ledger_that_was_made_again_meanwhile_does_no_harm(book: Book) -> None:
    book.admit("old", {"old": NOON})
    book.clock.now += 40 * DAY
    book.admit("new", {"new": book.clock.now})
    seen = book.open().snapshot()
    book.path.rename(book.path.with_name("elsewhere"))

    book.open().clean_up(seen)

    assert book.open().snapshot().newest() is None


def test_files_that_a_killed_process_left_go_with_the_clean_up(book: Book) -> None:
    book.admit("old", {"old": NOON})
    book.clock.now += 40 * DAY
    book.admit("new", {"new": book.clock.now})
    (orphan, young) = (book.files()[0].with_name(name) for name in ("orphan.parquet", "young.parquet"))
    for file in (orphan, young):
        file.write_bytes(b"")
    eight_days_ago = time.time() - 8 * 24 * 3600
    os.utime(orphan, (eight_days_ago, eight_days_ago))

    book.clean_up()

    assert not orphan.exists()
    assert young.exists()


def test_drivers_that_create_a_ledger_at_the_same_moment_have_the_same_one(tmp_path: Path) -> None:
    together = Barrier(4)

    def identity(path: Path) -> str:
        together.wait()
        return Ledger(path).open().snapshot().ledger_id

    with ThreadPoolExecutor(4) as threads:
        for attempt in range(10):
            assert len(set(threads.map(identity, [tmp_path / str(attempt)] * 4))) == 1


def test_of_drivers_that_admit_at_the_same_moment_one_goes_first(book: Book) -> None:
    book.open()
    together = Barrier(4)

    def admit(number: int) -> int:
        ledger = book.open()
        tries = 0
        together.wait()
        while True:
            tries += 1
            snapshot = ledger.snapshot()
            if snapshot.find(asked({"all": NOON})).num_rows:
                return tries
            with_one_of_its_own = entries({"all": NOON, f"m{number}": NOON})
            try:
                ledger.admit(snapshot, f"batch {number}", with_one_of_its_own, None)
            except CommitConflict:
                continue
            return tries

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(admit, range(4)))
    assert len(book.find({"all": NOON})) == 1
    assert sum(f"m{number}" in book.find({f"m{number}": NOON}) for number in range(4)) == 1


def test_a_ledger_that_knows_messages_is_of_one_table(book: Book) -> None:
    book.ledger.open("orders")
    book.admit("first", {"a": NOON})

    with pytest.raises(TableError, match=r"is of another table \(orders\).*\.unbind\(\)"):
        book.ledger.open("customers")

    assert book.ledger.open("orders").snapshot().bound_to() == "orders"
    assert book.find({"a": NOON}) == {"a": "first"}


def test_a_sink_without_a_name_for_its_table_unbinds_no_ledger(book: Book) -> None:
    book.ledger.open("orders")
    book.admit("first", {"a": NOON})

    for unknown in (None, ""):
        assert book.ledger.open(unknown).snapshot().bound_to() == "orders"


def test_a_ledger_that_knows_nothing_is_of_the_table_that_came_last(book: Book) -> None:
    for table in ("orders", "customers"):
        book.ledger.open(table)
    book.admit("first", {"a": NOON})
    with pytest.raises(TableError, match="another table"):
        book.ledger.open("orders")


def test_a_ledger_that_was_of_no_table_is_of_the_next_one(book: Book) -> None:
    book.admit("first", {"a": NOON})
    book.ledger.open("orders")
    with pytest.raises(TableError, match="another table"):
        book.ledger.open("customers")

    book.ledger.unbind()
    book.ledger.open("customers")

    assert book.find({"a": NOON}) == {"a": "first"}
    with pytest.raises(TableError, match="another table"):
        book.ledger.open("orders")


def test_unbinding_makes_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="there is no ledger"):
        Ledger(tmp_path / "ledger").unbind()
    assert not (tmp_path / "ledger").exists()


def test_of_tables_that_are_opened_with_one_ledger_at_the_same_moment_one_has_it(tmp_path: Path) -> None:
    together = Barrier(4)

    def admitted(path: Path, table: str) -> bool:
        together.wait()
        try:
            ledger = Ledger(path).open(table)
            while True:
                with suppress(CommitConflict):
                    ledger.admit(ledger.snapshot(), table, entries({table: NOON}), None)
                    return True
        except TableError:
            return False

    with ThreadPoolExecutor(4) as threads:
        for attempt in range(10):
            path = tmp_path / str(attempt)
            found = dict(zip("abcd", threads.map(admitted, [path] * 4, "abcd"), strict=True))
            bound_to = Ledger(path).open().snapshot().bound_to()
            assert found == {table: table == bound_to for table in "abcd"}


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(TableError, match=f"ledger {tmp_path}/file/ledger cannot be created"):
        Ledger(tmp_path / "file" / "ledger").open()
    with pytest.raises(TableError, match="has a % in it"):
        Ledger(tmp_path / "100%").open()


def test_a_ledger_of_which_drivers_could_overwrite_the_commits_is_refused() -> None:
    with pytest.raises(TableError, match="conditional_put is set"):
        Ledger("s3://bucket/ledger", {"conditional_put": "disabled"}).open()


def test_a_ledger_that_was_removed_meanwhile_is_named(book: Book) -> None:
    ledger = book.open()
    book.path.rename(book.path.with_name("elsewhere"))

    with pytest.raises(TableError, match=f"ledger {book.path} is gone"):
        ledger.snapshot()


# ---- a batch that is given up


def test_a_batch_that_is_given_up_is_not_known_and_its_number_is_not_used_again(book: Book) -> None:
    book.admit("first", {"a": NOON})
    book.admit("second", {"b": NOON, "c": None}, location="batches/second/1")

    given_up = book.ledger.abandon("second")

    assert (given_up.batch_id, sorted(given_up.message_ids)) == ("second", ["b", "c"])
    assert given_up.location == "batches/second/1"
    snapshot = book.open().snapshot()
    assert snapshot.newest() == Admitted(2, "second", None)
    assert not snapshot.may_name("batches/second/1")
    assert snapshot.count_of("second") == 0
    assert book.find({"a": NOON, "b": NOON, "c": NOON}) == {"a": "first"}
    assert book.admit("second", {"b": NOON}).number == 3
    assert book.find({"a": NOON, "b": NOON, "c": NOON}) == {"a": "first", "b": "second"}


@pytest.mark.parametrize("batch_id", ["first", "third", "nothing to add"])
def test_only_the_newest_batch_and_only_one_with_rows_is_given_up(book: Book, batch_id: str) -> None:
    book.admit("first", {"a": NOON})
    book.admit("nothing to add", {"b": NOON}, location=None)

    with pytest.raises(TableError, match=f"batch {batch_id} is not the newest .*, or has no rows that wait"):
        book.ledger.abandon(batch_id)
    assert book.find({"a": NOON, "b": NOON}) == {"a": "first", "b": "nothing to add"}


def test_another_batch_than_the_newest_is_not_given_up_where_the_newest_has_rows(book: Book) -> None:
    book.admit("first", {"a": NOON})
    book.admit("second", {"b": NOON})

    with pytest.raises(TableError, match="batch first is not the newest"):
        book.ledger.abandon("first")
    assert book.find({"a": NOON, "b": NOON}) == {"a": "first", "b": "second"}


def test_a_batch_that_is_given_up_in_a_compacted_ledger_leaves_the_others_known(book: Book) -> None:
    for number in range(3):
        book.admit(f"batch {number}", {f"m{number}": NOON}, location=f"at {number}")
    DeltaTable(book.path).optimize.compact()

    book.ledger.abandon("batch 2")

    assert book.find({f"m{number}": NOON for number in range(4)}) == {"m0": "batch 0", "m1": "batch 1"}
    assert book.open().snapshot().count_of("batch 1") == 1
    assert book.admit("batch 3", {"m3": NOON}).number == 4


def test_giving_up_a_batch_makes_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="there is no ledger"):
        Ledger(tmp_path / "ledger").abandon("first")
    assert not (tmp_path / "ledger").exists()


def test_a_batch_that_is_given_up_while_another_is_admitted_stays(book: Book) -> None:
    book.admit("first", {"a": NOON})
    staged = LedgerSnapshot.staged

    def meanwhile(snapshot: LedgerSnapshot) -> Abandoned | None:
        book.admit("second", {"b": NOON})
        return staged(snapshot)

    with patch.object(LedgerSnapshot, "staged", meanwhile), pytest.raises(TableError, match="was not given up"):
        book.ledger.abandon("first")
    assert book.find({"a": NOON, "b": NOON}) == {"a": "first", "b": "second"}
