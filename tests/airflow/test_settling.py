"""Which messages are deleted, given back and held, given the states of the work tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sqs_lease.airflow.settling import (
    UNMAPPED,
    Decision,
    InstanceKey,
    WorkTask,
    ambiguous_names,
    concerned,
    decide,
    failed_items,
)

IDS = ["m0", "m1", "m2"]
LOAD = WorkTask("load")
CHECK = WorkTask("check", mapped=True, per_message=True)
CHUNKS = WorkTask("chunk", mapped=True)
NOTHING: frozenset[str] = frozenset()


def decision(
    work: list[WorkTask],
    states: dict[str, str | None],
    failures: Mapping[InstanceKey, frozenset[str]] | None = None,
    held: list[int] | None = None,
) -> Decision:
    return decide(work, states, failures or {}, IDS, [0, 1, 2] if held is None else held)


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
    assert outcome.fail == dict.fromkeys([0, 1, 2], f"task load ended as {state}")
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
    assert outcome == Decision((), (), {1: "task check[1] ended as failed"}, ())


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
    assert (waiting.delete, dict(waiting.fail)) == ((), {1: "task check[1] ended as failed"})
    done = decision([CHECK, LOAD], {**states, "load": "success"}, {**failures, ("load", UNMAPPED): NOTHING})
    assert done.delete == (0, 2)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, Decision((), (), {}, ())),
        (
            "upstream_failed",
            Decision((), (), dict.fromkeys([0, 1, 2], "task check ended as upstream_failed"), ()),
        ),
    ],
    ids=["waiting", "never to be expanded"],
)
def test_a_mapped_task_that_was_not_expanded_speaks_for_all_its_instances(
    state: str | None, expected: Decision
) -> None:
    assert decision([CHECK], {"check": state}) == expected


def test_one_failed_chunk_fails_every_message_because_nobody_knows_which_it_held() -> None:
    outcome = decision([CHUNKS], {"chunk_0": "success", "chunk_1": "failed"}, {("chunk", 0): NOTHING})
    assert outcome.fail == dict.fromkeys([0, 1, 2], "task chunk[1] ended as failed")


def test_messages_wait_for_every_chunk() -> None:
    assert decision([CHUNKS], {"chunk_0": "success", "chunk_1": "queued"}, {("chunk", 0): NOTHING}) == Decision(
        (), (), {}, ()
    )


def test_a_task_that_is_no_longer_part_of_the_run_counts_as_failed() -> None:
    assert decision([LOAD], {"other": "success"}).fail[0] == "task load ended as removed"
    assert decision([CHECK], {"check_0": "running", "check_1": "running"}).fail == {2: "task check[2] ended as removed"}


def test_a_named_message_fails_and_the_others_go_on() -> None:
    outcome = decision([LOAD], {"load": "success"}, {("load", UNMAPPED): frozenset({"m1"})})
    assert outcome.delete == (0, 2)
    assert outcome.fail == {1: "task load returned it in batchItemFailures"}


def test_a_named_message_fails_at_once_although_other_tasks_still_run() -> None:
    outcome = decision(
        [LOAD, WorkTask("index")],
        {"load": "success", "index": "running"},
        {("load", UNMAPPED): frozenset({"m1"})},
    )
    assert outcome == Decision((), (), {1: "task load returned it in batchItemFailures"}, ())


def test_messages_that_are_no_longer_held_are_not_decided_on_again() -> None:
    outcome = decision([LOAD], {"load": "failed"}, held=[2])
    assert list(outcome.fail) == [2]


@pytest.mark.parametrize(
    "returned",
    [
        None,
        "text",
        {},
        {"batchItemFailures": None},
        {"batchItemFailures": []},
        {"other": [{"itemIdentifier": "m0"}]},
    ],
    ids=repr,
)
def test_a_return_value_that_names_nothing_means_success(returned: Any) -> None:
    assert failed_items(returned, IDS) == NOTHING


def test_the_named_messages_are_those_of_the_list() -> None:
    returned = {"batchItemFailures": [{"itemIdentifier": "m0"}, {"itemIdentifier": "m2"}]}
    assert failed_items(returned, IDS) == {"m0", "m2"}


@pytest.mark.parametrize(
    "items",
    [
        "m0",
        {"itemIdentifier": "m0"},
        [{"itemIdentifier": "m0"}, {"itemIdentifier": ""}],
        [{"itemIdentifier": None}],
        [{"itemIdentifier": ["m0"]}],
        [{"itemId": "m0"}],
        [{"itemIdentifier": "of another batch"}],
        ["m0"],
        [None],
    ],
    ids=repr,
)
def test_a_malformed_list_fails_everything_the_task_was_concerned_with(items: Any) -> None:
    assert failed_items({"batchItemFailures": items}, IDS) == set(IDS)


def test_an_instance_for_one_message_is_concerned_with_that_one_only() -> None:
    assert concerned(CHECK, 1, IDS) == ["m1"]
    assert concerned(CHUNKS, 1, IDS) == IDS
    assert concerned(LOAD, UNMAPPED, IDS) == IDS


def test_a_task_named_like_an_instance_of_a_mapped_one_is_found() -> None:
    assert ambiguous_names([CHECK, WorkTask("check_1")]) == ("check", "check_1")
    assert ambiguous_names([LOAD, WorkTask("load_1")]) is None
    assert ambiguous_names([CHECK, WorkTask("check_all"), WorkTask("checks_1")]) is None
