"""The queues of one check, and the steps that checks share: send, hold a message, and see when it comes again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqs_lease.cli.contract.checks import DiffersError, QueueService
from sqs_lease.clock import Clock
from sqs_lease.core.calls import PASSING, EntryAnswer, Verdict, VisibilityChange
from sqs_lease.core.limits import MAX_BATCH_ENTRIES
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.sqs.classification import error_from_code
from sqs_lease.sqs.errors import InvalidRequestError, TransientError

HELD_SECONDS: Final = 600
"""Visibility timeout of messages that must not become visible again while a check runs."""

ROUNDING_SECONDS: Final = 0.05
"""A message counts as early only if it is earlier by more than this: a service's clock may be coarser."""

COMES_SECONDS: Final = 10
"""How long a message that is visible may stay away from polls that wait: SQS copies it to its servers first."""

LATE_SECONDS: Final = 10.0
"""How long after the end of its visibility timeout a message may be invisible; nothing is promised about less."""


@dataclass(frozen=True, slots=True)
class Held:
    """A message that was received.

    Attributes:
        message: The message.
        asked_at: The clock before the receive: its visibility timeout ends no earlier than counted from here.
        answered_at: The clock after the answer: it ends no later than counted from here.
    """

    message: Message
    asked_at: float
    answered_at: float

    @property
    def receipt(self) -> Receipt:
        """The reception of the message."""
        return self.message.receipt


@dataclass(frozen=True, slots=True)
class Return:
    """The return of a message.

    Attributes:
        held: The message, held now; None if it did not come in time.
        hidden_until: The time until which polls proved it invisible.
    """

    held: Held | None
    hidden_until: float


class Ground:
    """The service, clock and queues that one check works with.

    Args:
        service: The service.
        clock: The clock of this machine.
        url: The queue's URL.
        dead_letter_url: The URL of its dead-letter queue; empty without one.
        unit: The check's unit of time in seconds: 1, or more if calls take long.
    """

    def __init__(self, service: QueueService, clock: Clock, url: str, dead_letter_url: str, unit: int) -> None:
        self.service = service
        self.clock = clock
        self.url = url
        self.dead_letter_url = dead_letter_url
        self.unit = unit

    async def pause_until(self, moment: float) -> None:
        """Wait until a moment of the clock."""
        await asyncio.sleep(max(moment - self.clock.now(), 0))

    async def send(
        self,
        body: str = "a message of sqs-lease verify",
        *,
        attributes: Mapping[str, Mapping[str, Any]] | None = None,
        group: str | None = None,
        deduplication_id: str | None = None,
    ) -> str:
        """Send a message to the queue and return its id. FIFO queues get a default group, and an id from the body."""
        if self.url.endswith(".fifo"):
            group = group or "a"
            deduplication_id = deduplication_id or body.replace(" ", "-")
        return await self.service.send(
            self.url,
            body,
            message_attributes=attributes,
            message_group_id=group,
            deduplication_id=deduplication_id,
        )

    async def receive(
        self,
        most: int = 1,
        *,
        wait: int = COMES_SECONDS,
        visibility: int = HELD_SECONDS,
        url: str = "",
        attempt_id: str | None = None,
    ) -> list[Message]:
        """Receive by one long poll, which asks all servers of SQS; a short one would ask some of them."""
        return list(
            await self.service.receive(
                url or self.url,
                max_messages=most,
                wait_seconds=wait,
                visibility_seconds=visibility,
                attempt_id=attempt_id,
            )
        )

    async def hold(self, *, visibility: int = HELD_SECONDS, url: str = "") -> Held:
        """Receive a message that is visible.

        Raises:
            DiffersError: No message came.
        """
        asked_at = self.clock.now()
        messages = await self.receive(visibility=visibility, url=url)
        if not messages:
            raise DiffersError(f"a message that is visible did not come within {COMES_SECONDS} s of waiting")
        return Held(messages[0], asked_at, self.clock.now())

    async def hold_all(self, count: int) -> list[Message]:
        """Receive as many messages as there are; SQS may bring fewer than ten at once.

        Raises:
            DiffersError: Not all messages came, or more than were requested.
        """
        held: list[Message] = []
        while len(held) < count:
            most = min(count - len(held), MAX_BATCH_ENTRIES)
            came = await self.receive(most)
            if not came or len(came) > most:
                raise DiffersError(f"a receive of up to {most} visible messages brought {len(came)}")
            held += came
        return held

    async def comes_again(
        self, *, hidden_from: float, latest: float, visibility: int = HELD_SECONDS, url: str = ""
    ) -> Return:
        """Poll until a message comes, or polls prove that no message was visible up to a moment.

        Args:
            hidden_from: The time up to which no message is known to have been visible.
            latest: The time until which to wait.
            visibility: The visibility timeout for the message that comes.
            url: The queue; by default the check's own.
        """
        hidden_until = hidden_from
        while True:
            asked_at = self.clock.now()
            messages = await self.receive(wait=1, visibility=visibility, url=url)
            answered_at = self.clock.now()
            if messages:
                return Return(Held(messages[0], asked_at, answered_at), hidden_until)
            # An answer without a wait proves only that no message was visible at the time of the call.
            waited = answered_at - asked_at >= 1 - ROUNDING_SECONDS
            hidden_until = max(hidden_until, asked_at + 1 if waited else asked_at)
            if hidden_until >= latest:
                return Return(None, hidden_until)
            await self.pause_until(asked_at + 1)

    async def is_empty(self, seconds: int = 1) -> bool:
        """Return whether a poll of this many seconds brings no message; messages that it brings stay held."""
        return not await self.receive(MAX_BATCH_ENTRIES, wait=seconds)

    async def change(self, receipts: Sequence[Receipt], seconds: int, *, url: str = "") -> list[EntryAnswer]:
        """Set visibility timeouts by one call; in the check's own queue, or in another one.

        Raises:
            sqs_lease.sqs.errors.SqsError: The call as a whole was denied, or failed in a way that may pass.
        """
        changes = [VisibilityChange(receipt, seconds) for receipt in receipts]
        return self._checked(await self.service.change_visibility(url or self.url, changes), "ChangeMessageVisibility")

    async def delete(self, receipts: Sequence[Receipt]) -> list[EntryAnswer]:
        """Delete messages by one call.

        Raises:
            sqs_lease.sqs.errors.SqsError: The call as a whole was denied, or failed in a way that may pass.
        """
        return self._checked(await self.service.delete(self.url, receipts), "DeleteMessage")

    async def release(self, held: Held, *, url: str = "") -> None:
        """Make a message visible at once; in the check's own queue, or in another one.

        Raises:
            DiffersError: The service refuses that.
        """
        (answer,) = await self.change([held.receipt], 0, url=url)
        if answer.verdict is not Verdict.DONE:
            raise DiffersError(f"a visibility timeout of 0 was answered {shown(answer)}")

    def _checked(self, answers: Sequence[EntryAnswer], operation: str) -> list[EntryAnswer]:
        for answer in answers:
            if answer.verdict in PASSING:
                raise TransientError(answer.text, queue=self.url, code=answer.code, text=answer.text)
            if answer.verdict is Verdict.REFUSED:
                error = error_from_code(answer.code, answer.text, operation=operation, queue=self.url)
                if not isinstance(error, InvalidRequestError):
                    raise error
        return list(answers)


def shown(answer: EntryAnswer) -> str:
    """Return a text with this package's reading of an answer, and the service's own text."""
    return f"{answer.verdict.value} ({answer.code}: {answer.text})" if answer.code else answer.verdict.value
