"""What a receiving task hands to a keeper through XCom: which leases, on which queue, and how they are to be kept.

As plain values it has one of two shapes. Both have ``batch_id``, ``queue_url``, ``messages`` (their number),
``policy`` and ``connection``, and besides:

- ``sealed_leases``: the leases themselves, encrypted;
- ``leases_uri`` and ``manifest_uri``: where they and the messages are stored instead (``payload.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from sqs_lease.airflow.airflow_api.requests import seal, unseal
from sqs_lease.airflow.aws_connection import AwsConnection
from sqs_lease.core.messages import Lease
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.core.specs import decode_policy, encode_policy
from sqs_lease.keeper.event_loop_rounds import LEASES_IN_A_ROUND
from sqs_lease.keeper.plain_leases import decode_leases, encode_leases

LEASE_KEY: Final = "lease"
"""The sensor's XCom key for it; the messages themselves, without receipt handles, are the sensor's return value."""

MANIFEST_URI: Final = "manifest_uri"
LEASES_URI: Final = "leases_uri"


@dataclass(frozen=True, slots=True)
class HandedLease:
    """A batch on its way from one process or trigger to another.

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
        """Return it as plain values, with encrypted receipt handles: every reader of the DAG can read its XComs."""
        return {**self._head(), "sealed_leases": seal_leases(self.leases)}

    def encode_stored(self, *, manifest_uri: str, leases_uri: str) -> dict[str, Any]:
        """Return it as plain values without the leases, which were stored at ``leases_uri``."""
        return {**self._head(), MANIFEST_URI: manifest_uri, LEASES_URI: leases_uri}

    @classmethod
    def decode(cls, plain: Mapping[str, Any]) -> Self:
        """Build it from what :meth:`encode` returned, in a triggerer of the same deployment.

        Leases that are stored elsewhere are read by :func:`sqs_lease.airflow.transfer.payload.load_lease`.

        Raises:
            ValueError: The leases are stored elsewhere.
        """
        if LEASES_URI in plain:
            raise ValueError(f"the leases of batch {plain['batch_id']} are stored elsewhere: use load_lease()")
        return cls(
            batch_id=plain["batch_id"],
            queue_url=plain["queue_url"],
            policy=decode_policy(plain["policy"]),
            connection=AwsConnection.decode(plain["connection"]),
            leases=unseal_leases(plain["sealed_leases"]),
        )

    def _head(self) -> dict[str, Any]:
        return {
            "batch_id": self.batch_id,
            "queue_url": self.queue_url,
            "messages": len(self.leases),
            "policy": encode_policy(self.policy),
            "connection": self.connection.encode(),
        }


def seal_leases(leases: Sequence[Lease]) -> str:
    """Return leases as an encrypted text, a line for each thousand: nothing else runs while one is encoded."""
    starts = range(0, len(leases), LEASES_IN_A_ROUND)
    return "\n".join(seal(encode_leases(leases[start : start + LEASES_IN_A_ROUND])) for start in starts)


def unseal_leases(sealed: str) -> list[Lease]:
    """Build leases from what :func:`seal_leases` returned, in a process of the same deployment."""
    return [lease for line in sealed.splitlines() for lease in decode_leases(unseal(line))]
