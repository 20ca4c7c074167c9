"""Texts from one process to another of an ingestion are read as they were, or refused as documented."""

from __future__ import annotations

import json
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from sqs_lease.ingestion.result import CleanUp, ResultError, StoredResult
from sqs_lease.ingestion.spec import IngestionSpec, SpecError, with_environment
from tests.fuzz.strange import CONTENT, examples, json_near, outcome_of

RESULT: Final = StoredResult(
    "b", 5, 1, 1, 1, 2, 3, 7, False, [{"itemIdentifier": "m1", "reason": "no"}], CleanUp(1, 0, 1, "denied")
)
SPEC: Final = {
    "version": 1,
    "source": {
        "kind": "attributes",
        "attributes": "tenant STRING",
        "source": {"kind": "sns", "source": {"kind": "json", "schema": "id INT", "timestamp_units": {"at": "ms"}}},
    },
    "sink": {
        "kind": "delta",
        "path": "/data/orders",
        "partition_by": ["day"],
        "storage_options": {"secret": {"env": "S"}},
    },
    "rejects": {"kind": "postgres", "url": "postgresql://host/db", "table": "rejected"},
    "workspace": "/data/batches",
    "spark_conf": {"spark.sql.shuffle.partitions": "8"},
}


@examples(200)
@given(json_near(json.loads(RESULT.encode())))
def test_a_result_is_of_its_types_or_refused(content: bytes) -> None:
    found = outcome_of(lambda: StoredResult.decode(content.decode("utf-8", "surrogateescape")), ResultError)
    if isinstance(found, StoredResult):
        numbers = [found.received, found.ingested, found.empty, found.duplicates, found.rejected, found.rows]
        assert all(isinstance(number, int) for number in numbers)
        assert isinstance(found.batch_id, str)
        for message_id, reason in found.failures().items():
            assert isinstance(message_id, str)
            assert isinstance(reason, str)
        assert found.objects is None or isinstance(found.objects.failed, int)


@examples(250)
@given(json_near(SPEC), st.booleans())
def test_a_spec_is_checked_or_refused(content: bytes, is_set: bool) -> None:
    found = outcome_of(lambda: IngestionSpec.parse_json(content.decode("utf-8", "surrogateescape")), SpecError)
    if isinstance(found, SpecError):
        return
    environment = {"S": CONTENT} if is_set else {}
    for part in (found.source, found.sink, found.spark_conf):
        given_part = part if isinstance(part, dict) else getattr(part, "parameters", part)
        filled = outcome_of(lambda given_part=given_part: with_environment(given_part, environment), SpecError)  # type: ignore[misc]
        assert isinstance(filled, dict | SpecError)
