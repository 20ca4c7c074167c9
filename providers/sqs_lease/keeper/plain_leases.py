"""Leases on their way from one process to another: as plain values, with times that both processes understand.

A process counts time by a clock of its own (:class:`sqs_lease.clock.Clock`); what it hands over has seconds since the
epoch. The plain values contain the receipt handles, with which a message can be deleted. A caller that stores them
must encrypt them, or write them where only their user can read them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import msgspec

from sqs_lease.clock import Clock
from sqs_lease.core.messages import Lease, Receipt

CLOCK_ERROR_SECONDS: Final = 5.0
"""By so much the clocks of two machines may differ before one doubts what the other says."""


def encode_leases(leases: Sequence[Lease]) -> str:
    """Return leases as a JSON text, with their receipt handles."""
    rows = [
        [
            lease.receipt.message_id,
            lease.receipt.handle,
            lease.received_at,
            lease.deadline,
            lease.receive_count,
            lease.message_group_id,
            lease.doubtful,
        ]
        for lease in leases
    ]
    return json.dumps(rows, separators=(",", ":"))


class _Row(msgspec.Struct, array_like=True, gc=False):
    """What :func:`encode_leases` writes of one lease. A newer release may write more."""

    message_id: str
    handle: str
    received_at: float
    deadline: float
    receive_count: int = 1
    message_group_id: str | None = None
    doubtful: bool = False

    def lease(self) -> Lease:
        return Lease(
            Receipt(self.message_id, self.handle),
            self.received_at,
            self.deadline,
            self.receive_count,
            self.message_group_id,
            self.doubtful,
        )


_ROWS: Final = msgspec.json.Decoder(list[_Row])


def decode_leases(text: str) -> list[Lease]:
    """Build leases from what :func:`encode_leases` returned.

    Raises:
        ValueError: It is something else; the error does not quote it.
    """
    try:
        return [row.lease() for row in _ROWS.decode(text)]
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise ValueError("the text is not a list of leases") from None


def to_wall_time(leases: Sequence[Lease], clock: Clock) -> list[Lease]:
    """Leases with times in seconds since the epoch, from leases with times of a clock."""
    ahead = clock.wall() - clock.now()
    return [lease.shifted(ahead) for lease in leases]


def from_wall_time(leases: Sequence[Lease], clock: Clock) -> list[Lease]:
    """Leases with times of a clock, from leases with times in seconds since the epoch.

    A lease that was received in the future shows that the calendars of the two machines differ. It counts as received
    just now, so that nobody believes in hours that it does not have. Where they differ by more than
    :data:`CLOCK_ERROR_SECONDS` nobody knows how long it lasts: it is doubtful.
    """
    behind = clock.now() - clock.wall()
    return [_not_from_the_future(lease.shifted(behind), clock.now()) for lease in leases]


def _not_from_the_future(lease: Lease, now: float) -> Lease:
    ahead = lease.received_at - now
    if ahead <= 0:
        return lease
    lease = lease.shifted(-ahead)
    return lease if ahead <= CLOCK_ERROR_SECONDS else lease.in_doubt()
