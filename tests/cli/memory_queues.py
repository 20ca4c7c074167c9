"""A service in memory that makes and deletes queues: what `sqs-lease verify` is put to in virtual time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sqs_lease.cli.contract.checks import Requests
from sqs_lease.sqs.classification import error_from_code
from sqs_lease.sqs.validation import queue_reference
from sqs_lease.testing import MemorySqs, MemoryTransport, VirtualClock
from sqs_lease.testing.memory_transport import arn_url


class MemoryQueueService(MemoryTransport):
    """A :class:`sqs_lease.cli.contract.checks.QueueService` over a :class:`MemorySqs` of its own.

    Attributes:
        clock: Its virtual clock.
        sqs: The service in memory.
        created: The names of all queues that were created.
        urls: The URLs of those that were not deleted.
    """

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.sqs = MemorySqs(self.clock)
        self.created: list[str] = []
        self.urls: list[str] = []
        super().__init__(self.sqs)

    @property
    def requests(self) -> Requests:
        return Requests(
            standard=sum(not call.queue_url.endswith(".fifo") for call in self.calls),
            fifo=sum(call.queue_url.endswith(".fifo") for call in self.calls),
        )

    async def create_queue(self, name: str, attributes: Mapping[str, str]) -> str:
        redrive = json.loads(attributes.get("RedrivePolicy", "{}"))
        url = self.sqs.create_queue(
            name,
            visibility_seconds=int(attributes["VisibilityTimeout"]),
            dead_letter_queue_url=arn_url(redrive["deadLetterTargetArn"]) if redrive else None,
            max_receive_count=redrive.get("maxReceiveCount"),
        )
        self.created.append(name)
        self.urls.append(url)
        return url

    async def delete_queue(self, queue_url: str) -> None:
        if queue_url not in self.urls:
            raise error_from_code("QueueDoesNotExist", "It does not exist.", operation="DeleteQueue", queue=queue_url)
        # The messages stay where they are: each queue has a name of its own, so that does not matter.
        self.urls.remove(queue_url)

    async def queue_urls(self, prefix: str) -> Sequence[str]:
        return [url for url in self.urls if queue_reference(url).name.startswith(prefix)]
