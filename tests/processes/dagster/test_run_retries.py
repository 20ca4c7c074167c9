"""Dagster's daemon repeats an executor's run, and the second run works on the rest: on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.dagster_stack import dagster_stack
from demo.processes import wait_until
from demo.sqs_server import SqsServer
from tests.dagster.evidence import DIRECTORY_VARIABLE, notes

pytestmark = pytest.mark.processes

DEFINITIONS = Path(__file__).parent / "definitions_run_retries.py"
DEADLINE_SECONDS = 300.0


def test_the_run_that_the_daemon_starts_from_the_failure_works_on_the_same_messages_and_deletes_them(
    tmp_path: Path, server: SqsServer
) -> None:
    sqs = server.sqs_client()
    url = sqs.create_queue(QueueName="run-retries", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
    for body in ("good", "bad"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    evidence, workspace = tmp_path / "evidence", tmp_path / "workspace"
    evidence.mkdir()
    environment = {
        **server.environment,
        DIRECTORY_VARIABLE: str(evidence),
        "ORDERS_QUEUE": url,
        "WORKSPACE": str(workspace),
    }
    settings = {"run_retries": {"enabled": True}}
    with dagster_stack(tmp_path / "dagster", DEFINITIONS, environment, settings=settings) as stack:
        first = stack.api.launch("orders")
        assert stack.wait_for_run(first, DEADLINE_SECONDS).state == "FAILURE"
        wait_until(
            lambda: len(stack.api.runs(job="orders")) == 2,
            processes=list(stack.processes.values()),
            what="repeating the run",
            deadline_seconds=DEADLINE_SECONDS,
        )
        (again,) = (run.run_id for run in stack.api.runs(job="orders") if run.run_id != first)
        assert stack.wait_for_run(again, DEADLINE_SECONDS).state == "SUCCESS"
        told = [event.message for event in stack.api.events(first)]
    # The step that succeeded is left out, and a message that is received again would have another count.
    assert len(notes(evidence, "check")) == 1
    assert [each.details["messages"] for each in notes(evidence, "load")] == [[["good", 1]], [["good", 1]]]
    assert any("1 messages are passed on to the run that repeats this one" in text for text in told)
    left = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
    assert [message["Body"] for message in left] == ["bad"]
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessages"] == "0"
    assert counts["ApproximateNumberOfMessagesNotVisible"] == "1"
    assert list(workspace.iterdir()) == []
