"""The outcome of each message, for all units of work and all their ends."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqs_lease.core.verdict import Action, Decision, End, Failure, Tally, Unit

IDS = ("m0", "m1", "m2")
WHY = Failure("task load ended as failed")

failures = st.builds(Failure, st.sampled_from(["a", "b", "c"]))
units_of_work = st.builds(
    Unit,
    st.sampled_from(End),
    st.none() | st.sets(st.sampled_from(IDS)),
    failures,
    st.dictionaries(st.sampled_from(IDS), failures, max_size=2),
)
work = st.lists(units_of_work, max_size=5)

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""No property fails because the machine is busy."""


def decisions(units: Iterable[Unit]) -> dict[str, Decision]:
    tally = Tally()
    for unit in units:
        tally.take(unit)
    return {message_id: tally.decision(message_id) for message_id in IDS}


def actions(units: Iterable[Unit]) -> dict[str, Action | type[Failure]]:
    """The same, without why messages failed."""
    return {
        message_id: Failure if isinstance(decision, Failure) else decision
        for message_id, decision in decisions(units).items()
    }


def ends(units: Iterable[Unit], message_id: str) -> set[End]:
    """How the units that concern a message ended for it."""
    return {
        End.FAILED if message_id in unit.failed else unit.end
        for unit in units
        if message_id in unit.failed or unit.concerns is None or message_id in unit.concerns
    }


@pytest.mark.parametrize(
    ("end", "decision"),
    [
        (End.DONE, Action.DELETE),
        (End.FAILED, WHY),
        (End.BLOCKED, WHY),
        (End.OPEN, Action.HOLD),
        (End.UNKNOWN, Action.HOLD),
        (End.NOT_DONE, Action.RELEASE),
        (End.SKIPPED, Action.RELEASE),
    ],
    ids=lambda value: value.name if isinstance(value, End) else "",
)
def test_one_unit_over_the_batch_decides_on_all_messages(end: End, decision: Decision) -> None:
    assert decisions([Unit(end, why=WHY)]) == dict.fromkeys(IDS, decision)


def test_messages_on_which_no_work_was_done_are_released() -> None:
    assert decisions([]) == dict.fromkeys(IDS, Action.RELEASE)
    assert decisions([Unit(End.DONE, ["m1"])])["m0"] is Action.RELEASE


def test_a_unit_decides_on_the_messages_that_it_concerns_alone() -> None:
    assert actions([Unit(End.DONE), Unit(End.FAILED, ["m0"]), Unit(End.OPEN, ["m1"])]) == {
        "m0": Failure,
        "m1": Action.HOLD,
        "m2": Action.DELETE,
    }


def test_a_unit_that_names_the_messages_that_it_failed_is_done_with_the_others() -> None:
    named = Failure("task load failed with ValueError", ("builtins.ValueError",), "no total")
    assert decisions([Unit(End.DONE, failed={"m1": named})]) == {
        "m0": Action.DELETE,
        "m1": named,
        "m2": Action.DELETE,
    }


def test_a_failed_message_does_not_wait_for_other_work_but_one_that_cannot_be_completed_does() -> None:
    for_one = [Unit(End.FAILED, ["m0"]), Unit(End.UNKNOWN, ["m0"]), Unit(End.BLOCKED, ["m1"])]
    assert actions([*for_one, Unit(End.OPEN)]) == {"m0": Failure, "m1": Action.HOLD, "m2": Action.HOLD}


def test_a_message_is_released_when_a_part_of_its_work_was_not_done_but_not_when_that_was_skipped() -> None:
    assert actions([Unit(End.DONE), Unit(End.NOT_DONE, ["m0"]), Unit(End.SKIPPED, ["m1"])]) == {
        "m0": Action.RELEASE,
        "m1": Action.DELETE,
        "m2": Action.DELETE,
    }


def test_why_a_message_failed_is_what_was_said_of_it_alone_and_then_what_was_said_first() -> None:
    first, second, alone = Failure("first"), Failure("second"), Failure("alone")
    units = [Unit(End.FAILED, why=first), Unit(End.FAILED, why=second), Unit(End.DONE, failed={"m1": alone})]
    assert decisions(units) == {"m0": first, "m1": alone, "m2": first}


@unhurried
@given(work)
def test_a_message_is_deleted_only_when_all_units_that_concern_it_are_done_and_did_not_fail_it(
    units: list[Unit],
) -> None:
    for message_id, action in actions(units).items():
        of_message = ends(units, message_id)
        is_done = End.DONE in of_message and of_message <= {End.DONE, End.SKIPPED}
        assert (action is Action.DELETE) == is_done


@unhurried
@given(work)
def test_a_message_fails_by_one_unit_that_failed_it_whatever_the_others_did(units: list[Unit]) -> None:
    for message_id, action in actions(units).items():
        if End.FAILED in ends(units, message_id):
            assert action is Failure


@unhurried
@given(work)
def test_a_message_that_did_not_fail_is_held_while_a_unit_that_concerns_it_may_still_run(units: list[Unit]) -> None:
    for message_id, action in actions(units).items():
        of_message = ends(units, message_id)
        if End.FAILED not in of_message:
            assert (action is Action.HOLD) == bool(of_message & {End.OPEN, End.UNKNOWN})


@unhurried
@given(work, st.randoms())
def test_the_order_of_the_units_and_their_repetition_are_irrelevant(units: list[Unit], random: Random) -> None:
    shuffled = [*units, *units]
    random.shuffle(shuffled)
    assert actions(shuffled) == actions(units)


@unhurried
@given(work, st.sampled_from(IDS), failures)
def test_one_more_report_of_a_failed_message_fails_it_and_changes_no_other(
    units: list[Unit], message_id: str, why: Failure
) -> None:
    for at, unit in enumerate(units):
        reporting = Unit(unit.end, unit.concerns, unit.why, {**unit.failed, message_id: why})
        after = actions([*units[:at], reporting, *units[at + 1 :]])
        assert after == {**actions(units), message_id: Failure}


@unhurried
@given(work, units_of_work)
def test_more_work_turns_nothing_but_a_message_without_work_into_a_delete(units: list[Unit], more: Unit) -> None:
    before, after = actions(units), actions([*units, more])
    for message_id in IDS:
        if after[message_id] is Action.DELETE and before[message_id] is not Action.DELETE:
            assert ends(units, message_id) <= {End.SKIPPED}


@unhurried
@given(work)
def test_messages_are_said_to_be_held_together_only_where_each_of_them_is_held(units: list[Unit]) -> None:
    tally = Tally()
    for unit in units:
        tally.take(unit)
    if tally.holds_all():
        assert set(decisions(units).values()) == {Action.HOLD}


def test_work_over_the_whole_batch_that_is_open_holds_all_messages_together() -> None:
    tally = Tally()
    tally.take(Unit(End.OPEN))
    assert tally.holds_all()
    tally.take(Unit(End.FAILED, ["m0"]))
    assert not tally.holds_all()


@unhurried
@given(work)
def test_each_failed_message_says_why_as_one_of_the_units_that_failed_it(units: list[Unit]) -> None:
    said = {why for unit in units for why in (unit.why, *unit.failed.values())}
    assert all(decision in said for decision in decisions(units).values() if isinstance(decision, Failure))
