"""A lease as a value: the receipt and its times, as it is handed from one holder to the next."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from sqs_lease.core.messages import Receipt


class Lease(Struct, frozen=True, gc=False):
    """Our hold on one received message. Times are seconds of the holder's clock.

    Attributes:
        receipt: Which reception.
        received_at: When the receive that returned it was *sent*: the service's 12 hours count from a
            moment not before it.
        deadline: Until when the message stays invisible, as far as the service confirmed it.
        receive_count: How often the message was received, this reception included.
        message_group_id: The message group; None without one.
        lapsed: Its deadline passed once before an extension was confirmed. Somebody else may have received the
            message since, and a standard queue extends it for either; so it is deleted, but never released.
    """

    receipt: Receipt
    received_at: float
    deadline: float
    receive_count: int = 1
    message_group_id: str | None = None
    lapsed: bool = False

    def shifted(self, seconds: float) -> Lease:
        """The same lease on a clock that is ``seconds`` ahead of this one."""
        return replace(self, received_at=self.received_at + seconds, deadline=self.deadline + seconds)

    def lasting_until(self, deadline: float) -> Lease:
        """The same lease, which is known to last until ``deadline`` at least."""
        return replace(self, deadline=max(self.deadline, deadline))
