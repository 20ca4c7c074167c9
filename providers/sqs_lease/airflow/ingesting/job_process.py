"""The process that ingests: started by a task, its output handed on line by line, ended when the task is.

Its standard input is a pipe that nobody writes to. When the task's process dies, however that happens, the pipe closes
and the job ends by itself (``--end-with-stdin``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

END_SECONDS: Final = 4.0
"""How long a job that is told to end may take; Airflow kills the task's process five seconds after it said so."""


class JobProcess:
    """A job under way.

    Args:
        command: The program and its arguments.
        environment: Its whole environment.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # In a session of its own, so that Spark's Java and Python processes can be ended with it.
        self._process = subprocess.Popen(  # noqa: S603 - the task's author says what is run
            command,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def lines(self) -> Iterator[str]:
        """What it writes, until it ends."""
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        for line in self._process.stdout:
            yield line.rstrip()

    def exit_code(self) -> int:
        """Wait until it has ended, and for what it started; how it ended, negative for a signal."""
        code = self._process.wait()
        self._kill_what_is_left()
        return code

    def end(self, grace_seconds: float = END_SECONDS) -> None:
        """Tell it to end, which cancels its Spark jobs; kill what is left of it after a while.

        It may be called from any thread, and in a signal handler.
        """
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_seconds)
        self._kill_what_is_left()

    def _kill_what_is_left(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
