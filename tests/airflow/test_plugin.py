"""What Airflow loads of this package by itself: the provider's metadata and the plugin."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import airflow
import jsonschema  # type: ignore[import-untyped]
import pytest
from airflow import plugins_manager, settings

from sqs_lease.airflow.plugin import SqsLeasePlugin
from sqs_lease.airflow.provider_info import get_provider_info

SCHEMA = json.loads(Path(airflow.__file__).with_name("provider_info.schema.json").read_text())


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


@pytest.mark.parametrize("are_loaded_lazily", [True, False])
def test_airflow_loads_the_plugin_once_however_it_discovers_providers(
    are_loaded_lazily: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "LAZY_LOAD_PROVIDERS", are_loaded_lazily)
    load: Any = plugins_manager._get_plugins.__wrapped__
    plugins, import_errors = load()
    assert [type(one) for one in plugins if one.name == SqsLeasePlugin.name] == [SqsLeasePlugin]
    assert SqsLeasePlugin.name not in import_errors
    assert len(entry_points(group="airflow.plugins", name=SqsLeasePlugin.name)) == 1
