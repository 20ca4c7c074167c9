"""Metadata of leases for materializations: numbers, which Dagster plots over time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import dagster as dg

from sqs_lease.blocking import LeasedBatch
from sqs_lease.core.messages import Message
from sqs_lease.keeper.batch import Batch
from sqs_lease.sqs.console import console_link
from sqs_lease.sqs.transport import QueueAttributes

PREFIX: Final = "sqs/"
RECEIVED: Final = f"{PREFIX}received"
DELETED: Final = f"{PREFIX}deleted"
FAILED: Final = f"{PREFIX}failed"
"""Failed messages: given back, dead-lettered or left to expire."""

UNSETTLED: Final = f"{PREFIX}unsettled"
UNSAFE: Final = (f"{PREFIX}lost", f"{PREFIX}late", UNSETTLED)
"""Counts that should be 0: others may have worked on those messages too, or will."""

ENDS: Final = (
    DELETED,
    f"{PREFIX}released",
    f"{PREFIX}dead_lettered",
    f"{PREFIX}expired",
    f"{PREFIX}lost",
    f"{PREFIX}late",
    f"{PREFIX}uncertain",
    UNSETTLED,
)
"""Counts of messages by outcome."""

HELD: Final = f"{PREFIX}held"
"""How many messages a lease began to hold. If the lease has no end, its process was killed."""

QUEUE: Final = f"{PREFIX}queue"

CONSOLE: Final = f"{PREFIX}console"
"""The link to the queue in the AWS console."""

_OLDEST_AGE: Final = f"{PREFIX}oldest_age_seconds"


def work_metadata(messages: Collection[Message], queue_url: str, failed: int) -> dict[str, dg.MetadataValue]:
    """Describe a step's work on a batch that another process holds, and settles later.

    Args:
        messages: The messages of the batch.
        queue_url: The queue.
        failed: How many of them the step failed.

    Returns:
        By key: ``sqs/received``, ``sqs/failed`` unless it is 0, ``sqs/oldest_age_seconds``, ``sqs/queue``,
        ``sqs/console``.
    """
    return {
        **_counts({"received": len(messages), "failed": failed}),
        **_age(messages),
        **_queue(queue_url),
    }


def _queue(queue_url: str) -> dict[str, dg.MetadataValue]:
    link = console_link(queue_url)
    return {QUEUE: dg.MetadataValue.text(queue_url)} | ({CONSOLE: dg.MetadataValue.url(link)} if link else {})


def _age(messages: Iterable[Message]) -> dict[str, dg.MetadataValue]:
    sent = [message.sent_at for message in messages if message.sent_at is not None]
    if not sent:
        return {}
    age = datetime.now(UTC) - min(sent)
    return {_OLDEST_AGE: dg.MetadataValue.float(round(age.total_seconds(), 3))}


_ALWAYS: Final = ("received", "deleted")
"""The counts that are shown even if they are 0."""


def _counts(numbers: Mapping[str, int]) -> dict[str, dg.MetadataValue]:
    shown = {name: number for name, number in numbers.items() if number or name in _ALWAYS}
    return {f"{PREFIX}{name}": dg.MetadataValue.int(number) for name, number in shown.items()}


def left_metadata(queue: QueueAttributes) -> dict[str, dg.MetadataValue]:
    """Count the rest of a queue: ``sqs/left_visible``, ``sqs/left_in_flight``, ``sqs/left_delayed``, unless 0.

    Args:
        queue: The queue's attributes now; the counts are approximate.
    """
    numbers = {"left_visible": queue.visible, "left_in_flight": queue.in_flight, "left_delayed": queue.delayed}
    return _counts(numbers)


def lease_metadata(batch: LeasedBatch | Batch) -> dict[str, dg.MetadataValue]:
    """Describe the outcome of a batch.

    Args:
        batch: The batch, when everything is settled.

    Returns:
        By key: ``sqs/received`` and ``sqs/deleted``, and of the other counts those that are not 0: by outcome
        ``sqs/released``, ``sqs/dead_lettered``, ``sqs/expired``, ``sqs/lost`` (another consumer may have received it),
        ``sqs/uncertain`` (deleted after its lease had ended: another consumer may have received it all the same),
        ``sqs/unsettled`` (the service did not confirm it: it comes back); ``sqs/failed`` (released, dead-lettered and
        expired); ``sqs/extensions`` (confirmed, counted per message), ``sqs/extension_calls``, ``sqs/late`` (deadlines
        that passed before an extension was confirmed); ``sqs/oldest_age_seconds`` (of the oldest message, since it was
        sent); ``sqs/queue``, and ``sqs/console``, a link to it, if it is on AWS.
    """
    report = batch.report()
    numbers: dict[str, int] = {
        "received": report.received,
        "deleted": report.deleted,
        "released": report.released,
        "dead_lettered": report.dead_lettered,
        "expired": report.expired,
        "lost": report.lost,
        "uncertain": report.uncertain,
        "unsettled": report.failed + report.held,
        "failed": report.released + report.dead_lettered + report.expired,
        "extensions": report.extensions,
        "extension_calls": report.extension_calls,
        "late": report.late,
    }
    metadata = _counts(numbers)
    messages = batch.messages() if isinstance(batch, Batch) else batch
    return {**metadata, **_age(messages), **_queue(batch.queue_url)}


def lease_summary(batch: LeasedBatch | Batch) -> str:
    """Return the outcome of a batch as one line, for logs; after its block, so that everything is settled."""
    report = batch.report()
    parts = {
        "deleted": report.deleted,
        "given back": report.released,
        "dead-lettered": report.dead_lettered,
        "left to expire": report.expired,
        "lost to others": report.lost,
        "deleted after their leases had ended": report.uncertain,
        "not settled": report.failed + report.held,
    }
    said = ", ".join(f"{number} {what}" for what, number in parts.items() if number) or "nothing to settle"
    return (
        f"Of {report.received} messages of {batch.queue_url}: {said}; "
        f"{report.extensions} extensions in {report.extension_calls} calls"
    )


def combined_metadata(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, dg.MetadataValue]:
    """Describe several leases of one step together.

    Args:
        earlier: The step's metadata so far; only keys of leases are used.
        later: The result of :func:`lease_metadata` for one more lease.

    Returns:
        The sums of the counts, and the greatest age.
    """
    if QUEUE not in earlier:
        return dict(later)
    metadata: dict[str, dg.MetadataValue] = {key: each for key, each in earlier.items() if key.startswith(PREFIX)}
    metadata |= later
    for key in earlier.keys() & later.keys():
        before, now = earlier[key].value, later[key].value
        if key == QUEUE:
            queues = before.split(", ")
            metadata[key] = dg.MetadataValue.text(before if now in queues else f"{before}, {now}")
        elif key == _OLDEST_AGE:
            metadata[key] = dg.MetadataValue.float(max(before, now))
        elif key.startswith(PREFIX) and key != CONSOLE:
            metadata[key] = dg.MetadataValue.int(before + now)
    return metadata
