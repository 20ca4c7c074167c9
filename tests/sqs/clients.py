"""Transports over both clients, to any endpoint."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import boto3
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession, get_session
from botocore.config import Config

from sqs_lease.sqs.aiobotocore import AiobotocoreTransport
from sqs_lease.sqs.boto3 import Boto3Transport
from sqs_lease.sqs.client import client_config
from sqs_lease.sqs.client_transport import ClientTransport

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

REGION = "us-east-1"

MakeTransport: TypeAlias = Callable[..., ClientTransport]


def boto3_client(endpoint_url: str, config: Config | None = None) -> SQSClient:
    """A boto3 client with the recommended configuration, changed by ``config``."""
    recommended = client_config()
    return boto3.client(
        "sqs",
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=recommended if config is None else recommended.merge(config),
    )


@functools.cache
def _session() -> AioSession:
    """One for all tests: a session reads the service's model only once."""
    return get_session()


def aiobotocore_client(endpoint_url: str, config: Config | None = None) -> Any:
    """The context manager of an aiobotocore client with the recommended configuration, changed by ``config``."""
    session = _session()
    recommended = client_config()
    # The stubs do not know that a botocore Config can be merged into an AioConfig.
    return session.create_client(
        "sqs",
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=cast("Any", AioConfig()).merge(recommended if config is None else recommended.merge(config)),
    )


def boto3_transport(endpoint_url: str, config: Config | None = None) -> ClientTransport:
    return Boto3Transport(boto3_client(endpoint_url, config))


def aiobotocore_transport(endpoint_url: str, config: Config | None = None) -> ClientTransport:
    return AiobotocoreTransport(aiobotocore_client(endpoint_url, config))
