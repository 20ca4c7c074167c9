"""A loop over boto3 as people write it: a thread extends the batch at half of the visibility timeout."""

from __future__ import annotations

import logging
import os
from threading import Event, Thread
from time import sleep, time
from typing import Any

import boto3

QUEUE_URL = os.environ["QUEUE_URL"]
VISIBILITY_SECONDS = int(os.environ["VISIBILITY_SECONDS"])
WORK_SECONDS = float(os.environ["WORK_SECONDS"])
FAILS = os.environ["FAILS"] == "1"
AT_ONCE = int(os.environ["AT_ONCE"])
RECORD = os.environ["RECORD"]


def note(what: str) -> None:
    with open(RECORD, "a") as record:  # noqa: PTH123 - one line, appended at once
        record.write(f"{what} {time()}\n")


def tens(messages: list[Any]) -> list[list[Any]]:
    return [messages[start : start + 10] for start in range(0, len(messages), 10)]


def change(sqs: Any, messages: list[Any], seconds: int) -> None:
    for ten in tens(messages):
        sqs.change_message_visibility_batch(
            QueueUrl=QUEUE_URL,
            Entries=[
                {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": seconds}
                for number, message in enumerate(ten)
            ],
        )


def heartbeat(sqs: Any, messages: list[Any], over: Event) -> None:
    while not over.wait(VISIBILITY_SECONDS / 2):
        try:
            change(sqs, messages, VISIBILITY_SECONDS)
        except Exception:
            logging.exception("Could not extend")


def receive(sqs: Any) -> list[Any]:
    messages: list[Any] = []
    while len(messages) < AT_ONCE:
        answer = sqs.receive_message(
            QueueUrl=QUEUE_URL,
            MaxNumberOfMessages=min(10, AT_ONCE - len(messages)),
            WaitTimeSeconds=0 if messages else 20,
            VisibilityTimeout=VISIBILITY_SECONDS,
        )
        if not (received := answer.get("Messages", [])):
            break
        messages += received
    return messages


def work(messages: list[Any]) -> None:
    sleep(WORK_SECONDS)
    if FAILS:
        note("failed")
        raise RuntimeError(f"the work on {len(messages)} messages fails, as it was told to")


def main() -> None:
    sqs = boto3.client("sqs")
    while True:
        try:
            messages = receive(sqs)
        except Exception:
            logging.exception("Could not receive")
            sleep(1)
            continue
        if not messages:
            continue
        over = Event()
        beat = Thread(target=heartbeat, args=(sqs, messages, over))
        beat.start()
        try:
            work(messages)
        except RuntimeError:
            logging.exception("Given back")
            change(sqs, messages, 0)
        else:
            for ten in tens(messages):
                sqs.delete_message_batch(
                    QueueUrl=QUEUE_URL,
                    Entries=[
                        {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                        for number, message in enumerate(ten)
                    ],
                )
        finally:
            over.set()
            beat.join()


if __name__ == "__main__":
    main()
