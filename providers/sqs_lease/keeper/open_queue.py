"""A queue in use: its client, its keeper and its receiver, from the first lease to the last one."""

from __future__ import annotations

import asyncio

from sqs_lease.clock import Clock, SystemClock
from sqs_lease.core.limits import MAX_WAIT_SECONDS
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.keeper.options import LeaseOptions
from sqs_lease.keeper.receiver import Receiver
from sqs_lease.keeper.telemetry import metered, open_telemetry_meter
from sqs_lease.sqs.transport import QueueAttributes, Transport


def without_dead_letter_queue(queue: str, option: str = "on_failure") -> str:
    """Return the text that refuses the rule of an option, because the queue has no dead-letter queue."""
    return (
        f"nothing is received from {queue}: {option} may send messages to a dead-letter queue, and the queue has "
        f"none. Give the queue a redrive policy, or choose another rule for {option}"
    )


class OpenQueue:
    """The objects that the leases of one queue share. It belongs to the event loop in which it is opened.

    Args:
        transport: Makes the calls; it is closed with the queue.
        queue: The queue's name, ARN or URL.
        options: The options of its leases; a policy without a visibility timeout gets the queue's own.
        longest_poll_seconds: The longest wait of a poll.
        clock: The source of time; the machine's by default.
    """

    def __init__(
        self,
        transport: Transport,
        queue: str,
        options: LeaseOptions,
        *,
        longest_poll_seconds: int = MAX_WAIT_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self.queue = queue
        self._longest_poll_seconds = longest_poll_seconds
        self.policy: RenewalPolicy = options.policy
        self._may_dead_letter = options.on_failure.may_dead_letter
        clock = SystemClock() if clock is None else clock
        transport = metered(transport, clock)
        self.keeper = Keeper(transport, clock=clock, meter=open_telemetry_meter())
        self._transport = transport
        self._receiver: Receiver | None = None
        self._opening = asyncio.Lock()
        self._is_stopped = False

    @property
    def queue_url(self) -> str:
        """The queue's URL, once it was opened."""
        return self.receiver.queue_url

    @property
    def receiver(self) -> Receiver:
        """The receiver of all its messages.

        Raises:
            RuntimeError: The queue was not opened yet.
        """
        if self._receiver is None:
            raise RuntimeError(f"The queue {self.queue} was not opened yet")
        return self._receiver

    async def open(self) -> None:
        """Look the queue up, unless that was done before.

        Its attributes are only read for a policy without a visibility timeout, or for a rule that may dead-letter.

        Raises:
            SqsError: The queue cannot be used.
            ValueError: The queue's own visibility timeout is 0, and the policy has none; or the failure rule may
                dead-letter, and the queue has no dead-letter queue.
        """
        async with self._opening:
            if self._receiver is not None:
                return
            url = await self._transport.queue_url(self.queue)
            if self.policy.visibility is None or self._may_dead_letter:
                self._fit(await self._transport.queue_attributes(url))
            self._receiver = Receiver(
                self._transport,
                url,
                visibility_seconds=self.policy.visibility_seconds,
                longest_poll_seconds=self._longest_poll_seconds,
                clock=self.keeper.clock,
            )
            if self._is_stopped:
                self._receiver.stop()

    def _fit(self, attributes: QueueAttributes) -> None:
        """Take over the queue's visibility timeout, and refuse what cannot be done with it before it costs work."""
        if self._may_dead_letter and attributes.dead_letter_arn is None:
            raise ValueError(without_dead_letter_queue(self.queue))
        try:
            self.policy = self.policy.for_queue(attributes.visibility_seconds)
        except ValueError as error:
            raise ValueError(f"nothing is received from {self.queue}: {error}") from None

    def stop_receiving(self) -> None:
        """Receive nothing more: each receive under way ends with what it has."""
        self._is_stopped = True
        if self._receiver is not None:
            self._receiver.stop()

    async def close(self) -> None:
        """Close the keeper, without a call about the leases it still holds, and the client."""
        try:
            await self.keeper.close(Leaving.NOTHING)
        finally:
            await self._transport.aclose()
