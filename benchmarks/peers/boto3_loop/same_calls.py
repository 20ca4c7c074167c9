"""The calls that sqs-lease sends to hold messages, and nothing else: one thread, plain boto3.

It receives as many messages as it is told, and extends each ten of them, which came together, when `Growing` at its
defaults does, and by as much.
"""

from __future__ import annotations

import os
from heapq import heappop, heappush
from math import floor
from time import monotonic, sleep
from typing import Any

import boto3

QUEUE_URL = os.environ["QUEUE_URL"]
VISIBILITY_SECONDS = int(os.environ["VISIBILITY_SECONDS"])
AT_ONCE = int(os.environ["AT_ONCE"])
CEILING_SECONDS = 900
LEFT_SECONDS = 20.0


def renew_at(renewed_at: float, period: float) -> float:
    return renewed_at + period - max(period / 3, min(LEFT_SECONDS, period * 2 / 3))


def extension_seconds(received_at: float, now: float) -> int:
    return max(VISIBILITY_SECONDS, floor(min(now - received_at, CEILING_SECONDS)))


def receive(sqs: Any, most: int) -> list[str]:
    answer = sqs.receive_message(
        QueueUrl=QUEUE_URL,
        MaxNumberOfMessages=min(10, most),
        WaitTimeSeconds=1,
        VisibilityTimeout=VISIBILITY_SECONDS,
    )
    return [message["ReceiptHandle"] for message in answer.get("Messages", [])]


def extend(sqs: Any, handles: list[str], seconds: int) -> None:
    sqs.change_message_visibility_batch(
        QueueUrl=QUEUE_URL,
        Entries=[
            {"Id": str(number), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
            for number, handle in enumerate(handles)
        ],
    )


def main() -> None:
    sqs = boto3.client("sqs")
    held = 0
    due: list[tuple[float, float, list[str]]] = []  # when, when they were received, and their receipt handles
    while True:
        now = monotonic()
        if due and due[0][0] <= now:
            _, received_at, handles = heappop(due)
            seconds = extension_seconds(received_at, now)
            extend(sqs, handles, seconds)
            heappush(due, (renew_at(now, seconds), received_at, handles))
        elif held < AT_ONCE:
            if handles := receive(sqs, AT_ONCE - held):
                held += len(handles)
                heappush(due, (renew_at(now, VISIBILITY_SECONDS), now, handles))
        else:
            sleep(due[0][0] - now)


if __name__ == "__main__":
    main()
