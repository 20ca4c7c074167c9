"""An older Airflow says nothing about the plugin that it cannot have."""

from __future__ import annotations

from typing import Any

from airflow import plugins_manager


def test_the_plugin_is_not_an_import_error() -> None:
    plugins_manager.ensure_plugins_loaded()
    older: Any = plugins_manager  # newer ones have a function for it
    assert not [name for name in older.import_errors if "sqs_lease" in name]
