"""Instances of Dagster in files, for tests that look at runs from another process, thread or run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg

# The output of the test has the prints of steps. Dagster's own way to keep them takes two processes a step.
_NO_COMPUTE_LOGS = {
    "compute_logs": {
        "module": "dagster._core.storage.noop_compute_log_manager",
        "class": "NoOpComputeLogManager",
    }
}


@contextmanager
def stored_instance(**overrides: Any) -> Iterator[dg.DagsterInstance]:
    """Have an instance for as long as the block lasts, in a directory of its own."""
    with dg.instance_for_test({**_NO_COMPUTE_LOGS, **overrides}) as instance:
        yield instance
