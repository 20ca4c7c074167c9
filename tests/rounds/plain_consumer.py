"""A worker of the plain stack: leases messages, works on them, and notes what it does: `... FORM DISK NOTES`.

The work on a message takes some memory, and writes a file into the table, a directory on a small disk of its own. The
notes are elsewhere, so that they can be written when the table cannot.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from mmap import mmap
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, Final

import boto3

from sqs_lease import Consumer, async_lease, by_exception, dead_letter, lease, release
from sqs_lease.core.messages import Message
from sqs_lease.sqs.client import client_config
from tests.rounds.notebook import Notebook, append

QUEUE: Final = os.environ.get("ROUNDS_QUEUE", "")
WAIT_SECONDS: Final = 4
PAUSE_SECONDS: Final = 0.2
CONSUMER_MESSAGES: Final = 3
MEMORY_BYTES: Final = 16 * 2**20
POISON: Final = ("builtins.ValueError",)


def blocking(book: Notebook, table: Path, session: boto3.Session, rule: Any) -> None:
    client = session.client("sqs", config=client_config())
    with lease(QUEUE, wait=WAIT_SECONDS, on_failure=rule, on_lost="raise", client=client) as batch:
        if not len(batch):
            return
        book.holds([message.message_id for message in batch])
        for message in batch:
            order = json.loads(message.body)
            with mmap(-1, MEMORY_BYTES):
                work_for(order["seconds"])
            if (errors := errors_of(order, message)) is not None:
                book.fails(message.message_id)
                batch.fail(message, "drawn so", errors=errors)
                continue
            store(table, message)
            if order["settles_early"]:
                batch.succeed(message)


async def asynchronous(book: Notebook, table: Path, session: boto3.Session, rule: Any) -> None:
    client = session.client("sqs", config=client_config())
    async with async_lease(QUEUE, wait=WAIT_SECONDS, on_failure=rule, on_lost="raise", client=client) as batch:
        if not len(batch):
            return
        book.holds([message.message_id for message in batch])
        for message in batch:
            order = json.loads(message.body)
            with mmap(-1, MEMORY_BYTES):
                await asyncio.sleep(order["seconds"])
            if (errors := errors_of(order, message)) is not None:
                book.fails(message.message_id)
                await batch.fail(message, "drawn so", errors=errors)
                continue
            store(table, message)
            if order["settles_early"]:
                await batch.succeed(message)


def consuming(book: Notebook, table: Path, session: boto3.Session, rule: Any) -> None:
    """Work on single messages until the consumer gives up.

    A block is the work on one message. It ends before the message is settled, so it promises nothing of that.
    """

    def handle(message: Message) -> None:
        book.holds([message.message_id])
        try:
            work(message)
        except Exception as error:
            book.ended(error)
            raise
        book.ended(Unsettled())

    def work(message: Message) -> None:
        order = json.loads(message.body)
        with mmap(-1, MEMORY_BYTES):
            work_for(order["seconds"])
        if (errors := errors_of(order, message)) is not None:
            book.fails(message.message_id)
            raise ValueError("drawn so") if errors else RuntimeError("drawn so")
        store(table, message)

    client = session.client("sqs", config=client_config())
    with Consumer(QUEUE, max_messages=CONSUMER_MESSAGES, on_failure=rule, on_lost="raise", client=client) as consumer:
        consumer.run(handle)


class Unsettled(Exception):  # noqa: N818 - a note, and never raised
    """The work is done, and the message is not deleted yet."""


def store(table: Path, message: Message) -> None:
    table.mkdir(exist_ok=True)
    # A file of its own: a full disk still has room in the last block of a file.
    append(table / f"{message.message_id}.jsonl", {"id": message.message_id, "at": monotonic()})


def work_for(seconds: float) -> None:
    # With another calendar (libfaketime), time.sleep ends at once with an error.
    Event().wait(seconds)


def errors_of(order: dict[str, Any], message: Message) -> tuple[str, ...] | None:
    """The classes of the error with which the work on a message fails; None if it does not."""
    if order["kind"] == "poison":
        return POISON
    return () if order["kind"] == "flaky" and message.receive_count == 1 else None


def main() -> None:
    kind, disk, notes = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(levelname)s %(message)s")
    book, table = Notebook(notes), disk / notes.stem
    session = boto3.Session()
    rule = by_exception({ValueError: dead_letter()}, otherwise=release())
    book.ready()
    while True:
        try:
            if kind == "blocking":
                blocking(book, table, session, rule)
            elif kind == "asynchronous":
                asyncio.run(asynchronous(book, table, session, rule))
            else:
                consuming(book, table, session, rule)
        except Exception as error:
            logging.exception("The block failed")
            book.ended(error)
            work_for(PAUSE_SECONDS)
        else:
            book.ended(None)


if __name__ == "__main__":
    main()
