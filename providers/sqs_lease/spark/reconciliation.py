"""Accounts for every message of a batch exactly once, by the ids themselves."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from sqs_lease.spark.errors import ReconciliationError
from sqs_lease.spark.message_ids import is_among, only, together, without
from sqs_lease.spark.sinks.sink import EMPTY, ENTRIES, INGESTED, REJECTED

_NAMED_MESSAGES = 3


@dataclass(frozen=True, slots=True)
class Fates:
    """What becomes of the messages of a batch, in four parts of message ids.

    Attributes:
        known: What the table knew before.
        ingested: What has rows among those that are to be committed.
        empty: What has nothing to store.
        rejected: What is no record.
    """

    known: pa.ChunkedArray
    ingested: pa.ChunkedArray
    empty: pa.ChunkedArray
    rejected: pa.ChunkedArray

    def require_each_once(self, expected: pa.ChunkedArray, batch_id: str) -> None:
        """Compare with the messages of the batch.

        It compares the ids themselves rather than their numbers, and takes those of the records from what
        was written: observations have been seen to be empty without an error.

        Raises:
            ReconciliationError: A message is missing, counted twice or unknown.
        """
        accounted = together(self.known, self.ingested, self.empty, self.rejected)
        # As many, each once, and all of them expected: then none is missing either. Where every message is a record,
        # the two are equal outright, which is seen at once.
        if accounted.equals(expected) or (
            len(accounted) == len(expected)
            and len(pc.unique(accounted)) == len(expected)
            and pc.all(is_among(accounted, expected), min_count=0).as_py()
        ):
            return
        counted = pc.value_counts(accounted)
        repeated = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
        wrong = sorted(
            {
                *without(expected, accounted).to_pylist(),
                *without(accounted, expected).to_pylist(),
                *repeated.to_pylist(),
            }
        )
        raise ReconciliationError(
            f"batch {batch_id} does not add up, so nothing of it was committed: of {len(expected)} messages "
            f"{len(self.ingested)} were written, {len(self.empty)} had nothing to store, {len(self.rejected)} were "
            f"rejected and {len(self.known)} in the table already; {len(wrong)} are missing, counted twice or unknown, "
            f"for example {', '.join(map(str, wrong[:_NAMED_MESSAGES]))}. This is a fault of the source or of Spark, "
            "not of the messages: run the batch again, and report it if that does not help"
        )

    def entries(self, messages: pa.Table) -> pa.Table:
        """The messages that are ingested or empty, as :data:`.sink.ENTRIES`.

        Args:
            messages: The batch, as :data:`.sink.LOOKED_UP`.
        """
        done = together(self.ingested, self.empty)
        is_all = done.equals(messages["message_id"])
        chosen = messages if is_all else only(messages, done)
        outcome = pc.if_else(is_among(chosen["message_id"], self.empty), EMPTY, INGESTED)
        return pa.Table.from_arrays(
            [
                chosen["message_id"],
                chosen["sent_at"],
                outcome,
                pa.chunked_array([pa.nulls(chosen.num_rows, pa.string())]),
            ],
            schema=ENTRIES,
        )


def reject_entries(messages: pa.Table, reasons: pa.Table) -> pa.Table:
    """Messages that were stored as rejects, as :data:`.sink.ENTRIES`.

    Args:
        messages: The batch, as :data:`.sink.LOOKED_UP`.
        reasons: Which, and why, as :data:`.batch_file.REASONS`.
    """
    position = pc.index_in(messages["message_id"], reasons["message_id"].combine_chunks())
    chosen = messages.filter(pc.is_valid(position))
    return pa.Table.from_arrays(
        [
            chosen["message_id"],
            chosen["sent_at"],
            pa.chunked_array([pa.repeat(REJECTED, chosen.num_rows)]),
            reasons["reason"].take(position.drop_null()),
        ],
        schema=ENTRIES,
    )
