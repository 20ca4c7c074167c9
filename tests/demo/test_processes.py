"""The processes that the demo and the tests start: what is left of them, and what an error says."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import randrange
from typing import Any

import psutil
import pytest

from demo.processes import (
    ROOT,
    ProcessFailedError,
    ServerProcess,
    free_port,
    pause,
    pause_seconds,
    start_process,
    wait_until,
)

pytestmark = pytest.mark.processes

WITH_A_CHILD = """
import signal, subprocess, sys
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"])
signal.pause()
"""


class Starter:
    """Starts Python programs in a temporary directory, and stops them all at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.started: list[ServerProcess] = []

    def __call__(self, program: str, *arguments: str) -> ServerProcess:
        process = start_process(
            "The program",
            [sys.executable, "-c", program, *arguments],
            log_path=self.directory / "logs" / "program.log",
            environment={"PATH": os.environ["PATH"]},
            directory=self.directory,
        )
        self.started.append(process)
        return process


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    yield starter
    for process in starter.started:
        process.stop(grace_seconds=0)


def has_written(process: ServerProcess, text: str) -> None:
    wait_until(
        lambda: text in process.log_path.read_text(),
        processes=[process],
        what="ready",
        deadline_seconds=600,
    )


def has_ended(pid: int, watched: ServerProcess) -> bool:
    """Whether the pid is gone within a minute; a zombie that its parent leaves behind counts as gone."""
    for _ in range(1200):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        pause(watched)
    return False


@pytest.mark.parametrize(
    ("answer_seconds", "seconds"), [(0.0, 0.05), (0.001, 0.05), (0.02, 0.48), (0.05, 1.0), (30.0, 1.0)]
)
def test_a_question_is_asked_for_a_twenty_fifth_of_the_time_at_most(answer_seconds: float, seconds: float) -> None:
    assert pause_seconds(answer_seconds) == pytest.approx(seconds)


@pytest.mark.parametrize("arguments", [[], ["stubborn"]], ids=["ends on SIGTERM", "ignores SIGTERM"])
def test_stopping_a_process_also_ends_what_it_started(start: Starter, arguments: list[str]) -> None:
    process = start(WITH_A_CHILD, *arguments)
    has_written(process, "up")
    pids = process.session_pids()
    assert len(pids) == 2

    process.stop(grace_seconds=0.2)

    assert not process.is_running
    assert all(has_ended(pid, start("import signal; signal.pause()")) for pid in pids)


def test_killing_a_process_leaves_nothing_of_it(start: Starter) -> None:
    process = start(WITH_A_CHILD)
    has_written(process, "up")
    child = next(pid for pid in process.session_pids() if pid != process.pid)

    process.kill()

    assert process.popen.returncode == -signal.SIGKILL
    assert has_ended(child, start("import signal; signal.pause()"))


def test_a_process_that_is_being_started_at_ctrl_c_is_ended(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []
    make = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        made: subprocess.Popen[bytes] = make(*arguments, **options)
        pids.append(made.pid)
        os.kill(os.getpid(), signal.SIGINT)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", interrupted)
        with pytest.raises(KeyboardInterrupt):
            start("import signal; signal.pause()")

    assert pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_processes_in_the_background_of_a_script_heed_signals(start: Starter) -> None:
    # As a shell does with what it runs in the background, and nohup.
    former = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        process = start("import signal; print([signal.getsignal(one) for one in (signal.SIGINT, signal.SIGHUP)])")
        assert process.popen.wait(60) == 0
        assert all(signal.getsignal(number) is signal.SIG_IGN for number in former)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)

    said = process.log_path.read_text()
    assert "default_int_handler" in said
    assert "SIG_DFL" in said


def test_a_process_that_ends_before_it_is_ready_is_reported_with_its_log(start: Starter) -> None:
    process = start("print('The disk is full.'); raise SystemExit(3)")

    with pytest.raises(ProcessFailedError) as raised:
        wait_until(lambda: False, processes=[process], what="ready", deadline_seconds=600)

    assert "The program" in str(raised.value)
    assert "ended with exit code 3" in str(raised.value)
    assert "The disk is full." in str(raised.value)
    assert str(process.log_path) in str(raised.value)


def test_a_process_that_is_never_ready_is_given_up_at_the_deadline(start: Starter) -> None:
    process = start("import signal; signal.pause()")

    with pytest.raises(ProcessFailedError, match=r"was not ready within 0 s"):
        wait_until(lambda: False, processes=[process], what="ready", deadline_seconds=0)


def test_a_process_is_ended_when_the_one_that_started_it_is_killed(start: Starter, tmp_path: Path) -> None:
    parent_program = f"""
import os, signal, sys
from pathlib import Path
from demo.processes import start_process
child = start_process(
    "The child", [sys.executable, "-c", {WITH_A_CHILD!r}],
    log_path=Path({str(tmp_path / "child.log")!r}), environment=dict(os.environ), directory=Path.cwd(),
)
while len(pids := child.session_pids()) < 2:
    pass
print(*pids, flush=True)
signal.pause()
"""
    with subprocess.Popen(
        [sys.executable, "-c", parent_program], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert all(psutil.pid_exists(pid) for pid in pids)

        parent.kill()

    watched = start("import signal; signal.pause()")
    assert all(has_ended(pid, watched) for pid in pids)


def test_a_process_that_ignores_sigterm_after_its_starter_was_killed_is_killed_too(start: Starter) -> None:
    process = start(WITH_A_CHILD, "stubborn")
    has_written(process, "up")
    pids = process.session_pids()
    assert len(pids) == 2
    impatient = "from demo import guard; guard.GRACE_SECONDS = 0.1; guard.main()"

    with subprocess.Popen(
        [sys.executable, "-c", impatient, str(process.pid)], stdin=subprocess.PIPE, cwd=ROOT
    ) as guard:
        assert guard.stdin is not None
        guard.stdin.close()  # as when the starter is killed

    assert guard.returncode == 0
    assert process.popen.wait(600) == -signal.SIGKILL
    watched = start("import signal; signal.pause()")
    assert all(has_ended(pid, watched) for pid in pids)


def test_a_free_port_is_not_given_out_again_before_its_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    given, other = free_port(), free_port()
    drawn = [given, other, given]
    monkeypatch.setattr(random, "randrange", lambda *_: drawn.pop(0) if drawn else randrange(20_000, 32_000))
    assert free_port() not in (given, other)


def test_free_ports_stay_clear_of_those_that_outgoing_connections_get() -> None:
    assert all(20_000 <= free_port() < 32_000 for _ in range(20))
