"""Celery with SQS as its broker, as its documentation has it for long tasks: a visibility timeout that outlasts them.

The messages are Celery's own: `python tasks.py 10` sends ten of them to the queue that the environment names.
"""

from __future__ import annotations

import os
import sys
import time

from celery import Celery  # type: ignore[import-untyped]

app = Celery("peers", broker="sqs://")
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    # Acknowledged after the work, whatever becomes of the worker, and not when the work failed: nothing is lost.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_acks_on_failure_or_timeout=False,
    task_ignore_result=True,
    # No more than the work at hand.
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "region": os.environ["AWS_REGION"],
        "visibility_timeout": int(os.environ["VISIBILITY_SECONDS"]),
        "wait_time_seconds": 20,
        "predefined_queues": {os.environ["QUEUE"]: {"url": os.environ["QUEUE_URL"]}},
    },
)


@app.task(name="peers.work")  # type: ignore[untyped-decorator]
def work(number: int) -> None:
    """Take as long as the scenario says, and fail where it says so."""
    time.sleep(float(os.environ["WORK_SECONDS"]))
    if os.environ["FAILS"] == "1":
        with open(os.environ["RECORD"], "a") as record:  # noqa: PTH123 - one line, appended at once
            record.write(f"failed {time.time()}\n")
        raise RuntimeError(f"the work on {number} fails, as it was told to")


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        work.delay(number)
