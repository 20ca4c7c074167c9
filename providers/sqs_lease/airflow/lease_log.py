"""Tells in a task's log what happened to its leases, and what that means for the work."""

from __future__ import annotations

import logging

from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Refused

logger = logging.getLogger(__name__)


def log_event(event: LeaseEvent, queue_url: str) -> None:
    """Log an event of one lease; settlements are logged by those who asked for them."""
    match event:
        case Lost(receipt=receipt, detail=detail):
            logger.error(
                "Lost the lease of message %s of %s: another consumer may work on it as well, and it will neither be "
                "deleted nor released here. Make the work idempotent, or raise the visibility timeout [%s]",
                receipt,
                queue_url,
                detail,
            )
        case Lapsed(receipt=receipt, overdue_seconds=overdue):
            logger.warning(
                "The lease of message %s of %s ran out %.1f s ago without a confirmed extension: other consumers may "
                "receive it",
                receipt,
                queue_url,
                overdue,
            )
        case Ending(receipt=receipt):
            logger.warning(
                "The lease of message %s of %s cannot be extended any further (max_lease, or the service's 12 hours): "
                "it becomes visible although its work has not ended",
                receipt,
                queue_url,
            )
        case Refused(receipt=receipt, detail=detail):
            logger.error("Extending message %s of %s was refused: %s", receipt, queue_url, detail)
