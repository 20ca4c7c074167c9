"""Shared by the scenarios of Dagster and the tests of its modules: queues in memory, and instances made quickly."""

from __future__ import annotations

from tests.dagster.components.conftest import shop
from tests.dagster.conftest import (
    databases_that_survive_no_power_cut,
    instance,
    leased_queues,
    migrations_that_are_read_once,
)

__all__ = ["databases_that_survive_no_power_cut", "instance", "leased_queues", "migrations_that_are_read_once", "shop"]
