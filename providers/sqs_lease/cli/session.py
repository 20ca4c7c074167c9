"""Calls to SQS for one command: a transport and an event loop that live as long as the command, and Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from sqs_lease import blocking
from sqs_lease.sqs import client as boto3_client
from sqs_lease.sqs.client import AwsAccess
from sqs_lease.sqs.move_tasks import RedriveTransport

_T = TypeVar("_T")


class Session:
    """A transport for the time of a ``with`` block.

    Args:
        access: How to reach AWS.
        queue: The queue's name, URL or ARN: it may name the region, and errors name it.

    Raises:
        sqs_lease.sqs.errors.SqsError: No client can be made.
    """

    def __init__(self, access: AwsAccess, queue: str) -> None:
        self.transport: RedriveTransport = blocking.open_transport(boto3_client.make_client(access, queue=queue), queue)
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
        """Run a coroutine to its end. The first Ctrl-C cancels it, and its end is awaited; a second one does not wait.

        Raises:
            KeyboardInterrupt: The user pressed Ctrl-C, and the coroutine did not return in spite of it.
        """
        return self._runner.run(work)
