"""The messages that are deleted, given back and held, by the states of the work tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from sqs_lease.airflow.airflow_api.requests import UNMAPPED, InstanceKey, state_key
from sqs_lease.airflow.settlement.rules import (
    FAILED,
    Judgement,
    WorkTask,
    ambiguous_names,
    concerned,
    failed_with,
    returned_as_failed,
)
from sqs_lease.core.verdict import Action, Failure

IDS = ["m0", "m1", "m2"]
LOAD = WorkTask("load")
CHECK = WorkTask("check", mapped=True, per_message=True)
CHUNKS = WorkTask("chunk", mapped=True)
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with messages, by their position in the batch, and the reports that must be read to say more."""

    delete: tuple[int, ...]
    release: tuple[int, ...]
    fail: Mapping[int, Failure]
    unread: tuple[InstanceKey, ...]


def decision(
    work: list[WorkTask],
    states: dict[str, str | None],
    failures: Mapping[InstanceKey, frozenset[str]] | None = None,
    held: list[int] | None = None,
    *,
    errors: tuple[str, ...] = (),
    read_failures: bool = False,
    by_exception: bool = False,
) -> Decision:
    """Decide; by default with workers that leave no reports of failures."""
    reports = {
        key: dict.fromkeys(
            ids, failed_with(key, errors) if states.get(state_key(key)) == FAILED else returned_as_failed(key)
        )
        for key, ids in (failures or {}).items()
    }
    judgement = Judgement(work, states, reports, IDS, read_failures=read_failures, by_exception=by_exception)
    found = judgement.on([0, 1, 2] if held is None else held)
    return Decision(
        tuple(position for position, what in found.items() if what is Action.DELETE),
        tuple(position for position, what in found.items() if what is Action.RELEASE),
        {position: what for position, what in found.items() if isinstance(what, Failure)},
        tuple(judgement.unread),
    )


def failure(reason: str, positions: tuple[int, ...] = (0, 1, 2)) -> dict[int, Failure]:
    return dict.fromkeys(positions, Failure(reason))


@pytest.mark.parametrize(
    "state",
    [
        None,
        "scheduled",
        "queued",
        "running",
        "restarting",
        "up_for_retry",
        "up_for_reschedule",
        "deferred",
    ],
)
def test_messages_are_held_while_a_task_may_still_succeed(state: str | None) -> None:
    assert decision([LOAD], {"load": state}) == Decision((), (), {}, ())


@pytest.mark.parametrize("state", ["failed", "upstream_failed", "removed"])
def test_all_messages_fail_when_a_task_over_the_batch_failed_for_good(state: str) -> None:
    outcome = decision([LOAD], {"load": state})
    assert outcome.fail == failure(f"task load ended as {state}")
    assert outcome.delete == ()


def test_messages_are_deleted_once_the_return_value_was_read() -> None:
    assert decision([LOAD], {"load": "success"}).unread == (("load", UNMAPPED),)
    assert decision([LOAD], {"load": "success"}).delete == ()
    assert decision([LOAD], {"load": "success"}, {("load", UNMAPPED): NOTHING}).delete == (0, 1, 2)


def test_a_task_that_returns_nothing_needs_no_reading() -> None:
    outcome = decision([WorkTask("load", returns=False)], {"load": "success"})
    assert outcome == Decision((0, 1, 2), (), {}, ())


def test_a_skipped_task_beside_a_successful_one_does_not_keep_a_message() -> None:
    outcome = decision(
        [LOAD, WorkTask("alert")], {"load": "success", "alert": "skipped"}, {("load", UNMAPPED): NOTHING}
    )
    assert outcome.delete == (0, 1, 2)


def test_messages_are_released_and_not_deleted_when_all_work_was_skipped() -> None:
    assert decision([LOAD, CHECK], {"load": "skipped", "check": "skipped"}) == Decision((), (0, 1, 2), {}, ())


def test_a_failed_instance_gives_back_its_own_message_at_once_and_no_other() -> None:
    outcome = decision([CHECK], {"check_0": "running", "check_1": "failed", "check_2": None})
    assert outcome == Decision((), (), failure("task check[1] ended as failed", (1,)), ())


def test_each_message_is_deleted_when_its_own_instance_succeeded() -> None:
    outcome = decision(
        [CHECK],
        {"check_0": "success", "check_1": "up_for_retry", "check_2": "success"},
        {("check", 0): NOTHING, ("check", 2): NOTHING},
    )
    assert outcome.delete == (0, 2)
    assert outcome.fail == {}


def test_a_message_waits_for_the_tasks_over_the_batch_as_well() -> None:
    states: dict[str, str | None] = {"check_0": "success", "check_1": "failed", "check_2": "success"}
    failures = {("check", 0): NOTHING, ("check", 2): NOTHING}
    waiting = decision([CHECK, LOAD], {**states, "load": "running"}, failures)
    assert (waiting.delete, dict(waiting.fail)) == ((), failure("task check[1] ended as failed", (1,)))
    done = decision([CHECK, LOAD], {**states, "load": "success"}, {**failures, ("load", UNMAPPED): NOTHING})
    assert done.delete == (0, 2)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, Decision((), (), {}, ())),
        (
            "upstream_failed",
            Decision((), (), failure("task check ended as upstream_failed"), ()),
        ),
    ],
    ids=["waiting", "never to be expanded"],
)
def test_a_mapped_task_that_was_not_expanded_speaks_for_all_its_instances(
    state: str | None, expected: Decision
) -> None:
    assert decision([CHECK], {"check": state}) == expected


def test_one_failed_chunk_fails_every_message_because_its_own_are_not_known() -> None:
    outcome = decision([CHUNKS], {"chunk_0": "success", "chunk_1": "failed"}, {("chunk", 0): NOTHING})
    assert outcome.fail == failure("task chunk[1] ended as failed")


def test_messages_wait_for_every_chunk() -> None:
    assert decision([CHUNKS], {"chunk_0": "success", "chunk_1": "queued"}, {("chunk", 0): NOTHING}) == Decision(
        (), (), {}, ()
    )


def test_a_task_that_is_no_longer_part_of_the_run_counts_as_failed() -> None:
    assert decision([LOAD], {"other": "success"}).fail[0] == Failure("task load ended as removed")
    states: dict[str, str | None] = {"check_0": "failed", "check_1": "running"}
    # While another instance has not ended, Airflow may still make the one that is missing.
    assert set(decision([CHECK], states).fail) == {0}
    late = decision([CHECK], {**states, "check_1": "failed"})
    assert late.fail[2] == Failure("task check[2] ended as removed")


def test_a_named_message_fails_and_the_others_go_on() -> None:
    outcome = decision([LOAD], {"load": "success"}, {("load", UNMAPPED): frozenset({"m1"})})
    assert outcome.delete == (0, 2)
    assert outcome.fail == failure("task load returned it in batchItemFailures", (1,))


def test_a_named_message_fails_at_once_although_other_tasks_still_run() -> None:
    outcome = decision(
        [LOAD, WorkTask("index")],
        {"load": "success", "index": "running"},
        {("load", UNMAPPED): frozenset({"m1"})},
    )
    assert outcome == Decision((), (), failure("task load returned it in batchItemFailures", (1,)), ())


def test_messages_that_are_no_longer_held_are_not_decided_on_again() -> None:
    outcome = decision([LOAD], {"load": "failed"}, held=[2])
    assert list(outcome.fail) == [2]


def test_an_instance_for_one_message_is_concerned_with_that_one_only() -> None:
    assert concerned(CHECK, 1, IDS, {}) == ["m1"]
    assert concerned(CHUNKS, 1, IDS, {}) == IDS
    assert concerned(LOAD, UNMAPPED, IDS, {}) == IDS


def test_a_task_named_like_an_instance_of_a_mapped_one_is_found() -> None:
    assert ambiguous_names([CHECK, WorkTask("check_1")]) == ("check", "check_1")
    assert ambiguous_names([CHECK], ["check_1"]) == ("check", "check_1")
    assert ambiguous_names([LOAD, WorkTask("load_1")], ["load_2"]) is None
    assert ambiguous_names([CHECK, WorkTask("check_all"), WorkTask("checks_1")]) is None


# Reports of failures


STORE = WorkTask("store", mapped=True, per_message=True, chained=True)


def test_a_failed_task_over_the_batch_is_not_judged_before_its_report_was_read() -> None:
    waiting = decision([LOAD], {"load": "failed"}, read_failures=True)
    assert waiting == Decision((), (), {}, (("load", UNMAPPED),))


def test_messages_that_the_exception_did_not_name_count_as_done() -> None:
    outcome = decision([LOAD], {"load": "failed"}, {("load", UNMAPPED): frozenset({"m1"})}, read_failures=True)
    assert outcome.delete == (0, 2)
    assert outcome.fail == failure("task load ended as failed", (1,))


def test_they_still_wait_for_the_other_tasks() -> None:
    states: dict[str, str | None] = {"load": "failed", "index": "running"}
    outcome = decision([LOAD, WorkTask("index")], states, {("load", UNMAPPED): frozenset({"m1"})}, read_failures=True)
    assert (outcome.delete, list(outcome.fail)) == ((), [1])


def test_the_reason_and_the_rule_know_the_exception() -> None:
    errors = ("builtins.KeyError", "builtins.LookupError")
    reports = {("load", UNMAPPED): frozenset(IDS)}
    outcome = decision([LOAD], {"load": "failed"}, reports, errors=errors, read_failures=True)
    assert outcome.fail[0] == Failure("task load failed with builtins.KeyError", errors)


def test_the_report_on_a_single_message_is_read_only_where_the_exception_matters() -> None:
    states: dict[str, str | None] = {"check_0": "failed", "check_1": "running", "check_2": "running"}
    indifferent = decision([CHECK], states, read_failures=True)
    assert indifferent == Decision((), (), failure("task check[0] ended as failed", (0,)), ())
    choosing = decision([CHECK], states, read_failures=True, by_exception=True)
    assert choosing == Decision((), (), {}, (("check", 0),))


# Work that can never be completed


def test_a_message_is_held_while_it_is_worked_on_although_its_work_cannot_be_completed() -> None:
    states: dict[str, str | None] = {"check_0": "failed", "check_1": "running", "check_2": "success"}
    failures = {("check", 2): NOTHING}
    early = decision([CHECK, STORE], {**states, "store": "upstream_failed"}, failures)
    assert early.fail == {
        0: Failure("task check[0] ended as failed"),
        2: Failure("task store ended as upstream_failed"),
    }
    late = decision([CHECK, STORE], {**states, "store": "upstream_failed", "check_1": "failed"}, failures)
    assert set(late.fail) == {0, 1, 2}


# Chains per message


def test_a_message_is_deleted_when_its_own_chain_is_done_whatever_the_others_do() -> None:
    states: dict[str, str | None] = {f"check_{index}": "success" for index in range(3)}
    states |= {"store_0": "running", "store_1": "failed", "store_2": "success"}
    failures = {("check", index): NOTHING for index in range(3)} | {("store", 2): NOTHING}
    assert decision([CHECK, STORE], states, failures) == Decision(
        (2,), (), failure("task store[1] ended as failed", (1,)), ()
    )


def test_before_it_is_expanded_a_chained_task_keeps_all_messages_waiting() -> None:
    states: dict[str, str | None] = {"check_0": "failed", "check_1": "success", "check_2": "success", "store": None}
    assert decision([CHECK, STORE], states, {("check", 1): NOTHING, ("check", 2): NOTHING}) == Decision(
        (), (), failure("task check[0] ended as failed", (0,)), ()
    )


def test_with_fewer_instances_than_messages_no_instance_belongs_to_one_message() -> None:
    states: dict[str, str | None] = {f"check_{index}": "success" for index in range(3)}
    failures = {("check", index): NOTHING for index in range(3)} | {("store", 0): NOTHING}
    waiting = decision([CHECK, STORE], {**states, "store_0": "success", "store_1": "running"}, failures)
    assert waiting == Decision((), (), {}, ())
    failed = decision([CHECK, STORE], {**states, "store_0": "success", "store_1": "failed"}, failures)
    assert failed.fail == failure("task store[1] ended as failed")
    assert concerned(STORE, 1, IDS, {"store_0": "success", "store_1": "failed"}) == IDS
    assert concerned(STORE, 1, IDS, {f"store_{index}": "success" for index in range(3)}) == ["m1"]


# Trigger rules


@pytest.mark.parametrize("cleanup", ["success", "skipped", "running", None])
def test_a_task_that_runs_whatever_happened_does_not_make_up_for_a_failure(cleanup: str | None) -> None:
    outcome = decision([LOAD, WorkTask("cleanup", returns=False)], {"load": "failed", "cleanup": cleanup})
    assert outcome.fail == failure("task load ended as failed")


def test_an_alert_that_was_skipped_because_all_is_well_keeps_nothing_back() -> None:
    quiet = WorkTask("load", returns=False)
    assert decision([quiet, WorkTask("alert")], {"load": "success", "alert": "skipped"}).delete == (0, 1, 2)
