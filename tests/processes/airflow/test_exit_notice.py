"""The companion of a task's process keeps a socket open until that process counts as ended, and no longer."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from sqs_lease.airflow.failures.exit_notice import LATER_SECONDS

pytestmark = [pytest.mark.processes]

TASK = """
import os, subprocess, sys, time
from sqs_lease.airflow.failures.exit_notice import start_companion

start_companion()
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("no child", flush=True)
# What the task itself starts must not keep the companion waiting.
subprocess.Popen(["sleep", "30"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print("started", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_the_socket_is_closed_after_the_process_can_be_waited_for(end: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", TASK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        assert process.stdout.readline() == "no child\n"
        assert process.stdout.readline() == "started\n"
        began_at = time.monotonic()
        getattr(process, end)()
        assert process.stderr.read() == ""
        assert time.monotonic() - began_at >= LATER_SECONDS, "the companion did not hold it"
        assert process.poll() is not None
