"""Shared by the scenarios of Airflow and the tests of its modules: a scripted supervisor, and queues."""

from __future__ import annotations

from tests.airflow.conftest import empty_queue, leased_queues, pytest_configure, supervisor

__all__ = ["empty_queue", "leased_queues", "pytest_configure", "supervisor"]
