# ruff: noqa: S101 - assertions are what it is for
"""The contract of sinks of tables with rules of their own, beside `sink_contract`: a message does not stop a batch.

Subclass `RulesContract` with a subject that has a table, which refuses rows with a negative ``id``, for example by a
constraint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it

from sqs_lease.spark.batch_file import REASONS
from sqs_lease.spark.columns import MESSAGE_ID, REASON
from sqs_lease.spark.errors import TableError
from sqs_lease.spark.loading import Loaded, Loading
from sqs_lease.spark.message_ids import NO_IDS
from sqs_lease.spark.parsing import Parsed
from sqs_lease.spark.session import INGESTION, session_settings
from sqs_lease.spark.sinks.sink import JudgingTable
from sqs_lease.testing.sink_subject import Subject, asked, known, record


class RulesContract:
    """The tests. Override :meth:`subject`."""

    @pytest.fixture
    def subject(self) -> Subject:
        """The sink to test; its table refuses negative ids."""
        raise NotImplementedError("override the fixture `subject`")

    def test_a_refused_row_rejects_its_message_and_no_other(self, subject: Subject) -> None:
        """All rows of that message are refused, and nothing of it is left."""
        loaded = _load(subject, "b", [("m1", 1), ("m2", 2), ("m2", -2), ("m3", 3), ("m4", -4)])
        assert loaded.rejected["message_id"].to_pylist() == ["m2", "m4"]
        assert subject.ids() == [("m1", 1), ("m3", 3)]
        assert known(subject.open(), "m1", "m2", "m3", "m4").keys() == {"m1", "m3"}
        assert list(subject.leftovers()) == []

    def test_a_table_goes_on_after_a_batch_of_which_it_refused_all(self, subject: Subject) -> None:
        """The next one is taken, and the messages may come again with other rows."""
        assert _load(subject, "b", [("m1", -1)]).rejected["message_id"].to_pylist() == ["m1"]
        assert _load(subject, "c", [("m2", 2)]).rejected.num_rows == 0
        assert _load(subject, "d", [("m1", 1)]).rejected.num_rows == 0
        assert subject.ids() == [("m1", 1), ("m2", 2)]

    def test_the_reason_quotes_no_value(self, subject: Subject) -> None:
        """It may go into logs."""
        (reason,) = _load(subject, "b", [("m1", 1), ("m2", -424242)]).rejected["reason"].to_pylist()
        assert reason
        assert "424242" not in reason


@dataclass(frozen=True)
class _Rows:
    """A parser of test rows, which are staged as in ingestion."""

    subject: Subject
    records: Sequence[tuple[str, int]]

    def parse(self, table: Any, left_out: pa.ChunkedArray, batch_id: str) -> Parsed:
        out = set(left_out.to_pylist())
        refused: dict[str, str] = {}
        if isinstance(table, JudgingTable):
            rows = self._rows(out, batch_id).withColumn(REASON, F.lit(None).cast("string"))
            found = table.judged(rows, REASON).where(F.col(REASON).isNotNull()).select(MESSAGE_ID, REASON)
            refused = {row[MESSAGE_ID]: row[REASON] for row in found.collect()}
        reasons = pa.table([list(refused), list(refused.values())], schema=REASONS)
        taken = {message_id for message_id, _ in self.records} - out - refused.keys()
        if not taken:
            return Parsed(None, NO_IDS, NO_IDS, reasons)
        staged = table.stage(self._rows(out | refused.keys(), batch_id), batch_id)
        return Parsed(staged, pa.chunked_array([staged.message_ids.unique()], pa.string()), NO_IDS, reasons)

    def _rows(self, out: set[str], batch_id: str) -> Any:
        return self.subject.rows(
            [
                record(message_id, number, batch_id=batch_id)
                for message_id, number in self.records
                if message_id not in out
            ]
        )


def _load(subject: Subject, batch_id: str, records: Sequence[tuple[str, int]]) -> Loaded:
    messages = asked(*dict.fromkeys(message_id for message_id, _ in records))
    with session_settings(subject.spark, INGESTION):
        try:
            loading = Loading(subject.open(), batch_id, messages, messages["message_id"])
            return loading.load(_Rows(subject, records).parse)
        except TableError as error:
            pytest.fail(f"a row that the table refuses stopped its batch: {error}")
