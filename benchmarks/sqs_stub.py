"""A stand-in for SQS that holds nothing but deadlines: `python -m benchmarks.sqs_stub PORT`.

It answers ChangeMessageVisibilityBatch, DeleteMessageBatch and ReceiveMessage (always empty) in AWS's JSON protocol as
fast as Python can, for as many leases as anybody likes, and remembers each receipt's deadline. `GET /counts` tells
what was asked so far, and how many extensions arrived after the deadline that they should have moved: counted
by this process's clock, not by the keeper's.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic, process_time
from typing import Any

from demo.processes import LOOPBACK


@dataclass(slots=True)
class Counts:
    """The requests so far.

    Attributes:
        calls: Calls by operation.
        entries: Entries of batch calls by operation.
        busiest_second: Most calls that arrived within one second of the clock.
        late: Extensions of leases whose deadline had passed.
        least_left_seconds: The least that was left of a lease when its extension arrived.
    """

    calls: Counter[str] = field(default_factory=Counter)
    entries: Counter[str] = field(default_factory=Counter)
    busiest_second: int = 0
    late: int = 0
    least_left_seconds: float = float("inf")


class SqsStub:
    """The queue service."""

    def __init__(self) -> None:
        self._counts = Counts()
        self._deadlines: dict[str, float] = {}
        self._second = 0
        self._in_second = 0

    def answer(self, operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out one call."""
        now = monotonic()
        self._counts.calls[operation] += 1
        self._in_second = self._in_second + 1 if int(now) == self._second else 1
        self._second = int(now)
        self._counts.busiest_second = max(self._counts.busiest_second, self._in_second)
        entries = parameters.get("Entries", ())
        self._counts.entries[operation] += len(entries)
        match operation:
            case "ChangeMessageVisibilityBatch":
                for entry in entries:
                    self._extend(entry["ReceiptHandle"], now, entry["VisibilityTimeout"])
            case "DeleteMessageBatch":
                for entry in entries:
                    self._deadlines.pop(entry["ReceiptHandle"], None)
            case _:
                return {}
        return {"Successful": [{"Id": entry["Id"]} for entry in entries], "Failed": []}

    def _extend(self, handle: str, now: float, seconds: float) -> None:
        deadline = self._deadlines.get(handle)
        if deadline is not None:
            self._counts.late += now > deadline
            self._counts.least_left_seconds = min(self._counts.least_left_seconds, deadline - now)
        self._deadlines[handle] = now + seconds

    def counts(self) -> Mapping[str, Any]:
        """The requests so far."""
        counts = self._counts
        return {
            "calls": dict(counts.calls),
            "entries": dict(counts.entries),
            "busiest_second": counts.busiest_second,
            "late": counts.late,
            "least_left_seconds": counts.least_left_seconds,
            "cpu_seconds": process_time(),
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, until the client closes it."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                fields = {
                    name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n"))
                }
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                if head.startswith("GET "):
                    answer = self.counts()
                else:
                    answer = self.answer(fields["x-amz-target"].rpartition(".")[2], json.loads(body))
                content = json.dumps(answer).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: %d\r\n\r\n"
                    % len(content)
                )
                writer.write(content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def main() -> None:
    """Serve on the loopback address until the process is ended."""
    server = await asyncio.start_server(SqsStub().serve, LOOPBACK, int(sys.argv[1]), limit=2**20)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
