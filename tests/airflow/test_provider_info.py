"""The provider's metadata, which Airflow reads by itself."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import airflow
import jsonschema  # type: ignore[import-untyped]

from sqs_lease.airflow.provider_info import get_provider_info

SCHEMA = json.loads(Path(airflow.__file__).with_name("provider_info.schema.json").read_text())


def test_airflow_finds_the_provider_with_its_version_and_modules() -> None:
    (entry_point,) = entry_points(group="apache_airflow_provider", name="provider_info").select(
        module="sqs_lease.airflow.provider_info"
    )
    assert entry_point.load() is get_provider_info
    information = get_provider_info()
    assert information["package-name"] == "sqs-lease"
    for kind in ("operators", "sensors", "triggers"):
        for entry in information[kind]:
            for module in entry["python-modules"]:
                import_module(module)


def test_the_metadata_is_what_airflow_knows_and_nothing_else() -> None:
    information = get_provider_info()
    jsonschema.validate(information, SCHEMA)
    assert set(information) <= set(SCHEMA["properties"])


def test_the_metadata_names_nothing_twice() -> None:
    information = get_provider_info()
    named: list[str] = [*information["queues"], *information["extra-links"]]
    for kind in ("operators", "sensors", "triggers"):
        named += [module for entry in information[kind] for module in entry["python-modules"]]
    assert len(named) == len(set(named))


def test_the_option_of_a_payload_is_among_those_that_airflow_shows() -> None:
    assert "payload" in get_provider_info()["config"]["sqs_lease"]["options"]
