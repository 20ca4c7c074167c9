"""Airflow in the tests' own process, beside the real processes; of the log, the figures are left for `make chaos`."""

from __future__ import annotations

import logging

import pytest

from tests.airflow import airflow_home  # noqa: F401 - Airflow reads its configuration when it is imported

for chatty in ("botocore", "httpx"):
    logging.getLogger(chatty).setLevel(logging.WARNING)


def pytest_configure(config: pytest.Config) -> None:
    # Short timeouts keep tests on real time short.
    config.addinivalue_line("filterwarnings", "ignore:.* a visibility timeout of .* leaves")
