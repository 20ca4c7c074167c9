"""What the tests of SQS access share: a scripted server, and transports over both clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sqs.clients import MakeTransport, aiobotocore_transport, boto3_transport
from tests.sqs.scripted_server import ScriptedServer, scripted_server


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    with scripted_server() as running:
        yield running


@pytest.fixture(params=[boto3_transport, aiobotocore_transport], ids=["boto3", "aiobotocore"])
def make_transport(request: pytest.FixtureRequest) -> MakeTransport:
    maker: MakeTransport = request.param
    return maker
