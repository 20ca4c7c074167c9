"""The log of events of leases, and of their meaning for the work: a few lines for any number of messages.

Leases that were taken together lapse, end and are lost together, and thousands may be refused their settlement. So
events of one kind are gathered (:mod:`sqs_lease.keeper.gathered_log`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Outcome, Refused, Settled
from sqs_lease.core.messages import Receipt
from sqs_lease.keeper.gathered_log import GatheredLog

logger = logging.getLogger(__name__)

SHOWN_MESSAGES: Final = 3
"""Most messages that one line names."""

_AS_ASKED: Final = frozenset(
    outcome.name for outcome in (Outcome.DELETED, Outcome.RELEASED, Outcome.DEAD_LETTERED, Outcome.EXPIRED)
)


@dataclass(slots=True)
class _SameEvents:
    """Events of one kind."""

    first: LeaseEvent
    count: int = 0
    shown: list[Receipt] = field(default_factory=list)

    def add(self, event: LeaseEvent) -> None:
        """Take in one more event."""
        self.count += 1
        if len(self.shown) < SHOWN_MESSAGES:
            self.shown.append(event.receipt)

    def which(self) -> str:
        """Name the messages, for a line of the log."""
        if self.count == 1:
            return f"message {self.first.receipt}"
        more = f" and {self.count - len(self.shown)} more" if self.count > len(self.shown) else ""
        named = ", ".join(receipt.message_id for receipt in self.shown)
        return f"each of {self.count} messages ({named}{more})"


class LeaseLog:
    """The log of events of one queue's leases. Settlements that went as requested are not logged.

    Args:
        queue_url: The queue, as the lines name it.
    """

    def __init__(self, queue_url: str) -> None:
        self._lines = GatheredLog[_SameEvents](lambda events: _log(events, queue_url))

    def happened(self, event: LeaseEvent) -> None:
        """Take in an event, in the event loop."""
        kind = event.outcome.name if isinstance(event, Settled) else type(event).__name__
        if kind not in _AS_ASKED:
            self._lines.line(kind, partial(_SameEvents, event)).add(event)

    def flush(self) -> None:
        """Log all gathered events at once."""
        self._lines.flush()


def _log(events: _SameEvents, queue_url: str) -> None:
    which = events.which()
    match events.first:
        case Lost(detail=detail):
            logger.error(
                "Lost the lease of %s of %s: another consumer may work on it as well, and it will neither be deleted "
                "nor released here. Make the work idempotent, or raise the visibility timeout [%s]",
                which,
                queue_url,
                detail,
            )
        case Lapsed(overdue_seconds=overdue):
            logger.warning(
                "The lease of %s of %s ran out %.1f s ago without a confirmed extension: other consumers may receive "
                "it",
                which,
                queue_url,
                overdue,
            )
        case Ending():
            logger.warning(
                "The lease of %s of %s cannot be extended any further (max_lease, or the service's 12 hours): it "
                "becomes visible although its work has not ended",
                which,
                queue_url,
            )
        case Refused(detail=detail):
            logger.error("Extending %s of %s was refused: %s", which, queue_url, detail)
        case Settled(outcome=Outcome.UNCERTAIN):
            logger.warning(
                "Deleted %s of %s after its lease had lapsed: SQS confirms this even if another consumer has received "
                "the message since, and then the message still exists",
                which,
                queue_url,
            )
        case Settled(outcome=outcome, detail=detail):
            logger.error(
                "SQS did not settle %s of %s as asked (%s), so it comes, or came, back to the queue: %s",
                which,
                queue_url,
                outcome.value,
                detail,
            )
