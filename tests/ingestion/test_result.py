"""A result comes back from its file as it was, and nothing else is taken for one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sqs_lease.ingestion.result import CleanUp, ResultError, StoredResult

RESULT = StoredResult(
    batch_id="b",
    received=3,
    ingested=1,
    empty=0,
    duplicates=1,
    rejected=1,
    rows=1,
    table_version=7,
    rejects_stored=False,
    batchItemFailures=[{"itemIdentifier": "m2", "reason": "no JSON"}],
)


def test_it_comes_back_as_it_was() -> None:
    cleaned = replace(RESULT, objects=CleanUp(3, 1, 1, "s3://data/a: AccessDenied"))
    assert [StoredResult.decode(each.encode()) for each in (RESULT, cleaned)] == [RESULT, cleaned]


def test_one_of_a_release_that_cleaned_nothing_up_is_read() -> None:
    earlier = json.loads(RESULT.encode())
    del earlier["objects"]
    assert StoredResult.decode(json.dumps(earlier)) == RESULT


def test_keys_of_a_later_release_are_ignored() -> None:
    assert StoredResult.decode(json.dumps({**json.loads(RESULT.encode()), "later": 1})) == RESULT


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not the result of an ingestion"),
        ("[]", "not the result of an ingestion"),
        (json.dumps({**json.loads(RESULT.encode()), "version": 2}), "version 2, and this release reads 1"),
        (json.dumps({"format": "sqs-lease-ingestion-result", "version": 1}), "missing required field `batch_id`"),
    ],
)
def test_a_text_that_is_not_a_result_is_an_error(text: str, said: str) -> None:
    with pytest.raises(ResultError, match=said):
        StoredResult.decode(text)
