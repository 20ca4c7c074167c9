"""The auditor sees each rule that a round breaks, and finds nothing in a round that keeps them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest

from tests.rounds.audit import Block, Done, Evidence, Finding, Rule, Takeover, Window, audit
from tests.rounds.draw import Kind, Work
from tests.rounds.ledger import Entry

A, B = "worker-a", "worker-b"
VISIBILITY = 12.0


def work(kind: Literal["good", "poison"] = "good") -> Work:
    return Work(0, kind, 1.0, settles_early=False)


def receive(worker: str, at: float, reception: int, timeout: float = VISIBILITY) -> Entry:
    return Entry(worker, "receive", "m", reception, at - 0.5, at, timeout, acted=True)


def change(worker: str, at: float, reception: int, timeout: float, *, acted: bool = True) -> Entry:
    return Entry(worker, "change", "m", reception, at, at + 0.01, timeout, acted)


def delete(worker: str, at: float, reception: int, *, acted: bool = True) -> Entry:
    return Entry(worker, "delete", "m", reception, at, at + 0.01, 0.0, acted)


def block(worker: str, began: float, ended: float, *, green: bool = True, failed: bool = False) -> Block:
    return Block(worker, frozenset({"m"}), began, ended, green, {"m": ended - 2.0} if failed else {})


GOOD = Evidence(
    sent={"m": work()},
    entries=[receive(A, 0.0, 1), change(A, 8.0, 1, VISIBILITY), delete(A, 14.0, 1)],
    blocks=[block(A, 0.1, 14.1)],
    table=[Done("m", 13.0)],
    dead_letters={},
    windows=[],
    each_once=False,
)

# A lapses at 12 s although nothing is wrong; B is given the message, and deletes it.
TWO_HOLDERS = replace(
    GOOD,
    entries=[receive(A, 0.0, 1), receive(B, 12.1, 2), delete(B, 13.0, 2)],
    blocks=[block(A, 0.1, 20.0, green=False), block(B, 12.2, 13.1)],
    table=[Done("m", 12.9)],
)


def rules(findings: Sequence[Finding]) -> list[Rule]:
    return [finding.rule for finding in findings]


def test_a_round_that_keeps_all_rules_has_no_findings() -> None:
    assert audit(GOOD) == []


def test_a_message_that_a_killed_worker_had_and_another_one_did_breaks_nothing() -> None:
    killed = block(A, 0.1, 3.0, green=False)
    entries = [receive(A, 0.0, 1), receive(B, 12.1, 2), delete(B, 13.0, 2)]
    assert audit(replace(GOOD, entries=entries, blocks=[killed, block(B, 12.2, 13.1)], table=[Done("m", 12.9)])) == []


def test_a_message_that_is_in_neither_queue_and_was_never_deleted_is_lost() -> None:
    found = audit(replace(GOOD, entries=[receive(A, 0.0, 1)], blocks=[block(A, 0.1, 14.1, green=False)]))
    assert rules(found) == [Rule.LOST]


@pytest.mark.parametrize("table", [[], [Done("m", 15.0)]], ids=["never done", "done after its delete"])
def test_a_message_that_was_deleted_before_its_work_is_lost(table: list[Done]) -> None:
    assert rules(audit(replace(GOOD, table=table))) == [Rule.LOST]


def test_a_dead_letter_is_not_lost_but_poison_in_the_table_is_a_finding() -> None:
    dead = replace(GOOD, sent={"m": work("poison")}, dead_letters={0: 1}, blocks=[block(A, 0.1, 14.1, failed=True)])
    assert audit(replace(dead, table=[])) == []
    assert rules(audit(dead)) == [Rule.LOST]


def test_a_row_that_is_in_the_table_twice_is_found_where_each_is_promised_once() -> None:
    twice = replace(GOOD, table=[Done("m"), Done("m")])
    assert audit(twice) == []
    assert rules(audit(replace(twice, each_once=True))) == [Rule.TWICE]


def test_a_row_of_a_message_that_was_not_sent_is_found() -> None:
    stranger = replace(GOOD, table=[Done("m"), Done("other")], each_once=True)
    assert rules(audit(stranger)) == [Rule.TWICE]


def test_two_holders_are_found_when_nothing_kept_the_first_one_from_extending() -> None:
    assert rules(audit(TWO_HOLDERS)) == [Rule.DOUBLE_HOLDER]


@pytest.mark.parametrize(
    ("window", "is_excused"),
    [
        (Window(Kind.STOP, A, 7.5, 13.0), True),
        (Window(None, None, 7.5, 13.0), True),
        (Window(Kind.CUT, A, 7.5, 11.0), True),  # one second was left: no time for a second try
        (Window(Kind.CUT, A, 1.0, 8.9), False),  # three seconds were left
        (Window(Kind.CUT, A, 1.0, 7.0), False),
        (Window(Kind.CUT, B, 7.5, 13.0), False),
        (Window(Kind.CLOCK, A, 7.5, 13.0), False),
    ],
    ids=["stopped", "machine", "until near the end", "until three seconds before", "earlier", "the other", "clock"],
)
def test_two_holders_are_promised_only_while_the_first_one_or_its_service_is_away(
    window: Window, is_excused: bool
) -> None:
    assert rules(audit(replace(TWO_HOLDERS, windows=[window]))) == ([] if is_excused else [Rule.DOUBLE_HOLDER])


def test_messages_that_a_block_failed_are_held_no_longer_also_if_too_little_was_left_to_release_them() -> None:
    blocks = [block(A, 0.1, 13.0, green=False, failed=True), *TWO_HOLDERS.blocks[1:]]
    assert audit(replace(TWO_HOLDERS, blocks=blocks)) == []


def test_several_faults_after_one_another_count_as_one() -> None:
    windows = [Window(Kind.CUT, A, 7.5, 9.5), Window(Kind.LATENCY, A, 9.0, 11.0)]
    assert audit(replace(TWO_HOLDERS, windows=windows)) == []


def test_a_block_that_ends_well_without_a_delete_is_silent() -> None:
    refused = replace(GOOD, entries=[receive(A, 0.0, 1), delete(A, 14.0, 1, acted=False)], dead_letters={0: 1})
    assert rules(audit(refused)) == [Rule.SILENT]
    assert audit(replace(refused, blocks=[block(A, 0.1, 14.1, green=False)])) == []


def test_a_block_that_ends_well_although_another_block_had_the_message_is_silent() -> None:
    entries = [receive(A, 0.0, 1), receive(B, 12.1, 2), delete(A, 14.0, 1)]
    away = Window(Kind.STOP, A, 1.0, 13.0)
    found = audit(replace(GOOD, entries=entries, windows=[away]))
    assert rules(found) == [Rule.SILENT]


def test_an_extension_after_the_delete_is_found() -> None:
    entries = [*GOOD.entries, change(A, 14.5, 1, VISIBILITY, acted=False)]
    assert rules(audit(replace(GOOD, entries=entries))) == [Rule.AFTER_THE_END]


def test_a_release_of_a_message_that_another_worker_has_is_found_unless_this_one_was_stopped_just_then() -> None:
    entries = [receive(A, 0.0, 1), receive(B, 12.1, 2), change(A, 12.5, 1, 0.0), delete(B, 13.0, 2)]
    away = Window(Kind.STOP, A, 1.0, 12.3)
    blocks = [block(A, 0.1, 12.6, green=False), block(B, 12.2, 13.1)]
    released = replace(TWO_HOLDERS, entries=entries, blocks=blocks, windows=[Window(Kind.CUT, A, 1.0, 12.3)])
    assert rules(audit(released)) == [Rule.AFTER_THE_END]
    assert audit(replace(released, windows=[away])) == []


def test_a_lease_that_is_longer_than_the_time_already_worked_is_found() -> None:
    entries = [receive(A, 0.0, 1), change(A, 8.0, 1, 30.0), delete(A, 14.0, 1)]
    assert rules(audit(replace(GOOD, entries=entries))) == [Rule.TOO_LONG]


def test_a_batch_that_is_passed_on_is_extended_by_so_much_and_no_more() -> None:
    for seconds, found in ((300.0, []), (299.0, [Rule.TOO_LONG]), (301.0, [Rule.TOO_LONG])):
        entries = [receive(A, 0.0, 1), change(A, 0.2, 1, seconds), delete(B, 14.0, 1)]
        assert rules(audit(replace(GOOD, entries=entries, passed_on_seconds=300.0))) == found


def test_the_time_already_worked_counts_from_the_first_of_repeated_receives_of_a_fifo_queue() -> None:
    cut = Window(Kind.CUT, A, -6.0, -2.0)
    entries = [receive(A, 0.0, 1, 5.0), change(A, 0.9, 1, 8.0), delete(A, 3.0, 1)]
    evidence = replace(GOOD, entries=entries, blocks=[block(A, 0.1, 3.1)], table=[Done("m", 2.9)], windows=[cut])
    assert audit(replace(evidence, in_order=True)) == []
    assert rules(audit(evidence)) == [Rule.TOO_LONG]
    assert rules(audit(replace(evidence, in_order=True, windows=[]))) == [Rule.TOO_LONG]


def test_a_release_with_a_long_delay_is_not_a_long_lease() -> None:
    entries = [receive(A, 0.0, 1), change(A, 3.0, 1, 40.0), receive(B, 43.1, 2), delete(B, 44.0, 2)]
    blocks = [block(A, 0.1, 3.1, green=False), block(B, 43.2, 44.1)]
    assert audit(replace(GOOD, entries=entries, blocks=blocks, table=[Done("m", 43.9)])) == []


def test_messages_that_stay_in_flight_and_workers_that_die_are_found() -> None:
    entries, blocks = [receive(A, 0.0, 1)], [block(A, 0.1, 160.0, green=False)]
    found = audit(replace(GOOD, entries=entries, blocks=blocks, left=1, deaths=["worker-a ended with exit code 1"]))
    assert rules(found) == [Rule.DIED, Rule.STUCK]


ANOTHER = Work(1, "good", 1.0, settles_early=False)
IN_ORDER = replace(
    GOOD,
    sent={"m": work(), "n": ANOTHER},
    entries=[*GOOD.entries, replace(receive(A, 0.0, 2), message_id="n"), replace(delete(A, 14.5, 2), message_id="n")],
    table=[Done("m", 13.0), Done("n", 14.2)],
    in_order=True,
)


def test_a_message_that_is_deleted_ahead_of_an_earlier_one_of_its_group_is_found() -> None:
    ahead = [replace(entry, asked_at=13.5) if entry.message_id == "n" else entry for entry in IN_ORDER.entries]
    table = [Done("m", 13.0), Done("n", 13.2)]
    assert audit(IN_ORDER) == []
    assert rules(audit(replace(IN_ORDER, entries=ahead, table=table))) == [Rule.ORDER]
    other_group = {"m": work(), "n": replace(ANOTHER, group=1)}
    assert audit(replace(IN_ORDER, entries=ahead, table=table, sent=other_group)) == []


def test_messages_behind_a_failed_one_of_their_group_go_back_from_a_block_that_ends_well() -> None:
    given_back = Block(A, frozenset({"m", "n"}), 0.1, 10.0, is_green=True, failed={"m": 9.0})
    entries = [
        receive(A, 0.0, 1),
        replace(receive(A, 0.0, 2), message_id="n"),
        change(A, 9.0, 1, 0.0),
        replace(change(A, 9.1, 2, 0.0), message_id="n"),
        receive(B, 9.5, 3),
        delete(B, 14.0, 3),
        replace(receive(B, 9.6, 4), message_id="n"),
        replace(delete(B, 14.5, 4), message_id="n"),
    ]
    later = Block(B, frozenset({"m", "n"}), 9.7, 15.0, is_green=True)
    evidence = replace(IN_ORDER, entries=entries, blocks=[given_back, later])
    assert audit(evidence) == []
    assert rules(audit(replace(evidence, in_order=False))) == [Rule.SILENT]


def test_messages_behind_a_failed_one_of_their_group_are_held_no_longer_either() -> None:
    """With less than two seconds left, neither of them is released."""
    given_back = Block(A, frozenset({"m", "n"}), 0.1, 16.0, is_green=True, failed={"m": 10.5})
    entries = [
        receive(A, 0.0, 1),
        replace(receive(A, 0.0, 2), message_id="n"),
        receive(B, 12.1, 3),
        delete(B, 14.0, 3),
        replace(receive(B, 12.1, 4), message_id="n"),
        replace(delete(B, 14.5, 4), message_id="n"),
    ]
    later = Block(B, frozenset({"m", "n"}), 12.2, 15.0, is_green=True)
    evidence = replace(IN_ORDER, entries=entries, blocks=[given_back, later])
    assert audit(evidence) == []
    other_group = {"m": work(), "n": replace(ANOTHER, group=1)}
    assert Rule.DOUBLE_HOLDER in rules(audit(replace(evidence, sent=other_group)))


# A run of an orchestrator has a message, whose lease A lets lapse at 30 s; B receives it for a later run.
RUN = Block("run", frozenset({"m"}), 0.5, 60.0, is_green=False, receive_counts={"m": 1})
HANDED_ON = replace(
    GOOD,
    entries=[receive(A, 0.0, 1, 30.0), receive(B, 30.1, 2, 30.0), delete(B, 40.0, 2)],
    blocks=[RUN, Block("later", frozenset({"m"}), 30.5, 41.0, is_green=True, receive_counts={"m": 2})],
    table=[Done("m", 39.0)],
    takeover=Takeover(noticed_after_seconds=4.0, seconds=15.0),
)


@pytest.mark.parametrize(
    ("windows", "is_excused"),
    [
        ([], False),
        ([Window(Kind.KILL, A, 19.0, 20.0)], True),  # taken over at 34 s at the latest
        ([Window(Kind.KILL, A, 10.0, 11.0)], False),  # taken over at 25 s at the latest
        ([Window(Kind.KILL, B, 19.0, 20.0)], False),
        ([Window(Kind.STOP, A, 19.0, 21.0)], False),  # not noticed
        ([Window(Kind.STOP, A, 19.0, 25.0)], True),
        ([Window(Kind.STOP, A, 19.0, 21.0), Window(None, A, 21.0, 23.5)], True),
        ([Window(Kind.KILL, A, 10.0, 11.0), Window(Kind.CUT, B, 24.0, 28.0)], True),  # too late for B
        ([Window(Kind.KILL, A, 10.0, 11.0), Window(Kind.DATABASE, None, 13.0, 14.0)], True),
        ([Window(Kind.CUT, B, 24.0, 28.0)], False),
    ],
    ids=[
        "all well",
        "killed",
        "killed long before",
        "the other killed",
        "stopped for a moment",
        "stopped",
        "stopped, then no processor",
        "killed, and the other one cut off",
        "killed, and no database",
        "the other cut off",
    ],
)
def test_two_holders_are_excused_before_a_takeover_from_a_process_that_is_gone_was_possible(
    windows: list[Window], is_excused: bool
) -> None:
    assert rules(audit(replace(HANDED_ON, windows=windows))) == ([] if is_excused else [Rule.DOUBLE_HOLDER])


def test_without_takeovers_a_kill_excuses_nothing_that_another_block_holds() -> None:
    killed = Window(Kind.KILL, A, 19.0, 20.0)
    assert rules(audit(replace(HANDED_ON, windows=[killed], takeover=None))) == [Rule.DOUBLE_HOLDER]


def test_a_run_has_the_reception_that_its_message_counts_whatever_process_extends_it() -> None:
    entries = [receive(A, 0.0, 1), receive(B, 12.1, 2), change(A, 20.0, 2, VISIBILITY), delete(A, 25.0, 2)]
    lost = replace(RUN, ended_at=26.0)
    kept = Block("kept", frozenset({"m"}), 12.5, 25.1, is_green=True, receive_counts={"m": 2})
    evidence = replace(HANDED_ON, entries=entries, blocks=[kept], table=[Done("m", 24.0)])
    assert audit(evidence) == []
    assert rules(audit(replace(evidence, blocks=[lost, kept]))) == [Rule.DOUBLE_HOLDER]


def test_a_message_that_its_run_failed_and_that_was_deleted_all_the_same_is_lost() -> None:
    failed = replace(RUN, failed={"m": 13.5}, ended_at=14.2, is_green=True)
    assert rules(audit(replace(GOOD, blocks=[failed]))) == [Rule.LOST]
    assert audit(replace(GOOD, blocks=[failed], dead_letters={0: 1})) == []


def test_an_extension_by_a_process_that_cannot_know_that_another_one_had_deleted_is_not_a_finding() -> None:
    stood_still, died = Window(Kind.STOP, B, 13.0, 14.4), Window(Kind.KILL, A, 14.2, 14.3)
    late = replace(GOOD, entries=[*GOOD.entries, change(B, 14.5, 1, VISIBILITY, acted=False)])
    takeover = Takeover(noticed_after_seconds=4.0, seconds=15.0)
    assert rules(audit(replace(late, takeover=takeover))) == [Rule.AFTER_THE_END]
    for window in (stood_still, died):
        assert rules(audit(replace(late, windows=[window]))) == [Rule.AFTER_THE_END]
        assert audit(replace(late, windows=[window], takeover=takeover)) == []
