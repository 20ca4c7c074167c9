"""What the keeper's tests share."""

from __future__ import annotations

import pytest

from sqs_lease.testing.pytest_plugin import leased_queues
from tests.keeper.held import Setting
from tests.keeper.orders import Orders

__all__ = ["leased_queues"]


@pytest.fixture
def setting() -> Setting:
    return Setting()


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Orders:
    made = Orders()
    monkeypatch.setattr("sqs_lease.blocking.open_transport", lambda client, queue: made.transport())
    return made
