"""The job that ingests: its command line and environment, its process, and the result that it leaves in a file.

A task starts it, hands on its output line by line, and ends it when the task ends. Its standard input is a pipe that
stays empty. When the task's process dies in any way, the pipe closes and the job ends by itself
(``--end-with-stdin``).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from sqs_lease.ingestion.result import ResultError, StoredResult

ERROR: Final = "error: "
"""The beginning of a failed job's last line."""


class JobError(RuntimeError):
    """Error of a failed job; the text is the job's own last error, or its exit code."""


class JobProcess:
    """A job under way. As a context manager it ends with the block at the latest.

    Args:
        command: The program and its arguments.
        environment: Its whole environment.
        grace_seconds: How long it may take to end when it is told to; then its processes are killed.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        # In a session of its own, so that Spark's Java and Python processes can be ended with it.
        self._process = subprocess.Popen(  # noqa: S603 - the task's author chose the command
            command,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Still running if the caller was interrupted before follow(), which ends the job.
        if self._process.poll() is None:
            self.end()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def follow(self, hand_on: Callable[[str], object]) -> None:
        """Hand on each line that it writes, until it has ended. An interruption of this ends the job.

        Args:
            hand_on: Takes a line, without its end.

        Raises:
            JobError: It failed.
        """
        last_error = ""
        try:
            for line in self._lines():
                hand_on(line)
                if line.startswith(ERROR):
                    last_error = line.removeprefix(ERROR)
            code = self._process.wait()
        except BaseException:
            self.end()
            raise
        self._kill_what_is_left()
        if code != 0:
            raise JobError(last_error or f"the ingestion ended with exit code {code}: see the log above")

    def end(self) -> None:
        """Tell it to end, which cancels its Spark jobs; kill the rest after :attr:`grace_seconds`.

        It may be called from any thread, and in a signal handler.
        """
        try:
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(self._grace_seconds)
        finally:
            # Also if the wait itself is interrupted: after a second signal there is no more time to wait.
            self._kill_what_is_left()

    def _lines(self) -> Iterator[str]:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        for line in self._process.stdout:
            yield line.rstrip()

    def _kill_what_is_left(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def job_arguments(spec: Mapping[str, Any], manifests: Iterable[str], result: str | None = None) -> list[str]:
    """Return the job's arguments, for a command or a submission.

    Args:
        spec: Source, sink and workspace, see ``sqs_lease/ingestion/spec.py``.
        manifests: The files with the messages, as paths or URIs that the job reaches.
        result: The file for its result; None if it is started under Dagster Pipes, which carries the result.
    """
    named = [argument for manifest in manifests for argument in ("--manifest", manifest)]
    return [*named, *(["--result", result] if result is not None else []), "--spec", json.dumps(dict(spec))]


def job_command(python: str, spark: str, arguments: Iterable[str]) -> list[str]:
    """Return the command of a job that runs beside its task, and ends with it.

    Args:
        python: The Python of an environment with ``sqs-lease[spark]``.
        spark: Where Spark runs: a master such as ``local[2]`` or ``spark://host:7077``, or a Connect server
            (``sc://host:15002``).
        arguments: The arguments, see :func:`job_arguments`.
    """
    engine = "--remote" if spark.startswith("sc://") else "--master"
    return [python, "-m", "sqs_lease.spark.job", *arguments, engine, spark, "--end-with-stdin"]


def job_environment(environment: Mapping[str, str], *, leave_out: str) -> dict[str, str]:
    """Return a job's environment: its task's without the orchestrator's own variables, which may hold its secrets.

    Args:
        environment: The task's environment.
        leave_out: The prefix of the orchestrator's variables, after underscores.
    """
    passed = {name: value for name, value in environment.items() if not name.lstrip("_").startswith(leave_out)}
    return {**passed, "PYTHONUNBUFFERED": "1"}


def read_result(path: Any) -> StoredResult:
    """Read the result of a job that ended without an error.

    Args:
        path: The file: an object that opens files as :class:`pathlib.Path` does.

    Raises:
        JobError: The result is missing, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            return StoredResult.decode(file.read().decode())
    except (OSError, ResultError) as error:
        raise JobError(f"the job ended without an error, but its result cannot be read: {error}") from error
