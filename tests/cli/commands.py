"""Runs the command `sqs-lease` in this process, as a shell would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from typer.testing import CliRunner

from sqs_lease.cli.app import app


@dataclass(frozen=True, slots=True)
class Ran:
    """The output of a command, and its exit code."""

    exit_code: int
    out: str
    err: str


def sqs_lease(*arguments: str, environment: Mapping[str, str] | None = None, columns: int = 80) -> Ran:
    """Run the command with some arguments, in a terminal of that width without colors; unexpected errors are raised."""
    # LINES, too: without it, Rich asks the terminal that the tests run in.
    size = {"COLUMNS": str(columns), "LINES": "25", "TERM": "dumb"}
    result = CliRunner().invoke(app, arguments, prog_name="sqs-lease", env={**size, **(environment or {})})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)
