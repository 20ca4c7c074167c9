"""How the demo ends when something is missing or in its way."""

from __future__ import annotations

import fcntl
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import demo.__main__ as demo

Run = Callable[..., int]


@pytest.fixture
def last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo has its files: in a directory of the test."""
    monkeypatch.setattr(demo, "LAST", tmp_path / "last")
    return tmp_path / "last"


@pytest.fixture
def run(last: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs the demo in this process."""

    def run_with(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["demo", *arguments])
        return demo.main()

    handlers = {number: signal.getsignal(number) for number in demo.SIGNALS}
    yield run_with
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_without_java_it_says_so_before_anything_is_started(
    last: Path, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")

    assert run() == 1

    printed = capsys.readouterr()
    assert "The demo failed: JAVA_HOME is /nowhere" in printed.err
    assert "Java 17 or newer" in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert not last.exists()


def test_a_second_demo_is_refused_while_one_runs(last: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with last.with_name("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711")
        lock.flush()

        assert run() == 1

    errors = capsys.readouterr().err
    assert "another demo of this checkout is running" in errors
    assert "kill 4711" in errors
    assert not last.exists()


def test_an_orchestrator_that_it_does_not_know_is_refused(
    last: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run("--orchestrator", "cron")

    assert ended.value.code == 2
    assert re.search(r"invalid choice: 'cron' \(choose from '?airflow'?, '?dagster'?\)", capsys.readouterr().err)
    assert not last.exists()
