# ruff: noqa: S101 - assertions are what it is for
"""The contract of all sinks, as tests: subclass `SinkContract`, describe how your table is made and read, run pytest.

A test file for a sink of your own::

    class TestMySink(SinkContract):
        @pytest.fixture
        def subject(self, spark, tmp_path):
            return Subject(
                spark=spark,
                new_sink=lambda: MySink(tmp_path / "table"),
                read_rows=lambda: read_my_table(tmp_path / "table"),
                leftovers=lambda: list_what_was_staged(tmp_path / "table"),
                interruptions={"before the commit": lambda: interrupted(MyTable, "write_it", "before")},
            )

Every test gets a ``subject`` of its own, whose table does not exist yet. The tests call the verbs of
:class:`sqs_lease.spark.sinks.sink.Table` directly, a few rows at a time; only ``stage`` uses Spark. A sink that can
upsert runs :class:`.upsert_contract.UpsertContract` too.

It needs pytest and the extra ``spark``.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from sqs_lease.spark.columns import MESSAGE_ID
from sqs_lease.spark.errors import BatchIdReusedError, SchemaError
from sqs_lease.spark.session import INGESTION, session_settings
from sqs_lease.spark.sinks.sink import EMPTY, INGESTED, REJECTED, Admission, CommitConflict, Staged
from sqs_lease.testing.sink_subject import (
    COLUMNS,
    SENT,
    SPECIAL_TEXTS,
    TYPES,
    InterruptionError,
    Subject,
    asked,
    columns_of,
    entries,
    interrupted,
    known,
    plain,
    record,
)

__all__ = ["COLUMNS", "SENT", "TYPES", "InterruptionError", "SinkContract", "Subject", "interrupted"]


class SinkContract:
    """The tests. Override :meth:`subject`."""

    @pytest.fixture
    def subject(self) -> Subject:
        """The sink to test."""
        raise NotImplementedError("override the fixture `subject`")

    def test_a_new_table_is_empty_and_knows_nothing(self, subject: Subject) -> None:
        """Opening it is enough for readers to find it."""
        table = subject.open()
        assert known(table, "m1", "m2") == {}
        assert known(table) == {}
        assert subject.read_rows() == []

    def test_staged_rows_are_invisible_and_their_ids_are_read_back(self, subject: Subject) -> None:
        """The id of every row, also of several rows of one message."""
        table = subject.open()
        staged = subject.stage(table, "b", [record("m1", 1), record("m2", 2), record("m2", 3)])
        assert isinstance(staged.message_ids, pa.ChunkedArray)
        assert staged.message_ids.type == pa.string()
        assert Counter(staged.message_ids.to_pylist()) == {"m1": 1, "m2": 2}
        assert subject.read_rows() == []
        assert known(table, "m1", "m2") == {}

    def test_staging_runs_the_rows_once_and_to_the_end(self, subject: Subject) -> None:
        """Ingestion's observations on the way are complete when the rows are staged."""
        observation = Observation()
        rows = subject.rows([record("m1", 1), record("m2", 2)]).observe(observation, F.count(F.lit(1)).alias("rows"))
        with session_settings(subject.spark, INGESTION):
            subject.open().stage(rows, "b")
        assert observation.get == {"rows": 2}

    def test_staging_no_rows_is_no_error(self, subject: Subject) -> None:
        """As when all messages of a batch turn out to have none."""
        table = subject.open()
        staged = subject.stage(table, "b", [])
        assert staged.message_ids.type == pa.string()
        assert staged.message_ids.to_pylist() == []
        table.commit(table.look_up(asked("m1")), Admission("b", entries(["m1"], EMPTY), staged))
        assert subject.read_rows() == []
        assert known(table, "m1") == {"m1": ("b", EMPTY, None)}

    def test_a_commit_makes_rows_and_entries_visible_together(self, subject: Subject) -> None:
        """To a sink that was made before and to one made afterwards."""
        table, other = subject.open(), subject.open()
        version = subject.store(table, "b", [record("m1", 1), record("m2", 2), record("m2", 3)])
        assert subject.ids() == [("m1", 1), ("m2", 2), ("m2", 3)]
        row = next(row for row in subject.read_rows() if row["id"] == 2)
        assert row == record("m2", 2)
        expected = {"m1": ("b", INGESTED, None), "m2": ("b", INGESTED, None)}
        for reader in (table, other, subject.open()):
            assert known(reader, "m1", "m2", "m3") == expected
            assert reader.look_up(asked()).version == version

    def test_messages_without_rows_are_known_with_their_outcome(self, subject: Subject) -> None:
        """Together with others or alone."""
        table = subject.open()
        without = pa.concat_tables([entries(["m2"], EMPTY), entries(["m3"], REJECTED, "not JSON: byte 7")])
        subject.store(table, "b", [record("m1", 1)], without)
        subject.store(table, "c", [], entries(["m4"], EMPTY))
        assert subject.ids() == [("m1", 1)]
        assert known(subject.open(), "m1", "m2", "m3", "m4") == {
            "m1": ("b", INGESTED, None),
            "m2": ("b", EMPTY, None),
            "m3": ("b", REJECTED, "not JSON: byte 7"),
            "m4": ("c", EMPTY, None),
        }

    def test_a_commit_after_a_stale_look_up_is_refused_and_changes_nothing(self, subject: Subject) -> None:
        """Another writer committed one of its messages; the staged rows can still be committed after a new look-up."""
        ours, theirs = subject.open(), subject.open()
        looked_up = ours.look_up(asked("m1", "m2"))
        staged = subject.stage(ours, "ours", [record("m2", 2, batch_id="ours")])
        subject.store(theirs, "theirs", [record("m1", 1, batch_id="theirs")])
        with pytest.raises(CommitConflict):
            ours.commit(looked_up, Admission("ours", entries(["m1", "m2"]), staged))
        assert subject.ids() == [("m1", 1)]
        again = ours.look_up(asked("m1", "m2"))
        assert again.known["message_id"].to_pylist() == ["m1"]
        ours.commit(again, Admission("ours", entries(["m2"]), staged))
        assert subject.ids() == [("m1", 1), ("m2", 2)]
        assert known(theirs, "m1", "m2") == {"m1": ("theirs", INGESTED, None), "m2": ("ours", INGESTED, None)}

    def test_a_commit_beside_one_of_other_messages_lands_whole_or_is_refused(self, subject: Subject) -> None:
        """A table may take the two; it must not take a part."""
        ours, theirs = subject.open(), subject.open()
        looked_up = ours.look_up(asked("m2"))
        staged = subject.stage(ours, "ours", [record("m2", 2)])
        subject.store(theirs, "theirs", [record("m1", 1)])
        try:
            ours.commit(looked_up, Admission("ours", entries(["m2"]), staged))
        except CommitConflict:
            assert subject.ids() == [("m1", 1)]
            ours.commit(ours.look_up(asked("m2")), Admission("ours", entries(["m2"]), staged))
        assert subject.ids() == [("m1", 1), ("m2", 2)]
        assert known(theirs, "m1", "m2").keys() == {"m1", "m2"}

    def test_the_same_admission_twice_is_stored_once(self, subject: Subject) -> None:
        """As when the answer to the first was lost."""
        table = subject.open()
        looked_up = table.look_up(asked("m1"))
        admission = Admission("b", entries(["m1"]), subject.stage(table, "b", [record("m1", 1)]))
        table.commit(looked_up, admission)
        with pytest.raises(CommitConflict):
            table.commit(looked_up, admission)
        assert subject.ids() == [("m1", 1)]
        assert known(table, "m1") == {"m1": ("b", INGESTED, None)}

    def test_a_batch_id_that_stands_for_other_messages_is_refused(self, subject: Subject) -> None:
        """Nothing changes; the rest of the same messages may follow under their id."""
        table = subject.open()
        subject.store(table, "b", [record("m1", 1)])
        with pytest.raises(BatchIdReusedError):
            subject.store(table, "b", [record("m2", 2)])
        assert subject.ids() == [("m1", 1)]
        assert known(table, "m1", "m2").keys() == {"m1"}
        staged = subject.stage(table, "b", [record("m3", 3)])
        table.commit(table.look_up(asked("m1", "m3")), Admission("b", entries(["m3"]), staged))
        assert subject.ids() == [("m1", 1), ("m3", 3)]

    def test_another_process_can_commit_what_was_staged(self, subject: Subject) -> None:
        """It finds the rows by their location, and knows nothing else of them."""
        staged = subject.stage(subject.open(), "b", [record("m1", 1)])
        other = subject.open()
        moved = Staged(str(staged.location), staged.message_ids)
        other.commit(other.look_up(asked("m1")), Admission("b", entries(["m1"]), moved))
        assert subject.ids() == [("m1", 1)]

    def test_tries_of_one_batch_at_the_same_time_store_it_once(self, subject: Subject) -> None:
        """The slower one finds the messages, and removes only what is its own."""
        first, second = subject.open(), subject.open()
        looked_up = [table.look_up(asked("m1")) for table in (first, second)]
        staged = [subject.stage(table, "b", [record("m1", 1)]) for table in (first, second)]
        assert staged[0].location != staged[1].location
        second.commit(looked_up[1], Admission("b", entries(["m1"]), staged[1]))
        with pytest.raises(CommitConflict):
            first.commit(looked_up[0], Admission("b", entries(["m1"]), staged[0]))
        first.discard(staged[0])
        assert subject.ids() == [("m1", 1)]
        assert known(first, "m1") == {"m1": ("b", INGESTED, None)}
        assert list(subject.leftovers()) == []

    def test_discard_removes_what_was_staged(self, subject: Subject) -> None:
        """And does not mind that it is gone."""
        table = subject.open()
        staged = subject.stage(table, "b", [record("m1", 1)])
        assert list(subject.leftovers()) != []
        table.discard(staged)
        assert list(subject.leftovers()) == []
        table.discard(staged)
        subject.open().discard(staged)
        assert subject.read_rows() == []

    def test_discard_leaves_what_a_commit_took(self, subject: Subject) -> None:
        """It may be called although the commit went through."""
        table = subject.open()
        staged = subject.stage(table, "b", [record("m1", 1)])
        table.commit(table.look_up(asked("m1")), Admission("b", entries(["m1"]), staged))
        table.discard(staged)
        subject.open().discard(staged)
        assert subject.ids() == [("m1", 1)]
        assert list(subject.leftovers()) == []

    def test_a_try_that_cannot_be_staged_leaves_nothing(self, subject: Subject) -> None:
        """Neither rows nor anything that was staged before the failure."""
        table = subject.open()
        with session_settings(subject.spark, INGESTION), pytest.raises(Exception, match="no such row"):
            table.stage(subject.broken_rows(), "b")
        assert list(subject.leftovers()) == []
        assert subject.read_rows() == []
        assert known(table, "m1", "m2") == {}

    def test_an_interrupted_commit_is_seen_whole_or_not_at_all(self, subject: Subject) -> None:
        """By the next look-up of any process, also if the staged rows are discarded, as a failed try does."""
        assert subject.interruptions
        for number, (name, interruption) in enumerate(subject.interruptions.items()):
            message_id, batch_id = f"m{number}", f"b{number}"
            table = subject.open()
            looked_up = table.look_up(asked(message_id))
            staged = subject.stage(table, batch_id, [record(message_id, 1), record(message_id, 2)])
            with interruption(), pytest.raises(Exception):  # noqa: B017, PT011 - what it raises is the sink's own
                table.commit(looked_up, Admission(batch_id, entries([message_id]), staged))
            table.discard(staged)

            found = known(subject.open(), message_id)
            stored = [pair for pair in subject.ids() if pair[0] == message_id]
            whole = ({message_id: (batch_id, INGESTED, None)}, [(message_id, 1), (message_id, 2)])
            assert (found, stored) in (({}, []), whole), name
            if not found:
                subject.store(subject.open(), batch_id, [record(message_id, 1), record(message_id, 2)])
            assert [pair for pair in subject.ids() if pair[0] == message_id] == whole[1], name
            assert list(subject.leftovers()) == [], name

    def test_messages_are_found_among_many(self, subject: Subject) -> None:
        """In any batch, sent at any time, also if SQS did not tell when."""
        table = subject.open()
        for batch in range(3):
            sent_at = SENT + timedelta(days=batch)
            subject.store(table, f"b{batch}", [], entries([f"m{batch}-{n}" for n in range(100)], EMPTY, None, sent_at))
        subject.store(table, "unsaid", [], entries(["n1", "n2"], EMPTY, None, None))
        looked_for = pa.concat_tables(
            [
                asked("m0-7", "m3-1"),
                asked("m2-99", "unknown", sent_at=SENT + timedelta(days=2)),
                asked("m1-0", "n1", sent_at=None),
                asked("n2"),
            ]
        )
        answer = subject.open().look_up(looked_for).known
        found = dict(zip(answer["message_id"].to_pylist(), answer["batch_id"].to_pylist(), strict=True))
        assert found == {"m0-7": "b0", "m2-99": "b2", "m1-0": "b1", "n1": "unsaid", "n2": "unsaid"}

    def test_ids_and_batches_may_be_called_anything(self, subject: Subject) -> None:
        """Nothing in a name is taken for a path, a pattern or a quote."""
        table = subject.open()
        text = SPECIAL_TEXTS[0]
        subject.store(table, text, [record(text, n, batch_id=text) for n, text in enumerate(SPECIAL_TEXTS)])
        for batch_id in SPECIAL_TEXTS[1:]:
            subject.store(table, batch_id, [], entries([f"in {batch_id}"], EMPTY))
        messages = [*SPECIAL_TEXTS, *(f"in {batch_id}" for batch_id in SPECIAL_TEXTS[1:])]
        assert {found[0] for found in known(table, *messages).values()} == set(SPECIAL_TEXTS)
        assert known(table, *messages).keys() == set(messages)
        assert [row[MESSAGE_ID] for row in sorted(subject.read_rows(), key=lambda row: int(row["id"]))] == [
            *SPECIAL_TEXTS
        ]

    def test_values_of_every_type_come_back(self, subject: Subject) -> None:
        """Also nulls in every column."""
        names = [f"c{number}" for number in range(len(subject.types))]
        columns = columns_of(**dict(zip(names, subject.types, strict=True)))
        count = max(map(len, subject.types.values()))
        written = [record("m0", 0) | dict.fromkeys(names)]
        for n in range(1, count + 1):
            given = zip(names, subject.types.values(), strict=True)
            written.append(record(f"m{n}", n) | {name: values[n % len(values)] for name, values in given})
        subject.store(subject.open(columns), "b", written, columns=columns)
        rows = {row["id"]: row for row in subject.read_rows()}
        assert len(rows) == len(written)
        for row in written:
            for name, kind in zip(names, subject.types, strict=True):
                value = row[name]
                expected = None if value is None else subject.as_read(kind, value)
                assert plain(rows[row["id"]][name]) == expected, kind

    def test_types_that_the_table_cannot_have_are_refused_early(self, subject: Subject) -> None:
        """With an error that names the column."""
        for kind in subject.refused_types:
            with pytest.raises(SchemaError, match="odd"):
                subject.open(columns_of(odd=kind))

    def test_another_type_than_the_tables_is_refused(self, subject: Subject) -> None:
        """Nothing is converted in silence."""
        subject.store(subject.open(), "b", [record("m1", 1)])
        with pytest.raises(SchemaError, match="name"):
            subject.open(columns_of(name=BooleanType()), widen=subject.widens)
        assert subject.ids() == [("m1", 1)]

    def test_a_column_that_the_table_lacks_is_refused_unless_it_is_to_be_widened(self, subject: Subject) -> None:
        """The table stays as it is."""
        subject.open()
        wider = columns_of(name=StringType(), more=StringType())
        with pytest.raises(SchemaError, match="more"):
            subject.open(wider)
        subject.store(subject.open(), "b", [record("m1", 1)])
        assert subject.ids() == [("m1", 1)]

    def test_a_widened_table_has_nulls_in_its_earlier_rows(self, subject: Subject) -> None:
        """Columns are added only where they may be null."""
        subject.store(subject.open(), "b", [record("m1", 1)])
        more = columns_of(name=StringType(), more=StringType())
        if not subject.widens:
            with pytest.raises(SchemaError, match="more"):
                subject.open(more, widen=True)
            return
        required = StructType([*COLUMNS.fields, StructField("more", more["more"].dataType, nullable=False)])
        with pytest.raises(SchemaError, match="more"):
            subject.open(required, widen=True)
        table = subject.open(more, widen=True)
        assert known(table, "m1").keys() == {"m1"}
        subject.store(table, "c", [record("m2", 2, more="x")], columns=more)
        assert {row["id"]: row["more"] for row in subject.read_rows()} == {1: None, 2: "x"}
        # A driver that does not know of the new column yet goes on.
        subject.store(subject.open(widen=True), "d", [record("m3", 3)])
        assert {row["id"]: row["more"] for row in subject.read_rows()} == {1: None, 2: "x", 3: None}
        assert known(subject.open(more), "m1", "m2", "m3").keys() == {"m1", "m2", "m3"}
