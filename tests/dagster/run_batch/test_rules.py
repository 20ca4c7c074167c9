"""The decision on each message by how the steps of its run ended."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sqs_lease.core.failure_rules import MessageFailed
from sqs_lease.core.verdict import Action, Decision, Failure, Tally
from sqs_lease.dagster.run_batch.folder import PieceOfWork, RaisedException
from sqs_lease.dagster.run_batch.rules import StepEnd, units

MESSAGES = ("m0", "m1", "m2")
NOW = "run/1"
BEFORE = "run/0"

DONE = PieceOfWork("load", NOW, is_over=True)
SUCCEEDED = StepEnd(NOW)
FAILED = StepEnd(NOW, failed=True, errors=frozenset({"ValueError"}))
NAMED = RaisedException.by(MessageFailed(["m1"]))
FAILED_BY_NAME = StepEnd(NOW, failed=True, errors=frozenset({"DagsterExecutionStepExecutionError", "MessageFailed"}))
HELD_UP = StepEnd(NOW, failed=True, errors=frozenset({"MessageFailed"}), holds_up=True)


def piece(**known: object) -> PieceOfWork:
    return PieceOfWork("load", **{"attempt": NOW, "is_over": True, **known})  # type: ignore[arg-type]


def decided(steps: Mapping[str, StepEnd], pieces: Mapping[str, PieceOfWork], **run: bool) -> dict[str, Decision]:
    """What to do with each message."""
    tally = Tally()
    for unit in units(MESSAGES, steps, pieces, **run):
        tally.take(unit)
    return {message_id: tally.decision(message_id) for message_id in MESSAGES}


def deleted(*others: tuple[str, Decision]) -> dict[str, Decision]:
    """All are deleted, but for some."""
    return dict.fromkeys(MESSAGES, Action.DELETE) | dict(others)


def failed(decisions: Mapping[str, Decision]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for message_id, decision in decisions.items():
        if isinstance(decision, Failure):
            found.setdefault(decision.reason, []).append(message_id)
    return found


def done_otherwise(decisions: Mapping[str, Decision], action: Action) -> list[str]:
    return [message_id for message_id, decision in decisions.items() if decision is action]


def test_messages_that_no_step_failed_are_deleted() -> None:
    assert decided({"load": SUCCEEDED, "report": SUCCEEDED}, {"load": DONE}) == deleted()


def test_where_no_step_began_all_are_released_even_if_a_step_failed() -> None:
    assert decided({"load": FAILED}, {}) == dict.fromkeys(MESSAGES, Action.RELEASE)


@pytest.mark.parametrize("end", [SUCCEEDED, FAILED_BY_NAME], ids=["succeeded", "failed by name"])
def test_a_message_that_a_step_failed_has_its_reason_and_the_others_are_deleted(end: StepEnd) -> None:
    raised = NAMED if end.failed else None
    found = decided({"load": end}, {"load": piece(failed={"m1": "torn"}, raised=raised)})
    assert found == deleted(("m1", Failure("torn")))


def test_messages_that_an_exception_names_fail_alone_by_the_rule_of_its_class() -> None:
    found = decided({"load": FAILED_BY_NAME}, {"load": piece(raised=NAMED)})
    assert found == deleted(("m1", Failure("MessageFailed", NAMED.errors)))
    assert NAMED.errors[0].endswith(".MessageFailed")


def test_a_group_of_message_failed_fails_the_messages_of_all_and_no_others() -> None:
    raised = RaisedException.by(ExceptionGroup("", [MessageFailed("m1"), ExceptionGroup("", [MessageFailed("m2")])]))
    end = StepEnd(NOW, failed=True, errors=frozenset({"ExceptionGroup"}))
    found = decided({"load": end}, {"load": piece(raised=raised)})
    assert failed(found) == {"ExceptionGroup": ["m1", "m2"]}
    assert done_otherwise(found, Action.DELETE) == ["m0"]


def test_messages_that_are_not_named_are_released_where_later_steps_did_not_run() -> None:
    found = decided({"load": HELD_UP}, {"load": piece(raised=NAMED)})
    assert failed(found) == {"MessageFailed": ["m1"]}
    assert done_otherwise(found, Action.RELEASE) == ["m0", "m2"]


def test_another_exception_fails_all_by_the_rule_of_its_class() -> None:
    raised = RaisedException.by(ValueError())
    found = decided({"load": FAILED}, {"load": piece(raised=raised)})
    assert found == dict.fromkeys(MESSAGES, Failure("ValueError", raised.errors))


def test_an_exception_that_the_step_caught_counts_as_the_end_of_its_block() -> None:
    assert failed(decided({"load": SUCCEEDED}, {"load": piece(raised=NAMED)})) == {"MessageFailed": ["m1"]}


def test_a_step_that_failed_otherwise_after_its_block_fails_all() -> None:
    assert failed(decided({"load": FAILED}, {"load": piece(raised=NAMED)})) == {"MessageFailed": list(MESSAGES)}


@pytest.mark.parametrize(
    "known",
    [piece(), piece(is_over=False), piece(attempt=BEFORE, raised=NAMED)],
    ids=["after its block", "killed", "killed when tried again"],
)
def test_a_step_that_failed_without_saying_so_itself_fails_all(known: PieceOfWork) -> None:
    assert failed(decided({"load": FAILED_BY_NAME}, {"load": known})) == {"load failed": list(MESSAGES)}


def test_a_step_without_the_batch_that_failed_fails_all() -> None:
    found = decided({"load": SUCCEEDED, "report": FAILED}, {"load": DONE})
    assert failed(found) == {"report failed": list(MESSAGES)}


def test_a_step_that_did_not_reach_the_messages_fails_and_deletes_no_message() -> None:
    unreached = StepEnd(NOW, failed=True, errors=frozenset({"BatchFolderError"}))
    found = decided({"load": SUCCEEDED, "report": unreached}, {"load": piece(failed={"m1": "torn"})})
    assert failed(found) == {"torn": ["m1"]}
    assert done_otherwise(found, Action.RELEASE) == ["m0", "m2"]


def test_an_exception_of_an_earlier_attempt_does_not_count_and_what_it_failed_one_by_one_does() -> None:
    earlier = piece(attempt=BEFORE, failed={"m0": "torn"}, raised=NAMED)
    assert decided({"load": SUCCEEDED}, {"load": earlier}) == deleted(("m0", Failure("torn")))


def test_a_step_that_succeeded_before_the_end_of_its_block_has_done_only_what_it_settled() -> None:
    found = decided({"load": SUCCEEDED}, {"load": piece(is_over=False, done=frozenset({"m1"}))})
    assert found == {"m0": Action.RELEASE, "m1": Action.DELETE, "m2": Action.RELEASE}


def test_messages_of_a_step_that_came_to_no_end_that_is_known_are_held() -> None:
    assert decided({}, {"load": DONE}) == dict.fromkeys(MESSAGES, Action.HOLD)


def test_where_steps_did_not_run_because_the_executor_ended_early_no_message_is_deleted() -> None:
    found = decided({"load": SUCCEEDED}, {"load": piece(failed={"m1": "torn"})}, is_whole=False)
    assert failed(found) == {"torn": ["m1"]}
    assert done_otherwise(found, Action.RELEASE) == ["m0", "m2"]


def test_a_message_that_several_steps_failed_has_the_reason_that_says_most() -> None:
    pieces = {
        "first": PieceOfWork("first", NOW, is_over=True, raised=RaisedException.by(ValueError())),
        "second": PieceOfWork("second", NOW, is_over=True, failed={"m2": "torn"}),
    }
    found = decided({"first": FAILED, "second": SUCCEEDED, "third": FAILED}, pieces)
    assert failed(found) == {"ValueError": ["m0", "m1"], "torn": ["m2"]}


@pytest.mark.parametrize(
    "known",
    [
        piece(raised=RaisedException.by(ValueError()), done=frozenset({"m0"})),
        piece(is_over=False, done=frozenset({"m0"})),
        piece(attempt=BEFORE, done=frozenset({"m0"})),
    ],
    ids=["raised", "killed", "by an earlier attempt"],
)
def test_messages_that_a_step_was_done_with_are_deleted_and_not_failed_by_its_end(known: PieceOfWork) -> None:
    found = decided({"load": FAILED}, {"load": known})
    (ids,) = failed(found).values()
    assert (ids, found["m0"]) == (["m1", "m2"], Action.DELETE)


def test_messages_that_a_step_was_done_with_are_released_where_steps_behind_it_did_not_run() -> None:
    found = decided({"load": HELD_UP}, {"load": piece(raised=NAMED, done=frozenset({"m0"}))})
    assert (failed(found), done_otherwise(found, Action.RELEASE)) == ({"MessageFailed": ["m1"]}, ["m0", "m2"])


def test_messages_that_another_step_failed_are_failed_whichever_step_was_done_with_them() -> None:
    pieces = {"load": piece(done=frozenset(MESSAGES)), "report": PieceOfWork("report", NOW, True, {"m0": "torn"})}
    assert failed(decided({"load": SUCCEEDED, "report": SUCCEEDED}, pieces)) == {"torn": ["m0"]}


def test_messages_that_the_last_attempt_gave_back_are_released_and_those_of_an_earlier_one_are_forgotten() -> None:
    given_back = piece(released=frozenset({"m0"}))
    assert decided({"load": SUCCEEDED}, {"load": given_back}) == deleted(("m0", Action.RELEASE))
    earlier = piece(attempt=BEFORE, released=frozenset({"m0"}))
    assert failed(decided({"load": FAILED}, {"load": earlier})) == {"load failed": list(MESSAGES)}


def test_where_the_run_is_repeated_only_what_a_step_failed_by_its_id_has_failed_and_the_rest_is_open() -> None:
    known = piece(failed={"m0": "torn"}, raised=RaisedException.by(ValueError()), released=frozenset({"m1"}))
    found = decided({"load": FAILED}, {"load": known}, is_repeated=True)
    assert found == {"m0": Failure("torn"), "m1": Action.RELEASE, "m2": Action.HOLD}


@pytest.mark.parametrize(
    "known", [piece(), piece(raised=RaisedException.by(ValueError()))], ids=["after it", "in its block"]
)
@pytest.mark.parametrize("end", [FAILED, HELD_UP], ids=["the last step", "with steps behind it"])
def test_where_the_run_is_repeated_it_does_not_have_what_a_step_gave_back_that_it_may_leave_out(
    end: StepEnd, known: PieceOfWork
) -> None:
    check = PieceOfWork("check", NOW, is_over=True, released=frozenset({"m0"}))
    found = decided({"check": SUCCEEDED, "load": end}, {"check": check, "load": known}, is_repeated=True)
    assert found == {"m0": Action.RELEASE, "m1": Action.HOLD, "m2": Action.HOLD}


def test_where_the_run_is_repeated_a_block_that_a_step_survived_has_failed_its_messages() -> None:
    check = PieceOfWork("check", NOW, is_over=True, raised=NAMED)
    found = decided({"check": SUCCEEDED, "load": FAILED}, {"check": check, "load": piece()}, is_repeated=True)
    assert found == {"m0": Action.HOLD, "m1": Failure("MessageFailed", NAMED.errors), "m2": Action.HOLD}


def test_where_the_run_is_repeated_work_that_did_not_begin_is_open() -> None:
    found = decided({"load": HELD_UP}, {"load": piece(raised=NAMED)}, is_repeated=True)
    assert found == dict.fromkeys(MESSAGES, Action.HOLD)
