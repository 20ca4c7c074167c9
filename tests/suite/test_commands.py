"""Commands run side by side; each outcome says what became of one, and an interrupted run leaves no process behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
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


@pytest.mark.parametrize(("exit_code", "is_good"), [(0, True), (5, True), (1, False), (2, False), (-9, False)])
def test_a_run_without_tests_is_good_and_one_that_was_killed_is_not(exit_code: int, is_good: bool) -> None:
    assert Outcome("some", exit_code).is_good is is_good


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
def test_an_interrupted_run_ends_its_commands_and_has_no_outcome_of_them(tmp_path: Path, by: signal.Signals) -> None:
    waiting = tmp_path / "waiting"
    waits = f"import os, signal; open({str(waiting)!r}, 'w').write(str(os.getpid())); signal.pause()"
    # It ends when the other one has begun to wait.
    first = f"import os, time\nwhile not os.path.exists({str(waiting)!r}): time.sleep(0.01)"
    commands = [python("first", first), python("waits", waits), python("never", "")]
    run = CommandRun(commands, tmp_path / "logs", 2, lambda _: os.kill(os.getpid(), by))
    with pytest.raises(KeyboardInterrupt):
        run.run()

    assert "waits" not in {outcome.name for outcome in run.outcomes}
    assert not psutil.pid_exists(int(waiting.read_text()))
