"""Each message of a batch has exactly one outcome, by its id, or nothing is committed."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from sqs_lease.spark import ReconciliationError
from sqs_lease.spark.batch_file import REASONS
from sqs_lease.spark.loading import BatchOutcome, reject_entries
from sqs_lease.spark.message_ids import is_among
from sqs_lease.spark.sinks.sink import EMPTY, ENTRIES, INGESTED, LOOKED_UP, REJECTED

SENT = datetime(2026, 3, 1, tzinfo=UTC)


def ids(text: str) -> pa.ChunkedArray:
    """Message ids of one letter, in chunks as they come from files."""
    return pa.chunked_array([list(text[:1]), list(text[1:])], pa.string())


def batch_outcome(*, known: str = "", ingested: str = "", empty: str = "", rejected: str = "") -> BatchOutcome:
    return BatchOutcome(ids(known), ids(ingested), ids(empty), ids(rejected))


@pytest.mark.parametrize(
    "good",
    [
        pytest.param(batch_outcome(ingested="abcd"), id="all ingested"),
        pytest.param(batch_outcome(ingested="dbca"), id="in another order"),
        pytest.param(batch_outcome(known="a", ingested="b", empty="c", rejected="d"), id="one of each"),
        pytest.param(batch_outcome(known="abcd"), id="all known"),
    ],
)
def test_each_message_once_is_right(good: BatchOutcome) -> None:
    good.require_each_once(ids("abcd"), "batch")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        pytest.param(
            batch_outcome(ingested="abc"), "1 are missing, counted twice or unknown, for example d", id="missing"
        ),
        pytest.param(
            batch_outcome(), "4 are missing, counted twice or unknown, for example a, b, c", id="nothing at all"
        ),
        pytest.param(batch_outcome(ingested="abcd", empty="b"), "1 .* for example b", id="in two parts"),
        pytest.param(batch_outcome(ingested="abc", rejected="c"), "2 .* for example c, d", id="twice and missing"),
        pytest.param(batch_outcome(known="dd", ingested="abc"), "1 .* for example d", id="twice in one part"),
        pytest.param(batch_outcome(ingested="abcdx"), "1 .* for example x", id="unknown"),
        pytest.param(batch_outcome(ingested="abcx"), "2 .* for example d, x", id="unknown instead of another"),
    ],
)
def test_anything_else_is_named(wrong: BatchOutcome, named: str) -> None:
    with pytest.raises(ReconciliationError, match=f"batch 7 does not add up, .*{named}"):
        wrong.require_each_once(ids("abcd"), "7")


def test_ingested_and_empty_messages_are_entered_with_the_time_they_were_sent() -> None:
    messages = pa.table([ids("abcd"), [SENT, None, SENT, SENT]], schema=LOOKED_UP)

    entries = batch_outcome(known="d", ingested="ca", empty="b").entries(messages)

    assert entries.schema == ENTRIES
    assert [tuple(row.values()) for row in entries.to_pylist()] == [
        ("a", SENT, INGESTED, None),
        ("b", None, EMPTY, None),
        ("c", SENT, INGESTED, None),
    ]
    assert batch_outcome(ingested="abcd").entries(messages)["message_id"].equals(messages["message_id"])


def test_stored_rejects_are_entered_each_with_its_own_reason() -> None:
    messages = pa.table([ids("abc"), [SENT] * 3], schema=LOOKED_UP)
    reasons = pa.table([ids("ca"), ["late", "long"]], schema=REASONS)

    entries = reject_entries(messages, reasons)

    assert entries.schema == ENTRIES
    assert [tuple(row.values()) for row in entries.to_pylist()] == [
        ("a", SENT, REJECTED, "long"),
        ("c", SENT, REJECTED, "late"),
    ]


def test_nothing_is_among_nothing() -> None:
    assert is_among(ids(""), ids("a")).to_pylist() == []
    assert is_among(ids("ab"), ids("")).to_pylist() == [False, False]
    assert is_among(ids("ab"), ids("bc")).to_pylist() == [False, True]
