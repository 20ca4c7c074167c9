"""The plugin that Airflow loads by itself."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import pytest
from airflow import plugins_manager, settings

from sqs_lease.airflow.plugin import SqsLeasePlugin


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
