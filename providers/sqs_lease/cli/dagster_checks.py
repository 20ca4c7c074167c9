"""Checks of this installation of Dagster: the effects of its settings on leases.

Dagster is imported in these functions only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sqs_lease.cli.findings import Finding
from sqs_lease.cli.output import CommandError
from sqs_lease.cli.versions import extra_versions

if TYPE_CHECKING:
    from dagster import DagsterInstance


def require_dagster() -> None:
    """Check that Dagster is installed.

    Raises:
        CommandError: It is not.
    """
    try:
        import dagster  # noqa: F401
    except ModuleNotFoundError as error:
        raise CommandError(
            f"--dagster needs Dagster, and {error.name} is not installed here: run the command where the daemon runs, "
            'or pip install "sqs-lease[dagster]"'
        ) from None


def run_attempts() -> Mapping[str, int]:
    """Return how often Dagster retries a failed run at this installation's settings: each retry receives again."""
    instance = _instance()
    if instance is None:
        return {}
    with instance:
        return {"Dagster": instance.run_retries_max_retries} if instance.run_retries_enabled else {}


def dagster_findings() -> Iterator[Finding]:
    """Yield all findings about this installation, in the order in which people read them."""
    yield from extra_versions("dagster")
    instance = _instance()
    if instance is None:
        yield Finding.note(
            "run_retries",
            "DAGSTER_HOME is not set, so the settings of the instance were not checked",
            change="Run the command with the DAGSTER_HOME of the daemon.",
        )
        return
    with instance:
        yield _run_retries(instance)


def _run_retries(instance: DagsterInstance) -> Finding:
    retries = instance.run_retries_max_retries if instance.run_retries_enabled else 0
    if not retries:
        return Finding.fine("run_retries", "runs are not retried unless their tags say so")
    return Finding.fine("run_retries", f"a failed run is retried up to {retries} times, and each time receives again")


def _instance() -> DagsterInstance | None:
    from dagster import DagsterError, DagsterInstance

    if not os.environ.get("DAGSTER_HOME"):
        return None
    try:
        return DagsterInstance.get()
    except DagsterError as error:
        raise CommandError(f"The instance of Dagster in DAGSTER_HOME cannot be opened: {error}") from None
