"""Errors about the access to a queue, with a remedy in Dagster's words: the setting of the resource, and its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqs_lease.sqs.errors import (
    AccessDeniedError,
    ConfigurationError,
    CredentialsError,
    EndpointError,
    EndpointUnreachableError,
    QueueNotFoundError,
    SqsError,
    WrongRegionError,
)

_PROCESS: Final = "the process that Dagster works in (the code server for sensors, run workers and steps for all else)"

_NO_CREDENTIALS: Final = (
    "Set profile_name of {resource}, or give a role or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to {process}."
)

_INSTEAD: Final = {
    "WrongRegion": "Set region_name of {resource} to the region of the queue, or leave it out: where {process} has no "
    "region, it is that of the ARN or the URL.",
    "NoRegionError": "Set region_name of {resource}, or AWS_DEFAULT_REGION in {process}, or name the queue by its ARN "
    "or its URL at AWS.",
    "ProfileNotFound": "Correct profile_name of {resource}, or AWS_PROFILE in {process}, or add the profile to the AWS "
    "configuration file there.",
    "LoginError": _NO_CREDENTIALS,
    "NoAuthTokenError": _NO_CREDENTIALS,
    "NoCredentialsError": _NO_CREDENTIALS,
    "PartialCredentialsError": _NO_CREDENTIALS,
    "SSOError": _NO_CREDENTIALS,
}
"""Remedies in place of the general ones, by the error's code."""

_ABOUT_ACCESS: Final = (
    AccessDeniedError,
    ConfigurationError,
    CredentialsError,
    EndpointError,
    EndpointUnreachableError,
    QueueNotFoundError,
    WrongRegionError,
)

_REACHED_BY: Final = (
    "The queue is reached by queue, region_name, endpoint_url, profile_name and role_arn of {resource}, and by the AWS "
    "settings of {process} where those are not set."
)
_WHERE: Final = (
    "Settings of the resource are given in Definitions(resources=...) or under queue in a component's YAML, as values "
    "or as EnvVar; with configure_at_launch() in the run config."
)


def in_words_of_dagster(error: SqsError, resource: str) -> SqsError:
    """Return an error about the access to a queue with the remedy in Dagster's words; others as they are."""
    if not isinstance(error, _ABOUT_ACCESS) or error.remedy.endswith(_WHERE):
        return error
    words = {"resource": resource, "process": _PROCESS}
    if (instead := _INSTEAD.get(error.code)) is not None:
        remedy = instead.format(**words)
    else:
        remedy = f"{error.remedy} {_REACHED_BY.format(**words)}".lstrip()
    return error.with_remedy(f"{remedy} {_WHERE}")


@contextmanager
def access_to(resource: object) -> Iterator[None]:
    """Raise the errors of a block about the access to a queue with the remedy in Dagster's words."""
    try:
        yield
    except SqsError as error:
        told = in_words_of_dagster(error, type(resource).__name__)
        if told is error:
            raise
        # The cause is the client's error; the general error would only repeat the text.
        raise told from error.__cause__
