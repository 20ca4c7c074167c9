"""Shared by all tests on real processes: unlike the others, they may wait."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def no_long_waits() -> None:
    """In the place of what forbids the other tests to sleep for long."""
