"""How a trigger reaches AWS: the amazon provider's connection parameters as a value, and the client made from them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from botocore.exceptions import BotoCoreError

from sqs_lease.sqs.aiobotocore import AiobotocoreTransport
from sqs_lease.sqs.classification import error_from_exception
from sqs_lease.sqs.client import client_config
from sqs_lease.sqs.transport import Transport

CONNECTIONS: Final = 1000
"""Most connections of a client: half of them are for long polls, of which each waiting sensor has one or more.

They are opened only when they are needed. Whoever sets ``max_pool_connections`` gets that.
"""

CONNECT_SECONDS: Final = 30.0
"""How long to wait for the Airflow connection to be read and the client to be made."""


@dataclass(frozen=True, slots=True)
class AwsConnection:
    """The parameters that the amazon provider's operators share; nothing in it is secret.

    Attributes:
        aws_conn_id: The Airflow connection; None for boto3's default credentials.
        region_name: The AWS region; None takes the connection's.
        verify: Whether, or by which certificates, TLS is verified; None takes the connection's.
        botocore_config: Arguments of ``botocore.config.Config`` as JSON; empty takes the connection's.
    """

    aws_conn_id: str | None = "aws_default"
    region_name: str | None = None
    verify: bool | str | None = None
    botocore_config: str = ""

    @classmethod
    def of(
        cls,
        aws_conn_id: str | None,
        region_name: str | None,
        verify: bool | str | None,
        botocore_config: Mapping[str, Any] | None,
    ) -> Self:
        """Build it from the parameters as operators take them.

        Raises:
            TypeError: ``botocore_config`` holds more than plain values, so it cannot go to the triggerer.
        """
        try:
            config = json.dumps(botocore_config, sort_keys=True) if botocore_config else ""
        except TypeError as error:
            raise TypeError(f"botocore_config must hold plain values, it is sent to the triggerer: {error}") from error
        return cls(aws_conn_id, region_name, verify, config)

    def encode(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "aws_conn_id": self.aws_conn_id,
            "region_name": self.region_name,
            "verify": self.verify,
            "botocore_config": self.botocore_config,
        }

    @classmethod
    def decode(cls, plain: Mapping[str, Any]) -> Self:
        """Build it from what :meth:`encode` returned."""
        return cls(**plain)


async def open_transport(connection: AwsConnection) -> Transport:
    """Make a client through the amazon provider's hook, and a transport over it.

    Raises:
        TimeoutError: Airflow did not give the connection in time.
    """
    async with asyncio.timeout(CONNECT_SECONDS):
        # Importing the hook, reading the connection and loading the service's model all block.
        return await asyncio.to_thread(make_transport, connection)


@contextmanager
def telling_of_aws(queue: str) -> Iterator[None]:
    """Turn what AWS's library raises while a client is made into errors of ours, which say what to do.

    Args:
        queue: The queue's URL, name or ARN, which the error names.

    Raises:
        SqsError: The client could not be made: a profile that does not exist, credentials that cannot be had.
    """
    try:
        yield
    except (BotoCoreError, OSError) as error:
        meaning = error_from_exception(error, operation="ReceiveMessage", queue=queue)
        if meaning is None:
            raise
        raise meaning from error


def load_client_code() -> None:
    """Load what every client is made of: the amazon provider's hooks and the files that describe SQS. It blocks.

    It takes a third of a second, once in a process. The asynchronous client would read the files with its first call,
    in the event loop.
    """
    # Not with this module: Airflow imports a trigger's class in its event loop, which would stand still for 0.1 s.
    from airflow.providers.amazon.aws.hooks.base_aws import BaseSessionFactory

    # The sessions of all connections share what was read.
    session = BaseSessionFactory(conn=None).get_async_session()  # type: ignore[no-untyped-call]
    session.warm_up_loader_caches("sqs")


def make_transport(connection: AwsConnection) -> Transport:
    """Make a client through the amazon provider's hook, and a transport over it. It blocks.

    The transport may then be used in any event loop, but in one only.
    """
    # Here for the same reason as above.
    from airflow.providers.amazon.aws.hooks.sqs import SqsHook

    load_client_code()
    hook = SqsHook(
        aws_conn_id=connection.aws_conn_id,
        region_name=connection.region_name,
        verify=connection.verify,
        config=json.loads(connection.botocore_config) if connection.botocore_config else None,
    )
    client: Any = hook.get_client_type(
        region_name=hook.region_name,
        # What the user configured has precedence.
        config=client_config(CONNECTIONS).merge(hook.config),
        deferrable=True,
    )
    return AiobotocoreTransport(client)
