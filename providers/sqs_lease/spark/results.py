"""What one ingestion did, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The fate of one batch. ``ingested + duplicates + len(rejected) == received`` always holds.

    Attributes:
        batch_id: The batch.
        received: How many messages were handed over.
        ingested: How many are in the table because of this batch. The same number when the batch is
            handed over again after its commit.
        duplicates: How many were in the table already, brought by another batch, or stood in this batch
            more than once.
        rejected: Message id -> why the message is no record of the table. The reasons name columns and
            byte positions, never what a body says.
        table_version: The version of the table that holds the batch; where the batch added nothing, the
            version it was compared with; None for an empty batch, which looks at no table.
    """

    batch_id: str
    received: int
    ingested: int
    duplicates: int
    rejected: Mapping[str, str]
    table_version: int | None

    def partial_batch_response(self) -> dict[str, list[dict[str, str]]]:
        """The rejected messages in the shape that AWS Lambda defined: return it from the task that did the work.

        Returns:
            ``{"batchItemFailures": [{"itemIdentifier": message id}, ...]}``: these are released, and all
            other messages of the batch deleted.
        """
        return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in self.rejected]}
