"""What a backlog sensor sees of its queue and of its runs, and what it remembers from one tick to the next.

With declarative automation Dagster starts the runs: the queue's backlog is reported as an event of its asset. Those
runs have no tag of the sensor, so they are found as the newest runs of the assets behind the queue's. Only a
*materialization* of an external asset counts as an update for them; an observation does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final
from uuid import uuid4

import dagster as dg
import msgspec

from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS

_VERSION: Final = 1

# Some thousands of years: what is between two such times is a time, too, which is not so of any number.
_Time = Annotated[float, msgspec.Meta(ge=-1e11, le=1e11)]

UNREADABLE_SECONDS: Final = 600.0
"""For how long a queue may be out of reach before a sensor's evaluations fail by that, so that Dagster can alert."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """A queue as a sensor sees it: the service's own approximate counts.

    Attributes:
        visible: Messages that can be received now.
        in_flight: Messages that somebody holds.
        delayed: Messages that were sent with a delay still running.
        waited: How long the sensor has seen visible messages without starting anything for them. The service tells
            nobody the age of a message that is not received, so this is the least that the oldest has waited.
        seen_at: When, in UTC.
    """

    visible: int
    in_flight: int
    delayed: int
    waited: timedelta
    seen_at: datetime


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A sensor's cursor. All times are seconds since the epoch.

    Attributes:
        version: Of this format.
        epoch: Drawn when the sensor began with no cursor; part of the run keys, so that they are new after a reset.
        sequence: How many runs (or asset events) it has asked for since then; the other part of the run keys.
        waiting_since: Since when there are visible messages that nothing was started for.
        unreadable_since: Since when the queue cannot be read.
        reported_at: When the queue's asset was last reported.
        last_run: The newest run that ended of the assets behind the queue's asset.
        failures: How many of those failed in a row.
    """

    version: int
    epoch: str
    sequence: int = 0
    waiting_since: _Time | None = None
    unreadable_since: _Time | None = None
    reported_at: _Time | None = None
    last_run: str | None = None
    failures: int = 0

    @classmethod
    def fresh(cls) -> Memory:
        """Nothing remembered."""
        return cls(_VERSION, uuid4().hex[:12])

    @classmethod
    def of(cls, cursor: str) -> Memory | None:
        """Read a cursor; None if it is of another version, or was never one of ours."""
        try:
            memory = msgspec.json.decode(cursor, type=cls)
        except (msgspec.DecodeError, UnicodeError):
            return None
        return memory if memory.version == _VERSION else None

    def cursor(self) -> str:
        """Write it down."""
        return msgspec.json.encode(self).decode()

    def seen(self, visible: int, now: float) -> Memory:
        """After the queue was read."""
        waiting_since = (self.waiting_since or now) if visible else None
        return msgspec.structs.replace(self, waiting_since=waiting_since, unreadable_since=None)

    def unread(self, now: float) -> Memory:
        """After the queue could not be read."""
        return msgspec.structs.replace(self, unreadable_since=self.unreadable_since or now)

    def waited(self, now: float) -> timedelta:
        """How long visible messages have waited at least; none if the clock was set back."""
        return timedelta(seconds=max(now - (self.waiting_since or now), 0.0))

    def started(self, count: int) -> Memory:
        """After ``count`` runs were asked for: what is visible from now on waits for others."""
        return msgspec.structs.replace(self, sequence=self.sequence + count, waiting_since=None)

    def reported(self, now: float) -> Memory:
        """After the queue's asset was reported."""
        return msgspec.structs.replace(self.started(1), reported_at=now)

    def answered(self, last_run: str | None, failures: int) -> Memory:
        """After a look at the runs of the assets behind the queue's."""
        return msgspec.structs.replace(self, last_run=last_run, failures=failures)

    def key(self, number: int) -> str:
        """The run key of the ``number``-th thing, from 1, that the next evaluation asks for."""
        return f"{self.epoch}-{self.sequence + number}"


def at(seconds: float) -> datetime:
    """A time of the epoch as people read it."""
    return datetime.fromtimestamp(seconds, UTC)


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
            said = f"{backlog.visible} visible, but run {run.dagster_run.run_id} is in progress"
            return None, memory, f"{said}{advice([run], now)}"
    newest = max(runs, key=ended_at, default=None)
    if newest is not None:
        memory = _counted(context.instance, memory, newest)
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
    specs = {spec.key: spec for made in context.repository_def.assets_defs_by_key.values() for spec in made.specs}
    if key not in specs:
        raise ValueError(
            f"the code location has no asset {key.to_user_string()}, so nothing can depend on it: "
            f'add dg.AssetSpec("{key.to_user_string()}") to its assets'
        )
    return [
        spec.key
        for spec in specs.values()
        if spec.automation_condition is not None and any(dep.asset_key == key for dep in spec.deps)
    ]


def _counted(instance: dg.DagsterInstance, memory: Memory, newest: dg.RunRecord) -> Memory:
    """Count a run that ended since the last look."""
    run = newest.dagster_run
    if run.run_id == memory.last_run or run.status is dg.DagsterRunStatus.CANCELED:
        return memory
    if run.status is dg.DagsterRunStatus.SUCCESS and run.parent_run_id is None:
        return memory.answered(run.run_id, 0)
    parent = None if run.parent_run_id is None else instance.get_run_by_id(run.parent_run_id)
    # The failure of a run that Dagster retries is counted when the retry has ended, once.
    is_counted = parent is not None and run.status is dg.DagsterRunStatus.SUCCESS and not _will_be_retried(parent)
    return memory.answered(run.run_id, memory.failures if is_counted else memory.failures + 1)


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
_WILL_RETRY: Final = "dagster/will_retry"
_RETRY_RUN_ID: Final = "dagster/auto_retry_run_id"
_ENDED: Final = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_RECENT_RUNS: Final = 20
_RECEIVING_SECONDS: Final = 60.0
"""How long after its start a run may still take what is visible now: the service's counts lag by up to a minute."""

LONG_SECONDS: Final = 3600.0
"""After what time in progress a run is named with what to do if nobody works on it any more."""

GONE_SECONDS: Final = float(MAX_VISIBILITY_SECONDS)
"""After what time a run that has not ended does not count: SQS lets nobody hold a message for longer.

Without run monitoring Dagster leaves a run "started" for ever when the machine of its worker is gone.
"""

_RETRY_SECONDS: Final = 300.0
"""How long a run that is to be retried counts as going on; a retry that comes later is not waited for."""


@dataclass(frozen=True, slots=True)
class SensorRuns:
    """What is known of a sensor's runs.

    Attributes:
        in_progress: Queued, starting, at work, or ending; and failed ones whose automatic retry is about to come.
        failures: How many runs failed since the last one that succeeded by itself, and not by a run that repeats it.
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
    in_progress = [record for record in (*going, *ended) if is_in_progress(record, now)]
    failed: list[dg.RunRecord] = []
    repeated: set[str | None] = set()
    for record in ended:
        run = record.dagster_run
        if run.status is dg.DagsterRunStatus.SUCCESS:
            if run.parent_run_id is None:
                break
            # It may have received other messages than the run that failed, which nobody has worked on yet.
            repeated.add(run.parent_run_id)
        elif is_final_failure(record) or (run.status is dg.DagsterRunStatus.FAILURE and run.run_id in repeated):
            failed.append(record)
    return SensorRuns(in_progress, len(failed), failed[0] if failed else None)


def runs_of_assets(instance: dg.DagsterInstance, keys: Iterable[dg.AssetKey]) -> list[dg.RunRecord]:
    """Look up the newest run of each of some assets, the newest first."""
    records = instance.get_asset_records(list(keys))
    run_ids = {record.asset_entry.last_run_id for record in records} - {None, ""}
    return list(instance.get_run_records(dg.RunsFilter(run_ids=[str(each) for each in run_ids]))) if run_ids else []


def is_in_progress(record: dg.RunRecord, now: float) -> bool:
    """Whether a run goes on, or its automatic retry is about to come."""
    status = record.dagster_run.status
    if status is dg.DagsterRunStatus.QUEUED:
        return True
    if status in _IN_PROGRESS:
        return now - began_at(record) < GONE_SECONDS
    return awaits_retry(record, now)


def advice(in_progress: Iterable[dg.RunRecord], now: float) -> str:
    """Say what to do about the oldest of some runs in progress where it takes long; nothing where none does."""
    oldest = min(in_progress, key=began_at, default=None)
    if oldest is None or now - began_at(oldest) < LONG_SECONDS:
        return ""
    run = oldest.dagster_run
    hours = (now - began_at(oldest)) / 3600
    if run.status is dg.DagsterRunStatus.QUEUED:
        return (
            f". Run {run.run_id} has waited in Dagster's queue for {hours:.1f} h: check that the daemon runs, and the "
            "limits of concurrency"
        )
    return (
        f". Run {run.run_id} has been {run.status.value.lower()} for {hours:.1f} h: if its process is gone, mark it as "
        "canceled in the web UI, and switch on run_monitoring in dagster.yaml, which finds such runs. It counts for "
        f"{GONE_SECONDS / 3600:g} h at most"
    )


def awaits_retry(record: dg.RunRecord, now: float) -> bool:
    """Whether a run failed a short while ago and Dagster is to retry it, but has not yet."""
    run = record.dagster_run
    is_due = run.status is dg.DagsterRunStatus.FAILURE and _will_be_retried(run) and _RETRY_RUN_ID not in run.tags
    return is_due and now - ended_at(record) < _RETRY_SECONDS


def is_final_failure(record: dg.RunRecord) -> bool:
    """Whether a run failed and Dagster does not retry it."""
    return record.dagster_run.status is dg.DagsterRunStatus.FAILURE and not _will_be_retried(record.dagster_run)


def _will_be_retried(run: dg.DagsterRun) -> bool:
    return run.tags.get(_WILL_RETRY, "").lower() == "true"


def began_at(record: dg.RunRecord) -> float:
    """When a run started, or took its present state where it has not, in seconds since the epoch."""
    return float(record.update_timestamp.timestamp() if record.start_time is None else record.start_time)


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
