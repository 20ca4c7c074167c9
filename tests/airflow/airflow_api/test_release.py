"""An Airflow that is too old is refused in one sentence, with the interface that it lacks."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from airflow.jobs.triggerer_job_runner import TriggerCommsDecoder
from airflow.triggers.base import BaseTrigger

import sqs_lease.airflow
from sqs_lease.airflow.airflow_api import release

PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"
ANSWERS = (
    "a triggerer that gives each answer to the trigger that asked (TriggerCommsDecoder.start_reader); "
    "`from sqs_lease import lease` works there, within one task"
)


@pytest.mark.parametrize("version", ["3.3.0", "3.3.2", "3.10.1", "3.4.0b1"])
def test_a_release_that_the_package_works_on_is_not_refused(version: str) -> None:
    release.require_supported(version)


@pytest.mark.parametrize(
    ("version", "missing"),
    [
        (
            "3.2.2",
            "triggers that hear of what users do (BaseTrigger.on_kill); `from sqs_lease import lease` works there, "
            "within one task",
        ),
        ("3.1.8", ANSWERS),
        ("3.0.6", ANSWERS),
        ("2.11.0", "the Task SDK (airflow.sdk); `from sqs_lease import lease` works there, within one task"),
    ],
)
def test_an_older_release_is_refused_with_what_it_lacks(version: str, missing: str) -> None:
    with pytest.raises(ImportError) as refused:
        release.require_supported(version)
    expected = f"sqs_lease.airflow needs Airflow 3.3 or newer, because Airflow {version} lacks {missing}"
    assert str(refused.value) == expected


@pytest.mark.parametrize("name", sqs_lease.airflow.__all__)
def test_names_for_dags_are_marked_as_such(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ImportError("too old")

    monkeypatch.setattr(release, "require_supported", refuse)
    with pytest.raises(ImportError, match="too old"):
        getattr(sqs_lease.airflow, name)


def test_the_release_that_is_installed_has_what_older_ones_lack() -> None:
    assert release.is_supported()
    assert hasattr(TriggerCommsDecoder, "start_reader")
    assert hasattr(BaseTrigger, "on_kill")


def test_no_older_release_is_installed_with_the_package() -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert f"apache-airflow>={'.'.join(map(str, release.OLDEST))},<4" in extras["airflow"]
