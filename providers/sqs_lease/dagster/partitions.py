"""The dynamic partitions that a partition key stands for: a sensor adds them when it asks for a run of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import dagster as dg

from sqs_lease.dagster._internals import assets_of_job, dynamic_partitions, refusals


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
