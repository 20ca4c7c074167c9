"""Shared by the keeper's tests."""

from __future__ import annotations

import pytest

from tests.keeper.held import Setting


@pytest.fixture
def setting() -> Setting:
    return Setting()
