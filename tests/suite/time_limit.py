"""A pytest plugin: begins no test after a moment, and says how many were left out. `make check` has a minute.

``SQS_LEASE_TESTS_UNTIL`` has the moment, in seconds of the system's monotonic clock.
"""

from __future__ import annotations

import os
import time
from typing import Final

import pytest

VARIABLE: Final = "SQS_LEASE_TESTS_UNTIL"

_left_out = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin with nothing left out."""
    config.stash[_left_out] = 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Pass over a test for which there is no time; it counts neither as passed nor as skipped."""
    if time.monotonic() < float(os.environ.get(VARIABLE, "inf")):
        return None
    item.config.stash[_left_out] += 1
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests were left out."""
    count = terminalreporter.config.stash[_left_out]
    if count:
        terminalreporter.write_line(f"{count} {LEFT_OUT}")


LEFT_OUT: Final = "tests left out: the time was up"
