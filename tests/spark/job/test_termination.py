"""A job ends in order when it is told to, or when its starter is gone; as processes without Spark."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from demo.processes import ROOT

BEGIN = """
import sys
from threading import Event
from sqs_lease.spark.job import termination
from sqs_lease.spark.job.termination import Termination, end_with_standard_input

cancelled = Event()
job = Termination()
job.install()
print("ready", flush=True)
"""
WORK_UNTIL_CANCELLED = """
with job.cancelling(cancelled.set):
    print("working", flush=True)
    cancelled.wait()
    print("cancelled", job.asked, flush=True)
sys.exit(7)
"""


@contextmanager
def started(script: str, last_line: str = "working") -> Iterator[subprocess.Popen[str]]:
    """A process that has printed a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN + script],
        env={"PYTHONPATH": str(ROOT / "providers")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        while process.stdout.readline() != f"{last_line}\n":
            assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


def test_being_told_to_end_cancels_the_work_and_interrupts_nothing() -> None:
    with started(WORK_UNTIL_CANCELLED) as process:
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (7, "cancelled True\n")


def test_the_end_of_its_standard_input_tells_a_job_to_end() -> None:
    with started(f"end_with_standard_input()\n{WORK_UNTIL_CANCELLED}") as process:
        assert ended(process) == (7, "cancelled True\n")


@pytest.mark.parametrize("asked", ["before", "between"])
def test_a_job_that_has_nothing_to_cancel_ends_at_once(asked: str) -> None:
    before = "with job.cancelling(cancelled.set): pass" if asked == "between" else ""
    with started(f"{before}\nprint('waiting', flush=True)\nEvent().wait(600)", "waiting") as process:
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (143, "")


def test_work_that_does_not_heed_its_cancellation_ends_with_its_process() -> None:
    script = "termination.GRACE_SECONDS = 0.1\ncancelled.wait = lambda: Event().wait(600)" + WORK_UNTIL_CANCELLED
    with started(script) as process:
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (143, "")
