"""The auditor sees a holder that relies on more than the service confirmed, and a lease with two holders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from demo.processes import ROOT
from tests.rounds import recorder
from tests.rounds.audit import Evidence, Rule, Takeover, Window, audit
from tests.rounds.beliefs import Belief, What, read_beliefs, taken_after_the_end
from tests.rounds.draw import Kind
from tests.rounds.ledger import Entry, Ledger
from tests.rounds.test_audit import GOOD, A, B, change, receive, rules


def believes(
    what: What, at: float, until: float | None, *, holder: str = A, asked_at: float | None = None, reception: int = 1
) -> Belief:
    return Belief(holder, what, "m", reception, at, until, asked_at)


def round_of(beliefs: Sequence[Belief], *entries: Entry, windows: Sequence[Window] = ()) -> Evidence:
    """A good round of one message, with these beliefs, and further calls ahead of its delete."""
    return replace(GOOD, beliefs=beliefs, entries=[*GOOD.entries[:-1], *entries, GOOD.entries[-1]], windows=windows)


HONEST = [
    believes("holds", 0.01, 11.4),
    believes("extends", 8.02, 19.9, asked_at=7.9),
    believes("ended", 14.02, None),
]


def test_a_holder_that_counts_from_before_its_calls_is_believed() -> None:
    assert audit(round_of(HONEST)) == []


def test_an_extension_that_was_never_sent_is_seen_although_no_consumer_noticed() -> None:
    faked = believes("extends", 10.0, 22.0, asked_at=10.0)
    assert rules(audit(round_of([*HONEST[:2], faked, HONEST[2]]))) == [Rule.UNCONFIRMED]


def test_an_extension_that_the_service_refused_is_seen_when_the_holder_takes_it_for_confirmed() -> None:
    refused = change(A, 10.0, 1, 12.0, acted=False)
    believed = believes("extends", 10.02, 22.0, asked_at=9.99)
    assert rules(audit(round_of([*HONEST[:2], believed], refused))) == [Rule.UNCONFIRMED]


def test_a_deadline_that_is_repeated_is_one_finding() -> None:
    faked = [believes("extends", at, 30.0, asked_at=10.0) for at in (10.0, 10.5, 11.0)]
    assert len(audit(round_of([*HONEST[:2], *faked]))) == 1


def test_a_lease_in_doubt_is_not_relied_on() -> None:
    assert audit(round_of([believes("holds", 0.01, None)])) == []


def test_a_hand_over_with_a_later_deadline_than_the_last_holder_had_is_seen() -> None:
    taken = believes("holds", 9.0, 600.0, holder=B)
    assert rules(audit(round_of([*HONEST[:2], believes("ended", 8.5, None), taken]))) == [Rule.UNCONFIRMED]


def test_a_hand_over_of_another_batch_is_seen_by_a_lease_that_had_ended() -> None:
    taken = believes("holds", 15.0, 19.0, holder=B)
    assert rules(audit(round_of([*HONEST, taken]))) == [Rule.NOT_HANDED_OVER]


def test_leases_that_another_batch_takes_than_wrote_them_down_are_seen_whatever_else_happened() -> None:
    wrote = replace(believes("writes", 8.5, None), batch="a")
    took = replace(believes("takes", 9.0, None, holder=B), batch="a")
    everything_was_away = [Window(Kind.STOP, None, 0.0, 20.0)]
    assert audit(round_of([*HONEST[:2], wrote, took], windows=everything_was_away)) == []
    assert audit(round_of([*HONEST[:2], wrote, replace(took, batch=None)])) == []
    found = audit(round_of([*HONEST[:2], wrote, replace(took, batch="b")], windows=everything_was_away))
    assert rules(found) == [Rule.NOT_HANDED_OVER]


TAKEN = believes("holds", 9.0, 19.0, holder=B)
GOES_ON = believes("extends", 12.02, 23.9, asked_at=11.9)


def test_a_holder_that_extends_what_another_one_took_is_seen() -> None:
    extended = change(A, 12.0, 1, 12.0)
    assert rules(audit(round_of([*HONEST[:2], TAKEN, GOES_ON], extended))) == [Rule.NOT_HANDED_OVER]


def test_a_call_that_was_decided_before_the_other_one_took_the_lease_breaks_nothing() -> None:
    late = replace(GOES_ON, asked_at=8.9, until=20.9)
    assert audit(round_of([*HONEST[:2], TAKEN, late], change(A, 9.1, 1, 12.0))) == []


@pytest.mark.parametrize("kind", [Kind.STOP, Kind.KILL, Kind.DATABASE, None], ids=str)
def test_a_process_that_was_away_may_not_know_of_the_other_one(kind: Kind | None) -> None:
    window = Window(kind, None, 8.5, 11.0)
    found = audit(round_of([*HONEST[:2], TAKEN, GOES_ON], change(A, 12.0, 1, 12.0), windows=[window]))
    assert found == []


@pytest.mark.parametrize(("starved_seconds", "findings"), [(0.5, 1), (12.0, 0)])
def test_a_busy_machine_excuses_only_a_process_that_waited_until_it_was_taken_for_gone(
    starved_seconds: float, findings: int
) -> None:
    busy = Window(None, A, 11.0 - starved_seconds, 11.0)
    evidence = round_of([*HONEST[:2], TAKEN, GOES_ON], change(A, 12.0, 1, 12.0), windows=[busy])
    assert len(audit(replace(evidence, takeover=Takeover(10.0, 42.0)))) == findings


def test_an_extension_that_shortens_a_lease_is_seen_when_the_holder_relies_on_the_longer_one() -> None:
    longer = change(A, 9.0, 1, 600.0)
    shorter = change(A, 12.0, 1, 12.0)
    believed = believes("extends", 12.02, 608.9, asked_at=11.9)
    known = believes("extends", 9.02, 608.9, asked_at=8.9)
    assert rules(audit(round_of([HONEST[0], known, believed], longer, shorter)))[-1:] == [Rule.UNCONFIRMED]


def test_an_extension_without_an_answer_leaves_the_deadline_of_the_one_before() -> None:
    refused = change(A, 12.0, 1, 12.0, acted=False)
    unchanged = believes("extends", 12.02, 19.9, asked_at=11.9)
    assert audit(round_of([*HONEST[:2], unchanged], refused)) == []


def test_a_message_that_comes_again_by_the_same_handle_after_its_release_may_be_taken() -> None:
    released, again = change(A, 14.0, 1, 0.0), receive(A, 15.0, 1)
    taken = believes("holds", 15.1, 26.4)
    assert list(taken_after_the_end([taken], [receive(A, 0.0, 1), released])) != []
    assert list(taken_after_the_end([taken], [receive(A, 0.0, 1), released, again])) == []


def test_handles_that_were_never_seen_are_not_one_lease() -> None:
    taken = believes("holds", 15.0, 26.0, reception=0)
    other = Entry(B, "change", "another", 0, 10.0, 10.1, 0.0, acted=True)
    assert audit(round_of([*HONEST, taken], other)) == []


def run_recorded(program: str, directory: Path, *, broken: str = "") -> str:
    """Run a program as a process of a stack; return what it prints."""
    paths = (recorder.PLACE, ROOT / "providers", ROOT)
    given = {recorder.BREAK: broken, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    environment = {**os.environ, **recorder.environment(directory), **given}
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, env=environment, cwd=directory, capture_output=True, text=True
    )
    return done.stdout


PROGRAM = """
from random import Random
from sqs_lease.core.ledger import Ledger
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import Fixed
ledger = Ledger(Random(0))
ledger.hold(Lease(Receipt("m", "handle"), 0.0, 1e9), Fixed(visibility=30, every=10))
ledger.forget(Receipt("m", "handle"))
"""


def test_each_process_of_a_stack_records_what_its_ledger_believes(tmp_path: Path) -> None:
    ledger = Ledger()
    answer = {"Messages": [{"MessageId": "m", "ReceiptHandle": "handle"}]}
    ledger.note(A, "ReceiveMessage", {}, answer, (0.0, 0.1))
    run_recorded(PROGRAM, tmp_path)
    beliefs = read_beliefs(tmp_path, ledger, 0.0)
    assert [(belief.what, belief.message_id, belief.reception) for belief in beliefs] == [
        ("holds", "m", 1),
        ("ended", "m", 1),
    ]
    assert beliefs[0].until is not None
    assert beliefs[1].until is None
    assert receive(A, 0.0, 1).reception == beliefs[0].reception
    # A handle is a credential for its message.
    assert "handle" not in json.dumps([line.name for line in tmp_path.iterdir()]) + "".join(
        file.read_text() for file in tmp_path.iterdir()
    )


def test_a_lease_of_a_batch_of_an_earlier_round_is_not_taken_by_another_batch(tmp_path: Path) -> None:
    ledger = Ledger()
    answer = {"Messages": [{"MessageId": "earlier", "ReceiptHandle": "handle"}]}
    ledger.note(A, "ReceiveMessage", {}, answer, (-20.0, -19.9))
    lease = {"holder": A, "id": "earlier", "key": recorder.key_of("handle")}
    lines = [
        {**lease, "at": -15.0, "what": "holds", "until": 30.0},
        {**lease, "at": -10.0, "what": "writes", "batch": "earlier"},
        {**lease, "at": 5.0, "what": "takes", "batch": "now"},
    ]
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    beliefs = read_beliefs(tmp_path, ledger, 0.0)

    assert [belief.what for belief in beliefs] == ["writes", "takes"]
    assert rules(audit(replace(GOOD, beliefs=beliefs))) == [Rule.NOT_HANDED_OVER]


PASSES_ON = """
import json
from sqs_lease.keeper import plain_leases
from tests.scenarios.keeper.test_a_batch_is_passed_on import Ground
ground = Ground(0)
async def scenario():
    for number in range(2):
        ground.sqs.send(ground.queue_url, str(number))
        written = await ground.receive(ground.keeper()).pass_on(300)
        lease, = plain_leases.decode_leases(plain_leases.encode_leases(written.leases))
        print(json.dumps([lease.receipt.message_id, lease.deadline - written.written_at]))
ground.run(scenario)
"""


def test_a_process_can_be_made_to_write_false_hand_overs(tmp_path: Path) -> None:
    def passed_on(broken: str) -> list[tuple[str, float]]:
        directory = tmp_path / broken.partition(":")[0]
        directory.mkdir(exist_ok=True)
        lines = run_recorded(PASSES_ON, directory, broken=broken).splitlines()
        return [tuple(json.loads(line)) for line in lines]

    first, second = passed_on("")
    assert first[0] != second[0]
    assert {seconds for _, seconds in (first, second)} == {300.0}
    assert [seconds for _, seconds in passed_on("deadlines:1")] == [300.0 + recorder.LATER_SECONDS] * 2
    assert len({message_id for message_id, _ in passed_on("batches:1")}) == 1
