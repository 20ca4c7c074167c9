"""Shared by the tests of the Dagster package: queues in memory, and instances that are made and written quickly."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import dagster as dg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import event
from sqlalchemy.engine import Engine

from sqs_lease.testing.pytest_plugin import leased_queues
from tests.dagster.instances import stored_instance

__all__ = ["leased_queues"]


@pytest.fixture(scope="session", autouse=True)
def databases_that_survive_no_power_cut() -> Iterator[None]:
    """Dagster's instances are in files of SQLite, which waits for the disk at the end of each transaction."""

    # A function of its own: a run of these tests and of the scenarios has this fixture twice.
    def wait_for_no_disk(connection: object, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", wait_for_no_disk)
    yield
    event.remove(Engine, "connect", wait_for_no_disk)


@pytest.fixture(scope="session", autouse=True)
def migrations_that_are_read_once() -> Iterator[None]:
    """Dagster looks at the revision of each database that it makes, which is one a run, and reads them all for it."""
    read = ScriptDirectory.from_config
    known: dict[str | None, ScriptDirectory] = {}

    def read_once(config: Config) -> ScriptDirectory:
        place = config.get_main_option("script_location")
        if place not in known:
            known[place] = read(config)
        return known[place]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", read_once)
        yield


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance in files, which the tests of a module share."""
    with stored_instance() as made:
        yield made
