"""How a client is made from an Airflow connection: which region it calls, and what an unusable connection says."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.amazon.aws.hooks.base_aws import BaseSessionFactory
from botocore.exceptions import ClientError

from sqs_lease.airflow.connection import AwsConnection, make_transport
from sqs_lease.sqs import errors
from sqs_lease.sqs.classification import translate_client_errors
from sqs_lease.version import VERSION
from tests.sqs.scripted_server import Answer, scripted_server

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
ARN = "arn:aws:sqs:eu-west-1:123456789012:orders"


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Credentials, but no region anywhere, and no connection but those that a test gives."""
    config = tmp_path / "config"
    config.write_text("[profile shop]\nregion = eu-west-3\n")
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return config


def connect(monkeypatch: pytest.MonkeyPatch, **extra: Any) -> str:
    """Give Airflow a connection and return its id."""
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS", json.dumps({"conn_type": "aws", "extra": extra}))
    return "orders"


def region_called(connection: AwsConnection) -> str:
    async def scenario() -> str:
        async with make_transport(connection) as transport:  # type: ignore[attr-defined]
            region: str = transport._client.meta.region_name
            return region

    return asyncio.run(scenario())


def of(aws_conn_id: str | None, region_name: str | None = None, queue: str = QUEUE) -> AwsConnection:
    return AwsConnection.of(aws_conn_id, region_name, None, None, queue=queue)


@pytest.mark.parametrize("queue", [QUEUE, ARN])
def test_a_connection_without_a_region_calls_the_queues_own(monkeypatch: pytest.MonkeyPatch, queue: str) -> None:
    assert region_called(of(connect(monkeypatch), queue=queue)) == "eu-west-1"
    assert region_called(of(None, queue=queue)) == "eu-west-1"


def test_a_configured_region_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert region_called(of(connect(monkeypatch), "us-east-2")) == "us-east-2"
    assert region_called(of(connect(monkeypatch, region_name="us-west-2"))) == "us-west-2"
    assert region_called(of(connect(monkeypatch, profile_name="shop"))) == "eu-west-3"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert region_called(of(connect(monkeypatch))) == "eu-north-1"


@pytest.mark.parametrize("queue", ["orders", "http://localhost:9324/000000000000/orders", "not a queue"])
def test_a_connection_to_no_region_is_an_error_that_names_the_queue_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    connection = of(connect(monkeypatch), queue=queue)
    with (
        pytest.raises(errors.ConfigurationError, match=r"no AWS region .* Set region_name") as raised,
        translate_client_errors(queue),
    ):
        make_transport(connection)
    assert queue in str(raised.value)


def test_a_profile_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = of(connect(monkeypatch, profile_name="absent"))
    with (
        pytest.raises(errors.ConfigurationError, match=r"orders: the AWS profile .*absent"),
        translate_client_errors(QUEUE),
    ):
        make_transport(connection)


def test_a_role_that_must_not_be_assumed_is_an_error_of_the_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "not allowed"}}, "AssumeRole")

    # The hook assumes a role while it makes the session.
    monkeypatch.setattr(BaseSessionFactory, "_refresh_credentials", refused)
    connection = of(connect(monkeypatch, role_arn="arn:aws:iam::123456789012:role/reader"))
    with (
        pytest.raises(errors.CredentialsError, match=r"orders: AssumeRole.* was refused"),
        translate_client_errors(QUEUE),
    ):
        make_transport(connection)


def test_a_client_that_got_no_credentials_at_first_gets_them_with_the_next_call(
    monkeypatch: pytest.MonkeyPatch, environment: Path, tmp_path: Path
) -> None:
    credentials = tmp_path / "credentials.json"
    environment.write_text(f"[default]\nregion = eu-west-1\ncredential_process = cat {credentials}\n")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    async def scenario() -> str:
        transport = make_transport(of(None))
        for _ in range(2):
            with pytest.raises(errors.CredentialsUnavailableError, match="orders: the credentials cannot be fetched"):
                await transport.queue_url(QUEUE)
        credentials.write_text(json.dumps({"Version": 1, "AccessKeyId": "test", "SecretAccessKey": "test"}))
        try:
            return await transport.queue_url(QUEUE)
        finally:
            await transport.aclose()

    assert asyncio.run(scenario()) == QUEUE


def test_the_region_of_the_queue_goes_its_way_through_a_trigger_and_what_was_stored_without_it_is_read() -> None:
    connection = of("aws")
    assert connection.queue_region == "eu-west-1"
    assert AwsConnection(**asdict(connection)) == connection
    stored = asdict(connection)
    del stored["queue_region"]
    assert AwsConnection(**stored) == AwsConnection("aws")
    assert of("aws", "us-east-1").queue_region is None, "one client for all queues of a region that was named"


def test_a_request_names_airflow_and_this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    async def scenario(connection: AwsConnection) -> None:
        async with make_transport(connection) as transport:  # type: ignore[attr-defined]
            events = transport._client.meta.events
            events.register("before-send.sqs", lambda request, **_: seen.append(str(request.headers["User-Agent"])))
            await transport.queue_url("orders")

    with scripted_server() as server:
        server.script("GetQueueUrl", Answer({"QueueUrl": "https://sqs.us-east-1.amazonaws.com/123456789012/orders"}))
        asyncio.run(scenario(of(connect(monkeypatch, endpoint_url=server.endpoint_url), "us-east-1")))
    (header,) = seen
    assert f"sqs-lease/{VERSION}" in header
    assert "Airflow/" in header
