"""The allowances of a message, for tests that read contents without S3."""

from __future__ import annotations

from typing import Any

from sqs_lease.spark.sources.s3_events.allowance import Allowance, Spool

MIB = 1024 * 1024


def allowance(**limits: Any) -> Allowance:
    """An allowance that is ample but for the limits that are given; its clock stands still."""
    ample: dict[str, Any] = {
        **dict.fromkeys(("fetched", "content"), 2048 * MIB),
        "rows": 10_000_000,
        "seconds": 600,
        "spool": Spool(4096 * MIB),
        "clock": lambda: 0.0,
    }
    return Allowance(**{**ample, **limits})
