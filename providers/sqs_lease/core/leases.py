"""A lease as a value: the receipt and its times, as it is handed from one holder to the next."""

from __future__ import annotations

from dataclasses import dataclass

from sqs_lease.core.messages import Receipt


@dataclass(frozen=True, slots=True)
class Lease:
    """Our hold on one received message. Times are seconds of the holder's clock.

    Attributes:
        receipt: Which reception.
        received_at: When the receive that returned it was *sent*: the service's 12 hours count from a
            moment not before it.
        deadline: Until when the message stays invisible, as far as the service confirmed it.
        receive_count: How often the message was received, this reception included.
    """

    receipt: Receipt
    received_at: float
    deadline: float
    receive_count: int = 1

    def shifted(self, seconds: float) -> Lease:
        """The same lease on a clock that is ``seconds`` ahead of this one."""
        return Lease(self.receipt, self.received_at + seconds, self.deadline + seconds, self.receive_count)
