"""The needs of a sink for PostgreSQL before it reaches a server."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.sinks.postgres.sink import PostgresSink


def test_without_psycopg_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, PostgresSink.__module__)
    with pytest.raises(ImportError, match=r"pip install 'sqs-lease\[postgres\]'"):
        import_module(PostgresSink.__module__)


def test_keys_are_a_sequence_of_different_columns() -> None:
    with pytest.raises(TypeError, match="upsert_by is a list of columns: put brackets around the one"):
        PostgresSink("postgresql://localhost/x", "orders", "id")
    with pytest.raises(SchemaError, match="upsert_by is a list of columns, each once"):
        PostgresSink("postgresql://localhost/x", "orders", ("id", "id"))
