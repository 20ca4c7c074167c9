"""The peer that sends the extensions of sqs-lease and nothing else has the rule of `Growing` at its defaults."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from benchmarks.peers.programs import HERE
from sqs_lease import Growing


@dataclass
class Times:
    received_at: float
    renewed_at: float
    deadline: float


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    for name, value in {"QUEUE_URL": "", "VISIBILITY_SECONDS": "30", "AT_ONCE": "1"}.items():
        monkeypatch.setenv(name, value)
    return runpy.run_path(str(HERE / "boto3_loop" / "same_calls.py"))


def test_it_extends_when_the_default_policy_does_and_by_as_much(program: Mapping[str, Any]) -> None:
    policy = Growing(visibility=30)
    lease = Times(received_at=100.5, renewed_at=100.5, deadline=130.5)
    extensions = []

    for _ in range(30):
        at = program["renew_at"](lease.renewed_at, lease.deadline - lease.renewed_at)
        assert at == pytest.approx(policy.renew_at(lease))
        seconds = program["extension_seconds"](lease.received_at, at)
        assert seconds == policy.extension_seconds(lease, at)
        extensions.append(seconds)
        lease = Times(lease.received_at, at, at + seconds)

    assert extensions[:5] == [30, 30, 30, 40, 60]
    assert extensions[-1] == 900
