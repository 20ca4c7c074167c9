"""Batches of up to 10 000 messages: stored in files, and collected for up to a minute.

`linger` is how long the sensor goes on receiving after the first message, and its default of one second is too short
for so many. A full batch ends at once, so a long `linger` costs time only if there are fewer messages. The messages
that came first are held meanwhile.
"""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk import dag, task

from sqs_lease.airflow import read_messages, sqs_lease


@dag(schedule=None, max_active_runs=1)  # a real one: schedule="@hourly", catchup=False
def many_readings() -> None:
    """Receive many readings, and load them together."""

    @task(retries=2)
    def load(messages: Any) -> float:
        # The task's argument is a reference to the file, of a few hundred bytes.
        return sum(float(json.loads(message["Body"])["value"]) for message in read_messages(messages))

    with sqs_lease(
        "readings",
        queue_url="readings",
        max_messages=10_000,
        linger=60,
        timeout=60,
        soft_fail=True,
        # A directory that all workers and triggerers reach, such as s3://aws_default@bucket/leases
        payload="{{ var.value.get('payload_directory', '/tmp/leases') }}",
    ) as messages:
        load(messages)


many_readings()
