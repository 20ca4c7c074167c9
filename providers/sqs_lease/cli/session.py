"""Calls to SQS for one command: a transport and an event loop that live as long as the command, and Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar
from urllib.parse import urlsplit

from sqs_lease import blocking
from sqs_lease.cli.output import CommandError
from sqs_lease.sqs import client as boto3_client
from sqs_lease.sqs.classification import redacted
from sqs_lease.sqs.client import AwsAccess
from sqs_lease.sqs.move_tasks import RedriveTransport

PATIENCE_SECONDS: Final = 15.0
"""Time after the first Ctrl-C in which further ones are ignored, because messages are being given back."""

TERMINATED: Final = 128 + signal.SIGTERM
"""The exit code of a command that SIGTERM ended, as shells report it."""

_T = TypeVar("_T")
_Reached = TypeVar("_Reached", bound=RedriveTransport)


class Session(Generic[_Reached]):
    """A transport for the time of a ``with`` block, which closes it.

    Args:
        transport: The transport.

    Attributes:
        ended_by: The signal that told the last :meth:`run` to end, as Ctrl-C or SIGTERM raise it; None without one. A
            coroutine may return all the same, to say how far it got.
    """

    def __init__(self, transport: _Reached) -> None:
        self.transport = transport
        self.ended_by: KeyboardInterrupt | SystemExit | None = None
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._runner.run(self.transport.aclose())
        finally:
            self._runner.close()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end. The first Ctrl-C or SIGTERM cancels it, and its end is awaited.

        A second one must not leave messages in flight or queues behind: it is ignored, unless the end takes longer than
        :data:`PATIENCE_SECONDS`.

        Raises:
            KeyboardInterrupt: The user pressed Ctrl-C, and the coroutine ended by it.
            SystemExit: The process got SIGTERM, and the coroutine ended by it.
        """
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            # Ctrl-C has another handler in this process, or is ignored.
            return self._runner.run(work)
        loop, self.ended_by = self._runner.get_loop(), None
        # SIGTERM may have another handler in this process, or be ignored.
        ends_by_sigterm = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        interrupts: list[tuple[float, KeyboardInterrupt | SystemExit]] = []

        def interrupt(task: asyncio.Future[Any], end: KeyboardInterrupt | SystemExit) -> None:
            interrupts.append((loop.time(), end))
            if len(interrupts) == 1:
                self.ended_by = end
                task.cancel()
            elif loop.time() - interrupts[0][0] > PATIENCE_SECONDS:
                raise end

        async def interruptible() -> _T:
            task = asyncio.ensure_future(work)
            loop.add_signal_handler(signal.SIGINT, interrupt, task, KeyboardInterrupt())
            if ends_by_sigterm:
                loop.add_signal_handler(signal.SIGTERM, interrupt, task, SystemExit(TERMINATED))
            try:
                return await task
            finally:
                loop.remove_signal_handler(signal.SIGINT)
                if ends_by_sigterm:
                    loop.remove_signal_handler(signal.SIGTERM)

        try:
            return self._runner.run(interruptible())
        except asyncio.CancelledError:
            if not interrupts:
                raise
            raise interrupts[0][1] from None


def queue_session(access: AwsAccess, queue: str) -> Session[RedriveTransport]:
    """Reach one queue for the time of a ``with`` block.

    Args:
        access: How to reach AWS.
        queue: The queue's name, URL or ARN: it may name the region and the endpoint, and errors name it.

    Raises:
        CommandError: A URL is not of the endpoint that was given or configured.
        sqs_lease.sqs.errors.SqsError: No client can be made.
    """
    client = boto3_client.make_client(own_access(access, queue), queue=queue)
    return Session(blocking.open_transport(client, queue))


def own_access(access: AwsAccess, queue: str) -> AwsAccess:
    """Return the access to a queue. A URL off AWS names its endpoint: boto3 ignores the host of a queue's URL.

    Args:
        access: How to reach AWS.
        queue: The queue's name, URL or ARN.

    Raises:
        CommandError: Its URL is not of the endpoint that was given or configured.
        sqs_lease.sqs.errors.SqsError: No client can be made.
    """
    endpoint = boto3_client.make_client(access, queue=queue).meta.endpoint_url if is_off_aws(queue) else ""
    if not endpoint or is_at(endpoint, queue):
        return access
    if _is_aws(endpoint):
        return replace(access, endpoint_url=endpoint_of(queue))
    raise CommandError(f"{queue} is not at {redacted(endpoint)}: give the queue's name, or another --endpoint-url")


def is_off_aws(queue: str) -> bool:
    """Whether a queue is given by a URL that is not on one of AWS's own hosts."""
    return "://" in queue and not _is_aws(queue)


def is_at(endpoint: str, queue_url: str) -> bool:
    """Whether calls to an endpoint reach the server that a URL off AWS names."""
    # An emulator's host may have several names, so only the port is compared.
    return not _is_aws(endpoint) and urlsplit(endpoint).port == urlsplit(queue_url).port


def endpoint_of(queue_url: str) -> str:
    """Return the endpoint that a queue's URL names."""
    parts = urlsplit(queue_url)
    return f"{parts.scheme}://{parts.netloc}"


_CREDENTIAL_SOURCES: Final = {
    "env": "environment variables",
    "explicit": "the settings",
    "assume-role": "an assumed role",
    "assume-role-with-web-identity": "a role of a web identity",
    "shared-credentials-file": "the credentials file",
    "config-file": "the configuration file",
    "iam-role": "the machine's role",
    "container-role": "the container's role",
    "sso": "IAM Identity Center",
    "login": "aws login",
}


def client_credentials(client: Any) -> Any:
    """The credentials of a client of boto3; None without any."""
    return client._request_signer._credentials  # noqa: SLF001 - botocore tells them nowhere else


def credentials_source(client: Any) -> str:
    """Where a client of boto3 has its credentials from, in words."""
    given = client_credentials(client)
    method = "" if given is None else str(given.method)
    return _CREDENTIAL_SOURCES.get(method, method or "nowhere")


def aws_words(access: AwsAccess, region: str) -> tuple[str, ...]:
    """The words that follow ``aws`` in a command, so that it reaches the same queues.

    Args:
        access: How AWS is reached here.
        region: The client's region.
    """
    options = (("--profile", access.profile_name), ("--endpoint-url", access.endpoint_url), ("--region", region))
    return tuple(word for name, value in options if value for word in (name, value))


def _is_aws(url: str) -> bool:
    return (urlsplit(url).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))
