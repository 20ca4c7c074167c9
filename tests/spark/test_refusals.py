"""No message stops a batch: those of which the table refuses the rows are found, and all others are in the table."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, PySparkException, PythonException, SparkRuntimeException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import StructType

from sqs_lease.spark import DeltaSink, JsonSource, LeaseLostError, RowsRefusedError, TableError
from sqs_lease.spark.refusals import Search, may_be_for_rows
from sqs_lease.spark.spark_errors import first_line
from tests.spark.samples import SCHEMA, Place, good, message, stored_ids

REFUSED = RowsRefusedError("table orders refuses a row", rule="constraint positive")
UNKNOWN = SparkRuntimeException(message="[ARITHMETIC_OVERFLOW] 5 and 7", errorClass=None)


@dataclass
class Store:
    """A table that takes any rows but those of some messages."""

    bad: Collection[int]
    error: Exception = REFUSED
    names_them: bool = False
    taken: list[str] = field(default_factory=list)
    tries: int = 0

    def load(self, part: pa.ChunkedArray) -> bool:
        self.tries += 1
        found = [message_id for message_id in part.to_pylist() if int(message_id) in self.bad]
        if found and self.names_them:
            raise RowsRefusedError("refused", rule="constraint positive", message_ids=found)
        if found:
            raise self.error
        self.taken += part.to_pylist()
        return True

    def search(self, count: int, before: Callable[[], object] = lambda: None) -> set[int]:
        message_ids = pa.chunked_array([[str(number) for number in range(count)]], pa.string())
        try:
            self.load(message_ids)
        except (PySparkException, TableError, OSError) as error:
            return {int(one) for one in Search(self.load, before).run(message_ids, error)["message_id"].to_pylist()}
        return set()


@given(st.integers(1, 40), st.sets(st.integers(0, 39)), st.booleans())
def test_the_refused_messages_are_found_and_all_others_are_taken_once(
    count: int, bad: set[int], names_them: bool
) -> None:
    store = Store(bad, names_them=names_them)
    here = bad & set(range(count))
    assert store.search(count) == here
    assert sorted(map(int, store.taken)) == sorted(set(range(count)) - here)


def test_one_message_among_many_is_found_in_few_tries() -> None:
    store = Store({7_777})
    assert store.search(10_000) == {7_777}
    assert store.tries < 40


def test_messages_that_the_table_names_are_not_searched_for() -> None:
    store = Store({3, 4}, names_them=True)
    assert store.search(1_000) == {3, 4}
    assert store.tries == 2


@pytest.mark.parametrize("bad", [{0}, {999}, {500, 501}, {1, 400, 998}], ids=str)
def test_an_error_that_may_have_another_cause_rejects_messages_beside_others_that_are_taken(bad: set[int]) -> None:
    assert Store(bad, error=UNKNOWN).search(1_000) == bad


def test_an_error_that_is_not_for_the_messages_is_raised_after_a_few_tries() -> None:
    store = Store(range(100_000), error=UNKNOWN)
    with pytest.raises(SparkRuntimeException):
        store.search(100_000)
    assert (store.taken, store.tries < 25) == ([], True)


def test_a_failure_that_does_not_come_again_rejects_nothing() -> None:
    failures = [UNKNOWN] * 6
    taken: list[str] = []

    def load(part: pa.ChunkedArray) -> bool:
        if failures and "0" in part.to_pylist():
            raise failures.pop()
        taken.extend(part.to_pylist())
        return True

    message_ids = pa.chunked_array([[str(number) for number in range(100)]], pa.string())
    assert Search(load, lambda: None).run(message_ids, UNKNOWN).num_rows == 0
    assert len(taken) == 100


FULL = PythonException(
    message="[PYTHON_EXCEPTION] Traceback (most recent call last):\n  File ...\n"
    "OSError: [Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device\n"
)


@dataclass
class Disk:
    """A table on a disk that has room for so many messages."""

    room: int
    taken: list[str] = field(default_factory=list)
    tries: int = 0

    def load(self, part: pa.ChunkedArray) -> bool:
        self.tries += 1
        if len(self.taken) + len(part) > self.room:
            raise FULL
        self.taken += part.to_pylist()
        return True


def test_a_disk_that_fills_up_rejects_no_message() -> None:
    disk = Disk(room=600)
    message_ids = pa.chunked_array([[str(number) for number in range(1_000)]], pa.string())

    with pytest.raises(PythonException, match="No space left on device"):
        Search(disk.load, lambda: None).run(message_ids, FULL)

    assert (len(disk.taken), disk.tries < 40) == (600, True)


def test_a_message_without_room_for_it_keeps_no_other_from_the_table() -> None:
    store = Store({7}, error=FULL)

    with pytest.raises(PythonException):
        store.search(100)

    assert len(store.taken) == 99


IN_A_TASK = PythonException(
    message="[PYTHON_EXCEPTION] Traceback (most recent call last):\n  File ...\n"
    "sqs_lease.spark.sources.s3_events.object_store.ObjectStoreError: S3 did not give s3://a/b (SlowDown)\n"
)


@pytest.mark.parametrize(
    "error", [TableError("no answer"), AnalysisException("no such column"), OSError(), IN_A_TASK], ids=type
)
def test_errors_that_are_true_of_every_row_end_the_search(error: Exception) -> None:
    assert not may_be_for_rows(error)
    store = Store({3}, error=error)
    with pytest.raises(type(error)):
        store.search(10)
    assert store.tries == 2


def test_the_search_ends_when_the_messages_are_held_no_longer() -> None:
    def lost() -> None:
        raise LeaseLostError("gone")

    store = Store({3})
    with pytest.raises(LeaseLostError):
        store.search(10, lost)
    assert store.tries == 1


def test_an_error_of_spark_is_told_by_the_line_that_says_what_it_is_and_not_by_its_rows() -> None:
    of_java = RuntimeError(
        "An error occurred while calling o50.sql.\n: org.apache.DeltaInvariantViolationException: CHECK constraint "
        "positive (id > 0) violated by row with values:\n - id : -5\n\tat org.apache..."
    )
    assert first_line(of_java) == (
        "org.apache.DeltaInvariantViolationException: CHECK constraint positive (id > 0) violated by row with values:"
    )
    assert first_line(RuntimeError("[NO_SUCH_TABLE] orders\nplan")) == "[NO_SUCH_TABLE] orders"


class BreaksOn(JsonSource):
    """A source of which the rows of some messages cannot be computed, which is found out while they are written."""

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        rows = super().parse(messages, columns)
        broken = F.when(F.col("id") > 100, F.raise_error(F.lit("a secret"))).otherwise(F.col("name"))
        return rows.withColumn("name", broken)


@pytest.mark.processes
@pytest.mark.parametrize("with_rejects", [False, True], ids=["reported", "stored"])
def test_a_message_with_rows_that_cannot_be_written_is_rejected_and_the_rest_of_the_batch_stored(
    place: Place, tmp_path: Path, with_rejects: bool
) -> None:
    bad = [message("bad", '{"id": 101}'), message("worse", "not JSON")]
    options: dict[str, Any] = {"rejects": DeltaSink(tmp_path / "rejects")} if with_rejects else {}
    batch = [*good([1, 2, 3]), *bad, *good([4])]

    result = place.ingest(batch, source=BreaksOn(SCHEMA), **options)

    assert (result.ingested, result.rows) == (4, 4)
    assert result.rejected.keys() == {"bad", "worse"}
    assert result.rejected["bad"] == "its rows cannot be written (USER_RAISED_EXCEPTION)"
    assert stored_ids(place.table) == ["m1", "m2", "m3", "m4"]
    if with_rejects:
        again = place.ingest(batch, source=BreaksOn(SCHEMA), **options)
        assert (again.ingested, again.rows, again.rejected) == (4, 0, result.rejected)
        assert stored_ids(tmp_path / "rejects") == ["bad", "worse"]
