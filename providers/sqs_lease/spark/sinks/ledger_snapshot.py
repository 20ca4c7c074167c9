"""One version of a ledger: which messages it knows, found without opening more of its files than need be."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.dataset as pds  # type: ignore[import-untyped]
from deltalake import DeltaTable

from sqs_lease.spark.sinks.ledger_files import DAY, FILE, Admitted, LedgerPlace
from sqs_lease.spark.sinks.sink import KNOWN

_BUCKET_MICROSECONDS: Final = 60_000_000
# Row groups that a look-up holds in memory at once: some 20 MB each.
_FILES_AT_ONCE: Final = 4

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """One version of a ledger.

    Attributes:
        place: Where it is.
        table: The version. Nobody moves this handle on to a newer one.
        files: What the log says of each file: one row a file.
    """

    place: LedgerPlace
    table: DeltaTable
    files: pa.Table

    @property
    def ledger_id(self) -> str:
        """Tells this ledger from another one in the same place."""
        return str(self.table.metadata().id)

    def newest(self) -> Admitted | None:
        """The newest admission; None in an empty ledger."""
        if not self.files.num_rows:
            return None
        highest = pc.max(self.files["max.number"]).as_py()
        (row,) = self._scan(
            pc.equal(self.files["max.number"], highest),
            lambda scanner: scanner.head(1).to_pylist(),
            columns=["number", "batch_id", "location"],
            where=pds.field("number") == highest,
        )
        return Admitted(row["number"], row["batch_id"], row["location"])

    def find(self, messages: pa.Table) -> pa.Table:
        """Those of some messages that are in the ledger.

        Args:
            messages: As :data:`.sink.LOOKED_UP`.

        Returns:
            As :data:`.sink.KNOWN`.
        """
        overlapping = self._overlapping(messages["sent_at"])
        if not messages.num_rows or not pc.any(overlapping).as_py():
            return KNOWN.empty_table()
        message_ids = messages["message_id"].combine_chunks()
        found: pa.Table = self._scan(
            overlapping,
            lambda scanner: scanner.to_table(),
            columns=KNOWN.names,
            where=pds.field("message_id").isin(message_ids),
        )
        return found.cast(KNOWN)

    def count_of(self, batch_id: str) -> int:
        """How many messages were admitted under a batch id."""
        may_have = self._may_have("batch_id", batch_id)
        if not pc.any(may_have).as_py():
            return 0
        return self._scan(
            may_have,
            lambda scanner: int(scanner.count_rows()),
            columns=["batch_id"],
            where=pds.field("batch_id") == batch_id,
        )

    def may_name(self, location: str) -> bool:
        """Whether an admission has its rows at this location; False is certain."""
        return bool(pc.any(self._may_have("location", location)).as_py())

    def has_file(self, file: str) -> bool:
        """Whether the ledger consists of this file, among others."""
        return bool(pc.any(pc.equal(self.files["path"], file)).as_py())

    def days(self) -> list[Any]:
        """The days on which batches were admitted."""
        days: list[Any] = pc.unique(self.files[f"partition.{DAY}"]).to_pylist()
        return days

    def newest_day(self) -> Any:
        """The day of the newest admission; None in an empty ledger."""
        newest = pc.equal(self.files["max.number"], pc.max(self.files["max.number"]))
        days = self.files[f"partition.{DAY}"].filter(newest)
        return days[0].as_py() if len(days) else None

    def _scan(
        self,
        chosen: pa.ChunkedArray,
        take: Callable[[pds.Scanner], _Result],
        *,
        columns: list[str],
        where: pds.Expression,
    ) -> _Result:
        """Take something from the chosen files, a few of which are in memory at a time."""
        paths = self.files["path"].filter(chosen).to_pylist()
        try:
            files = pds.dataset(paths, schema=FILE, format="parquet", filesystem=self.place.filesystem())
            return take(files.scanner(columns=columns, filter=where, fragment_readahead=_FILES_AT_ONCE))
        except (OSError, pa.ArrowInvalid) as error:
            raise self.place.unusable("cannot be read", error) from error

    def _may_have(self, column: str, value: str) -> pa.ChunkedArray:
        """Which files may have a value in a column: those of which the log does not exclude it."""
        low, high = self.files[f"min.{column}"], self.files[f"max.{column}"]
        within = pc.and_(pc.less_equal(low, value), pc.greater_equal(high, value))
        # Nothing but nulls has neither a lowest nor a highest value.
        empty = pc.equal(self.files[f"null_count.{column}"], self.files["num_records"])
        return pc.and_(pc.fill_null(within, True), pc.invert(pc.fill_null(empty, False)))

    def _overlapping(self, sent_at: pa.ChunkedArray) -> pa.ChunkedArray:
        """Which files may have messages that were sent in the same minutes as these."""
        everything = pa.chunked_array([pa.repeat(True, self.files.num_rows)])
        if sent_at.null_count:
            return everything
        asked = sorted(pc.unique(_minutes(sent_at)).to_pylist())
        files = zip(
            _minutes(self.files["min.sent_at"]).to_pylist(),
            _minutes(self.files["max.sent_at"]).to_pylist(),
            self.files["null_count.sent_at"].to_pylist(),
            strict=True,
        )
        return pa.chunked_array(
            [
                pa.array(
                    [
                        # Unknown, or a message of which the time was not said when it was admitted.
                        low is None or high is None or nulls != 0 or bisect_right(asked, high) > bisect_left(asked, low)
                        for low, high, nulls in files
                    ],
                    pa.bool_(),
                )
            ]
        )


def _minutes(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.divide(times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), _BUCKET_MICROSECONDS)
