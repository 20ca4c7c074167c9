"""Shared by the tests of SQS access: a scripted server, and transports over both clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sqs_lease.sqs import boto3, client, client_transport
from tests.sqs.clients import MakeTransport, aiobotocore_transport, boto3_transport
from tests.sqs.scripted_server import ScriptedServer, scripted_server

PATIENCE_SECONDS = 600.0
"""How long answers of the scripted server may take on a busy machine, where a test does not say otherwise."""


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    for module in (boto3, client, client_transport):
        monkeypatch.setattr(module, "ANSWER_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(client, "_CONNECT_SECONDS", PATIENCE_SECONDS)
    with scripted_server() as running:
        yield running


@pytest.fixture(params=[boto3_transport, aiobotocore_transport], ids=["boto3", "aiobotocore"])
def make_transport(request: pytest.FixtureRequest) -> MakeTransport:
    maker: MakeTransport = request.param
    return maker
