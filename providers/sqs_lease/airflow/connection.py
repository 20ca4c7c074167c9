"""The way to AWS: the amazon provider's connection parameters as a value, and the client made from them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from botocore.config import Config
from botocore.exceptions import BotoCoreError, NoRegionError

from sqs_lease.airflow.dag_file import check_type
from sqs_lease.daemon_threads import DaemonThreads
from sqs_lease.sqs.aiobotocore import AiobotocoreTransport
from sqs_lease.sqs.client import client_config
from sqs_lease.sqs.transport import Transport
from sqs_lease.sqs.validation import queue_reference

if TYPE_CHECKING:
    from airflow.providers.amazon.aws.hooks.sqs import SqsHook
    from types_boto3_sqs import SQSClient

CONNECTIONS: Final = 1000
"""The most HTTP connections of a client: half are for long polls, and each waiting sensor needs at least one.

A client opens them only when it needs them. ``max_pool_connections`` in the user's configuration overrides this.
"""

CONNECT_SECONDS: Final = 30.0
"""How long to wait until the Airflow connection is read and the client is made."""

CLIENTS: Final = DaemonThreads(8, "sqs-lease clients")
"""Threads that make clients: they read Airflow's connections, perhaps from a secrets backend, and botocore's models."""

_READ_BY_EVERY_CLIENT: Final = ("_retry", "endpoints", "partitions", "sdk-default-configuration")
"""Data files of botocore that every client reads, of any service."""


@dataclass(frozen=True, slots=True)
class AwsConnection:
    """The parameters that the amazon provider's operators share; none of them is secret.

    Attributes:
        aws_conn_id: The Airflow connection; None for boto3's default credentials.
        region_name: The AWS region; None takes the connection's.
        verify: Whether, or by which certificates, TLS is verified; None takes the connection's.
        botocore_config: Arguments of ``botocore.config.Config`` as JSON; empty takes the connection's.
        queue_region: The region in the queue's URL or ARN, used where neither ``region_name`` nor the connection nor
            boto3's configuration names one; None if the queue's name, URL or ARN has no region.
    """

    aws_conn_id: str | None = "aws_default"
    region_name: str | None = None
    verify: bool | str | None = None
    botocore_config: str = ""
    queue_region: str | None = None

    @classmethod
    def of(
        cls,
        aws_conn_id: str | None,
        region_name: str | None,
        verify: bool | str | None,
        botocore_config: Mapping[str, Any] | None,
        *,
        queue: str | None = None,
    ) -> Self:
        """Build it from the parameters as operators take them.

        Args:
            aws_conn_id: See the class.
            region_name: See the class.
            verify: See the class.
            botocore_config: Arguments of ``botocore.config.Config``; None takes the connection's.
            queue: The queue's URL, name or ARN, for :attr:`queue_region`.

        Raises:
            TypeError: A parameter has another type, or ``botocore_config`` holds more than plain values, so that it
                cannot go to the triggerer, or an argument that ``botocore.config.Config`` does not take.
            ValueError: ``botocore_config`` has a value that ``botocore.config.Config`` refuses.
        """
        text = (str, type(None))
        check_type(aws_conn_id, text, name="aws_conn_id", expected="the id of an Airflow connection, or None")
        check_type(region_name, text, name="region_name", expected="the name of an AWS region, or None")
        check_type(verify, (bool, *text), name="verify", expected="True, False, the path of a CA bundle, or None")
        check_type(
            botocore_config,
            (Mapping, type(None)),
            name="botocore_config",
            expected="a mapping with arguments of botocore.config.Config, or None",
        )
        try:
            config = json.dumps(botocore_config, sort_keys=True) if botocore_config else ""
        except TypeError as error:
            raise TypeError(f"botocore_config must hold plain values, it is sent to the triggerer: {error}") from error
        if config:
            _check_botocore_config(config)
        return cls(aws_conn_id, region_name, verify, config, None if region_name else _region_of(queue))


def _check_botocore_config(config: str) -> None:
    """Refuse values that botocore would refuse later, when a triggerer or worker makes a client."""
    try:
        Config(**json.loads(config))
    except TypeError as error:
        raise TypeError(
            f"botocore_config has an argument that botocore.config.Config does not take: {error}"
        ) from error
    except (ValueError, BotoCoreError) as error:
        raise ValueError(f"botocore_config is refused by botocore.config.Config: {error}") from error


def _region_of(queue: str | None) -> str | None:
    if queue is None:
        return None
    try:
        return queue_reference(queue).region
    except ValueError:
        return None  # the first call on the queue refuses it


async def open_transport(connection: AwsConnection) -> Transport:
    """Make a client through the amazon provider's hook, and a transport over it.

    Raises:
        TimeoutError: Airflow did not give the connection in time.
        Exception: See :func:`make_transport`.
    """
    async with asyncio.timeout(CONNECT_SECONDS):
        # Importing the hook, reading the connection and loading the service's model all block.
        return await CLIENTS.run(make_transport, connection)


def load_client_code() -> None:
    """Load the code and the data of every client: the amazon provider's hooks and the description of SQS. It blocks.

    It takes a third of a second, once in a process. Otherwise the asynchronous client would read the files with its
    first call, in the event loop.
    """
    # Imported here: Airflow imports a trigger's class, and this module with it, in its event loop, which would block
    # for 0.1 s.
    from airflow.providers.amazon.aws.hooks.base_aws import BaseSessionFactory

    # The sessions of all connections share the loaded data.
    session = BaseSessionFactory(conn=None).get_async_session()  # type: ignore[no-untyped-call]
    loader = session.get_component("data_loader")
    # aiobotocore itself can do this only from 3.7 on, and the provider is content with older ones.
    for name in _READ_BY_EVERY_CLIENT:
        loader.load_data_with_path(name)
    for kind in ("service-2", "endpoint-rule-set-1"):
        loader.load_service_model("sqs", kind, api_version=None)


def make_transport(connection: AwsConnection) -> Transport:
    """Make a client through the amazon provider's hook, and a transport over it. It blocks.

    The transport may then be used in any event loop, but in one only.

    Raises:
        NoRegionError: Nothing names a region.
        Exception: Other errors of botocore; ``translate_client_errors()`` of ``sqs/classification.py`` translates them.
    """
    load_client_code()
    hook = _hook_with_region(connection)
    make = partial(
        hook.get_client_type,
        region_name=hook.region_name,
        # The user's configuration has precedence.
        config=client_config(CONNECTIONS).merge(hook.config),
        deferrable=True,
    )
    # The first client is made here, so that its errors reach the caller. The transport makes another one if the first
    # cannot be entered, for example because its credentials cannot be fetched.
    made: list[Any] = [make()]
    return AiobotocoreTransport(lambda: made.pop() if made else make())


def make_blocking_client(connection: AwsConnection) -> SQSClient:
    """Make a boto3 client through the amazon provider's hook. It blocks.

    Raises:
        NoRegionError: Nothing names a region.
        Exception: Other errors of botocore; ``translate_client_errors()`` of ``sqs/classification.py`` translates them.
    """
    hook = _hook_with_region(connection)
    made: Any = hook.get_client_type(region_name=hook.region_name, config=client_config().merge(hook.config))
    client: SQSClient = made
    return client


def _hook_with_region(connection: AwsConnection) -> SqsHook:
    hook = _hook(connection, connection.region_name)
    if _region(hook) is not None:
        return hook
    if connection.queue_region is None:
        raise NoRegionError
    return _hook(connection, connection.queue_region)


def _hook(connection: AwsConnection, region_name: str | None) -> SqsHook:
    # Imported late, see load_client_code.
    from airflow.providers.amazon.aws.hooks.sqs import SqsHook

    return SqsHook(
        aws_conn_id=connection.aws_conn_id,
        region_name=region_name,
        verify=connection.verify,
        config=json.loads(connection.botocore_config) if connection.botocore_config else None,
    )


def _region(hook: SqsHook) -> str | None:
    """Return the region of the operator or the connection, else of boto3's configuration; None without one."""
    from airflow.providers.amazon.aws.hooks.base_aws import BaseSessionFactory

    if hook.region_name is not None:
        return hook.region_name
    region: str | None = BaseSessionFactory(conn=hook.conn_config).basic_session.region_name
    return region
