"""What tests of several packages share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from demo.sqs_server import SqsServer, sqs_server


def pytest_configure() -> None:
    # A shell's job in the background ignores SIGINT, and so would all that these tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def server() -> Iterator[SqsServer]:
    """A real SQS server process; each test makes queues of its own."""
    with sqs_server() as running:
        yield running
