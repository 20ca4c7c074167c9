"""Loading of one batch into one table: look up, parse, account for each message, commit; after a conflict, again.

Parsed and staged rows are used again after a conflict, unless the other commit had some of their messages.
:mod:`.refusals` finds the messages of rows that the table refuses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from sqs_lease.spark.errors import ReconciliationError
from sqs_lease.spark.message_ids import NO_IDS, is_among, message_table, only, repeated_ids, together, without
from sqs_lease.spark.parsing import Parse, Parsed
from sqs_lease.spark.refusals import Search, is_certain, may_be_for_rows, reason_of
from sqs_lease.spark.repeats import KeyedLookUp, KeyedTable, Keys, repeated
from sqs_lease.spark.sinks.sink import EMPTY, ENTRIES, INGESTED, REJECTED, Admission, CommitConflict, LookUp, Table
from sqs_lease.spark.waits import ConcurrentWriters, while_contended

logger = logging.getLogger(__name__)

_NAMED_MESSAGES: Final = 3


@dataclass(frozen=True, slots=True)
class Loaded:
    """Result of loading a batch.

    Attributes:
        known: The messages that the table had already, as :data:`.sink.KNOWN`.
        ingested: The number of messages whose records were added.
        empty: The number of messages that were recorded as without records.
        rejected: The rejected messages, as :data:`.batch_file.REASONS`.
        rows: The number of rows that were added.
        version: The version of the table that has the batch; if nothing was added, the version of the look-up.
    """

    known: pa.Table
    ingested: int
    empty: int
    rejected: pa.Table
    rows: int
    version: int | None


@dataclass(frozen=True, slots=True)
class Loading:
    """A batch to load into a table.

    Attributes:
        table: The table.
        batch_id: The batch.
        messages: The whole batch, as :data:`.sink.LOOKED_UP`.
        expected: The ids of the messages that belong into this table.
        keys: The keys by which the table knows the messages; None, the default, for their ids.
        asks_of_rejects: Whether to ask the table once more before messages are rejected. Another batch may have stored
            such a message and then deleted the object that it was to be read from. False, the default, if objects stay.
        store_rejects: Stores rejects durably in another table, so that they are done; None if there is no such table.
        before_commit: Called right before anything is committed; an error prevents the commit.
    """

    table: Table[Any]
    batch_id: str
    messages: pa.Table
    expected: pa.ChunkedArray
    keys: Keys | None = None
    asks_of_rejects: bool = False
    store_rejects: Callable[[pa.Table], object] | None = None
    before_commit: Callable[[], object] = lambda: None

    def load(self, parse: Parse) -> Loaded:
        """Load the batch in one commit; in several if the table refuses rows of some messages.

        However it ends, staged rows that were not committed are removed.

        Raises:
            BatchIdReusedError, ReconciliationError, TableError: See :func:`.ingestion.ingest`.
        """
        if self.keys is None:
            return self._load_or_divide(self.expected, parse)
        loaded: list[Loaded] = []
        rest = self.expected
        while True:
            firsts = self.keys.firsts(rest)
            loaded.append(self._load_or_divide(firsts, parse))
            rest = without(rest, firsts)
            # The table has the keys of the others by now, except the keys of rejects of this or an earlier try.
            known = loaded[-1].known
            earlier = known["message_id"].filter(pc.equal(known["outcome"], REJECTED))
            rejected = together(loaded[-1].rejected["message_id"], earlier)
            is_wanted = is_among(self.keys.of(rest), self.keys.of(rejected))
            loaded[-1] = replace(
                loaded[-1], known=pa.concat_tables([loaded[-1].known, repeated(rest.filter(pc.invert(is_wanted)))])
            )
            rest = rest.filter(is_wanted)
            if not len(rest):
                return _summed(loaded)

    def _load_or_divide(self, part: pa.ChunkedArray, parse: Parse) -> Loaded:
        """Load messages, in several commits if the table refuses rows of some of them."""
        try:
            return self._load(part, parse)
        except Exception as error:
            if not may_be_for_rows(error) or (len(part) == 1 and not is_certain(error)):
                raise
            logger.warning(
                "batch %s cannot be stored as a whole (%s): trying it in parts", self.batch_id, reason_of(error)
            )
            return self._load_in_parts(part, parse, error)

    def _load_in_parts(self, messages: pa.ChunkedArray, parse: Parse, error: Exception) -> Loaded:
        loaded: list[Loaded] = []

        def load_part(part: pa.ChunkedArray) -> bool:
            loaded.append(self._load(part, parse))
            return loaded[-1].rows > 0

        refused = Search(load_part, self.before_commit).run(messages, error)
        logger.warning(
            "batch %s: %d messages are rejected, because the table refused their rows", self.batch_id, len(refused)
        )

        def reject(_table: Table[Any], known: pa.ChunkedArray, _batch_id: str) -> Parsed:
            return Parsed(None, NO_IDS, NO_IDS, without(refused, known))

        if refused.num_rows:
            loaded.append(self._load(refused["message_id"], reject))
        return _summed(loaded)

    def _load(self, part: pa.ChunkedArray, parse: Parse) -> Loaded:
        """Load some of the messages, in one commit."""
        with while_contended(f"the table of batch {self.batch_id}") as writers:
            return self._load_while_contended(writers, part, parse)

    def _load_while_contended(self, writers: ConcurrentWriters, part: pa.ChunkedArray, parse: Parse) -> Loaded:
        # Look-ups and commits go by keys, if the source gives them; rows are staged by the table itself.
        table: Table[Any] | KeyedTable = self.table if self.keys is None else KeyedTable(self.table, self.keys)
        is_all = part is self.expected
        others = NO_IDS if is_all else without(self.expected, part)
        parsed: Parsed | None = None
        committed = False
        asked_of_rejects = False
        ours_before = 0
        try:
            while True:
                looked_up = table.look_up(self.messages)
                known = only(looked_up.known, part)
                known_ids = known["message_id"]
                ours = self._ours(looked_up)
                if parsed is not None and (ours != ours_before or len(only(parsed.ingested, known_ids))):
                    # Another try of this batch was admitted, and may have removed what this one has staged; or another
                    # batch had some of these messages.
                    self._discard(parsed)
                    parsed = None
                ours_before = ours
                left_out = together(known_ids, others)
                try:
                    if parsed is None:
                        parsed = parse(self.table, left_out, self.batch_id)
                        asked_of_rejects = not self.asks_of_rejects
                    rejected = without(parsed.rejected, left_out)
                    if rejected.num_rows and not asked_of_rejects:
                        asked_of_rejects = True
                        continue
                    empty = without(parsed.empty, known_ids)
                    outcome = BatchOutcome(known_ids, parsed.ingested, empty, rejected["message_id"])
                    outcome.require_each_once(part, self.batch_id)
                except Exception:
                    if not self._has_conflict(table, ours):
                        raise
                    # The other try cleans up, and perhaps removed what this one was writing. Spark need not call that a
                    # failure, so the messages may only seem to be missing.
                    writers.pause(f"another try of batch {self.batch_id} was committed")
                    continue
                entries = outcome.entries(self.messages)
                if self.store_rejects is not None and rejected.num_rows:
                    self.before_commit()
                    self.store_rejects(rejected)
                    entries = pa.concat_tables([entries, reject_entries(self.messages, rejected)])
                version = looked_up.version
                if entries.num_rows:
                    self.before_commit()
                    try:
                        version = table.commit(looked_up, Admission(self.batch_id, entries, parsed.staged))
                    except CommitConflict as conflict:
                        writers.pause(str(conflict) or "another process committed")
                        continue
                    committed = True
                return Loaded(known, len(parsed.ingested), len(empty), rejected, parsed.rows, version)
        finally:
            if parsed is not None and not committed:
                self._discard(parsed)

    def _has_conflict(self, table: Table[Any] | KeyedTable, ours: int) -> bool:
        """Whether another try of the batch was committed since the look-up; False if the table does not answer."""
        try:
            return self._ours(table.look_up(self.messages)) != ours
        except Exception:  # noqa: BLE001 - the error before this one says more
            return False

    def _ours(self, looked_up: LookUp) -> int:
        """Count the entries that the table has from any try of the batch."""
        # Entries and not messages, because one entry may stand for several messages with the same key.
        entries = looked_up.by_keys.known if isinstance(looked_up, KeyedLookUp) else looked_up.known
        ours: int = pc.sum(pc.equal(entries["batch_id"], self.batch_id), min_count=0).as_py()
        return ours

    def _discard(self, parsed: Parsed) -> None:
        if parsed.staged is not None:
            self.table.discard(parsed.staged)


def _summed(loaded: Sequence[Loaded]) -> Loaded:
    return Loaded(
        known=pa.concat_tables([one.known for one in loaded]),
        ingested=sum(one.ingested for one in loaded),
        empty=sum(one.empty for one in loaded),
        rejected=pa.concat_tables([one.rejected for one in loaded]),
        rows=sum(one.rows for one in loaded),
        version=loaded[-1].version,
    )


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """Outcome of a batch: its message ids in four groups.

    Attributes:
        known: Messages that the table has already.
        ingested: Messages with rows to commit.
        empty: Messages without records to store.
        rejected: Messages that are not valid records.
    """

    known: pa.ChunkedArray
    ingested: pa.ChunkedArray
    empty: pa.ChunkedArray
    rejected: pa.ChunkedArray

    def require_each_once(self, expected: pa.ChunkedArray, batch_id: str) -> None:
        """Compare the outcome with the messages of the batch.

        It compares ids and not counts, and the ids of records come from the written files, because Spark's observations
        have been seen to be empty without an error.

        Raises:
            ReconciliationError: A message is missing, counted twice or unknown.
        """
        accounted = together(self.known, self.ingested, self.empty, self.rejected)
        # As many ids, each once, and all of them expected: then no message is missing either. If every message is a
        # record, the two columns are equal, which is the fastest comparison.
        if accounted.equals(expected) or (
            len(accounted) == len(expected)
            and not len(repeated_ids(accounted))
            and pc.all(is_among(accounted, expected), min_count=0).as_py()
        ):
            return
        wrong = sorted(
            {
                *without(expected, accounted).to_pylist(),
                *without(accounted, expected).to_pylist(),
                *repeated_ids(accounted).to_pylist(),
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
        """Make the entries (:data:`.sink.ENTRIES`) of messages (:data:`.sink.LOOKED_UP`) that are ingested or empty."""
        done = together(self.ingested, self.empty)
        is_all = done.equals(messages["message_id"])
        chosen = messages if is_all else only(messages, done)
        outcome: Any = INGESTED
        if len(self.empty):
            outcome = pc.if_else(is_among(chosen["message_id"], self.empty), EMPTY, INGESTED)
        return message_table(ENTRIES, chosen["message_id"], sent_at=chosen["sent_at"], outcome=outcome)


def reject_entries(messages: pa.Table, reasons: pa.Table) -> pa.Table:
    """Make the entries (:data:`.sink.ENTRIES`) of messages that were stored as rejects, with these reasons."""
    position = pc.index_in(messages["message_id"], reasons["message_id"].combine_chunks())
    chosen = messages.filter(pc.is_valid(position))
    reason = reasons["reason"].take(position.drop_null())
    return message_table(ENTRIES, chosen["message_id"], sent_at=chosen["sent_at"], outcome=REJECTED, reason=reason)
