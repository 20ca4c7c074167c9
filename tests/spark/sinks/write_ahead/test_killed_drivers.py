"""Drivers that die, fail or are interrupted by others at any step: the table has each message's rows exactly once.

No Spark: the rows, and the table that takes them, are in memory; the loop around them and the ledger are real.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame

from sqs_lease.spark import BatchIdReusedError, Ledger, Staged, TableError
from sqs_lease.spark.batch_file import REASONS
from sqs_lease.spark.ledger import Admitted, LedgerSnapshot, OpenLedger
from sqs_lease.spark.loading import Loaded, Loading
from sqs_lease.spark.parsing import Parsed
from sqs_lease.spark.sinks.sink import ENTRIES, INGESTED, LOOKED_UP, Admission, Table
from sqs_lease.spark.sinks.write_ahead import Application, WriteAheadTable
from tests.form import FULL_FORM

SENT: Final = datetime(2026, 3, 1, tzinfo=UTC)
EXAMPLES: Final = 500 if FULL_FORM else 60


def row_count(message: int) -> int:
    """How many rows a message gives: none, one or two."""
    return message % 3


class Killed(BaseException):
    """The process has ended: nothing of its code runs any more."""


class Event(Enum):
    """An event at a step of a driver."""

    NOTHING = auto()
    KILL = auto()
    FAIL = auto()
    OTHER_DRIVER = auto()


@dataclass
class Storage:
    """The data that outlives drivers: the table, staged rows, and which application the table took last."""

    rows: Counter[str] = field(default_factory=Counter)
    staged: dict[str, list[str]] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    version: int = 0
    locations: Iterator[int] = field(default_factory=count)


@dataclass
class World:
    """All drivers of one table, and the script of what happens to them."""

    path: Path
    script: list[tuple[Event, frozenset[int]]] = field(default_factory=list)
    storage: Storage = field(default_factory=Storage)
    done: set[int] = field(default_factory=set)
    drivers: Iterator[int] = field(default_factory=count)
    depth: int = 0

    def ingest(self, messages: frozenset[int]) -> None:
        """Run one driver, whatever becomes of it."""
        driver = Driver(self, next(self.drivers))
        try:
            loaded = driver.ingest(messages)
        except Killed:
            return
        except TableError:
            self.check()
            return
        assert loaded.known.num_rows + loaded.ingested + loaded.empty == len(messages)
        self.done |= messages
        self.check()

    def check(self) -> None:
        """No message's rows are there in part or more than once, and those of all that was reported done are."""
        for message in range(MESSAGES):
            there = self.storage.rows[str(message)]
            assert there in {0, row_count(message)}, f"{there} rows of message {message}"
            if message in self.done:
                assert there == row_count(message), f"message {message} was reported done, and is not there"

    def recover(self) -> set[int]:
        """Look at the table once more, in peace; and return which messages it knows."""
        self.script.clear()
        everything = looked_up(range(MESSAGES))
        known = Driver(self, next(self.drivers)).table().look_up(everything).known
        self.check()
        return {int(message_id) for message_id in known["message_id"].to_pylist()}


@dataclass
class Driver:
    """One process."""

    world: World
    number: int
    is_dead: bool = False

    def step(self) -> None:
        """Something may happen here."""
        if self.is_dead:
            # A process that is dead does not do what the code does to clean up after an exception.
            raise Killed
        if not self.world.script:
            return
        event, messages = self.world.script.pop(0)
        if event is Event.KILL:
            self.is_dead = True
            raise Killed
        if event is Event.FAIL:
            raise TableError("no answer")
        if event is Event.OTHER_DRIVER and self.world.depth < 3:
            self.world.depth += 1
            self.world.ingest(messages)
            self.world.depth -= 1

    def table(self) -> WriteAheadTable:
        ledger = Ledger(self.world.path).open()
        return WriteAheadTable(MemoryTable(self), SteppingLedger(ledger.place, driver=self))

    def ingest(self, messages: frozenset[int]) -> Loaded:
        batch = looked_up(sorted(messages))
        self.step()
        loading = Loading(self.table(), "-".join(map(str, sorted(messages))), batch, batch["message_id"])
        loaded = loading.load(MemoryParser(messages).parse)
        self.step()
        return loaded


@dataclass(frozen=True, kw_only=True)
class SteppingLedger(OpenLedger):
    driver: Driver

    def snapshot(self) -> LedgerSnapshot:
        self.driver.step()
        return super().snapshot()

    def admit(self, snapshot: LedgerSnapshot, batch_id: str, entries: pa.Table, location: str | None) -> Admitted:
        self.driver.step()
        admitted = super().admit(snapshot, batch_id, entries, location)
        self.driver.step()
        return admitted


@dataclass
class MemoryTable:
    """A table that takes staged rows, in memory; the "DataFrame" is a list of message ids, one for each row."""

    driver: Driver

    @property
    def storage(self) -> Storage:
        return self.driver.world.storage

    def stage(self, rows: DataFrame | Sequence[str], batch_id: str) -> Staged:
        assert isinstance(rows, list)
        self.driver.step()
        location = f"{batch_id}/{next(self.storage.locations)}"
        self.storage.staged[location] = rows
        self.driver.step()
        return Staged(location, pa.chunked_array([rows], pa.string()))

    def apply(self, location: str, application: Application) -> int | None:
        self.driver.step()
        if self.storage.taken.get(application.ledger_id, 0) < application.number:
            # One commit.
            self.storage.rows.update(self.storage.staged[location])
            self.storage.taken[application.ledger_id] = application.number
            self.storage.version += 1
        self.driver.step()
        return self.storage.version

    def version(self) -> int | None:
        return self.storage.version

    def discard(self, location: str) -> None:
        self.driver.step()
        self.storage.staged.pop(location, None)


@dataclass(frozen=True)
class MemoryParser:
    messages: frozenset[int]

    def parse(self, table: Table[Any], known: pa.ChunkedArray, batch_id: str) -> Parsed:
        unknown = [str(message) for message in sorted(self.messages) if str(message) not in known.to_pylist()]
        rows: Any = [message_id for message_id in unknown for _ in range(row_count(int(message_id)))]
        empty = pa.chunked_array([[one for one in unknown if not row_count(int(one))]], pa.string())
        if not rows:
            return Parsed(None, pa.chunked_array([], pa.string()), empty, REASONS.empty_table())
        staged = table.stage(rows, batch_id)
        return Parsed(
            staged, pa.chunked_array([staged.message_ids.unique()], pa.string()), empty, REASONS.empty_table()
        )


def looked_up(messages: Sequence[int]) -> pa.Table:
    return pa.table([[str(message) for message in messages], [SENT] * len(messages)], schema=LOOKED_UP)


MESSAGES: Final = 8
batches = st.frozensets(st.integers(0, MESSAGES - 1), min_size=1)
# Long quiet stretches, or no driver ever gets to the end.
events = st.sampled_from([Event.NOTHING] * 8 + [Event.KILL, Event.FAIL, Event.OTHER_DRIVER, Event.OTHER_DRIVER])


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=not FULL_FORM)
@given(
    runs=st.lists(batches, min_size=1, max_size=5),
    script=st.lists(st.tuples(events, batches), min_size=10, max_size=80),
)
def test_each_messages_rows_are_there_once_whatever_happens_to_the_drivers(
    runs: list[frozenset[int]], script: list[tuple[Event, frozenset[int]]]
) -> None:
    with TemporaryDirectory() as directory:
        world = World(Path(directory), list(script))
        for messages in runs:
            world.ingest(messages)
        known = world.recover()
        assert {message for message in range(MESSAGES) if world.storage.rows[str(message)]} <= known
        world.done |= known
        world.check()
        # Everything is redelivered, and nothing disturbs.
        world.ingest(frozenset(range(MESSAGES)))
        assert world.done == set(range(MESSAGES))
        assert world.storage.rows == Counter({str(message): message % 3 for message in range(MESSAGES) if message % 3})


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(World(tmp_path / "ledger"), 0)


def admission(batch_id: str, *messages: int, staged: Staged | None = None) -> Admission:
    asked = looked_up(messages)
    columns = [*asked.columns, [INGESTED] * len(messages), pa.nulls(len(messages), pa.string())]
    return Admission(batch_id, pa.Table.from_arrays(columns, schema=ENTRIES), staged)


def test_a_commit_cleans_up_the_ledger(driver: Driver) -> None:
    now = [SENT]
    ledger = Ledger(driver.world.path, clock=lambda: now[0]).open()
    table = WriteAheadTable(MemoryTable(driver), ledger)

    def commit(batch_id: str, message: int) -> None:
        entries = admission(batch_id, message).entries
        # Where the service does not say when a message was sent, the driver's clock tells how old it is.
        unsaid = entries.set_column(1, entries.schema.field(1), pa.nulls(1, entries.schema.field(1).type))
        table.commit(table.look_up(looked_up([message])), Admission(batch_id, unsaid, None))

    commit("old", 1)
    now[0] += timedelta(days=40)

    commit("new", 2)

    assert table.look_up(looked_up([1, 2])).known["batch_id"].to_pylist() == ["new"]


def test_a_batch_id_stands_for_the_same_messages_again_and_more_of_them_but_not_for_others(driver: Driver) -> None:
    table = driver.table()
    table.commit(table.look_up(looked_up([1, 2])), admission("mine", 1))

    # Message 2 was rejected, and is a record now that what it refers to is there.
    table.commit(table.look_up(looked_up([1, 2])), admission("mine", 2))

    with pytest.raises(BatchIdReusedError, match="batch id mine stands for other messages already: 2 of them are in"):
        table.commit(table.look_up(looked_up([2, 3])), admission("mine", 3))
    assert table.look_up(looked_up([3])).known.num_rows == 0


def test_an_admission_that_was_not_applied_is_finished_by_the_next_driver_that_looks(driver: Driver) -> None:
    table = driver.table()
    staged = table.stage(["1"], "first")  # type: ignore[arg-type]
    seen = table.look_up(looked_up([1]))
    table.ledger.admit(seen.snapshot, "first", admission("first", 1).entries, staged.location)
    assert driver.world.storage.rows == Counter()
    # Not even the process that staged the rows may remove them now.
    table.discard(staged)

    other = Driver(driver.world, 1).table()

    assert other.look_up(looked_up([1, 2])).known["message_id"].to_pylist() == ["1"]
    assert driver.world.storage.rows == Counter({"1": 1})


def test_rows_are_left_where_it_cannot_be_known_whether_they_were_admitted(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    table = driver.table()
    staged = table.stage(["1"], "first")  # type: ignore[arg-type]
    driver.world.path.rename(driver.world.path.with_name("elsewhere"))

    table.discard(staged)

    assert f"staged rows may be left over: {staged.location}" in caplog.text
    assert staged.location in driver.world.storage.staged
