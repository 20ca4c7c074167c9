"""Work that takes longer than 12 hours, first way: the message goes into a store of yours, and is deleted early.

SQS keeps a message invisible for at most 12 hours after its receive, and that limit is fixed. So the lease covers only
the task that writes the message down. From then on the store has it, and the long work is a task like any other: when
it has failed for good, clear it in Airflow, and it reads the store again.

A message may come twice (its delete may be lost), so it is written under its id, and finished work leaves a mark.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from airflow.sdk import ObjectStoragePath, dag, task

from sqs_lease.airflow import sqs_lease

DIRECTORY = "{{ var.value.get('models_directory', 'file:///tmp/models') }}"


@dag(schedule=None)  # a real one: schedule="@hourly", catchup=False
def train_models() -> None:
    """Take requests over from the queue, then work on each of them for as long as it takes."""

    @task(retries=3)
    def take_over(messages: Any, directory: str) -> list[str]:
        path = ObjectStoragePath(directory)
        path.mkdir(parents=True, exist_ok=True)
        for message in messages:
            (path / f"{message['MessageId']}.json").write_text(message["Body"])
        return [message["MessageId"] for message in messages]

    @task(retries=3, retry_delay=timedelta(minutes=5))
    def train(request_id: str, directory: str) -> None:
        path = ObjectStoragePath(directory)
        finished = path / f"{request_id}.finished"
        if finished.exists():
            return
        request = json.loads((path / f"{request_id}.json").read_text())
        print(f"training {request['model']} for days")
        finished.touch()

    with sqs_lease(
        "requests", queue_url="models-to-train", max_messages=100, linger=5, timeout=10, soft_fail=True
    ) as messages:
        request_ids = take_over(messages, DIRECTORY)

    # Outside the lease, over the result of `take_over`, because the messages are deleted by now.
    train.partial(directory=DIRECTORY).expand(request_id=request_ids)


train_models()
