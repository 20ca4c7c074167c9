"""Rejected messages go into a table of their own, each once, and are done then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sqs_lease.core.messages import Message
from sqs_lease.spark import DeltaSink, IngestResult
from tests.spark.samples import InterruptedSink, Place, good, message, rows, staged_files, stored_ids

pytestmark = pytest.mark.processes


def test_rejects_are_stored_once_with_body_and_reason_and_are_done_then(place: Place) -> None:
    batch = [*good([1]), message("driver", "[]"), message("spark", '{"name": "x"}')]
    rejects = place.root / "rejects"

    def store(messages: list[Message]) -> IngestResult:
        return place.ingest(messages, rejects=DeltaSink(rejects))

    result = store(batch)

    assert set(result.rejected) == {"driver", "spark"}
    assert (result.ingested, result.rejects_stored) == (1, True)
    assert result.partial_batch_response() == {"batchItemFailures": []}
    stored = [(row["_message_id"], row["body"], row["reason"], row["_batch_id"]) for row in rows(rejects)]
    assert stored == [
        ("driver", "[]", result.rejected["driver"], result.batch_id),
        ("spark", '{"name": "x"}', "required, but missing or null: id", result.batch_id),
    ]
    assert store(batch) == replace(result, rows=0)
    assert store([message("driver", "[]", receive_count=2)]).duplicates == 1
    assert len(rows(rejects)) == 2


def test_rejects_that_were_stored_by_a_try_that_died_then_are_not_stored_twice(place: Place) -> None:
    batch = [*good([1]), message("bad", "[]")]
    rejects = DeltaSink(place.root / "rejects")

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.ingest(batch, sink=InterruptedSink(place.table, before_commit=die), rejects=rejects)
    assert stored_ids(place.table) == []
    assert staged_files(place.table) == set()

    result = place.ingest(batch, rejects=rejects)

    assert (result.ingested, set(result.rejected)) == (1, {"bad"})
    assert stored_ids(Path(rejects.path)) == ["bad"]
    assert stored_ids(place.table) == ["m1"]


def test_a_reject_that_another_driver_stored_meanwhile_is_stored_once(place: Place) -> None:
    rejects = DeltaSink(place.root / "rejects")
    bad = [message("a", "["), message("b", "[")]
    late = InterruptedSink(
        Path(rejects.path), before_commit=lambda: place.ingest([*bad[:1], *good([2])], rejects=rejects)
    )

    result = place.ingest([*bad, *good([1])], rejects=late)

    assert late.calls == ["commit", "overtaken", "commit"]
    assert stored_ids(Path(rejects.path)) == ["a", "b"]
    assert stored_ids(place.table) == ["m1", "m2"]
    # The main table learned of it meanwhile too, so that reject is the other batch's.
    assert (result.ingested, result.duplicates, set(result.rejected)) == (1, 1, {"b"})
