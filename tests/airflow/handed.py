"""A batch on its way to its keeper, as tests write it."""

from __future__ import annotations

from collections.abc import Sequence

from sqs_lease.airflow.connection import AwsConnection
from sqs_lease.airflow.handover import HandedLease
from sqs_lease.core.messages import Lease
from sqs_lease.core.policies import Growing
from sqs_lease.keeper.plain_leases import WrittenBatch


def handed_lease(
    leases: Sequence[Lease],
    *,
    batch_id: str = "batch",
    queue_url: str = "https://queue/orders",
    visibility: float = 30.0,
    written_at: float = 1.0,
) -> HandedLease:
    """A batch of these leases, on a queue that nothing is called about."""
    written = WrittenBatch(batch_id, written_at, tuple(leases))
    return HandedLease(queue_url, Growing(visibility=visibility), AwsConnection(), written, len(leases))
