"""The name of a batch gives a name for the directory of its files."""

from __future__ import annotations

import re

import pytest

from sqs_lease.spark.sinks.staging import directory_name


@pytest.mark.parametrize(
    "batch_id", ["scheduled__2026-01-01T00:00:00+00:00", "../../etc", "a=b", "_hidden", ".", "日本", "x" * 500]
)
def test_a_batchs_directory_has_a_name_that_every_file_system_takes(batch_id: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,60}", directory_name(batch_id))


def test_batches_with_names_that_look_alike_have_directories_of_their_own() -> None:
    assert directory_name("a:b") != directory_name("a b")
