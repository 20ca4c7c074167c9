"""Listings of staged files are read as they were written, or the error names what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqs_lease.spark.errors import TableError
from sqs_lease.spark.places import Place
from sqs_lease.spark.sinks.delta.files import Listing
from sqs_lease.spark.sinks.staging import StagedFile


def test_a_listing_is_read_as_it_was_written(tmp_path: Path) -> None:
    storage = Place.of(tmp_path)
    file = StagedFile("batches/b/t/part-1.parquet", 7, 1, {"c": None, "d": "é/ %"}, 9, {"numRecords": 1})
    listing = Listing(["id"], [file], {"type": "struct", "fields": []}, ["c", "d"])

    location = listing.write(storage, "batches/b/t")

    assert location == "batches/b/t/staged.json"
    assert Listing.read(storage, location) == listing


def test_a_listing_that_has_gone_is_missed_by_name(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=rf"table {tmp_path}: batches/b/t/staged.json has gone, so an admitted batch"):
        Listing.read(Place.of(tmp_path), "batches/b/t/staged.json")


@pytest.mark.parametrize(
    "content",
    ["{", "{}", "[1]", "\xff", '{"upsert_by": [], "files": [{"path": "x"}]}', '{"upsert_by": "id", "files": []}'],
)
def test_a_listing_that_is_damaged_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "staged.json").write_text(content)

    with pytest.raises(TableError, match=r"staged.json cannot be read"):
        Listing.read(Place.of(tmp_path), "staged.json")
