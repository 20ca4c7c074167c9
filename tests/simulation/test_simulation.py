"""A thousand schedules keep the design's invariants; a ledger that breaks a rule is noticed within a few."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from sqs_lease.core.ledger import Ledger
from sqs_lease.keeper import driver as queue_driver
from tests.simulation import mutants
from tests.simulation.schedule import failing_seeds, run_schedule

SCHEDULES = 1000
PART = 50
MUTANT_SEEDS = 400
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("start", range(0, SCHEDULES, PART))
def test_a_thousand_schedules_keep_the_invariants(start: int) -> None:
    failed = failing_seeds(range(start, start + PART))
    traces = [str(run_schedule(seed, tracing=True)) for seed in failed[:1]]
    assert not failed, f"seeds {failed}\n" + "\n".join(traces)


@pytest.mark.parametrize(
    ("mutant", "rule", "known"),
    [
        (mutants.ExtendsAfterSettling, "3 nothing is extended after it was settled", 1),
        (mutants.ReleasesWhatIsLost, "3 nothing lost is touched", 1),
        (mutants.MovesDeadlinesUnconfirmed, "2 what is held stays invisible", 8),
        (mutants.GivesUpWithoutAnswer, "2 what is held is not given up", 2),
        (mutants.RetriesTooLate, "2 what is held stays invisible", 32),
        (mutants.ReleasesTooLate, "3 nothing lost is released", 295),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_ledger_that_breaks_a_rule_is_noticed(
    mutant: type[Ledger], rule: str, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_driver, "Ledger", mutant)
    # One that noticed it when this was written goes first, which only saves time: any of the others will do.
    results = (run_schedule(seed) for seed in (known, *range(MUTANT_SEEDS)))
    noticed = (violation.rule for result in results for violation in result.violations)
    assert next((True for broken in noticed if broken == rule), False)


def test_a_seed_goes_the_same_way_every_time() -> None:
    results = [run_schedule(7) for _ in range(2)]
    assert results[0].figures == results[1].figures
    assert results[0].figures != run_schedule(8).figures


def test_tracing_changes_nothing() -> None:
    assert run_schedule(7, tracing=True).figures == run_schedule(7).figures
    assert run_schedule(7, tracing=True).trace


def test_a_seed_goes_the_same_way_in_every_process_whatever_the_order_of_its_hashes() -> None:
    program = "from tests.simulation.schedule import digest; print([digest(seed) for seed in range(12)])"
    outputs = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(islice(sys.path, 50))}
        finished = subprocess.run(
            [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        )
        outputs.add(finished.stdout)
    assert len(outputs) == 1
    assert outputs.pop().count("'") == 24
