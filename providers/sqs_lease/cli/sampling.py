"""A sample of a queue's messages: it is received with a lease, and released together at the end.

A message is not received twice, because all are held until the end. If the command is killed meanwhile, they are
visible again within a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqs_lease.clock import SystemClock
from sqs_lease.core.events import Outcome
from sqs_lease.core.messages import Message
from sqs_lease.core.policies import Growing
from sqs_lease.keeper.keeper import Keeper
from sqs_lease.keeper.receiver import Receiver, Reception
from sqs_lease.sqs.transport import Transport

HELD_SECONDS: Final = 60
"""The visibility timeout that messages are received with."""

WAIT_SECONDS: Final = 2.0
"""How long to wait for a first message."""

LINGER_SECONDS: Final = 1.0
"""How long to wait for more after that."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of messages.

    Attributes:
        messages: The messages.
        looked_at: When they were received, in seconds since the epoch.
        given_back: How many of them are visible again; the others will be within a minute.
    """

    messages: Sequence[Message]
    looked_at: float
    given_back: int

    @property
    def not_given_back(self) -> str:
        """Return a sentence with the number of messages that could not be given back; empty without any."""
        left = len(self.messages) - self.given_back
        return "" if not left else f"{left:,} could not be given back: they are visible again within {HELD_SECONDS} s."


async def look(transport: Transport, url: str, most: int) -> Sample:
    """Receive some messages and give them back, also when it is cancelled.

    Args:
        transport: Reaches SQS.
        url: The queue's URL.
        most: Most messages to receive.

    Raises:
        sqs_lease.sqs.errors.SqsError: The queue cannot be received from.
    """
    clock = SystemClock()
    async with Keeper(transport, clock=clock) as keeper:
        batch = keeper.open_batch(url, policy=Growing(visibility=HELD_SECONDS))

        def hold(reception: Reception) -> None:
            batch.add(reception.messages, received_at=reception.received_at, sent_at=reception.sent_at)

        receiver = Receiver(transport, url, visibility_seconds=HELD_SECONDS, clock=clock)
        try:
            collected = await receiver.collect(most, wait=WAIT_SECONDS, linger=LINGER_SECONDS, on_received=hold)
        finally:
            settled = await batch.release_all()
    given_back = sum(each.outcome is Outcome.RELEASED for each in settled.values())
    return Sample(collected.messages, clock.wall(), given_back)
