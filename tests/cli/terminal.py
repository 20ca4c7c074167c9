"""`sqs-lease` in a real terminal: what it asks, what it draws, and what Ctrl-C does."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pexpect

ROOT: Final = Path(__file__).resolve().parents[2]

PATIENCE_SECONDS: Final = 300
"""Only stops a hang."""

CTRL_C: Final = "\x03"

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


@contextmanager
def in_terminal(*arguments: str, columns: int = 80) -> Iterator[pexpect.spawn[str]]:
    """Run Python with some arguments in a terminal of that width."""
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": f"{ROOT / 'providers'}{os.pathsep}{ROOT}"}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        environment.pop(name, None)
    child = pexpect.spawn(
        sys.executable,
        list(arguments),
        cwd=str(ROOT),
        env=environment,
        dimensions=(40, columns),
        encoding="utf-8",
        # The terminal echoes Ctrl-C as ^C at once, also between the bytes of a character.
        codec_errors="replace",
        timeout=PATIENCE_SECONDS,
    )
    try:
        yield child
    finally:
        child.close(force=True)


def rest_of(child: pexpect.spawn[str]) -> tuple[str, int | None]:
    """Wait for the end; return what was printed since the last look, without escapes, and the exit code."""
    child.expect(pexpect.EOF)
    child.close()
    return _ESCAPES.sub("", child.before or ""), child.exitstatus
