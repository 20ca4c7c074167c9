"""A transport whose every call a test decides about, and that writes down what it was asked and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqs_lease.clock import Clock
from sqs_lease.core.calls import EntryAnswer, Verdict, VisibilityChange
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.sqs.transport import QueueAttributes


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call: when, which queue, which method, and each message with its visibility in seconds (None: deleted)."""

    at: float
    queue_url: str
    method: str
    entries: tuple[tuple[str, int | None], ...]


Script = Callable[[RecordedCall], Awaitable[Verdict]]


async def done(_: RecordedCall) -> Verdict:
    return Verdict.DONE


@dataclass
class ScriptedTransport:
    clock: Clock
    script: Script = done
    asked: list[RecordedCall] = field(default_factory=list)
    sent: list[tuple[str, str, Mapping[str, Any], str | None]] = field(default_factory=list)
    dead_letter_arn: str | None = None
    under_way: int = 0
    most_under_way: int = 0

    async def queue_url(self, queue: str) -> str:
        return f"https://{queue.rsplit(':', 1)[-1]}"

    async def queue_attributes(self, queue_url: str) -> QueueAttributes:
        return QueueAttributes("arn", 30, False, self.dead_letter_arn, 3, 0, 0, 0)

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
        raise AssertionError("the keeper does not receive")

    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        entries = tuple((change.receipt.message_id, change.seconds) for change in changes)
        method = "extend" if any(change.seconds for change in changes) else "release"
        return await self._ask(queue_url, method, entries, [change.receipt for change in changes])

    async def delete(self, queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
        return await self._ask(queue_url, "delete", tuple((one.message_id, None) for one in receipts), receipts)

    async def _ask(
        self, queue_url: str, method: str, entries: tuple[tuple[str, int | None], ...], receipts: Sequence[Receipt]
    ) -> Sequence[EntryAnswer]:
        asked = RecordedCall(self.clock.now(), queue_url, method, entries)
        self.asked.append(asked)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            verdict = await self.script(asked)
        finally:
            self.under_way -= 1
        return [EntryAnswer(receipt, verdict, text=verdict.value) for receipt in receipts]

    async def send(
        self,
        queue_url: str,
        body: str,
        *,
        message_attributes: Mapping[str, Mapping[str, Any]] | None = None,
        message_group_id: str | None = None,
        deduplication_id: str | None = None,
    ) -> str:
        self.sent.append((queue_url, body, message_attributes or {}, message_group_id))
        return "sent"

    async def aclose(self) -> None:
        """Nothing to close."""

    def calls(self, method: str) -> list[RecordedCall]:
        return [asked for asked in self.asked if asked.method == method]


async def never_answers(_: RecordedCall) -> Verdict:
    await asyncio.get_running_loop().create_future()
    raise AssertionError
