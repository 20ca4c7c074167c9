"""An HTTP server on the loopback address that answers SQS's JSON protocol by a script, faults included."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Fault(Enum):
    """Instead of an answer."""

    CUT = "the connection is closed without an answer"
    RESET = "the connection is reset without an answer"
    CUT_IN_HEADERS = "the connection is closed within the headers of an answer"
    CUT_IN_BODY = "the connection is closed within the body of an answer"
    HANG = "no answer before the server is released"


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer; ``held`` keeps it back until the server is released."""

    body: Mapping[str, Any] | str | bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    held: bool = False


def refused(shape: str, text: str, *, status: int = 400, query_code: str | None = None) -> Answer:
    """An error as SQS gives it: the shape's name in the body, the query protocol's code in a header."""
    headers = {} if query_code is None else {"x-amzn-query-error": f"{query_code};Sender"}
    return Answer({"__type": f"com.amazonaws.sqs#{shape}", "message": text}, status, headers)


class ScriptedServer:
    """Answers each operation with what was scripted for it, in order; the last one again and again."""

    def __init__(self, port: int) -> None:
        self.endpoint_url = f"http://127.0.0.1:{port}"
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.released = threading.Event()
        self._script: dict[str, deque[Answer | Fault]] = defaultdict(deque)
        self._arrived = threading.Condition()

    def script(self, operation: str, *answers: Answer | Fault) -> None:
        """Answer the next calls of an operation so."""
        self._script[operation].extend(answers)

    def count(self, operation: str) -> int:
        """How many requests of an operation arrived."""
        return sum(name == operation for name, _ in self.requests)

    def sent(self, operation: str) -> dict[str, Any]:
        """The parameters of the last request of an operation."""
        return next(parameters for name, parameters in reversed(self.requests) if name == operation)

    def wait_for(self, operation: str, count: int = 1) -> None:
        """Block until so many requests of an operation arrived; for threads."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: self.count(operation) >= count, timeout=120)

    def answer(self, operation: str, parameters: dict[str, Any]) -> Answer | Fault:
        with self._arrived:
            self.requests.append((operation, parameters))
            self._arrived.notify_all()
            answers = self._script[operation]
            return answers.popleft() if len(answers) > 1 else answers[0]


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    """Run a scripted server until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            parameters = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = scripted.answer(self.headers["X-Amz-Target"].removeprefix("AmazonSQS."), parameters)
            if answer is Fault.HANG or (isinstance(answer, Answer) and answer.held):
                scripted.released.wait()
            if isinstance(answer, Fault):
                self.close_connection = True
                self.misbehave(answer)
                return
            text = answer.body if isinstance(answer.body, str | bytes) else json.dumps(answer.body)
            body = text.encode() if isinstance(text, str) else text
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def misbehave(self, fault: Fault) -> None:
            if fault is Fault.RESET:
                # Closing discards what was not sent, and sends a reset instead of an end.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            elif fault is Fault.CUT_IN_HEADERS:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Ty")
            elif fault is Fault.CUT_IN_BODY:
                self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"Messages": [{"Mess')

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Nothing on the test's output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    scripted = ScriptedServer(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield scripted
    finally:
        scripted.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
