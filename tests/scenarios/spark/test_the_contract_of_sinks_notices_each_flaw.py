"""The contract of sinks passes over a right sink, and each of its tests fails over a sink with the flaw it is for."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqs_lease.spark.columns import SENT_AT
from sqs_lease.spark.errors import RowsRefusedError, TableError
from sqs_lease.spark.sinks.sink import EMPTY, INGESTED, Admission, CommitConflict, Staged
from sqs_lease.testing.rules_contract import RulesContract
from sqs_lease.testing.sink_contract import SinkContract, Subject
from sqs_lease.testing.upsert_contract import UpsertContract
from tests.spark.sinks.memory_sink import MemoryLookUp, MemorySink, MemoryTable, memory_subject

NEEDS_SPARK = "test_staging_runs_the_rows_once_and_to_the_end"


class KnowsEverything(MemoryTable):
    def look_up(self, messages: pa.Table) -> MemoryLookUp:
        entry = {"batch_id": "b", "outcome": EMPTY, "reason": None}
        self.store.entries |= dict.fromkeys(messages["message_id"].to_pylist(), entry)
        return super().look_up(messages)


class LooksAtTheFirstPiece(MemoryTable):
    def look_up(self, messages: pa.Table) -> MemoryLookUp:
        return super().look_up(messages.slice(0, len(messages["message_id"].chunk(0))))


class TakesTheFirstPiece(MemoryTable):
    def commit(self, looked_up: MemoryLookUp, admission: Admission) -> int | None:
        first = admission.entries.slice(0, len(admission.entries["message_id"].chunk(0)))
        return super().commit(looked_up, Admission(admission.batch_id, first, admission.staged))


class StagesInTheTable(MemoryTable):
    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        staged = super().stage(rows, batch_id)
        self.store.rows = [*self.store.rows, *self.store.staged[staged.location]]
        return staged


class CountsEachMessageOnce(MemoryTable):
    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        staged = super().stage(rows, batch_id)
        return Staged(staged.location, pa.chunked_array([staged.message_ids.unique()], pa.string()))


class LooksAtSomeRowsFirst(MemoryTable):
    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        return super().stage(rows.sparkSession.createDataFrame(rows.take(1), rows.schema), batch_id)


class FindsNoTypeWithoutRows(MemoryTable):
    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        staged = super().stage(rows, batch_id)
        return Staged(staged.location, pa.chunked_array([pa.array(staged.message_ids.to_pylist())]))


class ForgetsRows(MemoryTable):
    def merged(self, rows: Any) -> Any:
        return self.store.rows


class SaysAnotherVersion(MemoryTable):
    def commit(self, looked_up: MemoryLookUp, admission: Admission) -> int | None:
        super().commit(looked_up, admission)
        return looked_up.version


class ForgetsOutcomes(MemoryTable):
    def save(self, rows: Any, entries: Any) -> None:
        super().save(rows, {key: {**entry, "outcome": INGESTED} for key, entry in entries.items()})


class TakesEveryBatchId(MemoryTable):
    def check_batch(self, looked_up: MemoryLookUp, batch_id: str) -> None:
        pass


class CommitsAfterAnything(TakesEveryBatchId):
    def commit(self, looked_up: MemoryLookUp, admission: Admission) -> int | None:
        return super().commit(MemoryLookUp(self.store.version, looked_up.known), admission)


class AddsRowsAndThenLooks(MemoryTable):
    def commit(self, looked_up: MemoryLookUp, admission: Admission) -> int | None:
        assert admission.staged is None or admission.staged.location in self.store.staged
        try:
            return super().commit(looked_up, admission)
        except CommitConflict:
            if admission.staged is not None:
                self.store.rows = self.merged(self.store.staged[admission.staged.location])
            raise


@dataclass
class KeepsStagedRowsInTheProcess(MemoryTable):
    mine: dict[str, Any] = field(default_factory=dict)

    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        staged = super().stage(rows, batch_id)
        self.mine = {staged.location: self.store.staged[staged.location]}
        return staged

    def commit(self, looked_up: MemoryLookUp, admission: Admission) -> int | None:
        if admission.staged is not None:
            self.store.staged[admission.staged.location] = self.mine[admission.staged.location]
        return super().commit(looked_up, admission)


class StagesByTheBatchAlone(MemoryTable):
    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        staged = super().stage(rows, batch_id)
        self.store.staged[batch_id] = self.store.staged.pop(staged.location)
        return Staged(batch_id, staged.message_ids)


class DiscardsNothing(MemoryTable):
    def discard(self, staged: Staged) -> None:
        pass


class MindsWhatIsGone(MemoryTable):
    def discard(self, staged: Staged) -> None:
        del self.store.staged[staged.location]


class DiscardsTheTable(MemoryTable):
    def discard(self, staged: Staged) -> None:
        super().discard(staged)
        self.store.rows = []

    def commit(self, looked_up: MemoryLookUp, admission: Admission) -> int | None:
        keep = MemoryTable(self.store, self.upsert_by)
        return keep.commit(looked_up, admission)


class LeavesWhatFailed(MemoryTable):
    def stage(self, rows: DataFrame, batch_id: str) -> Staged:
        self.store.staged["begun"] = []
        staged = super().stage(rows, batch_id)
        del self.store.staged["begun"]
        return staged


class SavesRowsFirst(MemoryTable):
    def merged(self, rows: Any) -> Any:
        self.store.rows = super().merged(rows)
        return self.store.rows


class KnowsTheNewestBatchOnly(MemoryTable):
    def save(self, rows: Any, entries: Any) -> None:
        self.store.entries = {}
        super().save(rows, entries)


class OverlooksMessagesWithoutATime(MemoryTable):
    def look_up(self, messages: pa.Table) -> MemoryLookUp:
        return super().look_up(messages.filter(messages["sent_at"].is_valid()))


class MakesNamesOfBatches(MemoryTable):
    def commit(self, looked_up: MemoryLookUp, admission: Admission) -> int | None:
        named = Admission(admission.batch_id.replace("/", "-"), admission.entries, admission.staged)
        return super().commit(looked_up, named)


class DropsTimeZones(MemoryTable):
    def merged(self, rows: Any) -> Any:
        return super().merged(
            [
                {
                    name: value.replace(tzinfo=None) if name.startswith("c") and isinstance(value, datetime) else value
                    for name, value in row.items()
                }
                for row in rows
            ]
        )


class ChecksNothing(MemorySink):
    def check(self, columns: StructType, widen: bool) -> None:
        pass


class WidensAlways(MemorySink):
    def check(self, columns: StructType, widen: bool) -> None:
        super().check(columns, True)


class WidensAndForgets(MemorySink):
    def check(self, columns: StructType, widen: bool) -> None:
        super().check(columns, widen)
        if widen:
            self.store.entries = {}


class Appends(MemoryTable):
    def merged(self, rows: Any) -> Any:
        return [*self.store.rows, *rows]


class TakesTheLastRow(MemoryTable):
    def merged(self, rows: Any) -> Any:
        merged = {row["id"]: row for row in [*self.store.rows, *rows]}
        return list(merged.values())


class KeepsTheFirstOfEqualTimes(MemoryTable):
    def merged(self, rows: Any) -> Any:
        merged: dict[Any, Any] = {}
        for row in [*self.store.rows, *rows]:
            if row["id"] not in merged or row[SENT_AT] > merged[row["id"]][SENT_AT]:
                merged[row["id"]] = row
        return list(merged.values())


class ComparesMicroseconds(MemoryTable):
    def merged(self, rows: Any) -> Any:
        merged: dict[Any, Any] = {}
        for row in [*self.store.rows, *rows]:
            if row["id"] not in merged or row[SENT_AT] >= merged[row["id"]][SENT_AT]:
                merged[row["id"]] = row
        return list(merged.values())


class KeepsValuesWhereTheNewOnesAreNull(MemoryTable):
    def merged(self, rows: Any) -> Any:
        before = {row["id"]: row for row in self.store.rows}
        filled = [
            before.get(row["id"], {}) | {name: value for name, value in row.items() if value is not None}
            for row in rows
        ]
        return super().merged(filled)


class HasARule(MemoryTable):
    def commit(self, looked_up: MemoryLookUp, admission: Admission) -> int | None:
        if admission.staged is not None and any(row["id"] < 0 for row in self.store.staged[admission.staged.location]):
            raise self.refusal()
        return super().commit(looked_up, admission)

    def refusal(self) -> TableError:
        return RowsRefusedError("a row is refused", rule="constraint positive")


class FailsForARow(HasARule):
    def refusal(self) -> TableError:
        return TableError("a row is refused")


class DropsTheRow(MemoryTable):
    def merged(self, rows: Any) -> Any:
        return super().merged([row for row in rows if row["id"] >= 0])


class QuotesTheRow(HasARule):
    def refusal(self) -> TableError:
        return RowsRefusedError("a row is refused", rule="constraint positive: -424242")


class LocksUpAtARow(HasARule):
    def refusal(self) -> TableError:
        self.store.version = -1
        return super().refusal()

    def check_batch(self, looked_up: MemoryLookUp, batch_id: str) -> None:
        if self.store.version < 0:
            raise TableError("a batch is stuck")


@dataclass(frozen=True)
class Flaw:
    test: str
    table: type[MemoryTable] = MemoryTable
    sink: type[MemorySink] = MemorySink


FLAWS = [
    Flaw("test_a_new_table_is_empty_and_knows_nothing", KnowsEverything),
    Flaw("test_staged_rows_are_invisible_and_their_ids_are_read_back", StagesInTheTable),
    Flaw("test_staged_rows_are_invisible_and_their_ids_are_read_back", CountsEachMessageOnce),
    Flaw("test_staging_runs_the_rows_once_and_to_the_end", LooksAtSomeRowsFirst),
    Flaw("test_staging_no_rows_is_no_error", FindsNoTypeWithoutRows),
    Flaw("test_a_commit_makes_rows_and_entries_visible_together", ForgetsRows),
    Flaw("test_a_commit_makes_rows_and_entries_visible_together", SaysAnotherVersion),
    Flaw("test_a_commit_makes_rows_and_entries_visible_together", LooksAtTheFirstPiece),
    Flaw("test_a_commit_makes_rows_and_entries_visible_together", TakesTheFirstPiece),
    Flaw("test_messages_without_rows_are_known_with_their_outcome", ForgetsOutcomes),
    Flaw("test_a_commit_after_a_stale_look_up_is_refused_and_changes_nothing", CommitsAfterAnything),
    Flaw("test_a_commit_after_a_stale_look_up_is_refused_and_changes_nothing", AddsRowsAndThenLooks),
    Flaw("test_a_commit_beside_one_of_other_messages_lands_whole_or_is_refused", AddsRowsAndThenLooks),
    Flaw("test_the_same_admission_twice_is_stored_once", CommitsAfterAnything),
    Flaw("test_a_batch_id_that_stands_for_other_messages_is_refused", TakesEveryBatchId),
    Flaw("test_another_process_can_commit_what_was_staged", KeepsStagedRowsInTheProcess),
    Flaw("test_tries_of_one_batch_at_the_same_time_store_it_once", StagesByTheBatchAlone),
    Flaw("test_tries_of_one_batch_at_the_same_time_store_it_once", CommitsAfterAnything),
    Flaw("test_discard_removes_what_was_staged", DiscardsNothing),
    Flaw("test_discard_removes_what_was_staged", MindsWhatIsGone),
    Flaw("test_discard_leaves_what_a_commit_took", DiscardsTheTable),
    Flaw("test_a_try_that_cannot_be_staged_leaves_nothing", LeavesWhatFailed),
    Flaw("test_an_interrupted_commit_is_seen_whole_or_not_at_all", SavesRowsFirst),
    Flaw("test_messages_are_found_among_many", KnowsTheNewestBatchOnly),
    Flaw("test_messages_are_found_among_many", OverlooksMessagesWithoutATime),
    Flaw("test_ids_and_batches_may_be_called_anything", MakesNamesOfBatches),
    Flaw("test_values_of_every_type_come_back", DropsTimeZones),
    Flaw("test_types_that_the_table_cannot_have_are_refused_early", sink=ChecksNothing),
    Flaw("test_another_type_than_the_tables_is_refused", sink=ChecksNothing),
    Flaw("test_a_column_that_the_table_lacks_is_refused_unless_it_is_to_be_widened", sink=WidensAlways),
    Flaw("test_a_widened_table_has_nulls_in_its_earlier_rows", sink=ChecksNothing),
    Flaw("test_a_widened_table_has_nulls_in_its_earlier_rows", sink=WidensAndForgets),
]

UPSERT_FLAWS = [
    Flaw("test_within_a_batch_the_newest_message_wins", TakesTheLastRow),
    Flaw("test_within_a_batch_the_newest_message_wins", Appends),
    Flaw("test_a_newer_message_overwrites_the_whole_row", KeepsValuesWhereTheNewOnesAreNull),
    Flaw("test_an_older_message_that_comes_late_overwrites_nothing", TakesTheLastRow),
    Flaw("test_of_messages_sent_at_the_same_time_the_later_batch_wins", KeepsTheFirstOfEqualTimes),
    Flaw("test_of_messages_sent_in_one_millisecond_the_later_batch_wins", ComparesMicroseconds),
    Flaw("test_of_messages_of_one_batch_the_newest_wins_also_where_it_comes_in_parts", TakesTheLastRow),
    Flaw("test_several_rows_of_one_message_with_one_key_leave_one", Appends),
    Flaw("test_a_batch_with_a_conflict_overwrites_nothing", CommitsAfterAnything),
    Flaw("test_a_key_that_may_be_null_is_refused", sink=ChecksNothing),
]


RULES_FLAWS = [
    Flaw("test_a_refused_row_rejects_its_message_and_no_other", FailsForARow),
    Flaw("test_a_refused_row_rejects_its_message_and_no_other", DropsTheRow),
    Flaw("test_a_table_goes_on_after_a_batch_of_which_it_refused_all", LocksUpAtARow),
    Flaw("test_the_reason_quotes_no_value", QuotesTheRow),
]


class TestMemorySink(SinkContract):
    @pytest.fixture
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        if request.function.__name__ == NEEDS_SPARK:
            return memory_subject(spark=request.getfixturevalue("spark"))
        return memory_subject()


class TestUpsertingMemorySink(UpsertContract):
    @pytest.fixture
    def subject(self) -> Subject:
        return memory_subject(upsert_by="id")


class TestMemorySinkWithARule(RulesContract):
    @pytest.fixture
    def subject(self) -> Subject:
        return memory_subject(table=HasARule)


def name_of(flaw: Flaw) -> str:
    return flaw.table.__name__ if flaw.table is not MemoryTable else flaw.sink.__name__


@pytest.mark.parametrize("flaw", FLAWS, ids=name_of)
def test_the_contract_finds_the_flaw(flaw: Flaw, request: pytest.FixtureRequest) -> None:
    session: SparkSession | None = request.getfixturevalue("spark") if flaw.test == NEEDS_SPARK else None
    subject = memory_subject(table=flaw.table, sink=flaw.sink, spark=session)

    with pytest.raises((AssertionError, pytest.fail.Exception, KeyError)):
        getattr(SinkContract(), flaw.test)(subject)


@pytest.mark.parametrize("flaw", UPSERT_FLAWS, ids=name_of)
def test_the_upsert_contract_finds_the_flaw(flaw: Flaw) -> None:
    subject = memory_subject(upsert_by="id", table=flaw.table, sink=flaw.sink)

    with pytest.raises((AssertionError, pytest.fail.Exception, KeyError)):
        getattr(UpsertContract(), flaw.test)(subject)


@pytest.mark.parametrize("flaw", RULES_FLAWS, ids=name_of)
def test_the_rules_contract_finds_the_flaw(flaw: Flaw) -> None:
    subject = memory_subject(table=flaw.table, sink=flaw.sink)

    with pytest.raises((AssertionError, pytest.fail.Exception, KeyError)):
        getattr(RulesContract(), flaw.test)(subject)


@pytest.mark.parametrize(
    ("contract", "flaws"), [(SinkContract, FLAWS), (UpsertContract, UPSERT_FLAWS), (RulesContract, RULES_FLAWS)]
)
def test_every_test_of_the_contract_is_shown_to_fail(contract: type, flaws: list[Flaw]) -> None:
    assert {name for name in vars(contract) if name.startswith("test_")} == {flaw.test for flaw in flaws}
