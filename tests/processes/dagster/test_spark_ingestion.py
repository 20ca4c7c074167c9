"""Ingestion by a job from a step whose process is killed; without Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.dagster.spark.test_job import SPEC, until_started
from tests.ingestion.job_program import JobProgram

pytestmark = [pytest.mark.processes]


@pytest.fixture
def program(tmp_path: Path) -> JobProgram:
    return JobProgram(tmp_path)


STEP = """
import sys
import dagster as dg
from sqs_lease.dagster.spark import ingest_with_spark
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.dagster import BATCH_TAG, SqsQueueResource
from sqs_lease.dagster.run_batch.folder import BatchFolder
from pathlib import Path
folder = BatchFolder(Path({folder!r}))
folder.create(batch_id="b", queue_url="orders", messages=[Message(Receipt("m", ""), "body")])
context = dg.build_op_context(run_tags={{BATCH_TAG: {folder!r}}})
with SqsQueueResource(queue="orders").lease(context) as batch:
    ingest_with_spark(context, batch, spec={spec!r}, python={python!r})
"""


def test_the_job_of_a_step_that_is_killed_hears_of_it(program: JobProgram, tmp_path: Path) -> None:
    program.does("STARTED.write_text(str(os.getpid())); sys.stdin.read(); ENDED.write_text('heard')")
    script = STEP.format(spec=dict(SPEC), python=str(program.path), folder=str(tmp_path / "batch"))
    step = subprocess.Popen([sys.executable, "-c", script])
    try:
        job = psutil.Process(until_started(program, lambda: step.poll() is None))
    finally:
        step.kill()
        step.wait()
    job.wait(120)
    assert program.ended.read_text() == "heard"
