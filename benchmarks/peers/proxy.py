"""A proxy before the SQS server that counts calls, notes what becomes of each message, and can cut a consumer off.

Each consumer has a gate of its own: a port of the proxy. So whose call it is needs no guess, and one consumer
can lose the queue while the other one keeps it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Thread
from time import time
from typing import Any, Final
from urllib.parse import urlsplit

from demo.processes import LOOPBACK

LONGEST_HEAD_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class Reception:
    """A message that was given to the consumer behind a gate.

    Attributes:
        message_id: Its id.
        at: When the answer came from the server, in seconds since the epoch.
    """

    message_id: str
    at: float


@dataclass(frozen=True, slots=True)
class Call:
    """A request to the server.

    Attributes:
        head: The request line and the fields of its head, as they came.
        body: Its body.
    """

    head: bytes
    body: bytes

    @property
    def operation(self) -> str:
        """The operation in AWS's JSON protocol; of any other request, its HTTP method."""
        target = _fields(self.head).get("x-amz-target")
        return self.head.split(b" ", 1)[0].decode("latin-1") if target is None else target.rpartition(".")[2]

    @property
    def request(self) -> Mapping[str, Any]:
        """The parameters of the operation."""
        return _json(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of the server, or of the gate in its place.

    Attributes:
        head: The status line and the fields of its head, as they came.
        body: Its body.
    """

    head: bytes
    body: bytes

    @classmethod
    def of(cls, status: int, content: Mapping[str, Any], fields: Mapping[str, str] | None = None) -> Answer:
        """Write an answer in AWS's JSON protocol."""
        body = json.dumps(content).encode()
        lines = {"Content-Type": "application/x-amz-json-1.0", "Content-Length": str(len(body)), **(fields or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return cls(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode("latin-1"), body)

    @property
    def status(self) -> int:
        """The HTTP status."""
        return int(self.head.split(b" ", 2)[1])

    @property
    def content(self) -> Mapping[str, Any]:
        """Its content, in the JSON protocol."""
        return _json(self.body)


@dataclass(slots=True)
class Gate:
    """One consumer's way to the server, and what went through it.

    Attributes:
        port: Where it listens.
        calls: Calls by operation that the server answered, also with an error.
        empty_receives: Receives that brought no message.
        receptions: The messages that the consumer was given, in their order.
        deleted: When each message was deleted, by its id.
        connections: Those that are open.
        is_cut: Whether the way is blocked now.
    """

    port: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    empty_receives: int = 0
    receptions: list[Reception] = field(default_factory=list)
    deleted: dict[str, float] = field(default_factory=dict)
    is_cut: bool = False
    _message_ids: dict[str, str] = field(default_factory=dict)
    connections: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def endpoint_url(self) -> str:
        """The endpoint that a client uses as the SQS server."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def received_ids(self) -> set[str]:
        """The messages that the consumer was given, each once."""
        return {reception.message_id for reception in list(self.receptions)}

    async def pass_on(self, call: Call, forward: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """Have a call answered, and write it down.

        Args:
            call: The call.
            forward: Has the server answer it.

        Returns:
            The answer for the consumer; None breaks its connection.
        """
        answer = await forward()
        # Written down even where the client is cut off meanwhile: the server has done it.
        self._note(call.operation, call.request, answer.status, answer.content)
        return answer

    def _note(self, operation: str, request: Mapping[str, Any], status: int, answer: Mapping[str, Any]) -> None:
        self.calls[operation] += 1
        if status >= 400:
            return
        now = time()
        match operation:
            case "ReceiveMessage":
                messages = answer.get("Messages") or ()
                self.empty_receives += not messages
                for message in messages:
                    self._message_ids[message["ReceiptHandle"]] = message["MessageId"]
                    self.receptions.append(Reception(message["MessageId"], now))
            case "DeleteMessage" | "DeleteMessageBatch":
                for entry in succeeded_entries(request, answer):
                    self.deleted.setdefault(self._message_ids.get(entry["ReceiptHandle"], "?"), now)


def succeeded_entries(request: Mapping[str, Any], answer: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """The entries of a call that succeeded: of a batch, or the call itself."""
    if "Entries" not in request:
        return [request]
    failed = {entry["Id"] for entry in answer.get("Failed") or ()}
    return [entry for entry in request["Entries"] if entry["Id"] not in failed]


class Proxy:
    """The proxy, in a thread with an event loop of its own.

    Args:
        server_url: The server behind it.
    """

    def __init__(self, server_url: str) -> None:
        address = urlsplit(server_url)
        self._host, self._port = address.hostname, address.port
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._thread = Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @contextmanager
    def running(self) -> Iterator[Proxy]:
        """Serve until the block ends."""
        self._thread.start()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def gate(self) -> Gate:
        """Open a way to the server, on a free port."""
        gate = Gate()
        self.open(gate)
        return gate

    def open(self, gate: Gate) -> None:
        """Have a gate listen on a free port."""
        asyncio.run_coroutine_threadsafe(self._open(gate), self._loop).result()

    @property
    def thread_id(self) -> int | None:
        """The system's id of the thread that all calls go through."""
        return self._thread.native_id

    def cut(self, gate: Gate) -> None:
        """Reset the connections of a gate, and each that is made, until :meth:`mend`."""
        self._loop.call_soon_threadsafe(self._cut, gate)

    def mend(self, gate: Gate) -> None:
        """Let a gate's consumer through again."""
        gate.is_cut = False

    def _cut(self, gate: Gate) -> None:
        gate.is_cut = True
        for writer in list(gate.connections):
            writer.transport.abort()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _open(self, gate: Gate) -> None:
        server = await asyncio.start_server(
            lambda reader, writer: self._serve(gate, reader, writer), LOOPBACK, 0, limit=LONGEST_HEAD_BYTES
        )
        self._servers.append(server)
        gate.port = server.sockets[0].getsockname()[1]

    async def _serve(self, gate: Gate, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if gate.is_cut:
            writer.transport.abort()
            return
        gate.connections.add(writer)
        try:
            server_reader, server_writer = await asyncio.open_connection(
                self._host, self._port, limit=LONGEST_HEAD_BYTES
            )
            try:
                await self._exchange(gate, reader, writer, server_reader, server_writer)
            finally:
                server_writer.close()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            # Either side went away, or the proxy ends.
            pass
        finally:
            gate.connections.discard(writer)
            with suppress(ConnectionError):
                writer.close()

    async def _exchange(
        self,
        gate: Gate,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        """Pass the requests of one connection on, one after the other, until the client closes it."""

        async def forward() -> Answer:
            server_writer.write(call.head + call.body)
            await server_writer.drain()
            return Answer(*await _message(server_reader))

        while True:
            call = Call(*await _message(reader))
            answer = await gate.pass_on(call, forward)
            if answer is None:
                writer.transport.abort()
                return
            writer.write(answer.head + answer.body)
            await writer.drain()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head and the body of the next request or answer, as they came."""
    head = await reader.readuntil(b"\r\n\r\n")
    fields = _fields(head)
    if fields.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while True:
            size = await reader.readuntil(b"\r\n")
            chunk = await reader.readexactly(int(size.split(b";")[0], 16) + 2)
            body += size + chunk
            if chunk == b"\r\n":
                return head, body
    return head, await reader.readexactly(int(fields.get("content-length", 0)))


def _fields(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _json(content: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(content)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
