"""How rows are copied to a server: the next ones are made meanwhile, and an error has its cause."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from sqs_lease.spark.sinks.postgres.copy import copy_in


def test_the_next_rows_are_made_while_the_server_takes_these() -> None:
    made = [threading.Event() for _ in range(20)]

    def batches() -> Iterator[pa.RecordBatch]:
        for number, event in enumerate(made):
            event.set()
            yield pa.RecordBatch.from_pydict({"0": pa.array([number])})

    class SlowServer:
        """Takes rows only when those after them were made."""

        written = 0

        def write(self, data: bytes | memoryview) -> None:
            if isinstance(data, memoryview):
                assert made[min(self.written + 8, len(made) - 1)].wait(60), "the rows after these were not made"
                self.written += 1

    server = SlowServer()
    cursor: Any = SimpleNamespace(copy=lambda _: nullcontext(server))

    assert copy_in(cursor, "COPY copied FROM STDIN (FORMAT binary)", batches(), ["bigint"]) == len(made)
    assert server.written == len(made)


@pytest.mark.parametrize(("closed", "error"), [(True, psycopg.OperationalError), (False, ValueError)])
def test_a_pooler_that_lost_its_server_while_rows_are_copied_is_an_error_of_the_connection(
    closed: bool, error: type[Exception]
) -> None:
    @contextmanager
    def copy(_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(write=len)
        # As psycopg has it where PgBouncer answers twice.
        raise ValueError("too many values to unpack (expected 1)")

    cursor: Any = SimpleNamespace(copy=copy, connection=SimpleNamespace(closed=closed))

    with pytest.raises(error):
        copy_in(cursor, "COPY copied FROM STDIN (FORMAT binary)", [], ["bigint"])
