"""The lease of a run by the data of Dagster and of its steps, as a block that the auditor judges."""

from __future__ import annotations

from typing import Any

from demo.dagster_answers import Event, Run
from sqs_lease.dagster.run_batch.batch_of_run import HANDOFF_SECONDS
from tests.rounds.audit import Block
from tests.rounds.dagster_host import GATE_FAULTS, NAMES, PASSED_ON_SECONDS, TRAITS, block_of_run
from tests.rounds.draw import Kind, draw

CHECK = Block(
    "steps r", frozenset({"m", "n"}), 2.0, 30.0, is_green=False, failed={"n": 4.0}, receive_counts={"m": 1, "n": 2}
)
WRITE = Block("steps r", frozenset({"m", "n"}), 6.0, 30.0, is_green=False, receive_counts={"m": 1, "n": 2})


def run(state: str, ended_at: float | None = 1009.0) -> Run:
    return Run("r", "steps", state, {}, "", None, 1000.0, ended_at)


def counted(**counts: int) -> Event:
    metadata: dict[str, Any] = {f"sqs/{name}": count for name, count in counts.items()}
    return Event("ENGINE_EVENT", None, 1008.0, "DEBUG", "Of 2 messages", None, metadata)


def test_a_run_is_a_block_from_its_first_step_to_its_end() -> None:
    block = block_of_run(run("SUCCESS"), [counted(deleted=1, lost=0)], [WRITE, CHECK], -1000.0)
    assert (block.began_at, block.ended_at, block.is_green) == (2.0, 9.0, True)
    assert block.failed == {"n": 4.0}
    assert block.receive_counts == {"m": 1, "n": 2}


def test_a_run_that_failed_or_tells_of_lost_leases_did_not_end_well() -> None:
    assert not block_of_run(run("FAILURE"), [counted(deleted=1)], [CHECK], -1000.0).is_green
    for name in ("lost", "late", "uncertain", "unsettled"):
        told = counted(deleted=1, **{name: 1})
        assert not block_of_run(run("SUCCESS"), [told], [CHECK], -1000.0).is_green


def test_a_run_that_has_no_end_is_a_block_until_its_run_worker_died() -> None:
    assert block_of_run(run("STARTED", None), [], [CHECK], -1000.0).ended_at == 30.0


def test_only_runs_lose_the_queue_and_every_process_is_killed_in_some_round() -> None:
    faults = [fault for seed in range(300) for fault in draw(TRAITS, seed).faults]
    assert {NAMES[fault.worker] for fault in faults if fault.kind in GATE_FAULTS} == {"run"}
    assert {NAMES[fault.worker] for fault in faults if fault.kind is Kind.KILL} == set(NAMES)


def test_a_batch_is_passed_on_for_as_long_as_the_package_does_it() -> None:
    assert HANDOFF_SECONDS == PASSED_ON_SECONDS
