"""Runs commands side by side, each in a process of its own with a log of its own, and says what became of each.

A command is one part of a test run: a type checker, or pytest over some files. The commands are independent, so that
a part pays for the imports that it needs (Airflow, Dagster, Spark) once, and a part that was cut off can be run again
alone.

A run that is interrupted (SIGINT or SIGTERM) interrupts its commands, waits until they have stopped their servers, and
leaves what did not end out of the outcomes. When the run itself is killed, a guard beside each command ends that too.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from demo.processes import ROOT, ServerProcess, start_process
from demo.sessions import send_signal

STOP_SECONDS: Final = 60.0
"""How long an interrupted command may take to stop its servers, before it is killed."""

NO_TESTS: Final = 5
"""pytest's exit code when it found no test."""


@dataclass(frozen=True, slots=True)
class Command:
    """One part of a run.

    Attributes:
        name: Its name in lines and tables, and the name of its log.
        arguments: The program and its arguments.
        is_pytest: Whether it is pytest, which says how many tests passed.
        may_be_empty: Whether pytest may find no test.
        environment: Its environment besides that of the run.
    """

    name: str
    arguments: Sequence[str]
    is_pytest: bool = False
    may_be_empty: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a command.

    Attributes:
        name: The command's name.
        exit_code: Its exit code; negative: the signal that ended it. 0 for a pytest that found no test, and may.
        passed: How many tests passed.
        failed: How many tests failed, or could not be set up.
        skipped: How many tests were skipped.
        seconds: How long it took.
        processor_seconds: How much processor time it took, with all the processes that it waited for.
        has_report: Whether pytest lived to write its report; without one, it is unknown what it ran.
    """

    name: str
    exit_code: int
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    has_report: bool = True

    @property
    def is_good(self) -> bool:
        """Whether it did what it should."""
        return not self.exit_code and not self.failed and self.has_report

    @property
    def in_words(self) -> str:
        """Its result in a few words, for example `12 passed, 1 skipped`."""
        counts = ((self.passed, "passed"), (self.failed, "failed"), (self.skipped, "skipped"))
        words = [f"{count} {what}" for count, what in counts if count]
        if self.exit_code < 0:
            words.append(f"ended by signal {-self.exit_code}")
        elif self.exit_code == NO_TESTS:
            words.append("found no test")
        elif self.exit_code and not self.failed:
            words.append(f"ended with {self.exit_code}")
        elif not self.has_report:
            words.append("ended without a report")
        return ", ".join(words) or "good"


class CommandRun:
    """One run of several commands.

    Args:
        commands: What to run, in the order in which it is started.
        directory: Where the logs go; made when it is missing.
        at_once: How many commands run at the same time.
        ended: Called with each outcome, one at a time, when its command ended.
        until: When no more commands begin, in seconds of the monotonic clock.

    Attributes:
        outcomes: The outcomes of the commands that ended, in that order.
        left_out: The commands that did not begin in time.
    """

    def __init__(
        self,
        commands: Sequence[Command],
        directory: Path,
        at_once: int,
        ended: Callable[[Outcome], None],
        *,
        until: float = math.inf,
    ) -> None:
        self._waiting = list(commands)
        self._directory = directory
        self._at_once = at_once
        self._ended = ended
        self._until = until
        self._lock = threading.Lock()
        self._running: dict[str, ServerProcess] = {}
        self._is_stopped = False
        self.outcomes: list[Outcome] = []
        self.left_out: list[Command] = []

    def run(self) -> None:
        """Run all commands, and return when the last one ended.

        Raises:
            KeyboardInterrupt: The run was interrupted; its commands have ended.
            Exception: The run itself failed, for example as no log can be written; its commands have ended.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        pool = ThreadPoolExecutor(self._at_once)
        workers: list[Future[None]] = []
        try:
            workers += [pool.submit(self._work) for _ in range(self._at_once)]
            for worker in wait(workers, return_when=FIRST_EXCEPTION).done:
                worker.result()
        except BaseException:
            self._stop(workers)
            raise
        finally:
            pool.shutdown()
            signal.signal(signal.SIGTERM, before)

    def log_of(self, name: str) -> Path:
        """The log of a command."""
        return self._directory / f"{name.replace('/', '-').replace(' ', '-')}.log"

    def _work(self) -> None:
        while True:
            with self._lock:
                if time.monotonic() > self._until:
                    self.left_out += self._waiting
                    self._waiting.clear()
                if self._is_stopped or not self._waiting:
                    return
                command = self._waiting.pop(0)
                process, report = self._start(command)
            began_at = time.monotonic()
            # For the processor time, which Popen.wait() does not tell.
            _, status, usage = os.wait4(process.pid, 0)
            process.popen.returncode = os.waitstatus_to_exitcode(status)
            seconds = time.monotonic() - began_at
            process.kill()
            counts = _counts(report) if command.is_pytest else {}
            is_empty = command.may_be_empty and process.popen.returncode == NO_TESTS
            outcome = Outcome(
                command.name,
                0 if is_empty else process.popen.returncode,
                seconds=seconds,
                processor_seconds=usage.ru_utime + usage.ru_stime,
                has_report=counts is not None,
                **(counts or {}),
            )
            with self._lock:
                del self._running[command.name]
                if not self._is_stopped:
                    self.outcomes.append(outcome)
                    self._ended(outcome)

    def _start(self, command: Command) -> tuple[ServerProcess, Path]:
        log = self.log_of(command.name)
        report = log.with_suffix(".xml")
        for earlier in (log, report):
            earlier.unlink(missing_ok=True)
        process = start_process(
            command.name,
            [*command.arguments, *([f"--junitxml={report}"] if command.is_pytest else [])],
            log_path=log,
            environment={**os.environ, **command.environment},
            directory=ROOT,
        )
        self._running[command.name] = process
        return process, report

    def _stop(self, workers: Sequence[Future[None]]) -> None:
        self._is_stopped = True
        try:
            send_signal([process.pid for process in list(self._running.values())], signal.SIGINT)
            wait(workers, timeout=STOP_SECONDS)
        finally:
            # Also when a user who does not want to wait that long interrupts this.
            running = list(self._running.values())
            send_signal([pid for process in running for pid in process.session_pids()], signal.SIGKILL)


def _counts(report: Path) -> dict[str, int] | None:
    """The counts of pytest's report in JUnit's form; None where it has not lived to write it whole."""
    try:
        suites = list(ET.parse(report).getroot().iter("testsuite"))
    except (FileNotFoundError, ET.ParseError):
        return None

    def total(*names: str) -> int:
        return sum(int(suite.get(name, "0")) for suite in suites for name in names)

    failed, skipped = total("failures", "errors"), total("skipped")
    return {"passed": max(0, total("tests") - failed - skipped), "failed": failed, "skipped": skipped}
