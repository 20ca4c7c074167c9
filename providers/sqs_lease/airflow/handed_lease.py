"""What a sensor hands to its keeper through XCom: which leases, on which queue, and how they are to be kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from sqs_lease.airflow.aws_connection import AwsConnection
from sqs_lease.airflow.comms import seal, unseal
from sqs_lease.clock import Clock
from sqs_lease.core.leases import Lease
from sqs_lease.core.messages import Receipt
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.core.specs import decode_policy, encode_policy

LEASE_KEY: Final = "lease"
"""The sensor's XCom key for it; the messages themselves, without receipt handles, are the sensor's return value."""


@dataclass(frozen=True, slots=True)
class HandedLease:
    """A batch on its way from one trigger to another, perhaps in another process.

    Attributes:
        batch_id: Names the batch within a deployment.
        queue_url: The queue.
        policy: The renewal policy, with the visibility timeout filled in.
        connection: How AWS is reached.
        leases: In the order of the messages in the sensor's return value; times in seconds since the epoch.
    """

    batch_id: str
    queue_url: str
    policy: RenewalPolicy
    connection: AwsConnection
    leases: Sequence[Lease]

    def encode(self) -> dict[str, Any]:
        """Return it as plain values, the receipt handles encrypted: whoever may see the DAG sees its XComs."""
        rows = [
            [
                lease.receipt.message_id,
                lease.receipt.handle,
                lease.received_at,
                lease.deadline,
                lease.receive_count,
                lease.message_group_id,
                lease.lapsed,
            ]
            for lease in self.leases
        ]
        return {
            "batch_id": self.batch_id,
            "queue_url": self.queue_url,
            "messages": len(self.leases),
            "policy": encode_policy(self.policy),
            "connection": self.connection.encode(),
            "sealed_leases": seal(json.dumps(rows, separators=(",", ":"))),
        }

    @classmethod
    def decode(cls, plain: Mapping[str, Any]) -> Self:
        """Build it from what :meth:`encode` returned, in a triggerer of the same deployment."""
        rows = json.loads(unseal(plain["sealed_leases"]))
        return cls(
            batch_id=plain["batch_id"],
            queue_url=plain["queue_url"],
            policy=decode_policy(plain["policy"]),
            connection=AwsConnection.decode(plain["connection"]),
            leases=[
                Lease(Receipt(message_id, handle), *times_and_more) for message_id, handle, *times_and_more in rows
            ],
        )


def to_wall_time(leases: Sequence[Lease], clock: Clock) -> list[Lease]:
    """Leases with times in seconds since the epoch, from leases with times of a clock."""
    ahead = clock.wall() - clock.now()
    return [lease.shifted(ahead) for lease in leases]


def from_wall_time(leases: Sequence[Lease], clock: Clock) -> list[Lease]:
    """Leases with times of a clock, from leases with times in seconds since the epoch."""
    behind = clock.now() - clock.wall()
    return [lease.shifted(behind) for lease in leases]
