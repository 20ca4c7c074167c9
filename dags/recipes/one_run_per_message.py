"""One run for each message, one after the other.

A run takes a single message, and the next run begins when it has ended. So each message shows in Airflow by itself,
with its own state, logs and duration. A run takes some seconds even where its work takes none. For more than a message
every ten seconds or so, map a task over the messages of one run instead.
"""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk import Asset, AssetWatcher, dag, task

from sqs_lease.airflow import SqsLeaseTrigger, sqs_lease

arriving_report = Asset(
    "arriving_report",
    watchers=[AssetWatcher("arriving_report_watcher", trigger=SqsLeaseTrigger("reports-one-by-one"))],
)


@dag(schedule=arriving_report, max_active_runs=1)
def report_of_one_message() -> None:
    """Work on the message that started the run."""

    @task(retries=2)
    def render(messages: Any) -> None:
        (message,) = messages
        report = json.loads(message["Body"])
        print(f"rendering report {report['report_id']}")

    with sqs_lease("report", event=arriving_report, max_messages=1) as messages:
        render(messages)


report_of_one_message()
