"""The figures at the end of the demo, and whether they add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from demo.queues import Counts, Published


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """One run that received messages, as the orchestrator recorded it."""

    run_id: str
    received: int
    extensions: int
    """Confirmed extensions, one for each message and time."""
    extension_calls: int
    """API calls made for them, up to ten messages a call."""
    lost: int
    """Messages with a lost lease: another consumer may have received them."""
    retried: int
    """Tasks that needed more than one try."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The published messages, and their places in the end.

    Attributes:
        published: The ids of the published messages.
        table_ids: The message id of each row of the table.
        dead_letter_ids: The ids of the messages in the dead-letter queue.
        left: The counts of the work queue.
        batches: The runs that received messages.
        failed_runs: The ids of the runs that failed.
    """

    published: Published
    table_ids: Sequence[str]
    dead_letter_ids: frozenset[str]
    left: Counts
    batches: Sequence[BatchOutcome]
    failed_runs: Sequence[str]

    @property
    def duplicates(self) -> int:
        """Rows beyond the first of a message."""
        return len(self.table_ids) - len(set(self.table_ids))

    @property
    def missing(self) -> int:
        """Flights that were published and are not in the table."""
        return len(self.published.flights - set(self.table_ids))

    @property
    def retried(self) -> int:
        """Tasks that needed more than one try, in all runs."""
        return sum(batch.retried for batch in self.batches)

    def lines(self) -> list[str]:
        """The figures as text, one a line."""
        published = self.published
        extensions = sum(batch.extensions for batch in self.batches)
        calls = sum(batch.extension_calls for batch in self.batches)
        figures = [
            (
                "published",
                len(published.flights) + len(published.malformed),
                f"{len(published.flights)} flights and {len(published.malformed)} malformed messages",
            ),
            ("in the table", len(self.table_ids), f"by {len(self.batches)} batches"),
            ("duplicates", self.duplicates, ""),
            ("missing", self.missing, ""),
            ("extensions sent", extensions, f"in {calls} calls"),
            ("retried", self.retried, "work tasks whose first try failed"),
            ("dead-lettered", len(self.dead_letter_ids), "malformed messages, by the queue's redrive policy"),
            ("left in the queue", self.left.total, f"{self.left.in_flight} of them in flight"),
        ]
        return [f"{name:<18}{figure:>6}  {remark}".rstrip() for name, figure, remark in figures]

    def problems(self) -> list[str]:
        """Return the wrong figures, one sentence each; an empty list if all add up."""
        rows = set(self.table_ids)
        checks = [
            (self.duplicates, "rows of the table repeat a message"),
            (self.missing, "published flights are missing from the table"),
            (len(rows - self.published.flights), "rows of the table are not published flights"),
            (
                len(self.published.malformed - self.dead_letter_ids),
                "malformed messages are missing from the dead-letter queue",
            ),
            (
                len(self.dead_letter_ids - self.published.malformed),
                "messages in the dead-letter queue are not malformed",
            ),
            (self.left.total, "messages are left in the queue"),
            (sum(batch.lost for batch in self.batches), "leases were lost"),
            (len(self.failed_runs), f"runs failed: {', '.join(self.failed_runs)}"),
        ]
        found = [f"{figure} {sentence}" for figure, sentence in checks if figure]
        # The work is longer than the queue's visibility timeout: without leases others could have received them.
        found += [
            f"the run {batch.run_id} extended {batch.extensions} times for {batch.received} messages"
            for batch in self.batches
            if batch.extensions < batch.received
        ]
        if not self.retried:
            found.append("no task was tried again, although one was told to fail on its first try")
        return found
