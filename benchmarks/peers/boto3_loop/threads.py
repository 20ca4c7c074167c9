"""Ten threads that share a client of boto3. Each receives ten, works, and deletes: the least that a consumer does.

They extend nothing.
"""

from __future__ import annotations

import os
from threading import Thread
from time import sleep
from typing import Any

import boto3
from botocore.config import Config

QUEUE_URL = os.environ["QUEUE_URL"]
VISIBILITY_SECONDS = int(os.environ["VISIBILITY_SECONDS"])
WORK_SECONDS = float(os.environ["WORK_SECONDS"])
THREADS = 10


def consume(sqs: Any) -> None:
    while True:
        answer = sqs.receive_message(
            QueueUrl=QUEUE_URL, MaxNumberOfMessages=10, WaitTimeSeconds=20, VisibilityTimeout=VISIBILITY_SECONDS
        )
        if not (messages := answer.get("Messages", [])):
            continue
        if WORK_SECONDS:
            sleep(WORK_SECONDS)
        sqs.delete_message_batch(
            QueueUrl=QUEUE_URL,
            Entries=[
                {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                for number, message in enumerate(messages)
            ],
        )


def main() -> None:
    sqs = boto3.client("sqs", config=Config(max_pool_connections=THREADS))
    for _ in range(THREADS):
        Thread(target=consume, args=(sqs,)).start()


if __name__ == "__main__":
    main()
