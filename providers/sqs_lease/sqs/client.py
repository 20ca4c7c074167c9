"""Makes a boto3 client for SQS from the few settings by which a deployment says how it reaches AWS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqs_lease.sqs.client_config import client_config

if TYPE_CHECKING:
    import boto3
    from botocore.session import Session
    from types_boto3_sqs import SQSClient

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
    """Make a client with the timeouts of :func:`sqs_lease.sqs.client_config.client_config`.

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
