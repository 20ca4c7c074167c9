"""Sets of message ids are what Python's are, however many are worked on together; and long columns take no memory."""

from __future__ import annotations

import resource
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqs_lease.spark import WorkspaceError, message_ids
from sqs_lease.spark.message_ids import (
    constant,
    filtered,
    in_order,
    is_among,
    mapped,
    only,
    repeated_ids,
    slices,
    without,
)

IDS = st.lists(st.sampled_from(["", "a", "ab", "b", "é", "\U0001f600", "z9", *map(str, range(20))]), max_size=30)


@contextmanager
def in_small_parts() -> Iterator[None]:
    """Three messages are worked on together, and two stay in memory."""
    with patch.multiple(message_ids, AT_ONCE=3, _IN_MEMORY=2, _SAMPLED=1, _CONSTANT=2):
        yield


def column(values: list[str], chunk: int = 4) -> pa.ChunkedArray:
    return pa.chunked_array([values[at : at + chunk] for at in range(0, len(values), chunk)], pa.string())


def table(values: list[str], chunk: int = 4) -> pa.Table:
    return pa.table({"message_id": column(values, chunk), "number": pa.array(range(len(values)), pa.int64())})


@given(IDS, IDS)
def test_ids_among_others_are_found_in_parts(some: list[str], others: list[str]) -> None:
    with in_small_parts():
        assert is_among(column(some), column(others)).to_pylist() == [one in others for one in some]
        assert only(column(some), column(others)).to_pylist() == [one for one in some if one in others]
        assert without(column(some), column(others)).to_pylist() == [one for one in some if one not in others]
        wanted = [{"message_id": one, "number": at} for at, one in enumerate(some) if one not in others]
        assert without(table(some), column(others)).to_pylist() == wanted


@given(IDS)
def test_ids_that_stand_there_twice_are_found_across_parts(some: list[str]) -> None:
    twice = {one for one, count in Counter(some).items() if count > 1}

    with in_small_parts():
        found = repeated_ids(column(some)).to_pylist()

    assert len(found) == len(set(found))
    assert set(found) == twice


@given(IDS)
def test_messages_come_in_the_order_of_their_bytes_and_each_once(some: list[str]) -> None:
    with in_small_parts():
        rows = [row for part in in_order(table(some)) for row in part.to_pylist()]

    assert [row["message_id"].encode() for row in rows] == sorted(one.encode() for one in some)
    assert sorted(row["number"] for row in rows) == list(range(len(some)))


def test_no_part_has_many_more_than_are_worked_on_together() -> None:
    some = [str(number) for number in range(300)]

    with patch.multiple(message_ids, AT_ONCE=30, _SAMPLED=10):
        assert max(len(part) for part in in_order(table(some))) <= 45


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
@pytest.mark.parametrize("value", ["x", None])
def test_a_column_of_one_value_has_it_in_each_row(rows: int, value: str | None) -> None:
    with in_small_parts():
        assert constant(value, pa.string(), rows).to_pylist() == [value] * rows


def memory_of(make: Callable[[], Any]) -> int:
    """How many bytes what is made takes of Arrow's memory."""
    before = pa.total_allocated_bytes()
    made = make()
    taken = int(pa.total_allocated_bytes() - before)
    del made
    return taken


def test_a_long_table_takes_no_memory_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    parts = [table([f"{part}-{number}" for number in range(5_000)], chunk=5_000) for part in range(100)]
    whole = pa.concat_tables(parts)
    half = pa.chunked_array([[number % 2 == 0 for number in range(len(whole))]])
    some = {
        "a table": lambda: mapped(parts, whole.schema),
        "a column": lambda: mapped(parts, whole.schema)["message_id"],
        "a part of a table": lambda: filtered(whole, half),
        "a value": lambda: constant("ingested", pa.string(), len(whole)),
    }

    assert {name: memory_of(make) < whole.nbytes // 10 for name, make in some.items()} == dict.fromkeys(some, True)
    assert mapped(parts, whole.schema).equals(whole)
    assert filtered(whole, half).equals(whole.filter(half))
    assert list(tmp_path.iterdir()) == []


def test_few_messages_need_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))

    assert mapped([table(["a"]), table(["b"])], table([]).schema)["message_id"].to_pylist() == ["a", "b"]


def test_a_file_that_cannot_be_written_is_an_error_that_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))

    with in_small_parts(), pytest.raises(WorkspaceError, match=r"No such file .*TMPDIR"):
        mapped([table(["a", "b", "c"])], table([]).schema)


def test_a_disk_that_gets_full_is_an_error_that_says_where_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    some = table([f"{number:030}" for number in range(5_000)])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with in_small_parts(), pytest.raises(WorkspaceError, match=r"File too large.*TMPDIR"):
            mapped([some, some], some.schema)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_killed_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[list[Path]] = []

    def parts() -> Iterator[pa.Table]:
        for _ in range(3):
            yield table(["a", "b", "c"])
            seen.append(list(tmp_path.iterdir()))

    with in_small_parts():
        assert len(mapped(parts(), table([]).schema)) == 9
    assert seen == [[], [], []]


def test_each_part_is_looked_at_once_however_many_there_are() -> None:
    looked_at: list[int] = []

    class Part:
        @property
        def num_rows(self) -> int:
            looked_at.append(1)
            return 0

    def parts() -> Iterator[Part]:
        yield from repeat(Part(), 100)
        raise ValueError("the end")

    with pytest.raises(ValueError, match="the end"):
        mapped(parts(), table([]).schema)
    assert len(looked_at) == 100


def test_an_error_of_what_is_written_stays_what_it_is() -> None:
    def parts() -> Iterator[pa.Table]:
        yield table(["a", "b", "c"])
        raise OSError("the manifest cannot be read")

    with in_small_parts(), pytest.raises(OSError, match="the manifest cannot be read"):
        mapped(parts(), table([]).schema)


def test_slices_are_everything_in_order() -> None:
    with in_small_parts():
        assert [part.to_pylist() for part in slices(column(list("abcdefg")))] == [list("abc"), list("def"), ["g"]]
