"""How a keeper that begins late knows that the trigger of its batch has given it back: no registry has it any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqs_lease.airflow.airflow_api.assets import AssetState
from sqs_lease.airflow.batches.protocol import REGISTERED_AT, BatchRegistry, Place


async def given_back_positions(lease: Mapping[str, Any]) -> list[int]:
    """Find the messages of a lease whose batches have ended, by their position in the lease.

    The leases that a keeper was given would seem to hold still: it would extend and release those of other consumers.

    Args:
        lease: The lease as plain values; what no event started is in no registry, and none of it is found.

    Raises:
        CommsError: There was no usable answer.
    """
    positions: list[int] = []
    registries: dict[Place, BatchRegistry | None] = {}
    begins_at = 0
    for part in lease.get("parts", (lease,)):
        ends_at = begins_at + part["messages"]
        if REGISTERED_AT in part:
            place = Place(**part[REGISTERED_AT])
            if place not in registries:
                registries[place] = BatchRegistry.decode(await AssetState(place.asset).get(place.registry))
            registry = registries[place]
            if registry is not None and part["batch_id"] not in registry.entries:
                positions += range(begins_at, ends_at)
        begins_at = ends_at
    return positions
