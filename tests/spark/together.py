"""Drivers that load batches into one table at the same time, beside all its upkeep: each message is there once.

No Spark job: rows are staged as its tasks stage them; the loop around them, the ledger and the table are real.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import cycle
from threading import Barrier, Event, Semaphore
from typing import Any, Final, Protocol

import pyarrow as pa  # type: ignore[import-untyped]

from sqs_lease.spark import Staged
from sqs_lease.spark.batch_file import REASONS
from sqs_lease.spark.loading import Loaded, Loading
from sqs_lease.spark.message_ids import NO_IDS
from sqs_lease.spark.parsing import Parsed
from sqs_lease.spark.sinks.sink import LOOKED_UP
from sqs_lease.testing.sink_subject import SENT, record

BATCHES: Final = 4
SIZE: Final = 9

BatchOf = Callable[[int, int], range]
"""The numbers of the messages in a batch, by those of its driver and of itself."""

Stage = Callable[[Any, Sequence[dict[str, Any]], str], Staged]
"""Stages rows of a batch for an open table."""


class SlowStage(Protocol):
    """Stages rows, and lets something else happen before they are all written."""

    def __call__(
        self, table: Any, rows: Sequence[dict[str, Any]], batch_id: str, *, meanwhile: Callable[[], object]
    ) -> Staged: ...


def of_tries(_driver: int, batch: int) -> range:
    """All drivers try the same batches."""
    return range(batch * SIZE, (batch + 1) * SIZE)


def overlapping(driver: int, batch: int) -> range:
    """Drivers have some messages of others in batches of their own."""
    start = batch * SIZE + driver * SIZE // 3
    return range(start, start + SIZE)


def of_queues(driver: int, batch: int) -> range:
    """Drivers have nothing of one another."""
    start = (driver * BATCHES + batch) * SIZE
    return range(start, start + SIZE)


def name_of(number: int) -> str:
    return f"m{number:03}"


@dataclass(frozen=True)
class RowParser:
    """Stages a row of each message."""

    numbers: Sequence[int]
    stage: Stage

    def parse(self, table: Any, known: pa.ChunkedArray, batch_id: str) -> Parsed:
        """See :data:`sqs_lease.spark.parsing.Parse`."""
        done = set(known.to_pylist())
        found = [number for number in self.numbers if name_of(number) not in done]
        if not found:
            return Parsed(None, NO_IDS, NO_IDS, REASONS.empty_table())
        rows = [
            record(name_of(number), number % 10, batch_id=batch_id, sent_at=SENT + timedelta(seconds=number))
            for number in found
        ]
        staged = self.stage(table, rows, batch_id)
        return Parsed(staged, pa.chunked_array([[name_of(number) for number in found]]), NO_IDS, REASONS.empty_table())


def load_together(
    opened: Callable[[], Any],
    stage: Stage,
    batch_of: BatchOf,
    upkeep: Sequence[Callable[[], object]],
    refusals: tuple[type[Exception], ...],
    drivers: int = 3,
) -> set[int]:
    """Let drivers load their batches, and others keep the table up, once for each batch.

    Args:
        opened: Gives an open table of its own to each caller.
        stage: Stages rows.
        batch_of: Gives the messages of the batches.
        upkeep: The actions of the others, in turn.
        refusals: The errors that an action may raise, because another writer was faster.
        drivers: How many.

    Returns:
        The numbers of all messages, each of which exactly one driver says that it has ingested.
    """
    opened()
    together, done, wanted = Barrier(drivers), Event(), Semaphore(0)

    def drive(driver: int) -> int:
        together.wait()
        ingested = 0
        for batch in range(BATCHES):
            # All the time, it would leave an upsert no moment for its commit.
            wanted.release()
            numbers = batch_of(driver, batch)
            batch_id = f"b{batch}" if batch_of is of_tries else f"b{driver}-{batch}"
            loaded = _load(opened(), stage, batch_id, numbers)
            assert loaded.known.num_rows + loaded.ingested == SIZE
            ingested += loaded.ingested
        return ingested

    def keep_up() -> None:
        for one in cycle(upkeep):
            wanted.acquire()
            if done.is_set():
                return
            with suppress(*refusals):
                one()

    with ThreadPoolExecutor(drivers + 1) as pool:
        keeping = pool.submit(keep_up)
        try:
            ingested = sum(pool.map(drive, range(drivers)))
        finally:
            done.set()
            wanted.release()
        keeping.result()

    everything = {number for driver in range(drivers) for batch in range(BATCHES) for number in batch_of(driver, batch)}
    assert ingested == len(everything)
    return everything


def load_during_another_try(opened: Callable[[], Any], stage: SlowStage) -> None:
    """Load a batch; another try of it is loaded while its rows are written, and tidies up."""
    numbers = of_tries(0, 0)
    others: list[Loaded] = []

    def load_other() -> None:
        others.append(_load(opened(), partial(stage, meanwhile=lambda: None), "b0", numbers))

    ours = _load(opened(), partial(stage, meanwhile=load_other), "b0", numbers)
    assert [other.ingested for other in others] == [SIZE]
    assert (ours.ingested, ours.known.num_rows) == (0, SIZE)


def _load(table: Any, stage: Stage, batch_id: str, numbers: Sequence[int]) -> Loaded:
    ids = pa.chunked_array([[name_of(number) for number in numbers]])
    sent = pa.array([SENT + timedelta(seconds=number) for number in numbers], LOOKED_UP.field("sent_at").type)
    loading = Loading(table, batch_id, pa.Table.from_arrays([ids, sent], schema=LOOKED_UP), ids)
    return loading.load(RowParser(numbers, stage).parse)


def expected(everything: set[int], upsert_by: Sequence[str]) -> list[tuple[str, int]]:
    """Message id and record id of every row that is to be there; by key, the last that was sent."""
    if not upsert_by:
        return sorted((name_of(number), number % 10) for number in everything)
    newest = {number % 10: number for number in sorted(everything)}
    return sorted((name_of(number), key) for key, number in newest.items())
