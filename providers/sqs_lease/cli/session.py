"""Calls to SQS for one command: transports and an event loop that live as long as the command, and Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from sqs_lease import blocking
from sqs_lease.sqs import client as boto3_client
from sqs_lease.sqs.client import AwsAccess
from sqs_lease.sqs.move_tasks import RedriveTransport
from sqs_lease.sqs.validation import queue_reference

_T = TypeVar("_T")


class Session:
    """A transport for the time of a ``with`` block.

    Args:
        access: How to reach AWS.
        queue: The queue's name, URL or ARN: it may name the region, and errors name it.
        others: More queues; those of other regions get transports of their own.

    Raises:
        sqs_lease.sqs.errors.SqsError: No client can be made.
    """

    def __init__(self, access: AwsAccess, queue: str, *others: str) -> None:
        self._transports: dict[str | None, RedriveTransport] = {}
        for each in (queue, *others):
            region = queue_reference(each).region
            if region not in self._transports:
                client = boto3_client.make_client(access, queue=each)
                self._transports[region] = blocking.open_transport(client, each)
        self.transport: RedriveTransport = self.transport_of(queue)
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            for transport in self._transports.values():
                self._runner.run(transport.aclose())
        finally:
            self._runner.close()

    def transport_of(self, queue: str) -> RedriveTransport:
        """What reaches one of the queues that were given."""
        return self._transports[queue_reference(queue).region]

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end. The first Ctrl-C cancels it, and its end is awaited; a second one does not wait.

        Raises:
            KeyboardInterrupt: The user pressed Ctrl-C, and the coroutine did not return in spite of it.
        """
        return self._runner.run(work)
