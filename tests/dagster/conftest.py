"""What the tests of the Dagster package share: queues in memory, which `SqsQueueResource` takes from."""

from __future__ import annotations

from sqs_lease.testing.pytest_plugin import leased_queues

__all__ = ["leased_queues"]
