"""A batch is named after its messages; its name gives a name for its files."""

from __future__ import annotations

import re

import pytest

from sqs_lease.spark.batch import Batch, directory_name
from tests.spark.samples import good, message


def test_the_same_messages_in_another_order_are_the_same_batch() -> None:
    assert Batch.of(good([1, 2])).default_id("s") == Batch.of(good([2, 1])).default_id("s")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Batch.of(good([1])).default_id("s"), id="fewer messages"),
        pytest.param(Batch.of(good([1, 3])).default_id("s"), id="other messages"),
        pytest.param(Batch.of(good([1, 2], receive_count=2)).default_id("s"), id="a redelivery"),
        pytest.param(Batch.of(good([1, 2])).default_id("t"), id="another schema"),
    ],
)
def test_anything_else_is_another_batch(other: str) -> None:
    assert Batch.of(good([1, 2])).default_id("s") != other


def test_of_two_receptions_of_one_message_the_last_counts() -> None:
    first, second = message("m", "{}"), message("m", "{}", receive_count=2)

    for messages in ([first, second], [second, first]):
        assert Batch.of(messages).messages == (second,)
        assert Batch.of(messages).repeated == 1


@pytest.mark.parametrize(
    "batch_id", ["scheduled__2026-01-01T00:00:00+00:00", "../../etc", "a=b", "_hidden", ".", "日本", "x" * 500]
)
def test_a_batchs_directory_has_a_name_that_every_file_system_takes(batch_id: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,60}", directory_name(batch_id))


def test_batches_whose_names_look_alike_have_directories_of_their_own() -> None:
    assert directory_name("a:b") != directory_name("a b")
