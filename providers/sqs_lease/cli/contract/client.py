"""The service over a boto3 client: the transport of leases, with queues that are made and deleted, and a count."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Final

from sqs_lease.cli.contract.checks import Requests
from sqs_lease.sqs.boto3 import Boto3Transport
from sqs_lease.sqs.requests import text_of

TAGS: Final = {"made-by": "sqs-lease verify"}
"""The tag of queues that are made here."""

_BILLED_BYTES: Final = 65_536
_MOST_LISTED: Final = 1_000


class ContractTransport(Boto3Transport):
    """A :class:`sqs_lease.cli.contract.checks.QueueService`.

    Args:
        client: A client of boto3. The transport owns it, as :class:`~sqs_lease.sqs.boto3.Boto3Transport` says.
    """

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._counted = Lock()
        self._standard = self._fifo = 0
        client.meta.events.register("before-send.sqs", self._count_request)
        client.meta.events.register("before-parse.sqs", self._count_answer)

    @property
    def requests(self) -> Requests:
        """The requests so far."""
        return Requests(self._standard, self._fifo)

    async def create_queue(self, name: str, attributes: Mapping[str, str]) -> str:
        """See :meth:`sqs_lease.cli.contract.checks.QueueService.create_queue`."""
        parameters = {"QueueName": name, "Attributes": dict(attributes), "tags": TAGS}
        creating = asyncio.ensure_future(self._perform("CreateQueue", parameters, name))
        try:
            answer = await asyncio.shield(creating)
        except asyncio.CancelledError:
            # A queue that is made after it was looked for would stay.
            await asyncio.wait([creating])
            raise
        return text_of(answer["QueueUrl"])

    async def delete_queue(self, queue_url: str) -> None:
        """See :meth:`sqs_lease.cli.contract.checks.QueueService.delete_queue`."""
        await self._perform("DeleteQueue", {"QueueUrl": queue_url}, queue_url)

    async def queue_urls(self, prefix: str) -> Sequence[str]:
        """See :meth:`sqs_lease.cli.contract.checks.QueueService.queue_urls`."""
        parameters = {"QueueNamePrefix": prefix, "MaxResults": _MOST_LISTED}

        async def read() -> list[str]:
            answer = await self._perform("ListQueues", parameters, f"{prefix}*")
            return [text_of(url) for url in answer.get("QueueUrls") or ()]

        return await self._repeated(read)

    def _count_request(self, request: Any, **_: Any) -> None:
        body: bytes = request.body or b""
        billed = max(1, -(-len(body) // _BILLED_BYTES))
        with self._counted:
            # The URL or the name of a FIFO queue ends so.
            if b'.fifo"' in body:
                self._fifo += billed
            else:
                self._standard += billed

    def _count_answer(self, response_dict: Mapping[str, Any], **_: Any) -> None:
        with self._counted:
            # Only a standard queue is sent a message that long.
            self._standard += max(0, -(-len(response_dict["body"]) // _BILLED_BYTES) - 1)
