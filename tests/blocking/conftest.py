"""Shared by the tests of `with lease(...)` and of consumers: queues in memory in the place of SQS."""

from __future__ import annotations

import pytest

from tests.blocking.orders import Orders


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Orders:
    made = Orders()
    monkeypatch.setattr("sqs_lease.blocking.open_transport", lambda client, queue: made.transport())
    return made
