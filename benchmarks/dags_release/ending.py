"""The DAG of the release benchmark: its work writes down the time and fails at once, as its run is told."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, task

from sqs_lease.airflow import sqs_lease

WORK_SECONDS = 15.0
"""So long does the work take before it ends: the keeper holds its messages by then."""


@dag(
    schedule=None,
    max_active_runs=16,
    params={"queue_url": Param("", type="string"), "how": Param("raise"), "file": Param("", type="string")},
)
def ending() -> None:
    """Receive one message, and fail with it."""

    @task(retries=0)
    def work(messages: Any, params: Any = None) -> None:
        time.sleep(WORK_SECONDS)
        Path(params["file"]).write_text(str(time.time()))
        if params["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("as it was told to")

    with sqs_lease("orders", queue_url="{{ params.queue_url }}", max_messages=1, visibility=600) as messages:
        work(messages)


ending()
