"""On a FIFO queue the ledger deletes nothing ahead of an earlier message of its group that goes back to the queue."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from sqs_lease.core.calls import Call, DeleteCall, EntryAnswer, ExtendCall, ForwardCall, ReleaseCall, Verdict
from sqs_lease.core.events import Outcome, Settled
from sqs_lease.core.failure_rules import DeadLetter, Delete, Expire, Release, Settlement
from sqs_lease.core.ledger import Ledger
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import Growing
from tests.core.ledger.ledgers import only
from tests.core.service import answers

POLICY = Growing(visibility=30)
FIRST, SECOND, THIRD = (Receipt(f"m{number}", "handle") for number in (1, 2, 3))


def ledger_of(*groups: str | None, fifo: bool = True) -> Ledger:
    ledger = Ledger(Random(0), fifo=fifo)
    for number, group in enumerate(groups, start=1):
        ledger.hold(Lease(Receipt(f"m{number}", "handle"), 0.0, 30.0, message_group_id=group), POLICY)
    return ledger


def carry_out(ledger: Ledger, now: float, judge: dict[type, Verdict] | None = None) -> list[Call]:
    """Make all calls that are due, and those that their answers allow."""
    calls = []
    while due := ledger.due(now):
        calls += due
        for call in due:
            ledger.report(call, answers(call, (judge or {}).get(type(call), Verdict.DONE)), now)
    return calls


def ended(ledger: Ledger) -> dict[str, Outcome]:
    return {event.receipt.message_id: event.outcome for event in ledger.take_events() if isinstance(event, Settled)}


def test_a_delete_behind_work_that_goes_on_waits_and_is_extended_meanwhile() -> None:
    ledger = ledger_of("group", "group")
    assert ledger.settle(SECOND, Delete(), 5)
    assert ledger.waits_for_work(SECOND)
    assert ledger.due(5) == []
    assert only(ledger.due(20)).receipts == (FIRST, SECOND)


def test_a_delete_that_waited_for_an_earlier_one_does_not_wait_again_for_others_to_fill_its_call() -> None:
    ledger = ledger_of("group", "group")
    for receipt in (FIRST, SECOND):
        ledger.settle(receipt, Delete(), 5, within_seconds=0.1)
    assert ledger.due(5) == []
    assert carry_out(ledger, 5.2) == [DeleteCall(5.2, (FIRST,)), DeleteCall(5.2, (SECOND,))]


def test_a_delete_that_waited_follows_when_the_earlier_one_is_deleted() -> None:
    ledger = ledger_of("group", "group")
    ledger.settle(SECOND, Delete(), 5)
    ledger.settle(FIRST, Delete(), 6)
    assert not ledger.waits_for_work(SECOND)
    assert carry_out(ledger, 6) == [DeleteCall(6, (FIRST,)), DeleteCall(6, (SECOND,))]
    assert ended(ledger) == {"m1": Outcome.DELETED, "m2": Outcome.DELETED}


def test_a_delete_that_waited_becomes_a_release_when_the_earlier_one_fails() -> None:
    ledger = ledger_of("group", "group", "group")
    ledger.settle(THIRD, Delete(), 5)
    ledger.settle(SECOND, Delete(), 5)
    ledger.settle(FIRST, Release(), 6)
    (call,) = carry_out(ledger, 6)
    assert isinstance(call, ReleaseCall)
    assert set(call.receipts) == {FIRST, SECOND, THIRD}, "in one call"


def test_a_delete_after_an_earlier_one_failed_becomes_a_release() -> None:
    ledger = ledger_of("group", "group", "other")
    ledger.settle(FIRST, Expire(), 5)
    ledger.settle(SECOND, Delete(), 6)
    ledger.settle(THIRD, Delete(), 6)
    carry_out(ledger, 6)
    assert ended(ledger) == {"m1": Outcome.EXPIRED, "m2": Outcome.RELEASED, "m3": Outcome.DELETED}


def test_a_message_behind_one_that_is_dead_lettered_is_deleted() -> None:
    ledger = ledger_of("group", "group")
    ledger.settle(FIRST, DeadLetter("failed"), 5)
    ledger.settle(SECOND, Delete(), 5)
    assert [type(call) for call in carry_out(ledger, 5)] == [ForwardCall, DeleteCall, DeleteCall]
    assert ended(ledger) == {"m1": Outcome.DEAD_LETTERED, "m2": Outcome.DELETED}


def test_a_message_is_released_when_the_forward_of_one_before_it_fails() -> None:
    ledger = ledger_of("group", "group")
    ledger.settle(FIRST, DeadLetter("failed"), 5)
    ledger.settle(SECOND, Delete(), 5)
    carry_out(ledger, 5, {ForwardCall: Verdict.REFUSED})
    assert ended(ledger) == {"m1": Outcome.FAILED, "m2": Outcome.RELEASED}


def test_a_message_is_released_when_the_delete_of_one_before_it_fails() -> None:
    ledger = ledger_of("group", "group")
    for receipt in (FIRST, SECOND):
        ledger.settle(receipt, Delete(), 5)
    carry_out(ledger, 5, {DeleteCall: Verdict.LOST})
    assert ended(ledger) == {"m1": Outcome.LOST, "m2": Outcome.RELEASED}


def test_a_message_behind_one_that_is_lost_while_it_is_worked_on_is_released() -> None:
    ledger = ledger_of("group", "group")
    ledger.settle(SECOND, Delete(), 5)
    extension = only(ledger.due(20))
    ledger.report(extension, [EntryAnswer(FIRST, Verdict.LOST), EntryAnswer(SECOND, Verdict.DONE)], 20)
    carry_out(ledger, 20)
    assert ended(ledger) == {"m2": Outcome.RELEASED}


def test_messages_that_go_back_with_a_lost_one_are_not_extended_again() -> None:
    ledger = ledger_of("group", "group")
    ledger.settle(SECOND, Delete(), 5)
    extension = only(ledger.due(20))
    assert extension.receipts == (FIRST, SECOND)
    ledger.report(extension, [EntryAnswer(FIRST, Verdict.LOST), EntryAnswer(SECOND, Verdict.UNAVAILABLE)], 20)
    assert all(isinstance(call, ReleaseCall) for call in carry_out(ledger, 29))


def test_messages_in_front_of_a_lost_one_are_not_extended_again() -> None:
    ledger = ledger_of("group", "group")
    # Adopted in the other order, so that the call names the later message first.
    ledger.settle(SECOND, Delete(), 5)
    ledger.extend_now(SECOND)
    ledger.extend_now(FIRST)
    extension = only(ledger.due(6))
    ledger.report(
        extension,
        [EntryAnswer(one, Verdict.LOST if one == FIRST else Verdict.UNAVAILABLE) for one in extension.receipts],
        6,
    )
    assert not any(isinstance(call, ExtendCall) for call in carry_out(ledger, 29))


def test_groups_share_a_call_but_not_one_group() -> None:
    ledger = ledger_of("one", "one", "two", "two")
    for number in range(1, 5):
        ledger.settle(Receipt(f"m{number}", "handle"), Delete(), 5)
    deletes = [{receipt.message_id for receipt in call.receipts} for call in carry_out(ledger, 5)]
    assert deletes == [{"m1", "m3"}, {"m2", "m4"}]


def test_a_user_may_give_up_the_order() -> None:
    ledger = ledger_of("group", "group")
    ledger.settle(SECOND, Delete(), 5, in_order=False)
    assert carry_out(ledger, 5) == [DeleteCall(5, (SECOND,))]


def test_the_tenants_of_a_fair_queue_have_no_order() -> None:
    ledger = ledger_of("tenant", "tenant", fifo=False)
    ledger.settle(SECOND, Delete(), 5)
    assert carry_out(ledger, 5) == [DeleteCall(5, (SECOND,))]


def test_a_group_begins_afresh_when_all_of_it_has_ended() -> None:
    ledger = ledger_of("group")
    ledger.settle(FIRST, Release(), 5)
    carry_out(ledger, 5)
    again = Receipt("m1", "handle of the next reception")
    ledger.hold(Lease(again, 6.0, 36.0, 2, "group"), POLICY)
    ledger.settle(again, Delete(), 7)
    assert carry_out(ledger, 7) == [DeleteCall(7, (again,))]


def test_nothing_is_left_of_a_group_that_has_ended() -> None:
    ledger = ledger_of("group", "group")
    ledger.settle(FIRST, Release(), 5)
    ledger.settle(SECOND, Delete(), 5)
    assert len(ledger._groups) == 1
    carry_out(ledger, 5)
    assert len(ledger._groups) == 0


Step = tuple[str, int, object]
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("settle"),
            st.integers(0, 7),
            st.sampled_from([Delete(), Delete(), Delete(), Release(), Release(60), Expire(), DeadLetter("failed")]),
        ),
        st.tuples(st.just("due"), st.integers(0, 3), st.none()),
        st.tuples(st.just("answer"), st.integers(0, 7), st.lists(st.sampled_from(list(Verdict)), min_size=10)),
        st.tuples(st.just("time"), st.sampled_from([1, 5, 15, 40]), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=400, deadline=None)
@given(steps=steps)
def test_no_message_is_ever_deleted_ahead_of_an_earlier_one_of_its_group(steps: list[Step]) -> None:
    groups = ["one", "two", "one", "one", "two", "one", "two", "one"]
    receipts = [Receipt(f"m{number}", "handle") for number in range(1, 9)]
    ledger = ledger_of(*groups)
    now, pending, outcomes = 0.0, list[Call](), dict[str, Outcome]()
    forwarded: set[Receipt] = set()
    for what, number, value in steps:
        if what == "settle":
            assert isinstance(value, Settlement)
            ledger.settle(receipts[number], value, now)
        elif what == "due":
            calls = ledger.due(now, number)
            gone = {one for one, outcome in outcomes.items() if outcome in (Outcome.DELETED, Outcome.DEAD_LETTERED)}
            for receipt in (one for call in calls if isinstance(call, DeleteCall) for one in call.receipts):
                place = receipts.index(receipt)
                earlier = {f"m{before + 1}" for before in range(place) if groups[before] == groups[place]}
                # A message in the dead-letter queue is out of the way, also of those before it.
                assert earlier <= gone or receipt in forwarded
            pending += calls
        elif what == "answer" and pending:
            call = pending.pop(number % len(pending))
            assert isinstance(value, list)
            answered = zip(call.receipts, value, strict=False)
            ledger.report(call, [EntryAnswer(receipt, verdict) for receipt, verdict in answered], now)
            if isinstance(call, ForwardCall):
                forwarded.add(call.receipt)
        elif what == "time":
            now += number
        outcomes.update(ended(ledger))


def test_an_extension_waits_for_nothing() -> None:
    ledger = ledger_of("group", "group")
    ledger.settle(SECOND, Delete(), 5)
    assert isinstance(only(ledger.due(20)), ExtendCall)


def test_a_lease_that_another_batch_adopts_is_in_order_there() -> None:
    ledger = ledger_of("group")
    ledger.hold(Lease(FIRST, 0.0, 30.0, message_group_id="group"), POLICY, batch=2)
    ledger.hold(Lease(SECOND, 0.0, 30.0, message_group_id="group"), POLICY, batch=2)
    carry_out(ledger, 5)
    ledger.settle(SECOND, Delete(), 6)
    assert ledger.waits_for_work(SECOND)
    assert carry_out(ledger, 6) == []


def test_a_decided_message_keeps_its_place_when_another_batch_adopts_the_group() -> None:
    ledger = ledger_of("group", "group", "group")
    ledger.settle(FIRST, DeadLetter("failed"), 4)
    forward = only(ledger.due(4))
    ledger.settle(THIRD, Delete(), 5)
    for receipt in (FIRST, SECOND, THIRD):
        ledger.hold(Lease(receipt, 0.0, 30.0, message_group_id="group"), POLICY, batch=2)
    assert not any(isinstance(call, DeleteCall) for call in carry_out(ledger, 6))
    ledger.settle(SECOND, Delete(), 7)
    assert carry_out(ledger, 7) == [], "the first may still come back"
    ledger.report(forward, answers(forward, Verdict.REFUSED), 8)
    carry_out(ledger, 8)
    assert ended(ledger) == {"m1": Outcome.FAILED, "m2": Outcome.RELEASED, "m3": Outcome.RELEASED}


def test_an_adopted_lease_behind_a_message_that_went_back_goes_back_too() -> None:
    ledger = ledger_of("group", "group")
    ledger.settle(FIRST, Release(), 5)
    carry_out(ledger, 5)
    ledger.hold(Lease(SECOND, 0.0, 30.0, message_group_id="group"), POLICY, batch=2)
    carry_out(ledger, 6)
    ledger.settle(SECOND, Delete(), 7)
    carry_out(ledger, 7)
    assert ended(ledger)["m2"] is Outcome.RELEASED


def test_a_delete_waits_for_the_work_on_an_earlier_message_that_was_received_again() -> None:
    ledger = ledger_of("group", "group")
    ledger.hold(Lease(Receipt("m1", "second handle"), 4.0, 34.0, 2, "group"), POLICY)
    ledger.settle(SECOND, Delete(), 5)
    assert carry_out(ledger, 5) == []
    assert ledger.waits_for_work(SECOND)


def test_a_group_that_was_received_again_as_a_whole_can_succeed() -> None:
    ledger = ledger_of("group", "group")
    again = [Receipt(f"m{number}", "second handle") for number in (1, 2)]
    for receipt in again:
        ledger.hold(Lease(receipt, 40.0, 70.0, 2, "group"), POLICY)
    for receipt in reversed(again):
        ledger.settle(receipt, Delete(), 41)
    deletes = [call.receipts for call in carry_out(ledger, 41)]
    assert deletes == [(again[0],), (again[1],)]


def held_in_doubt_behind_lost_ones() -> Ledger:
    """A batch that lost two messages of a group to a failed extension, and goes on with the third in doubt."""
    ledger = ledger_of("group", "group", "group")
    (extension,) = ledger.due(29)
    verdicts = [Verdict.LOST, Verdict.LOST, Verdict.TRANSIENT]
    ledger.report(extension, [EntryAnswer(*pair) for pair in zip(extension.receipts, verdicts, strict=True)], 31)
    return ledger


def test_a_group_that_was_lost_in_part_can_succeed_when_all_of_it_was_received_again() -> None:
    ledger = held_in_doubt_behind_lost_ones()
    again = [Receipt(f"m{number}", "second handle") for number in (1, 2, 3)]
    for receipt in again:
        ledger.hold(Lease(receipt, 32.0, 62.0, 2, "group"), POLICY)
    ledger.take_events()
    ledger.settle(again[2], Delete(), 33)
    assert carry_out(ledger, 33) == []
    assert ledger.waits_for_work(again[2]), "the first two are worked on again"
    ledger.settle(again[1], Delete(), 34)
    ledger.settle(again[0], Delete(), 35)
    assert [call.receipts for call in carry_out(ledger, 35)] == [(again[0],), (again[1],), (again[2],)]
    assert set(ended(ledger).values()) == {Outcome.DELETED}


def test_messages_behind_a_lost_one_go_back_also_when_that_one_was_received_again() -> None:
    ledger = held_in_doubt_behind_lost_ones()
    ledger.hold(Lease(Receipt("m1", "second handle"), 32.0, 62.0, 2, "group"), POLICY)
    ledger.settle(THIRD, Delete(), 33)
    assert not any(isinstance(call, DeleteCall) for call in carry_out(ledger, 33))


def test_messages_that_are_received_after_one_went_back_may_succeed_while_the_group_still_ends() -> None:
    ledger = ledger_of("group", "group")
    ledger.settle(SECOND, DeadLetter("failed"), 5)
    forward = only(ledger.due(5))
    ledger.settle(FIRST, Release(), 5)
    carry_out(ledger, 5)
    # Another consumer had the first since then: the queue gives out no third ahead of it.
    ledger.hold(Lease(THIRD, 8.0, 38.0, message_group_id="group"), POLICY)
    ledger.settle(THIRD, Delete(), 9)
    ledger.report(forward, answers(forward, Verdict.DONE), 9)
    carry_out(ledger, 9)
    assert ended(ledger)["m3"] is Outcome.DELETED
