"""The runs that came of a sensor: which go on, and how many failed one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import dagster as dg

SENSOR_TAG: Final = "sqs_lease/backlog_sensor"
"""The sensor that a run was started by. Retries and re-executions keep it, so they count as runs of the sensor."""

LONGEST_PAUSE_SECONDS: Final = 900.0
"""Where doubling the pause after failed runs ends, as it does for messages that are released."""

_IN_PROGRESS: Final = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_ENDED: Final = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_RECENT_RUNS: Final = 20
_RECEIVING_SECONDS: Final = 60.0
"""How long after its start a run may still take what is visible now: the service's counts lag by up to a minute."""

_RETRY_SECONDS: Final = 300.0
"""How long a run that is to be retried counts as going on; a retry that comes later is not waited for."""


@dataclass(frozen=True, slots=True)
class SensorRuns:
    """What is known of a sensor's runs.

    Attributes:
        in_progress: Queued, starting, at work, or ending; and failed ones whose automatic retry is about to come.
        failures: How many runs failed since the last one that succeeded.
        last_failed: The newest of them.
    """

    in_progress: Sequence[dg.RunRecord]
    failures: int = 0
    last_failed: dg.RunRecord | None = None

    def about_to_receive(self, now: float) -> int:
        """How many runs have yet to receive, so that what is visible now may be theirs."""
        return sum(run.start_time is None or now - run.start_time < _RECEIVING_SECONDS for run in self.in_progress)


def runs_of_sensor(instance: dg.DagsterInstance, sensor: str, job_name: str | None, now: float) -> SensorRuns:
    """Look up the runs with a sensor's tag.

    Args:
        instance: The instance that has the runs.
        sensor: The tag's value.
        job_name: Only runs of this job; None for all.
        now: Seconds since the epoch.
    """
    tags = {SENSOR_TAG: sensor}
    going = instance.get_run_records(dg.RunsFilter(job_name=job_name, tags=tags, statuses=_IN_PROGRESS))
    ended = instance.get_run_records(dg.RunsFilter(job_name=job_name, tags=tags, statuses=_ENDED), limit=_RECENT_RUNS)
    waiting = [record for record in ended if awaits_retry(record, now)]
    failed: list[dg.RunRecord] = []
    for record in ended:
        if record.dagster_run.status is dg.DagsterRunStatus.SUCCESS:
            break
        if is_final_failure(record):
            failed.append(record)
    return SensorRuns([*going, *waiting], len(failed), failed[0] if failed else None)


def runs_of_assets(instance: dg.DagsterInstance, keys: Iterable[dg.AssetKey]) -> list[dg.RunRecord]:
    """Look up the newest run of each of some assets, the newest first."""
    records = instance.get_asset_records(list(keys))
    run_ids = {record.asset_entry.last_run_id for record in records} - {None, ""}
    return list(instance.get_run_records(dg.RunsFilter(run_ids=[str(each) for each in run_ids]))) if run_ids else []


def is_in_progress(record: dg.RunRecord, now: float) -> bool:
    """Whether a run goes on, or its automatic retry is about to come."""
    return record.dagster_run.status in _IN_PROGRESS or awaits_retry(record, now)


def awaits_retry(record: dg.RunRecord, now: float) -> bool:
    """Whether a run failed a short while ago and Dagster is to retry it, but has not yet."""
    return record.dagster_run.is_complete_and_waiting_to_retry and now - ended_at(record) < _RETRY_SECONDS


def is_final_failure(record: dg.RunRecord) -> bool:
    """Whether a run failed and Dagster does not retry it."""
    run = record.dagster_run
    return run.status is dg.DagsterRunStatus.FAILURE and run.tags.get("dagster/will_retry") != "true"


def ended_at(record: dg.RunRecord) -> float:
    """When a run ended, in seconds since the epoch; one that never started has no such time of its own."""
    return float(record.update_timestamp.timestamp() if record.end_time is None else record.end_time)


def pause_until(failures: int, last_failed: dg.RunRecord, first_pause_seconds: float) -> float:
    """Until when to start nothing after failed runs: the pause doubles with each of them.

    Args:
        failures: How many failed in a row, at least 1.
        last_failed: The newest of them.
        first_pause_seconds: The pause after the first; more than 15 minutes is kept as it is.
    """
    longest: float = max(LONGEST_PAUSE_SECONDS, first_pause_seconds)
    return ended_at(last_failed) + min(first_pause_seconds * 2.0 ** min(failures - 1, 30), longest)
