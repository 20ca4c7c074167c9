# ruff: noqa: S101 - assertions are what it is for
"""The contract of sinks with ``upsert_by``, beside `sink_contract`: one row a key, that of the newest message.

Subclass `UpsertContract` with a subject that has sinks which upsert by the column ``id``.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from sqs_lease.spark.columns import table_columns
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.sinks.sink import Admission, CommitConflict
from sqs_lease.testing.sink_subject import SENT, Subject, asked, entries, known, record

LATER = SENT + timedelta(seconds=1)


class UpsertContract:
    """The tests. Override :meth:`subject`."""

    @pytest.fixture
    def subject(self) -> Subject:
        """The sink to test; it upserts by ``id``."""
        raise NotImplementedError("override the fixture `subject`")

    def test_within_a_batch_the_newest_message_wins(self, subject: Subject) -> None:
        """All its messages are known."""
        table = subject.open()
        rows = [record("m1", 1, sent_at=LATER), record("m2", 1), record("m3", 2), record("m4", 2, sent_at=LATER)]
        subject.store(table, "b", rows)
        assert subject.ids() == [("m1", 1), ("m4", 2)]
        assert known(table, "m1", "m2", "m3", "m4").keys() == {"m1", "m2", "m3", "m4"}

    def test_a_newer_message_overwrites_the_whole_row(self, subject: Subject) -> None:
        """Its nulls too; other keys stay."""
        table = subject.open()
        subject.store(table, "b", [record("m1", 1), record("m2", 2)])
        newer = record("m3", 1, batch_id="c", sent_at=LATER) | {"name": None}
        subject.store(table, "c", [newer])
        assert sorted(subject.read_rows(), key=lambda row: int(row["id"])) == [newer, record("m2", 2)]

    def test_an_older_message_that_comes_late_overwrites_nothing(self, subject: Subject) -> None:
        """And is done."""
        table = subject.open()
        subject.store(table, "b", [record("m2", 1, sent_at=LATER)])
        subject.store(table, "c", [record("m1", 1, batch_id="c"), record("m3", 3, batch_id="c")])
        assert subject.ids() == [("m2", 1), ("m3", 3)]
        assert known(table, "m1")["m1"][0] == "c"

    def test_of_messages_sent_at_the_same_time_the_later_batch_wins(self, subject: Subject) -> None:
        """Whatever their ids are."""
        table = subject.open()
        subject.store(table, "b", [record("m2", 1)])
        subject.store(table, "c", [record("m1", 1)])
        assert subject.ids() == [("m1", 1)]

    def test_of_messages_sent_in_one_millisecond_the_later_batch_wins(self, subject: Subject) -> None:
        """Microseconds tell messages of a FIFO queue apart within a batch; every batch counts them from 0."""
        table = subject.open()
        rows = [record("m1", 1), record("m2", 1, sent_at=SENT + timedelta(microseconds=1))]
        subject.store(table, "b", rows)
        subject.store(table, "c", [record("m3", 1, batch_id="c")])
        assert subject.ids() == [("m3", 1)]

    def test_of_messages_of_one_batch_the_newest_wins_also_where_it_comes_in_parts(self, subject: Subject) -> None:
        """By the microseconds too."""
        table = subject.open()
        subject.store(table, "b", [record("m2", 1, sent_at=SENT + timedelta(microseconds=1))])
        looked_up = table.look_up(asked("m1", "m2"))
        staged = subject.stage(table, "b", [record("m1", 1)])
        table.commit(looked_up, Admission("b", entries(["m1"]), staged))
        assert subject.ids() == [("m2", 1)]

    def test_several_rows_of_one_message_with_one_key_leave_one(self, subject: Subject) -> None:
        """The contract does not say which of them stays."""
        subject.store(subject.open(), "b", [record("m1", 1), record("m1", 1), record("m1", 2)])
        assert subject.ids() == [("m1", 1), ("m1", 2)]

    def test_a_batch_with_a_conflict_overwrites_nothing(self, subject: Subject) -> None:
        """The table stays as the other commit left it."""
        ours, theirs = subject.open(), subject.open()
        looked_up = ours.look_up(asked("m1"))
        staged = subject.stage(ours, "b", [record("m1", 1, sent_at=LATER)])
        subject.store(theirs, "c", [record("m1", 1, batch_id="c")])
        with pytest.raises(CommitConflict):
            ours.commit(looked_up, Admission("b", entries(["m1"]), staged))
        assert subject.read_rows() == [record("m1", 1, batch_id="c")]

    def test_a_key_that_may_be_null_is_refused(self, subject: Subject) -> None:
        """Early, and by its name."""
        with pytest.raises(SchemaError, match="id"):
            subject.open(table_columns(StructType([StructField("id", LongType()), StructField("name", StringType())])))
        with pytest.raises(SchemaError, match="id"):
            subject.open(table_columns(StructType([StructField("name", StringType())])))
