"""Boto3 clients for SQS, made from the few settings by which a deployment reaches AWS.

The client is configured as the transports need it: no retries inside botocore, short time-outs, enough connections.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from botocore.config import Config
from botocore.exceptions import NoCredentialsError, NoRegionError

from sqs_lease.core.limits import MAX_WAIT_SECONDS
from sqs_lease.sqs.boto3_sessions import boto3_session, sqs_session
from sqs_lease.sqs.classification import translate_client_errors
from sqs_lease.sqs.parameter_checks import check_all_calls
from sqs_lease.sqs.user_agent import reuse_user_agent
from sqs_lease.sqs.validation import queue_reference
from sqs_lease.version import USER_AGENT

if TYPE_CHECKING:
    import boto3
    from botocore.session import Session
    from types_boto3_sqs import SQSClient

DEFAULT_CONNECTIONS: Final = 64
"""Half for long polls, half for all other calls: a keeper makes at most 32 calls to one queue at once."""

ANSWER_SECONDS: Final = 10.0
"""How long to wait for an answer, beyond the wait of a long poll; after that the answer counts as lost."""

_CONNECT_SECONDS: Final = 5.0


def client_config(connections: int = DEFAULT_CONNECTIONS) -> Config:
    """Return the ``botocore.config.Config`` (or the base of an ``AioConfig``) of a client for a transport.

    botocore's own retries are off (one attempt). The ledger retries an extension as urgently as its lease needs it,
    and the receiver retries a poll while it has time. A retry inside botocore sleeps where neither sees it, for up to
    20 s in its legacy mode, and repeats a FIFO receive or a throttled call unasked. The transport repeats reads
    (``queue_url``, ``queue_attributes``). It never repeats a send, because a standard queue would hold the message
    twice: the ledger decides.

    The read timeout is longer than the longest long poll (20 s). botocore's default of 60 s would notice a cut
    connection only after leases of 30 s had run out.

    Args:
        connections: Most connections open at once, at least 2; 64 by default. One half is for long polls, so that
            receiving never delays an extension. A process that receives from more than 32 queues at once needs more.

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
        user_agent_extra=USER_AGENT,
    )


_METHOD: Final = "sqs-lease-assume-role"


@dataclass(frozen=True, slots=True)
class AwsAccess:
    """The access to AWS. For a setting that is None, boto3 looks in the environment, its files and the instance's role.

    Attributes:
        region_name: The region.
        endpoint_url: The URL of SQS, for a custom endpoint.
        profile_name: A profile of the AWS configuration files.
        role_arn: A role to assume with the credentials that boto3 finds. The client assumes it again before its
            credentials expire, so a lease can outlast them.
        role_session_name: The name of those sessions in CloudTrail.
        use_ssl: Whether to use TLS if ``endpoint_url`` has no scheme.
        verify: Whether to verify TLS, or the file of certificates to verify it with; None for boto3's default.
    """

    region_name: str | None = None
    endpoint_url: str | None = None
    profile_name: str | None = None
    role_arn: str | None = None
    role_session_name: str = "sqs-lease"
    use_ssl: bool = True
    verify: bool | str | None = None


def make_client(access: AwsAccess | None = None, *, queue: str | None = None) -> SQSClient:
    """Make a client with the configuration of :func:`client_config`, without a call to SQS.

    Args:
        access: The access to AWS; boto3's defaults if not given.
        queue: The queue that the client is for: its name, ARN or URL. If neither ``access`` nor boto3 names a
            region, the ARN or URL does. Errors name the queue.

    Raises:
        ValueError: ``queue`` is not a queue name, ARN or URL.
        sqs_lease.sqs.errors.ConfigurationError: No region is configured, the profile does not exist, or a setting
            is unusable.
        sqs_lease.sqs.errors.CredentialsError: There are no credentials, or only a part of them.
        sqs_lease.sqs.errors.SqsError: The client cannot be made for another reason; the text says which.
    """
    access = AwsAccess() if access is None else access
    queue_region = None if queue is None else queue_reference(queue).region
    with translate_client_errors(queue or ""):
        session = boto3_session(source=sqs_session(), profile_name=access.profile_name, region_name=access.region_name)
        if session.region_name is None:
            if queue_region is None:
                raise NoRegionError
            session = boto3_session(source=sqs_session(), profile_name=access.profile_name, region_name=queue_region)
        # Without this check the first call would fail.
        if session.get_credentials() is None:
            raise NoCredentialsError
        if access.role_arn is not None:
            role_session = _in_role(session, access.role_arn, access)
            session = boto3_session(source=role_session, region_name=session.region_name)
        client = session.client(
            "sqs",
            endpoint_url=access.endpoint_url,
            use_ssl=access.use_ssl,
            verify=access.verify,
            config=client_config().merge(Config(parameter_validation=False)),
        )
    check_all_calls(client)
    reuse_user_agent(client)
    return client


def _in_role(source: boto3.Session, role_arn: str, access: AwsAccess) -> Session:
    from botocore.credentials import (
        AssumeRoleCredentialFetcher,
        CredentialProvider,
        CredentialResolver,
        DeferredRefreshableCredentials,
    )

    # The stubs lack clients of services named at run time.
    create_client: Any = partial(source.client, verify=access.verify, config=Config(user_agent_extra=USER_AGENT))

    class Role(CredentialProvider):
        """The role's credentials, fetched when the first call needs them and whenever they are about to expire."""

        METHOD = _METHOD

        def load(self) -> Any:
            fetcher = AssumeRoleCredentialFetcher(
                client_creator=create_client,
                source_credentials=source.get_credentials(),
                role_arn=role_arn,
                extra_args={"RoleSessionName": access.role_session_name},
            )
            return DeferredRefreshableCredentials(method=_METHOD, refresh_using=fetcher.fetch_credentials)

    session = sqs_session()
    session.register_component("credential_provider", CredentialResolver([Role()]))
    return session
