"""The findings of `doctor` in an installation of Dagster."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqs_lease.cli import dagster_checks, versions
from sqs_lease.cli.findings import Finding, Level
from tests.cli.commands import sqs_lease
from tests.cli.conftest import Ground
from tests.cli.wire import Wire


@pytest.fixture
def dagster_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    return tmp_path


def of_dagster() -> dict[str, Finding]:
    return {finding.check: finding for finding in dagster_checks.dagster_findings()}


def test_without_a_home_the_settings_of_dagster_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)

    assert dagster_checks.run_attempts() == {}
    assert "DAGSTER_HOME is not set" in of_dagster()["run_retries"].what


def test_the_retries_of_runs_count_as_receives(dagster_home: Path) -> None:
    (dagster_home / "dagster.yaml").write_text("run_retries:\n  enabled: true\n  max_retries: 4\n")

    assert dagster_checks.run_attempts() == {"Dagster": 4}
    assert "retried up to 4 times" in of_dagster()["run_retries"].what


@pytest.mark.processes
def test_more_retries_than_receives_bite(wire: Wire, ground: Ground, dagster_home: Path) -> None:
    (dagster_home / "dagster.yaml").write_text("run_retries:\n  enabled: true\n  max_retries: 5\n")
    dead = ground.queue("dead", MessageRetentionPeriod="1209600")
    orders = ground.queue("orders", RedrivePolicy=ground.redrive_to(dead, 5))

    ran = sqs_lease("doctor", orders, "--dagster")

    assert ran.exit_code == 1
    assert "maxReceiveCount is 5, and Dagster tries 6 times" in " ".join(ran.out.split())


def test_a_configuration_that_cannot_be_read_is_one_line(dagster_home: Path) -> None:
    (dagster_home / "dagster.yaml").write_text("nonsense: 1\n")

    ran = sqs_lease("doctor", "orders", "--dagster")

    assert (ran.exit_code, ran.out) == (2, "")
    assert "The instance of Dagster in DAGSTER_HOME cannot be opened" in ran.err
    assert ran.err.count("\n") == 1


def test_a_version_out_of_bounds_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        versions, "requires", lambda name: ['dagster<1; extra == "dagster"', 'absent-package; extra == "dagster"']
    )

    old, missing = versions.extra_versions("dagster")

    assert old.level is missing.level is Level.PROBLEM
    assert old.why == "sqs-lease[dagster] is made for dagster<1."
    assert missing.what == "absent-package is not installed"
