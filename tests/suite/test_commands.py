"""Commands run side by side; each outcome says what became of one, and an interrupted run leaves no process behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.suite.commands import Command, CommandRun, Outcome

TESTS = """
import pytest

def test_passes(): pass
def test_fails(): assert False, "as it should"
@pytest.fixture
def broken(): raise RuntimeError
def test_cannot_be_set_up(broken): pass
@pytest.mark.skip
def test_is_skipped(): pass
"""


def python(name: str, program: str, **environment: str) -> Command:
    return Command(name, (sys.executable, "-c", program), environment=environment)


def run_all(
    directory: Path, *commands: Command, at_once: int = 2, ended: Callable[[Outcome], None] = lambda _: None
) -> CommandRun:
    run = CommandRun(commands, directory / "logs", at_once, ended)
    run.run()
    return run


def test_an_outcome_has_the_exit_code_and_the_log_what_the_command_said(tmp_path: Path) -> None:
    told: list[Outcome] = []
    good = python("good one", "import os; print('hello', os.environ['WHO'])", WHO="world")
    bad = python("bad/one", "import sys; print('oh', file=sys.stderr); sys.exit(3)")

    run = run_all(tmp_path, good, bad, ended=told.append)

    assert {outcome.name: outcome.exit_code for outcome in run.outcomes} == {"good one": 0, "bad/one": 3}
    assert {outcome.name: outcome.is_good for outcome in run.outcomes} == {"good one": True, "bad/one": False}
    assert {outcome.name: outcome.in_words for outcome in run.outcomes} == {
        "good one": "good",
        "bad/one": "ended with 3",
    }
    assert run.log_of("good one").read_text() == "hello world\n"
    assert run.log_of("bad/one").read_text() == "oh\n"
    assert told == run.outcomes


def test_the_outcome_of_pytest_counts_its_tests_and_an_error_as_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(TESTS)
    arguments = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file))

    (outcome,) = run_all(tmp_path, Command("some", arguments, is_pytest=True)).outcomes

    assert (outcome.passed, outcome.failed, outcome.skipped) == (1, 2, 1)
    assert outcome.in_words == "1 passed, 2 failed, 1 skipped"
    assert not outcome.is_good
    assert outcome.seconds > 0
    assert outcome.processor_seconds > 0


def test_pytest_that_finds_no_test_is_good_only_where_it_may(tmp_path: Path) -> None:
    file = tmp_path / "test_none.py"
    file.touch()
    arguments = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file))
    may = Command("may", arguments, is_pytest=True, may_be_empty=True)

    outcomes = run_all(tmp_path, may, Command("must", arguments, is_pytest=True)).outcomes

    assert {outcome.name: (outcome.is_good, outcome.in_words) for outcome in outcomes} == {
        "may": (True, "good"),
        "must": (False, "found no test"),
    }


def test_pytest_that_ends_in_the_middle_is_not_good_whatever_it_says(tmp_path: Path) -> None:
    file = tmp_path / "test_ends.py"
    file.write_text("import os\ndef test_ends(): os._exit(0)\ndef test_fails(): assert False\n")
    arguments = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file))

    (outcome,) = run_all(tmp_path, Command("ends", arguments, is_pytest=True)).outcomes

    assert (outcome.exit_code, outcome.is_good, outcome.in_words) == (0, False, "ended without a report")


def test_an_error_of_the_run_itself_ends_it_and_is_raised(tmp_path: Path) -> None:
    def refuse(outcome: Outcome) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        run_all(tmp_path, python("first", ""), python("second", ""), at_once=1, ended=refuse)


def test_a_command_that_was_killed_is_told_from_one_that_ended(tmp_path: Path) -> None:
    (outcome,) = run_all(tmp_path, python("killed", "import os; os.kill(os.getpid(), 9)")).outcomes
    assert (outcome.exit_code, outcome.in_words) == (-9, "ended by signal 9")


def test_commands_begin_in_their_order(tmp_path: Path) -> None:
    place = tmp_path / "order"
    commands = [python(name, f"open({str(place)!r}, 'a').write({name!r})") for name in "cab"]
    run_all(tmp_path, *commands, at_once=1)
    assert place.read_text() == "cab"


def test_commands_that_have_not_begun_when_the_time_is_up_are_left_out(tmp_path: Path) -> None:
    first, second = python("first", ""), python("second", "")
    now = time.monotonic()
    run = CommandRun([first, second], tmp_path / "logs", 1, lambda _: None, until=now)
    run.run()
    assert run.outcomes == []
    assert run.left_out == [first, second]


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at_once", [2, 3])
def test_an_interrupted_run_lets_its_commands_end_in_order_and_has_no_outcome_of_them(
    tmp_path: Path, by: signal.Signals, at_once: int
) -> None:
    waiting, tidied = tmp_path / "waiting", tmp_path / "tidied"
    waits = f"""
import pathlib, signal, time
try:
    pathlib.Path({str(waiting)!r}).touch()
    signal.pause()
except KeyboardInterrupt:
    time.sleep(0.5)
    pathlib.Path({str(tidied)!r}).touch()
"""
    # It ends when the other one has begun to wait.
    first = f"import os, time\nwhile not os.path.exists({str(waiting)!r}): time.sleep(0.01)"
    run = CommandRun(
        [python("first", first), python("waits", waits)],
        tmp_path / "logs",
        at_once,
        lambda _: os.kill(os.getpid(), by),
    )
    with pytest.raises(KeyboardInterrupt):
        run.run()

    assert tidied.exists()
    assert [outcome.name for outcome in run.outcomes] == ["first"]
