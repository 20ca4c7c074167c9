"""Shared by the tests of Dagster on real processes and the others: queues in memory."""

from __future__ import annotations

from sqs_lease.testing.pytest_plugin import leased_queues

__all__ = ["leased_queues"]
