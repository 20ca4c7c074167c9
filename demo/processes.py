"""Server processes of the demo and the tests: started with a log file, awaited with a deadline, stopped by pid.

Every process becomes the leader of a session of its own. All that it starts stays in that session (Airflow's
supervisors change their process group, never their session), so stopping the leader also finds what it left
behind. A guard beside each ends it when the process that started it is killed, see :mod:`demo.guard`.
"""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.sessions import send_signal, session_members, wait_for

ROOT = Path(__file__).resolve().parent.parent
"""The checkout: what it contains in hidden directories (`.venv`, `.ministack`, `.demo`) is git-ignored."""

LOOPBACK = "127.0.0.1"

POLL_SECONDS = 0.05
LONGEST_POLL_SECONDS = 1.0
QUESTIONS_SHARE = 0.04
"""How much of the time a server is asked how it stands, at most: one that is busy is not kept busy by being asked."""

KILL_SECONDS = 60.0


class ProcessFailedError(RuntimeError):
    """A process ended by itself or was not ready in time; the message shows the end of its log and its place."""


@dataclass(slots=True)
class ServerProcess:
    """One running process and its log file."""

    name: str
    log_path: Path
    popen: subprocess.Popen[bytes]
    guard: subprocess.Popen[bytes]
    is_gone: bool = False
    """Whether it was stopped or killed: the system may have given its id to another process since."""

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its session."""
        return self.popen.pid

    @property
    def is_running(self) -> bool:
        """Whether the process itself (not what it started) still runs."""
        return self.popen.poll() is None

    def session_pids(self) -> list[int]:
        """The ids of the process and of everything it started that still runs."""
        if self.is_gone:
            return []
        return session_members(self.pid)

    def stop(self, grace_seconds: float = 10.0) -> None:
        """End the process in an orderly way: SIGTERM, time to finish, then SIGKILL for whatever is left.

        Does nothing when all of it has ended already.

        Args:
            grace_seconds: How long the process may take to end by itself.
        """
        request_stop([self])
        await_stop([self], grace_seconds)

    def kill(self) -> None:
        """End the process and everything it started at once, as a crash of the machine would (SIGKILL).

        Returns when nothing of it runs any more.

        Raises:
            ProcessFailedError: Something of it still runs after a minute.
        """
        deadline = time.monotonic() + KILL_SECONDS
        # More than one round: what is being killed may just have started something.
        while pids := self.session_pids():
            if time.monotonic() > deadline:
                raise self.failure(f"left the processes {pids} behind, which SIGKILL does not end")
            send_signal(pids, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(POLL_SECONDS)
            wait_for([pid for pid in pids if pid != self.pid], POLL_SECONDS)
        self.popen.wait(KILL_SECONDS)
        if not self.is_gone:
            self.is_gone = True
            self.guard.communicate(b"done\n")

    def failure(self, what_happened: str) -> ProcessFailedError:
        """An error that says what happened, with the end of the log and the path of the whole."""
        lines = self.log_path.read_text(errors="replace").splitlines()[-20:]
        tail = "\n".join(f"    {line}" for line in lines) or "    (it wrote nothing)"
        return ProcessFailedError(
            f"{self.name} (pid {self.pid}) {what_happened}.\nThe end of its log, {self.log_path}:\n{tail}"
        )


def start_process(
    name: str,
    command: Sequence[str | Path],
    *,
    log_path: Path,
    environment: Mapping[str, str],
    directory: Path,
    user: str | None = None,
) -> ServerProcess:
    """Start a process in a session of its own, its output appended to a log file.

    Where a signal interrupts this, such as Ctrl-C, nothing has been started.

    Args:
        name: Its name in messages.
        command: The program, by its absolute path, and its arguments.
        log_path: Where its standard output and error go.
        environment: Its whole environment: nothing is inherited.
        directory: Its working directory.
        user: As whom it runs, which takes root; None is as whom this process runs.

    Returns:
        The process, which may not be ready yet: see :func:`wait_until`.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    started: list[ServerProcess] = []
    try:
        with log_path.open("ab") as log, _postponed_signals():
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=directory,
                start_new_session=True,
                user=user,
            )
            guard = subprocess.Popen(
                [sys.executable, "-m", "demo.guard", str(popen.pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=ROOT,
                start_new_session=True,
            )
            started.append(ServerProcess(name, log_path, popen, guard))
        return started[0]
    except BaseException:
        # The caller does not have it, so it is killed here.
        for process in started:
            process.kill()
        raise


@contextlib.contextmanager
def _postponed_signals() -> Iterator[None]:
    """Have the signals wait for the end of the block that Python handles, and would raise an exception for.

    None is ignored meanwhile, because what is started inherits that: a shell script has what it runs in the background
    ignore SIGINT, and Dagster does with SIGTERM as with SIGINT, so its servers would not end when they are asked to.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles none elsewhere.
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    # Not those that have their default, or a handler that was not set from Python.
    handlers = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_DFL, None)}
    try:
        for number in handlers:
            signal.signal(number, lambda number, _frame: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def request_stop(processes: Sequence[ServerProcess]) -> None:
    """Send SIGTERM to every process that still runs, without waiting for any."""
    for process in processes:
        if process.is_running:
            send_signal([process.pid], signal.SIGTERM)


def await_stop(processes: Sequence[ServerProcess], grace_seconds: float) -> None:
    """Wait for processes that were asked to end, and kill what is left of them when the time is over.

    Args:
        processes: What to wait for.
        grace_seconds: How long all of them together may take.
    """
    deadline = time.monotonic() + grace_seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.popen.wait(max(0.0, deadline - time.monotonic()))
        process.kill()


def wait_until(
    ready: Callable[[], bool],
    *,
    processes: Sequence[ServerProcess],
    what: str,
    deadline_seconds: float,
) -> None:
    """Ask again and again whether something is the case, while the processes it depends on run.

    Args:
        ready: The question; asked every 50 ms, and less often where the answer takes some milliseconds.
        processes: If one of them ends, waiting is over.
        what: The condition, to complete the sentence "... was not <what> within ... s".
        deadline_seconds: How long to wait at most.

    Raises:
        ProcessFailedError: A process ended, or the deadline passed.
    """
    asked_at = time.monotonic()
    deadline = asked_at + deadline_seconds
    while not ready():
        require_running(processes)
        answered_at = time.monotonic()
        if answered_at > deadline:
            raise processes[0].failure(f"was not {what} within {deadline_seconds:.0f} s")
        pause(processes[0], pause_seconds(answered_at - asked_at))
        asked_at = time.monotonic()


def pause_seconds(answer_seconds: float) -> float:
    """How long to wait before a question is asked again, so that asking takes a twenty-fifth of the time at most.

    Args:
        answer_seconds: How long its last answer took.

    Returns:
        Seconds, from 50 ms to 1 s.
    """
    return min(max(answer_seconds * (1 / QUESTIONS_SHARE - 1), POLL_SECONDS), LONGEST_POLL_SECONDS)


def require_running(processes: Iterable[ServerProcess]) -> None:
    """Check that processes still run.

    Raises:
        ProcessFailedError: One of them ended by itself.
    """
    for process in processes:
        if not process.is_running:
            raise process.failure(f"ended with exit code {process.popen.returncode}")


def pause(process: ServerProcess, seconds: float = POLL_SECONDS) -> None:
    """Let some time pass, less if the process ends meanwhile.

    Args:
        process: The process to watch.
        seconds: How long to wait at most.
    """
    try:
        process.popen.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def listens(port: int) -> bool:
    """Whether something listens on a port of the loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        return client.connect_ex((LOOPBACK, port)) == 0


def free_port() -> int:
    """A port on the loopback address that nothing listens on.

    It lies below the range from which the system takes ports for outgoing connections (32768 and up on Linux),
    so that none of those takes it before the server that it is meant for listens. Nor is it given to anybody else who
    asks here, in this process or another one, until this process has ended: it holds the UDP port of that number.

    Raises:
        RuntimeError: A hundred tries found none.
    """
    for _ in range(100):
        port = random.randrange(20_000, 32_000)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
            try:
                candidate.bind((LOOPBACK, port))
            except OSError:
                continue
        held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            held.bind((LOOPBACK, port))
        except OSError:
            held.close()
            continue
        held.detach()
        return port
    raise RuntimeError(f"No free port between 20000 and 32000 on {LOOPBACK}.")
