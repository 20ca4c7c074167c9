"""What one ingestion did, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqs_lease.ingestion.result import CleanUp, StoredResult


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The fate of one batch. ``ingested + empty + duplicates + len(rejected) == received`` always holds.

    Attributes:
        batch_id: The batch.
        received: How many messages were handed over.
        ingested: How many have their records in the table because of this batch. The same number when the batch is
            handed over again after its commit.
        empty: How many were understood, gave no record, and are done because of this batch; the same when it is
            handed over again.
        duplicates: How many were done already because of another batch, or stood in this batch more than once.
        rejected: Message id -> why the message is no record of the table. The reasons name columns and
            byte positions, never what a body says.
        rows: How many rows this call added to the table: 0 for a batch that was committed before.
        table_version: A version of the table that has the batch: the one that its commit made or, where this call
            added nothing, the newest that was looked at. None for an empty batch, which looks at no table, and for
            a table without versions.
        rejects_stored: Whether the rejected messages are in a table of rejects, and so are done.
        objects: What became of the objects that the batch was read from, where the source cleans up after the commit;
            None where it leaves them.
        waited_seconds: How long this call was held up by others who wrote the same tables. It counts as no difference
            between two results.
    """

    batch_id: str
    received: int
    ingested: int
    empty: int
    duplicates: int
    rejected: Mapping[str, str]
    rows: int
    table_version: int | None
    rejects_stored: bool
    objects: CleanUp | None = None
    waited_seconds: float = field(default=0.0, compare=False)

    def failures(self) -> dict[str, str]:
        """The messages that are not done, and why: the rejected ones, unless they were stored."""
        return {} if self.rejects_stored else dict(self.rejected)

    def partial_batch_response(self) -> dict[str, list[dict[str, str]]]:
        """Name the messages that are not done, in the shape of AWS Lambda: return it from the task that did the work.

        Returns:
            ``{"batchItemFailures": [{"itemIdentifier": message id, "reason": text}, ...]}``: the rejected messages,
            unless they were stored. These are released, and all other messages of the batch deleted. The reason is no
            part of AWS's shape; it goes with a message that is dead-lettered.
        """
        items = [{"itemIdentifier": message_id, "reason": reason} for message_id, reason in self.failures().items()]
        return {"batchItemFailures": items}

    def stored(self) -> StoredResult:
        """The same as the starter of the ingestion gets it, without Spark."""
        return StoredResult(
            batch_id=self.batch_id,
            received=self.received,
            ingested=self.ingested,
            empty=self.empty,
            duplicates=self.duplicates,
            rejected=len(self.rejected),
            rows=self.rows,
            table_version=self.table_version,
            rejects_stored=self.rejects_stored,
            batchItemFailures=self.partial_batch_response()["batchItemFailures"],
            objects=self.objects,
        )
