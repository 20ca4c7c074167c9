"""The numbers of a lease for people: with the materialization, and as an observation when the step has ended."""

from __future__ import annotations

from typing import Any

import dagster as dg


def lease_numbers(
    instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult | dg.JobExecutionResult, asset: str = "orders"
) -> dict[str, Any]:
    """All metadata of an asset in a run: of its materialization, and what was observed later."""
    (materialization,) = result.asset_materializations_for_node(asset)
    told = dict(materialization.metadata)
    for record in reversed(instance.fetch_observations(dg.AssetKey(asset), limit=10).records):
        observation = record.asset_observation
        if record.run_id == result.run_id and observation is not None:
            told |= observation.metadata
    return {name: value.value for name, value in told.items()}
