"""What a sensor may run: jobs or assets in whatever form sensors take them, their partitions, and how many at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard

import dagster as dg

from sqs_lease.dagster._internals import assets_of_job, dynamic_partitions, is_asset_job, refusals

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

MOST_RUNS_AT_ONCE: Final = 3
"""Most runs that one evaluation asks for: Dagster launches them one after the other, each in about 3 s."""


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


class PartitionKeyError(ValueError):
    """A job cannot have such a partition; the text says why, as the end of a sentence about the job."""


def dynamic_keys(definitions: dg.RepositoryDefinition, job: dg.JobDefinition, key: str) -> dict[str, str]:
    """Return the dynamic partitions that a key stands for: keys by the names of partitions definitions.

    Those that are there already are among them: to add them again does no harm.

    Args:
        definitions: The definitions that the job is of.
        job: The job; one of some assets has their partitions.
        key: The partition key; of several dimensions, as ``dg.MultiPartitionKey``.

    Raises:
        PartitionKeyError: The job has no partitions, or its assets have different ones, or this cannot be a key.
    """
    made = definitions.assets_defs_by_key
    of_assets = (made[each].get_asset_spec(each).partitions_def for each in assets_of_job(job) if each in made)
    kinds = {each for each in (job.partitions_def, *of_assets) if each is not None}
    if len(kinds) != 1:
        raise PartitionKeyError("has assets of different partitions" if kinds else "is not partitioned")
    (partitions,) = kinds
    try:
        keys = dynamic_partitions(partitions, key)
        # A key that Dagster refuses for a static partition would be there for good.
        dg.StaticPartitionsDefinition(list(keys.values()))
    except refusals():
        raise PartitionKeyError("cannot have a partition with this key") from None
    return keys


def add_requests(added: Iterable[Mapping[str, str]]) -> list[dg.AddDynamicPartitionsRequest]:
    """Return what adds the partitions of several runs: Dagster refuses to be asked twice for one."""
    keys: dict[str, set[str]] = {}
    for each in added:
        for name, key in each.items():
            keys.setdefault(name, set()).add(key)
    return [dg.AddDynamicPartitionsRequest(name, sorted(several)) for name, several in keys.items()]
