"""Reports a queue's backlog as an event of its asset, so that declarative automation runs the assets behind it.

Dagster starts those runs, so they have no tag of the sensor: they are found as the newest runs of the assets behind the
queue's. Only a *materialization* of an external asset counts as an update for them; an observation does not.
"""

from __future__ import annotations

from typing import Final

import dagster as dg

from sqs_lease.dagster.backlog import Backlog, Memory
from sqs_lease.dagster.sensor_runs import ended_at, is_final_failure, is_in_progress, pause_until, runs_of_assets

DATA_VERSION_TAG: Final = "dagster/data_version"

_ANSWER_SECONDS: Final = 60.0
"""How long to wait for a run after a report before the backlog, if it is still there, is reported again."""


def report_backlog(
    context: dg.SensorEvaluationContext,
    key: dg.AssetKey,
    partition: str | None,
    backlog: Backlog,
    memory: Memory,
    now: float,
    pause_seconds: float,
) -> tuple[dg.AssetMaterialization | None, Memory, str]:
    """Report the backlog, unless its runs are at work, have failed a moment ago, or were asked for a moment ago.

    Args:
        context: The sensor's context.
        key: The queue's asset.
        partition: The partition of it to report.
        backlog: What was seen of the queue.
        memory: What the sensor remembers.
        now: Seconds since the epoch.
        pause_seconds: The pause after a first failed run.

    Returns:
        The event, or None; what the sensor is to remember; and what to say of it.

    Raises:
        ValueError: The code location has no such asset.
    """
    runs = runs_of_assets(context.instance, _assets_behind(context, key))
    for run in runs:
        if is_in_progress(run, now):
            return None, memory, f"{backlog.visible} visible, but run {run.dagster_run.run_id} is in progress"
    newest = max(runs, key=ended_at, default=None)
    if newest is not None:
        memory = _counted(memory, newest)
        if memory.failures:
            until = pause_until(memory.failures, newest, pause_seconds)
            if now < until:
                failed = f"{memory.failures} failed in a row, the newest is {newest.dagster_run.run_id}"
                return None, memory, f"{backlog.visible} visible, but {failed}: {until - now:.0f} s more to wait"
    ended = None if newest is None else ended_at(newest)
    if memory.reported_at is not None and (ended is None or ended < memory.reported_at):
        since = now - memory.reported_at
        if 0 <= since < _ANSWER_SECONDS:
            return None, memory, f"{backlog.visible} visible, reported {since:.0f} s ago: no run has come of it yet"
    said = f"{backlog.visible} visible messages on {key.to_user_string()}"
    version = memory.key(1)
    latest = context.instance.get_latest_materialization_event(key)
    reported = None if latest is None else latest.asset_materialization
    if reported is not None and (reported.tags or {}).get(DATA_VERSION_TAG) == version:
        return None, memory.reported(now), f"reported already: {said}"
    event = dg.AssetMaterialization(
        key,
        partition=partition,
        description=f"{backlog.visible} messages can be received",
        metadata={
            "sqs/visible": backlog.visible,
            "sqs/in_flight": backlog.in_flight,
            "sqs/delayed": backlog.delayed,
            "sqs/waited_seconds": backlog.waited.total_seconds(),
        },
        # By it, an evaluation that is repeated because its cursor was not stored sees that it reported before.
        tags={DATA_VERSION_TAG: version},
    )
    return event, memory.reported(now), f"reported {said}"


def _assets_behind(context: dg.SensorEvaluationContext, key: dg.AssetKey) -> list[dg.AssetKey]:
    """The assets directly behind the queue's that run by themselves."""
    if context.repository_def is None:
        raise ValueError("the sensor's context has no definitions: build_sensor_context(definitions=...)")
    graph = context.repository_def.asset_graph
    if not graph.has(key):
        raise ValueError(
            f"the code location has no asset {key.to_user_string()}, so nothing can depend on it: "
            f'add dg.AssetSpec("{key.to_user_string()}") to its assets'
        )
    return [child for child in graph.get(key).child_keys if graph.get(child).automation_condition is not None]


def _counted(memory: Memory, newest: dg.RunRecord) -> Memory:
    """Count a run that ended since the last look."""
    run = newest.dagster_run
    if run.run_id == memory.last_run or run.status is dg.DagsterRunStatus.CANCELED:
        return memory
    return memory.answered(run.run_id, memory.failures + 1 if is_final_failure(newest) else 0)
