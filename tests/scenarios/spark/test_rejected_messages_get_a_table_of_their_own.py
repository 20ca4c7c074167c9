"""Rejected messages go into a table of their own, each once, and are done then."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import boto3
import pytest

from demo.sqs_server import SqsServer
from sqs_lease.core.messages import Message
from sqs_lease.spark import DeltaSink, InferredSchema, IngestResult, JsonSource
from tests.docs.test_examples import ROOT, blocks
from tests.spark.inferring import infers
from tests.spark.samples import SCHEMA, InterruptedSink, Place, good, message, rows, staged_files, stored_ids

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


@pytest.mark.parametrize("has_rejects", [False, True], ids=["reported", "stored"])
def test_text_of_a_sender_adds_no_line_to_a_log_or_a_reason(
    place: Place, caplog: pytest.LogCaptureFixture, has_rejects: bool
) -> None:
    forged = "a\nERROR the queue was deleted\x1b[2K"
    source = JsonSource(SCHEMA, new_fields="reject")
    batch = [*good([1]), message("bad", json.dumps({"id": 2, forged: 1})), message("b\nad", "[]")]

    result = place.ingest(batch, source=source, rejects=DeltaSink(place.root / "rejects") if has_rejects else None)

    assert result.rejected["bad"] == "not in the schema: a ERROR the queue was deleted [2K"
    assert "message bad: not in the schema" in caplog.text
    assert all(text.isprintable() for text in (record.getMessage() for record in caplog.records))


@infers
def test_a_senders_field_that_becomes_a_column_adds_no_line_and_no_control_character_to_a_log(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sqs_lease")
    source = JsonSource(InferredSchema(tmp_path / "schema.json"), new_fields="add")

    place.ingest([message("m1", '{"id": 1}')], source=source)
    place.ingest([message("m2", json.dumps({"id": 2, "total\x9b2K\u2028ERROR\u202e": 3}))], source=source)

    assert any("has new columns: total 2K ERROR" in record.getMessage() for record in caplog.records)
    assert [text for text in (record.getMessage() for record in caplog.records) if not text.isprintable()] == []


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

    assert late.calls == ["commit", "conflict", "commit"]
    assert stored_ids(Path(rejects.path)) == ["a", "b"]
    assert stored_ids(place.table) == ["m1", "m2"]
    # The main table learned of it meanwhile too, so that reject is the other batch's.
    assert (result.ingested, result.duplicates, set(result.rejected)) == (1, 1, {"b"})


def test_rejects_are_sent_again_after_the_fix_as_the_page_of_the_sinks_does(
    place: Place, server: SqsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    page: dict[str, Any] = {}
    (block,) = (block for block in blocks(ROOT / "docs" / "spark-sinks.md") if "def send_again" in block)
    exec(compile(block, "spark-sinks.md", "exec"), page)
    sqs = boto3.client("sqs")
    queue = sqs.create_queue(QueueName=f"orders-{uuid4()}")["QueueUrl"]
    rejects = DeltaSink(place.root / "rejects")
    batch = [message("m1", '{"id": 1, "total": "9,5"}'), message("m2", "[]")]
    wrong, corrected = JsonSource("id BIGINT NOT NULL, total DOUBLE"), JsonSource("id BIGINT NOT NULL, total STRING")
    orders = place.root / "orders"
    assert set(place.ingest(batch, source=wrong, rejects=rejects).rejected) == {"m1", "m2"}

    page["send_again"](rejects.path, queue)
    received = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, MessageSystemAttributeNames=["All"])
    result = place.ingest(
        cast("list[dict[str, Any]]", received["Messages"]), source=corrected, sink=DeltaSink(orders), rejects=rejects
    )

    assert (result.received, result.ingested) == (1, 1)
    assert [(row["id"], row["total"]) for row in rows(orders)] == [(1, "9,5")]
