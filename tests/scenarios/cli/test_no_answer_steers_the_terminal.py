"""A service, or whatever answers in its place, whose every text has escape sequences, marks of direction and markup.

Senders choose bodies, attributes and groups; neighbours choose names of queues and what a queue's attributes say; a
proxy chooses everything. A terminal gets none of it but as text, and each finding stays on lines of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

import pytest

from tests.cli.commands import Ran, sqs_lease

STEERING: Final = "\x1b]0;title\x07\x1b[2J\x9b31m\r\u2028\u202e\u2066\x7f\U000e0001"
"""Characters that a terminal obeys, or that turn a line around."""

MARKUP: Final = "[bold red]unclosed [/] [/nothing] [link=http://evil]here[/link] :bomb:"
FORGED: Final = "\n\u2713 forged line"
HOSTILE: Final = f"{STEERING}{MARKUP}{FORGED}"

NAME: Final = "orders"
ARN: Final = f"arn:aws:sqs:us-east-1:123456789012:{NAME}"

ATTRIBUTES: Final = {
    "QueueArn": ARN,
    "VisibilityTimeout": "12",
    "ApproximateNumberOfMessages": "1",
    "ApproximateNumberOfMessagesNotVisible": "0",
    "ApproximateNumberOfMessagesDelayed": "0",
    "MessageRetentionPeriod": "345600",
    "MaximumMessageSize": "1048576",
    "ReceiveMessageWaitTimeSeconds": "0",
    "KmsMasterKeyId": f"key{HOSTILE}",
    "RedrivePolicy": json.dumps({"deadLetterTargetArn": f"{ARN}-dead", "maxReceiveCount": 2}),
    "RedriveAllowPolicy": json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [f"{ARN}{HOSTILE}"]}),
    "Policy": json.dumps({"Statement": [{"Sid": HOSTILE, "Effect": "Allow", "Principal": "*", "Action": "*"}]}),
    f"Strange{HOSTILE}": HOSTILE,
}

MESSAGE: Final = {
    "MessageId": f"id{HOSTILE}",
    "ReceiptHandle": f"handle{HOSTILE}",
    "Body": f"body{HOSTILE}",
    "Attributes": {
        "SentTimestamp": "1700000000000",
        "ApproximateReceiveCount": "1",
        "MessageGroupId": f"group{HOSTILE}",
        "SenderId": HOSTILE,
        "DeadLetterQueueSourceArn": ARN,
    },
    "MessageAttributes": {
        f"name{HOSTILE}": {"DataType": f"String.{HOSTILE}", "StringValue": f"value{HOSTILE}"},
        "sqs_lease_reason": {"DataType": "String", "StringValue": f"reason{HOSTILE}"},
    },
}


FAILED_MOVE: Final = {
    "Status": "FAILED",
    "SourceArn": ARN,
    "FailureReason": f"failed{HOSTILE}",
    "ApproximateNumberOfMessagesMoved": 0,
}


def answers(url: str) -> dict[str, Any]:
    """Answers by operation; of all others, and of calls in batches, the answer is an error."""
    return {
        "GetQueueUrl": {"QueueUrl": f"{url}/123456789012/{NAME}"},
        "GetQueueAttributes": {"Attributes": ATTRIBUTES},
        "ReceiveMessage": {"Messages": [MESSAGE]},
        "ListDeadLetterSourceQueues": {"queueUrls": [f"{url}/123456789012/{NAME}"]},
        "ListMessageMoveTasks": {"Results": [{**FAILED_MOVE, "StartedTimestamp": time.monotonic_ns()}]},
        "StartMessageMoveTask": {"TaskHandle": HOSTILE},
        "ListQueues": {"QueueUrls": [f"{url}/123456789012/sqs-lease-verify-{STEERING}"]},
    }


class Kind(StrEnum):
    """A kind of behaviour of the service."""

    ANSWERS = "answers"
    DENIED = "denies all calls"
    STRANGE = "refuses all calls with a code that is not known"


@contextmanager
def hostile_service(kind: Kind) -> Iterator[str]:
    """Run a service that says what it is told to say, until the block ends; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            operation = self.headers.get("X-Amz-Target", "").removeprefix("AmazonSQS.")
            status, found = 200, answers(url).get(operation) if kind is Kind.ANSWERS else None
            if found is None:
                status = 403 if kind is Kind.DENIED else 400
                code = "AccessDenied" if kind is Kind.DENIED else f"Strange{MARKUP}"
                found = {"__type": f"com.amazonaws.sqs#{code}", "message": f"no{HOSTILE}"}
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield url
        finally:
            server.shutdown()
            thread.join()


COMMANDS: Final = {
    "doctor": ("doctor", NAME),
    "policy": ("policy", NAME),
    "peek": ("peek", NAME, "--yes"),
    "peek --bodies": ("peek", NAME, "--yes", "--bodies"),
    "redrive": ("redrive", f"{NAME}-dead", "--yes"),
    "redrive --cancel": ("redrive", f"{NAME}-dead", "--cancel"),
    "verify": ("verify", "--yes"),
}


def run(kind: Kind, *arguments: str) -> Ran:
    with hostile_service(kind) as url:
        environment = {
            "AWS_ENDPOINT_URL": url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
        return sqs_lease(*arguments, environment=environment, columns=100)


@pytest.mark.parametrize("json_option", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_answer_of_a_service_is_text_and_nothing_else(
    command: str, kind: Kind, json_option: tuple[str, ...]
) -> None:
    ran = run(kind, *COMMANDS[command], *json_option)

    said = ran.out + ran.err
    assert said
    assert {character for character in said if not character.isprintable()} <= {"\n"}
    # Rich would have made a link of it, without this text.
    assert said.count("evil") == said.count("[link=http://evil]")
    # A body is shown as it is, with its lines.
    if command != "peek --bodies":
        assert "\n\u2713 forged" not in said
