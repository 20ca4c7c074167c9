"""Makes a boto3 client for SQS from the few settings by which a deployment says how it reaches AWS.

Its configuration of botocore is the one that the transports work best with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from botocore.config import Config

from sqs_lease.core.limits import MAX_WAIT_SECONDS

if TYPE_CHECKING:
    import boto3
    from botocore.session import Session
    from types_boto3_sqs import SQSClient

DEFAULT_CONNECTIONS: Final = 64
"""Half for long polls, half for everything else: 32 calls is what a keeper has under way for one queue at most."""

ANSWER_SECONDS: Final = 10.0
"""How long an answer may take, for a long poll beyond its wait; after that it counts as lost."""

_CONNECT_SECONDS: Final = 5.0


def client_config(connections: int = DEFAULT_CONNECTIONS) -> Config:
    """The ``botocore.config.Config`` (or base of an ``AioConfig``) for a client given to a transport.

    botocore's own retries are off (one attempt). The ledger retries an extension with regard to how
    urgent it is, and the receiver a poll with regard to how long it may wait; a retry inside botocore
    sleeps where neither sees it, by up to 20 s a time in its legacy mode, and repeats a FIFO receive or a throttled
    call without being asked. Reads (``queue_url``, ``queue_attributes``) are repeated by the transport.
    A send is not, as it is not idempotent on a standard queue: the ledger decides.

    The read timeout is longer than the longest long poll (20 s); botocore's default of 60 s would
    notice a cut connection only after leases of 30 s had run out.

    Args:
        connections: Most connections open at once, at least 2; 64 by default. One half is for long
            polls, so that receiving never keeps an extension waiting. A process that receives from more than 32
            queues at once needs more.

    Raises:
        ValueError: ``connections`` is less than 2.
    """
    if connections < 2:
        raise ValueError(f"connections must be at least 2, one for receiving and one for the rest, not {connections}")
    return Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=MAX_WAIT_SECONDS + ANSWER_SECONDS,
        max_pool_connections=connections,
        retries={"total_max_attempts": 1, "mode": "standard"},
        # Connections idle between extensions would otherwise be dropped silently by NAT gateways (350 s on AWS).
        tcp_keepalive=True,
    )


_METHOD: Final = "sqs-lease-assume-role"


@dataclass(frozen=True, slots=True)
class AwsAccess:
    """How AWS is reached; what is not given is boto3's usual: environment, configuration files, instance role.

    Attributes:
        region_name: The region.
        endpoint_url: Where SQS is, for an endpoint of one's own.
        profile_name: A profile of the AWS configuration files.
        role_arn: A role to assume with the credentials found so far. It is assumed again before its credentials
            expire, so messages can be held for longer than they last.
        role_session_name: What CloudTrail calls those sessions.
    """

    region_name: str | None = None
    endpoint_url: str | None = None
    profile_name: str | None = None
    role_arn: str | None = None
    role_session_name: str = "sqs-lease"


def make_client(access: AwsAccess | None = None) -> SQSClient:
    """Make a client with the timeouts of :func:`sqs_lease.sqs.client.client_config`.

    Args:
        access: How AWS is reached; by default as boto3 finds out.

    Raises:
        botocore.exceptions.BotoCoreError: There is no such profile, or no region.
    """
    # Imported late: Airflow imports this package in every one of its commands, and boto3 takes a while.
    import boto3

    access = AwsAccess() if access is None else access
    session = boto3.Session(profile_name=access.profile_name, region_name=access.region_name)
    if access.role_arn is not None:
        role_session = _in_role(session, access.role_arn, access.role_session_name)
        session = boto3.Session(botocore_session=role_session, region_name=session.region_name)
    return session.client("sqs", endpoint_url=access.endpoint_url, config=client_config())


def _in_role(source: boto3.Session, role_arn: str, role_session_name: str) -> Session:
    from botocore.credentials import (
        AssumeRoleCredentialFetcher,
        CredentialProvider,
        CredentialResolver,
        DeferredRefreshableCredentials,
    )
    from botocore.session import get_session

    create_client: Any = source.client  # the stubs know no client of a service that is named at run time

    class Role(CredentialProvider):
        """The role's credentials, fetched when they are first needed and whenever they are about to expire."""

        METHOD = _METHOD

        def load(self) -> Any:
            fetcher = AssumeRoleCredentialFetcher(
                client_creator=create_client,
                source_credentials=source.get_credentials(),
                role_arn=role_arn,
                extra_args={"RoleSessionName": role_session_name},
            )
            return DeferredRefreshableCredentials(method=_METHOD, refresh_using=fetcher.fetch_credentials)

    session = get_session()
    session.register_component("credential_provider", CredentialResolver([Role()]))
    return session
