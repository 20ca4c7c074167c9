"""What becomes of messages by how the steps of their run ended."""

from __future__ import annotations

import pytest

from sqs_lease.core.failure_rules import MessageFailed
from sqs_lease.dagster.run_batch.folder import PieceOfWork, Raised
from sqs_lease.dagster.verdict import Failure, StepEnd, Verdict, verdict

MESSAGES = ("m0", "m1", "m2")
NOW = "run/1"
BEFORE = "run/0"

DONE = PieceOfWork("load", NOW, is_over=True)
SUCCEEDED = StepEnd(NOW)
FAILED = StepEnd(NOW, failed=True, errors=frozenset({"ValueError"}))
NAMED = Raised.by(MessageFailed(["m1"]))
FAILED_BY_NAME = StepEnd(NOW, failed=True, errors=frozenset({"DagsterExecutionStepExecutionError", "MessageFailed"}))
HELD_UP = StepEnd(NOW, failed=True, errors=frozenset({"MessageFailed"}), holds_up=True)


def piece(**known: object) -> PieceOfWork:
    return PieceOfWork("load", **{"attempt": NOW, "is_over": True, **known})  # type: ignore[arg-type]


def failed(decided: Verdict) -> dict[str, list[str]]:
    return {failure.reason: list(ids) for failure, ids in decided.failed.items()}


def test_messages_that_no_step_failed_are_deleted() -> None:
    decided = verdict(MESSAGES, {"load": SUCCEEDED, "report": SUCCEEDED}, {"load": DONE})
    assert decided == Verdict({}, ())


def test_where_no_step_began_all_are_released_even_if_a_step_failed() -> None:
    decided = verdict(MESSAGES, {"load": FAILED}, {})
    assert decided == Verdict({}, MESSAGES, is_untouched=True)


@pytest.mark.parametrize("end", [SUCCEEDED, FAILED_BY_NAME], ids=["succeeded", "failed by name"])
def test_a_message_that_a_step_failed_has_its_reason_and_the_others_are_deleted(end: StepEnd) -> None:
    raised = NAMED if end.failed else None
    decided = verdict(MESSAGES, {"load": end}, {"load": piece(failed={"m1": "torn"}, raised=raised)})
    assert failed(decided) == {"torn": ["m1"]}
    assert list(decided.released) == []


def test_messages_that_an_exception_names_fail_alone_by_the_rule_of_its_class() -> None:
    decided = verdict(MESSAGES, {"load": FAILED_BY_NAME}, {"load": piece(raised=NAMED)})
    assert decided == Verdict({Failure("MessageFailed", NAMED.errors): ["m1"]}, ())
    assert NAMED.errors[0].endswith(".MessageFailed")


def test_a_group_of_message_failed_fails_the_messages_of_all_and_no_others() -> None:
    raised = Raised.by(ExceptionGroup("", [MessageFailed("m1"), ExceptionGroup("", [MessageFailed("m2")])]))
    end = StepEnd(NOW, failed=True, errors=frozenset({"ExceptionGroup"}))
    decided = verdict(MESSAGES, {"load": end}, {"load": piece(raised=raised)})
    assert failed(decided) == {"ExceptionGroup": ["m1", "m2"]}
    assert list(decided.released) == []


def test_what_is_not_named_is_released_where_later_steps_did_not_run() -> None:
    decided = verdict(MESSAGES, {"load": HELD_UP}, {"load": piece(raised=NAMED)})
    assert failed(decided) == {"MessageFailed": ["m1"]}
    assert list(decided.released) == ["m0", "m2"]


def test_another_exception_fails_all_by_the_rule_of_its_class() -> None:
    raised = Raised.by(ValueError())
    decided = verdict(MESSAGES, {"load": FAILED}, {"load": piece(raised=raised)})
    assert decided == Verdict({Failure("ValueError", raised.errors): list(MESSAGES)}, ())


def test_an_exception_that_the_step_caught_counts_as_the_end_of_its_block() -> None:
    decided = verdict(MESSAGES, {"load": SUCCEEDED}, {"load": piece(raised=NAMED)})
    assert failed(decided) == {"MessageFailed": ["m1"]}


def test_a_step_that_failed_otherwise_after_its_block_fails_all() -> None:
    decided = verdict(MESSAGES, {"load": FAILED}, {"load": piece(raised=NAMED)})
    assert failed(decided) == {"MessageFailed": list(MESSAGES)}


@pytest.mark.parametrize(
    "known",
    [piece(), piece(is_over=False), piece(attempt=BEFORE, raised=NAMED)],
    ids=["after its block", "killed", "killed when tried again"],
)
def test_a_step_that_failed_without_saying_so_itself_fails_all(known: PieceOfWork) -> None:
    decided = verdict(MESSAGES, {"load": FAILED_BY_NAME}, {"load": known})
    assert failed(decided) == {"load failed": list(MESSAGES)}


def test_a_step_without_the_batch_that_failed_fails_all() -> None:
    decided = verdict(MESSAGES, {"load": SUCCEEDED, "report": FAILED}, {"load": DONE})
    assert failed(decided) == {"report failed": list(MESSAGES)}


def test_what_an_earlier_try_failed_does_not_count() -> None:
    earlier = piece(attempt=BEFORE, failed={"m0": "torn"}, raised=NAMED)
    assert verdict(MESSAGES, {"load": SUCCEEDED}, {"load": earlier}) == Verdict({}, ())


def test_a_step_that_succeeded_within_its_block_fails_all() -> None:
    decided = verdict(MESSAGES, {"load": SUCCEEDED}, {"load": piece(is_over=False)})
    assert failed(decided) == {"load ended within its lease() block": list(MESSAGES)}


def test_a_step_whose_end_is_not_known_fails_all() -> None:
    decided = verdict(MESSAGES, {}, {"load": DONE})
    assert failed(decided) == {"load came to no end": list(MESSAGES)}


def test_a_message_that_several_steps_failed_has_the_reason_that_says_most() -> None:
    pieces = {
        "first": PieceOfWork("first", NOW, is_over=True, raised=Raised.by(ValueError())),
        "second": PieceOfWork("second", NOW, is_over=True, failed={"m2": "torn"}),
    }
    decided = verdict(MESSAGES, {"first": FAILED, "second": SUCCEEDED, "third": FAILED}, pieces)
    assert failed(decided) == {"ValueError": ["m0", "m1"], "torn": ["m2"]}


@pytest.mark.parametrize(
    "known",
    [
        piece(raised=Raised.by(ValueError()), done=frozenset({"m0"})),
        piece(is_over=False, done=frozenset({"m0"})),
        piece(attempt=BEFORE, done=frozenset({"m0"})),
    ],
    ids=["raised", "killed", "by an earlier attempt"],
)
def test_what_a_step_was_done_with_is_not_failed_by_its_end(known: PieceOfWork) -> None:
    (ids,) = failed(verdict(MESSAGES, {"load": FAILED}, {"load": known})).values()
    assert ids == ["m1", "m2"]


def test_what_a_step_was_done_with_is_released_where_steps_behind_it_did_not_run() -> None:
    decided = verdict(MESSAGES, {"load": HELD_UP}, {"load": piece(raised=NAMED, done=frozenset({"m0"}))})
    assert (failed(decided), list(decided.released)) == ({"MessageFailed": ["m1"]}, ["m0", "m2"])


def test_what_another_step_failed_is_failed_whoever_was_done_with_it() -> None:
    pieces = {"load": piece(done=frozenset(MESSAGES)), "report": PieceOfWork("report", NOW, True, {"m0": "torn"})}
    assert failed(verdict(MESSAGES, {"load": SUCCEEDED, "report": SUCCEEDED}, pieces)) == {"torn": ["m0"]}


def test_what_the_last_attempt_gave_back_is_released_and_what_an_earlier_one_gave_back_is_forgotten() -> None:
    given_back = piece(released=frozenset({"m0"}))
    assert list(verdict(MESSAGES, {"load": SUCCEEDED}, {"load": given_back}).released) == ["m0"]
    earlier = piece(attempt=BEFORE, released=frozenset({"m0"}))
    decided = verdict(MESSAGES, {"load": FAILED}, {"load": earlier})
    assert (failed(decided), list(decided.released)) == ({"load failed": list(MESSAGES)}, [])


def test_before_a_retry_of_the_run_only_what_a_step_failed_by_its_id_stays_failed() -> None:
    known = piece(failed={"m0": "torn"}, raised=Raised.by(ValueError()), released=frozenset({"m1"}))
    decided = verdict(MESSAGES, {"load": FAILED}, {"load": known}).before_a_retry()
    assert (failed(decided), sorted(decided.released)) == ({"torn": ["m0"]}, ["m1", "m2"])
