"""The catalogue of mutants fits the code: each changes one place that is there, and names tests that there are."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.__main__ import CANARY, Result
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import ROOT, Mutant, StaleMutantError

SUBJECTS = {
    "asynchronous.py",
    "blocking.py",
    *(f"core/{name}.py" for name in ("failure_rules", "group_order", "ledger", "pacing", "policies", "timers")),
    *(f"keeper/{name}.py" for name in ("batch", "consuming", "driver", "listening", "loop_thread", "plain_leases")),
    *(f"keeper/{name}.py" for name in ("plug_ins", "receiver", "session")),
}


def defined_in(file: Path) -> set[str]:
    """The test functions of a file, as pytest names them, and its classes."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
            names |= {f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names


def test_each_mutant_changes_one_place_that_is_there() -> None:
    assert [mutant.name for mutant in (CANARY, *MUTANTS) if mutant.old == mutant.new] == []
    for mutant in (CANARY, *MUTANTS):
        mutant.applied()


def test_the_tests_of_each_mutant_exist() -> None:
    tests = {test for mutant in MUTANTS for test in mutant.tests}
    files = {file: defined_in(ROOT / file) for file in sorted({test.partition("::")[0] for test in tests})}
    parts = {test: test.partition("::") for test in tests}
    assert [test for test, (file, _, name) in parts.items() if name and name not in files[file]] == []
    assert [mutant.name for mutant in MUTANTS if not mutant.tests] == []


def test_each_mutant_has_a_name_of_its_own_and_every_subject_has_some() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []
    assert SUBJECTS - {mutant.file for mutant in MUTANTS} == set()
    assert len(MUTANTS) >= 60


def test_a_mutant_without_its_old_text_says_what_to_do() -> None:
    stale = Mutant("a rule", "core/limits.py", "what is not there", "", ())
    with pytest.raises(StaleMutantError, match=r"'a rule'.* 0 times in core/limits\.py.* write the mutant again"):
        stale.applied()


@pytest.mark.parametrize(
    ("code", "printed", "fate", "is_bad", "is_bad_when_known_to_survive"),
    [
        (1, "FAILED tests/a.py::test_b - assert 0", "killed", False, True),
        (0, "1 passed", "survives", True, False),
        (None, "", "hangs", True, True),
        (2, "ERROR tests/a.py", "broken", True, True),
        (1, "a pytest that tells of no test", "broken", True, True),
        (-11, "", "broken", True, True),
    ],
)
def test_a_mutant_is_killed_by_a_test_that_fails_and_by_nothing_else(
    code: int | None, printed: str, fate: str, is_bad: bool, is_bad_when_known_to_survive: bool
) -> None:
    mutant = Mutant("a rule", "core/limits.py", "", "", ())
    result = Result.of(mutant, code, printed, 1.0)
    assert (result.fate, result.is_bad) == (fate, is_bad)
    known = Mutant("a rule", "core/limits.py", "", "", (), survives_because="it only costs time")
    assert Result.of(known, code, printed, 1.0).is_bad is is_bad_when_known_to_survive
