"""What tests of several packages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demo.sqs_server import SqsServer, sqs_server


@pytest.fixture(scope="session")
def server() -> Iterator[SqsServer]:
    """A real SQS server process; each test makes queues of its own."""
    with sqs_server() as running:
        yield running
