"""Logs what happens to leases while their work goes on, and what that means for the work.

Leases that were taken together lapse, end and are lost together. So events of one kind are gathered for a moment, and
make one line for any number of messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Refused, Settled

logger = logging.getLogger(__name__)

GATHERING_SECONDS: Final = 0.5
"""How long events of one kind are gathered for one line."""

SHOWN_MESSAGES: Final = 3
"""So many of them are named in the line."""


class LeaseLog:
    """Logs what happens to leases of one queue. Lines are logged in the context of the first event of each.

    Args:
        queue_url: The queue, as the lines name it.
    """

    def __init__(self, queue_url: str) -> None:
        self._queue_url = queue_url
        self._gathered: dict[type, list[LeaseEvent]] = {}

    def happened(self, event: LeaseEvent) -> None:
        """Take in an event, in the event loop; settlements are logged by those who asked for them."""
        if isinstance(event, Settled):
            return
        kind = type(event)
        if kind not in self._gathered:
            self._gathered[kind] = []
            asyncio.get_running_loop().call_later(GATHERING_SECONDS, self._say, kind)
        self._gathered[kind].append(event)

    def flush(self) -> None:
        """Log at once what was gathered."""
        for kind in tuple(self._gathered):
            self._say(kind)

    def _say(self, kind: type) -> None:
        if events := self._gathered.pop(kind, None):
            _log(events, self._queue_url)


def _log(events: Sequence[LeaseEvent], queue_url: str) -> None:
    which = _which(events)
    match events[0]:
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


def _which(events: Sequence[LeaseEvent]) -> str:
    if len(events) == 1:
        return f"message {events[0].receipt}"
    shown = ", ".join(event.receipt.message_id for event in events[:SHOWN_MESSAGES])
    more = f" and {len(events) - SHOWN_MESSAGES} more" if len(events) > SHOWN_MESSAGES else ""
    return f"each of {len(events)} messages ({shown}{more})"
