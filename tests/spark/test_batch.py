"""A batch is named after its messages; its name gives a name for its files."""

from __future__ import annotations

import re
from itertools import pairwise

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from sqs_lease.spark.ingestion import default_id
from sqs_lease.spark.sinks.staging import directory_name


def named(message_ids: list[str], receive_counts: list[int], source: str = "s") -> str:
    # In several chunks, as they are read.
    ids = pa.chunked_array([message_ids[:1], message_ids[1:]], pa.string())
    return default_id(source, ids, pa.chunked_array([receive_counts], pa.int32()))


def test_the_same_messages_are_the_same_batch() -> None:
    assert named(["a", "b", "c"], [1, 2, 3]) == named(["a", "b", "c"], [1, 2, 3])


@pytest.mark.parametrize("cuts", [(0, 0, 3), (0, 1, 1, 3), (0, 2, 3, 3)], ids=str)
def test_in_which_chunks_the_messages_are_is_nothing_to_a_batch(cuts: tuple[int, ...]) -> None:
    chunks = [["a", "b", "c"][start:end] for start, end in pairwise(cuts)]
    counts = pa.chunked_array([[1, 2, 3]], pa.int32())

    assert default_id("s", pa.chunked_array(chunks, pa.string()), counts) == named(["a", "b", "c"], [1, 2, 3])


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(named(["a"], [1]), id="fewer messages"),
        pytest.param(named(["b", "a"], [1, 1]), id="another order"),
        pytest.param(named(["a", "c"], [1, 1]), id="other messages"),
        pytest.param(named(["a", "b"], [2, 2]), id="a redelivery"),
        pytest.param(named(["a", "b"], [1, 2]), id="a redelivery of one of them"),
        pytest.param(named(["a", "b"], [1, 1], "t"), id="another source"),
        pytest.param(named([], []), id="no messages"),
    ],
)
def test_anything_else_is_another_batch(other: str) -> None:
    assert named(["a", "b"], [1, 1]) != other


@pytest.mark.parametrize(
    "batch_id", ["scheduled__2026-01-01T00:00:00+00:00", "../../etc", "a=b", "_hidden", ".", "日本", "x" * 500]
)
def test_a_batchs_directory_has_a_name_that_every_file_system_takes(batch_id: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,60}", directory_name(batch_id))


def test_batches_whose_names_look_alike_have_directories_of_their_own() -> None:
    assert directory_name("a:b") != directory_name("a b")
