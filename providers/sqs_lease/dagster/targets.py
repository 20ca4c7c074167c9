"""What a sensor may run: jobs or assets, in whatever form sensors take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import dagster as dg

from sqs_lease.dagster._internals import is_asset_job

if TYPE_CHECKING:
    from sqs_lease.dagster._internals import AssetJob

RunConfig: TypeAlias = dg.RunConfig | Mapping[str, Any]
Job: TypeAlias = "dg.JobDefinition | AssetJob"
Assets: TypeAlias = (
    dg.AssetSelection
    | dg.AssetsDefinition
    | dg.AssetKey
    | str
    | Sequence[str]
    | Sequence[dg.AssetKey]
    | Sequence[dg.AssetsDefinition]
)
Target: TypeAlias = "Job | Sequence[Job] | Assets"
"""What a sensor may run."""


def jobs_of_a_list(target: Target | None) -> list[str]:
    """The names of the jobs of a list; none if it is something else.

    Raises:
        ValueError: The list has assets in it, too.
    """
    # Asset jobs and asset keys are tuples of a kind, too.
    if type(target) not in (list, tuple) or not isinstance(target, Sequence):
        return []
    names = [str(each.name) for each in target if is_job(each)]
    if names and len(names) < len(target):
        raise ValueError("a sensor has jobs or assets for its target, not both: make an asset job of the assets")
    return names


def is_job(target: object) -> TypeGuard[Job]:
    """Whether it is a job, also one of :func:`dagster.define_asset_job`."""
    return isinstance(target, dg.JobDefinition) or is_asset_job(target)


def target_argument(target: Target | None) -> dict[str, Any]:
    """The target as an argument of :class:`dagster.SensorDefinition`, which has another name for a list of jobs."""
    return {"jobs": target} if jobs_of_a_list(target) else {"target": target}
