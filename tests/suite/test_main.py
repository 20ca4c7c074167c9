"""The output and the exit code of a run: a line for each command, a table, and the rest of a run that was cut off."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.suite.__main__ import CannotRunError, run
from tests.suite.commands import Command, Outcome
from tests.suite.kept_results import KeptResults

GOOD, BAD = "print('fine')", "import sys; sys.exit('out of order')"


def python(name: str, program: str) -> Command:
    return Command(name, (sys.executable, "-c", program))


def sources() -> str:
    return "these sources"


def test_all_good_is_0_and_a_failure_1_with_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("test", [python("one", GOOD)], at_once=1, runs=tmp_path) == 0
    printed = capsys.readouterr().out
    assert "[ 1/1] one" in printed
    assert "All good." in printed
    assert printed.endswith("0 passed, 0 failed, 0 skipped\n")

    assert run("test", [python("one", GOOD), python("two", BAD)], at_once=1, runs=tmp_path) == 1
    printed = capsys.readouterr().out
    assert "out of order" in printed
    assert "Failed: two" in printed


def test_parts_that_passed_before_are_not_run_again_but_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = KeptResults(tmp_path / "results.json", sources)
    results.keep(Outcome("one", 0, passed=12))
    # It would fail.
    commands = [python("one", BAD), python("two", GOOD)]

    assert run("processes", commands, at_once=1, results=results, runs=tmp_path) == 0

    printed = capsys.readouterr().out
    assert "1 of 2 passed before on these sources. Left: two" in printed
    assert printed.endswith("12 passed, 0 failed, 0 skipped\n")
    assert KeptResults(tmp_path / "results.json", sources).good.keys() == {"one", "two"}


def test_a_run_that_is_cut_off_says_what_is_left_and_what_failed_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupting = f"import os, signal; os.kill({os.getpid()}, signal.SIGTERM); signal.pause()"
    commands = [python("good", GOOD), python("bad", BAD), python("cut", interrupting), python("never", GOOD)]
    results = KeptResults(tmp_path / "results.json", sources)

    assert run("processes", commands, at_once=1, results=results, runs=tmp_path) == 128 + signal.SIGINT

    assert capsys.readouterr().out.endswith("Cut off. Left: bad, cut, never\n")
    assert KeptResults(tmp_path / "results.json", sources).good.keys() == {"good"}


def test_two_runs_of_a_kind_do_not_meet_in_one_checkout(tmp_path: Path) -> None:
    inner = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    lock = tmp_path / "test" / "lock"
    asks = Command("asks", (sys.executable, "-c", inner, str(lock)))
    assert run("test", [asks], at_once=1, runs=tmp_path) == 1

    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CannotRunError, match="Another run of this kind is under way"):
            run("test", [asks], at_once=1, runs=tmp_path)
    assert run("test", [asks], at_once=1, runs=tmp_path) == 1
