"""A proxy before an AWS server, which writes calls down, denies some, and may have another clock.

It sees every client alike: boto3, aiobotocore, s3fs, delta-rs, and those of other processes.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

_HOP_BY_HOP: Final = frozenset({"connection", "transfer-encoding", "content-length", "date", "server", "keep-alive"})

CALLER: Final = "arn:aws:sts::000000000000:assumed-role/orders/session"


@dataclass(frozen=True, slots=True)
class WireCall:
    """One call.

    Attributes:
        actions: The IAM actions that it takes on AWS.
        about: A queue's URL, name or ARN, or a bucket with the key or the prefix.
    """

    actions: tuple[str, ...]
    about: str


@dataclass(slots=True)
class Wire:
    """A running proxy.

    Attributes:
        endpoint_url: Where it listens.
        calls: The calls that came, in order.
        denied: IAM actions that are answered as AWS answers a caller without the permission.
        torn: IAM actions whose calls get no answer: the connection is closed.
        answers: Functions that answer in place of the server, by IAM action: for calls that it does not have.
        ahead: How far the server's clock is ahead of this machine's.
        heard: Takes the body of each answer of the server, with its call; in the thread of the request.
    """

    endpoint_url: str
    calls: list[WireCall] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    torn: set[str] = field(default_factory=set)
    answers: dict[str, Callable[[], Any]] = field(default_factory=dict)
    ahead: timedelta = timedelta()
    heard: Callable[[WireCall, bytes], object] = lambda _call, _body: None

    def url(self, queue: str) -> str:
        """The URL of a queue here; that of the server would go past the wire."""
        return f"{self.endpoint_url}/000000000000/{queue}"

    def actions(self, about: str) -> set[str]:
        """The IAM actions that were asked for on queues and buckets whose name has this text in it."""
        return {action for call in self.calls if about in call.about for action in call.actions}

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which any AWS client finds this proxy."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }


@contextmanager
def wire_to(endpoint_url: str) -> Iterator[Wire]:
    """Run a proxy before a server, on the loopback address and a free port, until the block ends."""
    address = urlsplit(endpoint_url).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def pass_on(self) -> None:
            body = _body(self)
            call = wire_call(self.command, self.path, self.headers, body)
            wire.calls.append(call)
            if wire.torn.intersection(call.actions):
                self.close_connection = True
                return
            if refused := wire.denied.intersection(call.actions):
                self.answer(403, _denial(min(refused)), {"x-amzn-query-error": "AccessDenied;Sender"})
                return
            if (answer := wire.answers.get(call.actions[0])) is not None:
                headers = {"Content-Type": "application/x-amz-json-1.0"}
                self.answer(200, json.dumps(answer()).encode(), headers)
                return
            connection = http.client.HTTPConnection(address, timeout=60)
            try:
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
                connection.request(self.command, self.path, body=body, headers=headers)
                came = connection.getresponse()
                length = came.headers.get("content-length") if self.command == "HEAD" else None
                answered = came.read()
                wire.heard(call, answered)
                self.answer(came.status, answered, dict(came.headers.items()), length)
            finally:
                connection.close()

        def answer(self, status: int, body: bytes, headers: dict[str, str], length: str | None = None) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Date", format_datetime(datetime.now(UTC) + wire.ahead, usegmt=True))
            self.send_header("Content-Length", length or str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = pass_on  # noqa: N815 - what http.server looks for

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        wire = Wire(f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield wire
        finally:
            server.shutdown()
            thread.join()


def wire_call(method: str, path: str, headers: Any, body: bytes) -> WireCall:
    """Name the call of a request.

    Raises:
        AssertionError: It is a call that this table does not know: it may need a permission.
    """
    target = headers.get("X-Amz-Target", "")
    if target.startswith("AmazonSQS."):
        parameters = json.loads(body or b"{}")
        about = next((parameters[key] for key in ("QueueUrl", "SourceArn", "QueueName") if key in parameters), "")
        operation = target.removeprefix("AmazonSQS.").removesuffix("Batch")
        return WireCall((f"sqs:{operation}",), about)
    service = headers.get("Authorization", "").partition("Credential=")[2].split("/")[3:4]
    if service == ["sqs"]:
        raise AssertionError(f"an SQS call in another protocol: {method} {path}")
    return _s3_call(method, path, headers)


def _s3_call(method: str, path: str, headers: Any) -> WireCall:
    parts = urlsplit(path)
    bucket, _, key = parts.path.lstrip("/").partition("/")
    query = parse_qs(parts.query, keep_blank_values=True)
    place = f"{bucket}/{key or ''.join(query.get('prefix', []))}"
    return WireCall(tuple(f"s3:{action}" for action in _s3_actions(method, bucket, key, query, headers)), place)


def _s3_actions(
    method: str, bucket: str, key: str, query: Mapping[str, Sequence[str]], headers: Any
) -> tuple[str, ...]:
    if not bucket:
        return ("ListAllMyBuckets",)
    version = "Version" if "versionId" in query else ""
    if "tagging" in query and key:
        return (f"{method.capitalize()}Object{version}Tagging",)
    if version and method in {"GET", "HEAD", "DELETE"}:
        return ("DeleteObjectVersion" if method == "DELETE" else "GetObjectVersion",)
    if method == "POST" and "delete" in query:
        return ("DeleteObject",)
    if not key:
        if "location" in query:
            return ("GetBucketLocation",)
        return ({"GET": "ListBucket", "HEAD": "ListBucket", "PUT": "CreateBucket", "DELETE": "DeleteBucket"}[method],)
    if "uploadId" in query and method in {"GET", "DELETE"}:
        return ("ListMultipartUploadParts",) if method == "GET" else ("AbortMultipartUpload",)
    if method == "PUT" and "x-amz-copy-source" in headers:
        return ("GetObject", "PutObject")
    return ("GetObject" if method in {"GET", "HEAD"} else "DeleteObject" if method == "DELETE" else "PutObject",)


def _body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Expect", "").lower() == "100-continue":
        request.send_response_only(100)
        request.end_headers()
    return request.rfile.read(int(request.headers.get("Content-Length") or 0))


def _denial(action: str) -> bytes:
    text = (
        f"User: {CALLER} is not authorized to perform: {action.lower()} because no identity-based policy "
        f"allows the {action.lower()} action"
    )
    return json.dumps({"__type": "com.amazon.coral.service#AccessDeniedException", "Message": text}).encode()
