"""Metadata of leases for people: counts that are not 0, which Dagster plots over time, and one row for the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import dagster as dg

from sqs_lease.blocking import LeasedBatch
from sqs_lease.core.messages import Message
from sqs_lease.dagster._internals import materialized_by, observe
from sqs_lease.sqs.console import console_link
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import QueueAttributes

logger = logging.getLogger(__name__)

PREFIX: Final = "sqs/"

UNSAFE: Final = ("lost", "late", "unsettled")
"""Counts that should be 0: others may have worked on those messages too, or will."""

ENDS: Final = ("deleted", "released", "dead_lettered", "expired", "lost", "late", "uncertain", "unsettled")
"""Counts of messages by outcome."""

HELD: Final = f"{PREFIX}held"
"""How many messages a lease began to hold. If the lease has no end, its process was killed."""

QUEUE: Final = f"{PREFIX}queue"
"""The row for the rest: the queue, and numbers that no plot needs."""

CONSOLE: Final = f"{PREFIX}console"
"""The link to the queue in the AWS console."""

_OLDEST_AGE: Final = f"{PREFIX}oldest_age_seconds"

_ALWAYS: Final = ("received", "deleted")
"""The counts that are shown even if they are 0."""


@dataclass(frozen=True, slots=True)
class LeaseNumbers:
    """The numbers of one lease, or of several leases of one step together.

    Attributes:
        counts: Counts of messages, extensions and calls, by name; ``failed`` messages are those that were given back,
            dead-lettered or left to expire.
        sent_at: When the oldest message was sent; None if that is not known.
        queue_urls: The queues, each once.
    """

    counts: Mapping[str, int]
    sent_at: datetime | None
    queue_urls: tuple[str, ...]

    @classmethod
    def of_work(cls, batch: LeasedBatch, failed: int) -> LeaseNumbers:
        """Describe a step's work on a batch that is settled later: the step failed ``failed`` of its messages."""
        return cls({"received": len(batch), "failed": failed}, _oldest(batch), (batch.queue_url,))

    @classmethod
    def of(cls, batch: LeasedBatch) -> LeaseNumbers:
        """Describe the outcome of a batch, when everything is settled."""
        report = batch.report()
        counts = {
            "received": report.received,
            "deleted": report.deleted,
            "released": report.released,
            "dead_lettered": report.dead_lettered,
            "expired": report.expired,
            "lost": report.lost,
            "uncertain": report.uncertain,
            "unsettled": report.failed + report.held,
            "failed": report.released + report.dead_lettered + report.expired,
            "late": report.late,
            "extensions": report.extensions,
            "extension_calls": report.extension_calls,
        }
        return cls(counts, _oldest(batch), (batch.queue_url,))

    def __add__(self, other: LeaseNumbers) -> LeaseNumbers:
        names = dict.fromkeys((*self.counts, *other.counts))
        return LeaseNumbers(
            {name: self.counts.get(name, 0) + other.counts.get(name, 0) for name in names},
            min((each for each in (self.sent_at, other.sent_at) if each is not None), default=None),
            tuple(dict.fromkeys((*self.queue_urls, *other.queue_urls))),
        )

    def metadata(self, left: QueueAttributes | None = None) -> dict[str, dg.MetadataValue]:
        """Return them for people: see :func:`lease_metadata`.

        Args:
            left: The queue's attributes now, if the rest of the queue is to be shown; its counts are approximate.
        """
        counts = dict(self.counts)
        rest = [", ".join(self.queue_urls)]
        if calls := counts.pop("extension_calls", 0):
            rest.append(f"{calls} calls that extended leases")
        if left is not None:
            counts["left_visible"] = left.visible
            others = {"in flight": left.in_flight, "delayed": left.delayed}
            rest += [f"{number} left {what}" for what, number in others.items() if number]
        shown = {name: number for name, number in counts.items() if number or name in _ALWAYS}
        metadata: dict[str, dg.MetadataValue] = {
            f"{PREFIX}{name}": dg.MetadataValue.int(number) for name, number in shown.items()
        }
        if self.sent_at is not None:
            age = datetime.now(UTC) - self.sent_at
            metadata[_OLDEST_AGE] = dg.MetadataValue.float(round(age.total_seconds(), 3))
        metadata[QUEUE] = dg.MetadataValue.text("; ".join(rest))
        if link := console_link(self.queue_urls[-1]):
            metadata[CONSOLE] = dg.MetadataValue.url(link)
        return metadata

    def summary(self) -> str:
        """Return the outcome of a batch as one line, for logs."""
        parts = {
            "deleted": "deleted",
            "released": "given back",
            "dead_lettered": "dead-lettered",
            "expired": "left to expire",
            "lost": "lost to others",
            "uncertain": "deleted after their leases had ended",
            "unsettled": "not settled",
        }
        said = ", ".join(f"{number} {what}" for name, what in parts.items() if (number := self.counts[name]))
        return (
            f"Of {self.counts['received']} messages of {', '.join(self.queue_urls)}: {said or 'nothing to settle'}; "
            f"{self.counts['extensions']} extensions in {self.counts['extension_calls']} calls"
        )


def _oldest(messages: Iterable[Message]) -> datetime | None:
    return min((message.sent_at for message in messages if message.sent_at is not None), default=None)


def counts_of(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts among an event's metadata, by name."""
    values = {name.removeprefix(PREFIX): value.value for name, value in metadata.items() if name.startswith(PREFIX)}
    return {name: value for name, value in values.items() if isinstance(value, int)}


def lease_metadata(batch: LeasedBatch) -> dict[str, dg.MetadataValue]:
    """Describe the outcome of a batch.

    Args:
        batch: The batch, when everything is settled.

    Returns:
        By key: ``sqs/received`` and ``sqs/deleted``, and of the other counts those that are not 0: by outcome
        ``sqs/released``, ``sqs/dead_lettered``, ``sqs/expired``, ``sqs/lost`` (another consumer may have received it),
        ``sqs/uncertain`` (deleted after its lease had ended: another consumer may have received it all the same),
        ``sqs/unsettled`` (the service did not confirm it: it comes back); ``sqs/failed`` (released, dead-lettered and
        expired); ``sqs/late`` (deadlines that passed before an extension was confirmed); ``sqs/extensions``
        (confirmed, counted per message). ``sqs/oldest_age_seconds`` is the age of the oldest message, since it was
        sent. One row has the rest as a text: ``sqs/queue``, the queue and the number of calls that extended leases.
        ``sqs/console`` is a link to the queue, if it is on AWS.
    """
    return LeaseNumbers.of(batch).metadata()


def observe_outcome(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    steps: Collection[str],
    numbers: LeaseNumbers,
    attributes: Callable[[], QueueAttributes],
) -> None:
    """Add the outcome of messages, and the rest of the queue, to the assets that some steps of a run materialized.

    The messages are settled, so the work does not fail if they cannot be counted: that is logged.
    """
    try:
        assets = materialized_by(instance, run, steps)
        if not assets:
            return
        left: QueueAttributes | None = None
        try:
            left = attributes()
        except SqsError as error:
            logger.warning("The messages left in the queue cannot be counted: %s", error)
        observe(instance, run, assets, numbers.metadata(left))
    except Exception:
        logger.exception("The assets of run %s have no numbers of its leases", run.run_id)
