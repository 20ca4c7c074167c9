"""A transport that answers receives by a script on virtual time, and writes down what it was asked and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqs_lease.clock import Clock
from sqs_lease.core.calls import EntryAnswer, VisibilityChange
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.sqs.transport import QueueAttributes


@dataclass(frozen=True, slots=True)
class Reply:
    """How one poll goes.

    Attributes:
        messages: The messages that it brings.
        after_seconds: How long after it was sent; None: at once with messages, else at the end of its wait.
        error: The error that it raises instead.
        connection_seconds: How long it waits for a connection before it is sent.
    """

    messages: tuple[Message, ...] = ()
    after_seconds: float | None = None
    error: Exception | None = None
    connection_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Polled:
    """One poll as it was asked for."""

    asked_at: float
    max_messages: int
    wait_seconds: int
    visibility_seconds: int | None
    attempt_id: str | None
    sent_at: float | None = None
    answered_at: float | None = None


def message(number: int, *, handle: str = "a", receive_count: int = 1) -> Message:
    return Message(
        Receipt(f"id-{number}", f"{handle}-{number}"),
        f"body {number}",
        {"ApproximateReceiveCount": str(receive_count)},
    )


def messages(numbers: range) -> tuple[Message, ...]:
    return tuple(message(number) for number in numbers)


@dataclass
class ScriptedPolls:
    """Answers polls in the order in which they are asked for; beyond the script, with nothing."""

    clock: Clock
    script: list[Reply] = field(default_factory=list)
    polls: list[Polled] = field(default_factory=list)
    most_in_flight: int = 0
    most_asked_for: int = 0
    _in_flight: list[Polled] = field(default_factory=list)

    async def receive(
        self,
        queue_url: str,
        *,
        max_messages: int,
        wait_seconds: int,
        visibility_seconds: int | None,
        attempt_id: str | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> Sequence[Message]:
        reply = self.script.pop(0) if self.script else Reply()
        polled = Polled(self.clock.now(), max_messages, wait_seconds, visibility_seconds, attempt_id)
        self.polls.append(polled)
        self._in_flight.append(polled)
        self.most_in_flight = max(self.most_in_flight, len(self._in_flight))
        self.most_asked_for = max(self.most_asked_for, sum(poll.max_messages for poll in self._in_flight))
        try:
            await asyncio.sleep(reply.connection_seconds)
            polled.sent_at = self.clock.now()
            if on_sent is not None:
                on_sent()
            silent = not reply.messages and reply.error is None
            after = (wait_seconds if silent else 0.0) if reply.after_seconds is None else reply.after_seconds
            await asyncio.sleep(after)
        finally:
            self._in_flight.remove(polled)
        polled.answered_at = self.clock.now()
        if reply.error is not None:
            raise reply.error
        assert len(reply.messages) <= max_messages
        return reply.messages

    async def queue_url(self, queue: str) -> str:
        raise AssertionError("a receiver only receives")

    async def queue_attributes(self, queue_url: str) -> QueueAttributes:
        raise AssertionError("a receiver only receives")

    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        raise AssertionError("a receiver only receives")

    async def delete(self, queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
        raise AssertionError("a receiver only receives")

    async def send(
        self,
        queue_url: str,
        body: str,
        *,
        message_attributes: Mapping[str, Mapping[str, Any]] | None = None,
        message_group_id: str | None = None,
        deduplication_id: str | None = None,
    ) -> str:
        raise AssertionError("a receiver only receives")

    async def aclose(self) -> None:
        raise AssertionError("a receiver only receives")
