"""The messages of the Spark benchmarks: flights as JSON objects of 1 KB."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter

from sqs_lease.batch_files.manifest import write_manifest
from sqs_lease.core.messages import Message, Receipt

SCHEMA = (
    "id BIGINT NOT NULL, carrier STRING NOT NULL, flight INT, origin STRING, dest STRING, distance INT, "
    "delay DOUBLE, departed TIMESTAMP, tags ARRAY<STRING>, plane STRUCT<model: STRING, seats: INT>, remarks STRING"
)
BODY_BYTES = 1_000
QUEUE_URL = "http://127.0.0.1/000000000000/flights"
REMARKS = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz ", k=100_000))
SENT_FROM = datetime(2026, 1, 1, tzinfo=UTC)


def body(number: int, source: random.Random) -> str:
    """One flight as JSON, of 1 KB."""
    record = {
        "id": number,
        "carrier": source.choice(("UA", "AA", "B6", "DL", "EV")),
        "flight": source.randrange(6_000),
        "origin": source.choice(("EWR", "LGA", "JFK")),
        "dest": source.choice(("IAH", "MIA", "BQN", "ATL", "ORD")),
        "distance": source.randrange(100, 5_000),
        "delay": round(source.gauss(5, 20), 2),
        "departed": (SENT_FROM + timedelta(seconds=number)).isoformat(),
        "tags": source.sample(("late", "early", "full", "empty", "diverted"), 2),
        "plane": {"model": "A320", "seats": source.randrange(50, 300)},
        "remarks": "",
    }
    missing = BODY_BYTES - len(json.dumps(record))
    start = source.randrange(len(REMARKS) - missing)
    record["remarks"] = REMARKS[start : start + missing]
    return json.dumps(record)


def messages(count: int, *, first: int = 0) -> Iterator[Message]:
    """Flights as messages, a thousand sent per second; the same numbers give the same ids and bodies."""
    for number in range(first, first + count):
        source = random.Random(number)
        sent_at = SENT_FROM + timedelta(milliseconds=number)
        yield Message(
            Receipt(str(uuid.UUID(int=source.getrandbits(128))), ""),
            body(number, source),
            {
                "SentTimestamp": str(int(sent_at.timestamp() * 1000)),
                "ApproximateReceiveCount": "1",
                "ApproximateFirstReceiveTimestamp": str(int(sent_at.timestamp() * 1000) + 50),
                "SenderId": "AIDAEXAMPLE",
            },
        )


def received_again(batch: Sequence[Message]) -> list[Message]:
    """The same messages, as a second receive returns them."""
    return [replace(message, attributes={**message.attributes, "ApproximateReceiveCount": "2"}) for message in batch]


@dataclass(frozen=True, slots=True)
class Files:
    """The same messages on disk, once as each contender reads them."""

    bodies: Path
    manifest: Path
    redelivered: Path


def write_files(directory: Path, count: int) -> Files:
    """Write the messages."""
    files = Files(directory / "bodies.jsonl", directory / "manifest.parquet", directory / "redelivered.parquet")
    batch = list(messages(count))
    with files.bodies.open("w") as file:
        file.writelines(message.body + "\n" for message in batch)
    for path, received in ((files.manifest, batch), (files.redelivered, received_again(batch))):
        write_manifest(path, batch_id=path.stem, queue_url=QUEUE_URL, messages=received)
    return files


def timed(work: Callable[[], object]) -> float:
    """Seconds that some work takes."""
    began = perf_counter()
    work()
    return perf_counter() - began
