"""An in-memory service with one queue, and the calls on it in short."""

from __future__ import annotations

from collections.abc import Sequence

from sqs_lease.core.calls import VisibilityChange
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.testing import MemorySqs, MessageState, ServiceChoices, ServiceError, VirtualClock


class Service:
    """A service with one queue, and the calls on it in short."""

    def __init__(self, name: str = "orders", **settings: object) -> None:
        self.clock = VirtualClock(start=100)
        choices = settings.pop("choices", None)
        limit = settings.pop("in_flight_limit", 120_000)
        assert isinstance(limit, int)
        assert choices is None or isinstance(choices, ServiceChoices)
        self.sqs = MemorySqs(self.clock, in_flight_limit=limit, choices=choices)
        self.fifo = name.endswith(".fifo")
        self.dead_letter_url = self.sqs.create_queue("dead.fifo" if self.fifo else "dead")
        if "max_receive_count" in settings:
            settings["dead_letter_queue_url"] = self.dead_letter_url
        self.url = self.sqs.create_queue(name, **settings)  # type: ignore[arg-type]

    def send(self, count: int = 1, *, group: str = "a") -> list[str]:
        sent = self.sqs.trail().message_ids()
        return [
            self.sqs.send(
                self.url,
                f"body {number}",
                message_group_id=group if self.fifo else None,
                deduplication_id=f"{len(sent)}-{number}" if self.fifo else None,
            )
            for number in range(count)
        ]

    def receive(
        self, count: int = 10, *, visibility: int | None = None, attempt_id: str | None = None
    ) -> list[Message]:
        return self.sqs.receive(self.url, max_messages=count, visibility_seconds=visibility, attempt_id=attempt_id)

    def receive_one(self) -> Receipt:
        (message,) = self.receive(1)
        return message.receipt

    def change(self, receipt: Receipt, seconds: int) -> ServiceError | None:
        return self.sqs.change_visibility(self.url, [VisibilityChange(receipt, seconds)])[0]

    def delete(self, receipt: Receipt) -> ServiceError | None:
        return self.sqs.delete(self.url, [receipt])[0]

    def states(self) -> list[MessageState]:
        return list(self.sqs.contents(self.url).values())


def ids(messages: Sequence[Message]) -> list[str]:
    return [message.message_id for message in messages]


def refused(error: ServiceError | None, code: str, text: str) -> bool:
    return error is not None and error.code == code and text in error.text
