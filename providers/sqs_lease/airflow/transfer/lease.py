"""What a receiving task hands to a keeper through XCom: which leases, on which queue, and how they are to be kept.

As plain values it has one of three shapes. All have ``batch_id``, ``queue_url``, ``messages`` (their number),
``policy`` and ``connection``, and besides:

- ``sealed_leases``: the leases themselves, encrypted;
- ``leases_uri`` and ``manifest_uri``: where they and the messages are stored instead (``payload.py``);
- ``parts``: several of the above, in order, which are kept together as one batch (:func:`merge`).
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
        part_ids: The batches that it was merged from, under which triggers of this process may hold parts of it;
            empty if it was received as one.
    """

    batch_id: str
    queue_url: str
    policy: RenewalPolicy
    connection: AwsConnection
    leases: Sequence[Lease]
    part_ids: Sequence[str] = ()

    def encode(self) -> dict[str, Any]:
        """Return it as plain values, with encrypted receipt handles: every reader of the DAG can read its XComs."""
        return {**self._head(), "sealed_leases": seal_leases(self.leases)}

    def encode_stored(self, *, manifest_uri: str, leases_uri: str) -> dict[str, Any]:
        """Return it as plain values without the leases, which were stored at ``leases_uri``."""
        return {**self._head(), MANIFEST_URI: manifest_uri, LEASES_URI: leases_uri}

    @classmethod
    def decode(cls, plain: Mapping[str, Any]) -> Self:
        """Build it from what :meth:`encode` or :func:`merge` returned, in a triggerer of the same deployment.

        Leases that are stored elsewhere are read by :func:`sqs_lease.airflow.transfer.payload.load_lease`.

        Raises:
            ValueError: The leases, or some of them, are stored elsewhere.
        """
        if LEASES_URI in plain:
            raise ValueError(f"the leases of batch {plain['batch_id']} are stored elsewhere: use load_lease()")
        parts = [cls.decode(part) for part in plain.get("parts", ())]
        leases = [lease for part in parts for lease in part.leases] if parts else unseal_leases(plain["sealed_leases"])
        return cls(
            batch_id=plain["batch_id"],
            queue_url=plain["queue_url"],
            policy=decode_policy(plain["policy"]),
            connection=AwsConnection.decode(plain["connection"]),
            leases=leases,
            part_ids=tuple(part.batch_id for part in parts),
        )

    def _head(self) -> dict[str, Any]:
        return {
            "batch_id": self.batch_id,
            "queue_url": self.queue_url,
            "messages": len(self.leases),
            "policy": encode_policy(self.policy),
            "connection": self.connection.encode(),
        }


def merge(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make one batch of several that were received apart, to be kept and settled together.

    A keeper takes each part from this process where a trigger of it holds that part, and by its arguments otherwise.

    Args:
        parts: What :meth:`HandedLease.encode` or ``write_batch()`` of ``payload.py`` returned, at least one.

    Returns:
        A lease of the third shape above, whose messages are those of the parts in order; a single part as it is.

    Raises:
        ValueError: ``parts`` is empty, or the parts differ in queue, connection or renewal policy.
    """
    if not parts:
        raise ValueError("there is no lease to merge")
    first = dict(parts[0])
    if len(parts) == 1:
        return first
    for shared in ("queue_url", "connection", "policy"):
        if any(part[shared] != first[shared] for part in parts):
            raise ValueError(
                f"batches of {first['queue_url']} cannot be kept together, because they differ in {shared}: "
                "give each its own keeper"
            )
    flat = [dict(piece) for part in parts for piece in part.get("parts", (part,))]
    return {
        # Not the id of a part: a keeper that was cleared and starts again claims the merged batch by this one.
        "batch_id": f"{first['batch_id']}+{len(flat) - 1}",
        "queue_url": first["queue_url"],
        "messages": sum(piece["messages"] for piece in flat),
        "policy": first["policy"],
        "connection": first["connection"],
        "parts": flat,
    }


def seal_leases(leases: Sequence[Lease]) -> str:
    """Return leases as an encrypted text, a line for each thousand: nothing else runs while one is encoded."""
    starts = range(0, len(leases), LEASES_IN_A_ROUND)
    return "\n".join(seal(encode_leases(leases[start : start + LEASES_IN_A_ROUND])) for start in starts)


def unseal_leases(sealed: str) -> list[Lease]:
    """Build leases from what :func:`seal_leases` returned, in a process of the same deployment."""
    return [lease for line in sealed.splitlines() for lease in decode_leases(unseal(line))]
