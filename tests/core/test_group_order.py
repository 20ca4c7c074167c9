"""On a FIFO queue nothing is deleted ahead of a message of its group that was not done."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqs_lease.core.calls import Verdict
from sqs_lease.core.events import Outcome, Settled
from sqs_lease.core.failure_rules import DeadLetter, Delete, Expire, Release, Settlement
from sqs_lease.core.group_order import hold_back, ready
from sqs_lease.core.ledger import Ledger
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import Fixed
from tests.core.service import answers

A1, A2, A3, B1, NONE1, NONE2 = (Receipt(name, "handle") for name in ("a1", "a2", "a3", "b1", "none1", "none2"))
LEASES = [
    Lease(A1, 0, 30, message_group_id="a"),
    Lease(NONE1, 0, 30),
    Lease(A2, 0, 30, message_group_id="a"),
    Lease(B1, 0, 30, message_group_id="b"),
    Lease(A3, 0, 30, message_group_id="a"),
    Lease(NONE2, 0, 30),
]


def carried_out(
    settlements: dict[Receipt, Settlement], ended: dict[Receipt, Outcome] | None = None
) -> dict[Receipt, Settlement]:
    return hold_back(settlements, LEASES, (ended or {}).get)


@pytest.mark.parametrize("failure", [Release(), Release(90), Expire()], ids=repr)
def test_those_behind_a_failed_message_of_the_group_are_released(failure: Settlement) -> None:
    asked = {A1: Delete(), A2: failure, A3: Delete(), B1: Delete(), NONE1: failure, NONE2: Delete()}
    assert carried_out(asked) == asked | {A3: Release()}


def test_a_dead_lettered_message_holds_nothing_back() -> None:
    asked: dict[Receipt, Settlement] = {A1: DeadLetter("bad"), A2: Delete()}
    assert carried_out(asked) == asked


@pytest.mark.parametrize("outcome", [Outcome.RELEASED, Outcome.EXPIRED, Outcome.LOST, Outcome.FAILED])
def test_a_message_that_ended_undone_earlier_holds_those_behind_it_back(outcome: Outcome) -> None:
    assert carried_out({A2: Delete(), A3: Delete()}, {A1: outcome}) == {A2: Release(), A3: Release()}


@pytest.mark.parametrize("outcome", [Outcome.DELETED, Outcome.DEAD_LETTERED])
def test_a_message_that_is_gone_holds_nothing_back(outcome: Outcome) -> None:
    assert carried_out({A2: Delete()}, {A1: outcome}) == {A2: Delete()}


def test_a_message_still_worked_on_holds_nothing_back() -> None:
    assert carried_out({A2: Delete()}) == {A2: Delete()}


def at_once(
    settlements: dict[Receipt, Settlement], ended: dict[Receipt, Outcome] | None = None
) -> dict[Receipt, Settlement]:
    return ready(settlements, LEASES, (ended or {}).get)


def test_a_message_is_not_deleted_while_an_earlier_one_of_its_group_is_worked_on() -> None:
    assert at_once({A2: Delete(), A3: Delete(), B1: Delete(), NONE2: Delete()}) == {B1: Delete(), NONE2: Delete()}


def test_a_message_waits_behind_one_that_waits() -> None:
    assert at_once({A1: Delete(), A3: Delete()}) == {A1: Delete()}


def test_nothing_waits_behind_messages_that_ended_or_end_now() -> None:
    assert at_once({A2: Delete(), A3: Delete()}, {A1: Outcome.DELETED}) == {A2: Delete(), A3: Delete()}


def test_a_message_that_is_given_back_does_not_wait() -> None:
    asked: dict[Receipt, Settlement] = {A2: Release(5), A3: DeadLetter("bad")}
    assert at_once(asked) == asked


def test_settlements_come_in_the_order_of_the_messages() -> None:
    assert list(at_once({A3: Release(), A1: Release(), A2: Release()})) == [A1, A2, A3]


DECISIONS = st.sampled_from([None, Delete(), Release(), Expire(), DeadLetter("bad")])
DONE = {Delete: Outcome.DELETED, Release: Outcome.RELEASED, Expire: Outcome.EXPIRED, DeadLetter: Outcome.DEAD_LETTERED}


@given(decisions=st.tuples(*[DECISIONS] * len(LEASES)), order=st.permutations(range(len(LEASES))))
def test_a_ledger_does_as_hosts_write_down_beforehand(
    decisions: tuple[Settlement | None, ...], order: list[int]
) -> None:
    decided = zip(LEASES, decisions, strict=True)
    asked: dict[Receipt, Settlement] = {lease.receipt: one for lease, one in decided if one is not None}
    expected = at_once(carried_out(asked))

    ledger = Ledger(Random(0), fifo=True)
    for lease in LEASES:
        ledger.hold(lease, Fixed(visibility=30, every=20))
    for receipt in (LEASES[index].receipt for index in order):
        if receipt in asked:
            ledger.settle(receipt, asked[receipt], 0)
    while calls := ledger.due(0):
        for call in calls:
            ledger.report(call, answers(call, Verdict.DONE), 0)

    ended = {event.receipt: event.outcome for event in ledger.take_events() if isinstance(event, Settled)}
    assert ended == {receipt: DONE[type(settlement)] for receipt, settlement in expected.items()}
