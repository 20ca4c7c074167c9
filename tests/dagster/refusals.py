"""Refusals of SQS."""

from __future__ import annotations

from typing import Any

import pytest

from sqs_lease.sqs.errors import AccessDeniedError
from sqs_lease.testing import MemoryTransport


def refuse_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have SQS refuse to send anything, as it does without the permission."""

    async def send(*arguments: Any, **options: Any) -> str:
        raise AccessDeniedError("the caller may not sqs:SendMessage on the dead-letter queue")

    monkeypatch.setattr(MemoryTransport, "send", send)
