"""Leases on their way from one holder to the next: as plain values, with times that both understand.

A batch has one holder, known by its deadline. The holder that stops extends the batch once, writes it down and forgets
it (:meth:`sqs_lease.keeper.batch.Batch.pass_on`). The next holder reads the written leases, and relies only on those
before their deadlines (:meth:`sqs_lease.keeper.batch.Batch.adopt`). A first start, a restart after a crash and a run
that a sensor asked for are the same path, and SQS keeps the lock: the lease itself.

**The two clocks.** A process counts time by a clock of its own (:class:`sqs_lease.clock.Clock`); written times are in
seconds since the epoch, by the clock of the machine that wrote them. The next holder's calendar may differ from that:

- It takes a margin of :data:`CLOCK_ERROR_SECONDS` from each deadline.
- A calendar that is behind the time of writing by more than that must be wrong, and the time that has passed is not
  known. Then no deadline is relied on: all leases are in doubt, and the log names the clock.
- A calendar that is ahead looks like an outage: by it, the deadlines have passed. Such leases are in doubt, too, so SQS
  decides: it extends or refuses each. The time beyond a deadline does not count for the age of a lease, so that neither
  ``max_lease`` nor the 12 hours keep a good lease from being extended.
- One risk is left: a lease in doubt is extended by the visibility timeout, which may be less than it had. If its
  holder dies before the host writes that down, the next one reads the older text, and may rely on a lease for longer
  than it lasts. That takes a calendar that is wrong by more than the margin and a process killed in that gap.

The plain values contain the receipt handles, with which a message can be deleted. A caller that stores them must
encrypt them, or write them where only their user can read them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from sqs_lease.clock import Clock
from sqs_lease.core.messages import Lease, Receipt

logger = logging.getLogger(__name__)

CLOCK_ERROR_SECONDS: Final = 5.0
"""The difference between the clocks of two machines up to which one relies on times that the other wrote."""


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """The leases of one batch, as its holder wrote them down for the next one.

    Attributes:
        batch_id: The id of the batch, unique across processes.
        written_at: The time of writing, in seconds since the epoch.
        leases: The leases, with times in seconds since the epoch and their deadlines as SQS confirmed them.
    """

    batch_id: str
    written_at: float
    leases: tuple[Lease, ...]

    @classmethod
    def of(cls, batch_id: str, leases: Sequence[Lease], clock: Clock) -> WrittenBatch:
        """Write down leases with times of a clock."""
        return cls(batch_id, clock.wall(), tuple(to_wall_time(leases, clock)))

    def leases_now(self, clock: Clock, queue_url: str) -> list[Lease]:
        """Read the leases for a holder's clock, as the module's docstring says.

        Args:
            clock: The next holder's clock.
            queue_url: The queue, for the log.
        """
        elapsed = clock.wall() - self.written_at
        is_behind = elapsed < -CLOCK_ERROR_SECONDS
        if is_behind:
            logger.warning(
                "Leases of %s were written down %.0f s in the future by this machine's clock, so it or the writer's is "
                "wrong: all %d of them are in doubt until SQS has confirmed them. Set the clocks by NTP",
                queue_url,
                -elapsed,
                len(self.leases),
            )
        now = clock.now()
        read = [self._lease_now(lease, max(elapsed, 0.0), now, in_doubt=is_behind) for lease in self.leases]
        ended = sum(lease.doubtful for lease in read)
        if ended and not is_behind:
            logger.warning(
                "%d of %d leases of %s may have ended: by the clocks of both machines, they were written %.0f s ago",
                ended,
                len(read),
                queue_url,
                elapsed,
            )
        return read

    def _lease_now(self, lease: Lease, elapsed: float, now: float, *, in_doubt: bool) -> Lease:
        left_when_written = lease.deadline - self.written_at
        left = left_when_written - elapsed - CLOCK_ERROR_SECONDS
        in_doubt = in_doubt or left <= 0
        age_when_written = max(self.written_at - lease.received_at, 0.0)
        lasted = min(elapsed, max(left_when_written, 0.0))
        return Lease(
            lease.receipt,
            now - age_when_written - lasted,
            now if in_doubt else now + left,
            lease.receive_count,
            lease.message_group_id,
            lease.doubtful or in_doubt,
            now - lasted,
        )

    def encode(self) -> str:
        """Return it as a JSON text, with the receipt handles."""
        rows = [_row(lease) for lease in self.leases]
        return json.dumps([self.batch_id, self.written_at, rows], separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> WrittenBatch:
        """Build it from what :meth:`encode` returned.

        Raises:
            ValueError: It is something else; the error does not quote it.
        """
        try:
            batch_id, written_at, rows = _WRITTEN.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise ValueError("the text is not a batch that was written down") from None
        return cls(batch_id, written_at, tuple(row.lease() for row in rows))


def encode_leases(leases: Sequence[Lease]) -> str:
    """Return leases as a JSON text, with their receipt handles."""
    return json.dumps([_row(lease) for lease in leases], separators=(",", ":"))


def _row(lease: Lease) -> list[Any]:
    return [
        lease.receipt.message_id,
        lease.receipt.handle,
        lease.received_at,
        lease.deadline,
        lease.receive_count,
        lease.message_group_id,
        lease.doubtful,
    ]


class _Row(msgspec.Struct, array_like=True, gc=False):
    """The written form of one lease. A newer release may write more fields."""

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
_WRITTEN: Final = msgspec.json.Decoder(tuple[str, float, list[_Row]])


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
    """Return leases with times in seconds since the epoch, from leases with times of a clock."""
    ahead = clock.wall() - clock.now()
    return [lease.shifted(ahead) for lease in leases]
