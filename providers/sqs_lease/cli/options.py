"""The arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from sqs_lease.sqs.client import AwsAccess
from sqs_lease.sqs.validation import queue_reference


def queue_given(value: str) -> str:
    """Refuse a value that is not the name, URL or ARN of a queue.

    Raises:
        typer.BadParameter: It is not.
    """
    try:
        queue_reference(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return value


def not_empty(value: str | None) -> str | None:
    """Refuse an empty value: a shell variable that is not set would silently mean the default.

    Raises:
        typer.BadParameter: The value is empty.
    """
    if value is not None and not value.strip():
        raise typer.BadParameter("it is empty; leave the option out to use the default")
    return value


_QUEUE_HELP: Final = "Name, URL or ARN of a queue."

Queue = Annotated[str, typer.Argument(metavar="QUEUE", parser=queue_given, help=_QUEUE_HELP)]
Queues = Annotated[list[str], typer.Argument(metavar="QUEUE", parser=queue_given, help=_QUEUE_HELP)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Region = Annotated[
    str | None, typer.Option("--region", callback=not_empty, help="Region; by default the queue's, or boto3's.")
]
Profile = Annotated[
    str | None, typer.Option("--profile", callback=not_empty, help="Profile of the AWS configuration files.")
]
EndpointUrl = Annotated[
    str | None, typer.Option("--endpoint-url", callback=not_empty, help="URL of SQS, for a custom endpoint.")
]


def aws_access(region: str | None, profile: str | None, endpoint_url: str | None) -> AwsAccess:
    """Make the access to AWS from these options; boto3 finds values that are None."""
    return AwsAccess(region_name=region, profile_name=profile, endpoint_url=endpoint_url)
