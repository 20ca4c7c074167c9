"""A sensor that starts runs when messages wait in a queue. It only counts the messages; the runs receive them.

One evaluation reads the queue's attributes and decides. It does not change the queue, so it may be cut off, repeated
or tested in the web UI at any time. Its memory is the cursor:

- Run keys are numbered there. If a cursor was not stored, the next evaluation asks for the same keys again, and Dagster
  does not start a second run for a key. After a cursor was cleared, other keys are used.
- Dagster never starts a second run for a key, also after a failure. So each start has a key of its own.

The number of runs in progress, and of failures in a row, is not in the cursor: it is counted from the newest runs. They
are found by the sensor's tag, or by the assets behind the queue's asset. The parts of this module are: the counts and
the cursor, the runs, and the sensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, TypeVar
from uuid import uuid4

import dagster as dg
import msgspec

from sqs_lease.clock import SystemClock
from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS
from sqs_lease.dagster._internals import name_of_sensor, runs_planned_for
from sqs_lease.dagster.dispatch import (
    MOST_RUNS_AT_ONCE,
    PartitionKeyError,
    RunConfig,
    Target,
    add_requests,
    dynamic_keys,
    jobs_of_a_list,
    target_argument,
    unreadable_since,
)
from sqs_lease.dagster.resource import SqsQueueResource, check_queue_resource
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import QueueAttributes

_VERSION: Final = 1

# Some thousands of years: a difference of two such times can still be a timedelta. Of any two floats it cannot.
_Time = Annotated[float, msgspec.Meta(ge=-1e11, le=1e11)]


@dataclass(frozen=True, slots=True)
class Backlog:
    """A queue as a sensor sees it: the service's own approximate counts.

    Attributes:
        visible: Messages that can be received now.
        in_flight: Messages that consumers hold.
        delayed: Messages that were sent with a delay still running.
        waited: How long the sensor has seen visible messages without starting a run for them. SQS does not tell the
            age of a message before it is received, so the oldest message has waited at least this long.
        seen_at: The time of the count, in UTC.
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
    """

    version: int
    epoch: str
    sequence: int = 0
    waiting_since: _Time | None = None
    unreadable_since: _Time | None = None
    reported_at: _Time | None = None

    @classmethod
    def fresh(cls) -> Memory:
        """Return an empty memory."""
        return cls(_VERSION, uuid4().hex[:12])

    @classmethod
    def of(cls, cursor: str) -> Memory | None:
        """Read a cursor; None if it is of another version or of another origin."""
        try:
            memory = msgspec.json.decode(cursor, type=cls)
        except (msgspec.DecodeError, UnicodeError):
            return None
        return memory if memory.version == _VERSION else None

    def cursor(self) -> str:
        """Return it as a cursor."""
        return msgspec.json.encode(self).decode()

    def seen(self, visible: int, now: float) -> Memory:
        """Return the memory after the queue was read."""
        waiting_since = (self.waiting_since or now) if visible else None
        return msgspec.structs.replace(self, waiting_since=waiting_since, unreadable_since=None)

    def unread(self, since: float) -> Memory:
        """Return the memory after the queue could not be read."""
        return msgspec.structs.replace(self, unreadable_since=since)

    def waited(self, now: float) -> timedelta:
        """Return how long visible messages have waited at least; 0 if the clock was set back."""
        return timedelta(seconds=max(now - (self.waiting_since or now), 0.0))

    def started(self, count: int) -> Memory:
        """Return the memory after ``count`` runs were asked for: later messages wait for other runs."""
        return msgspec.structs.replace(self, sequence=self.sequence + count, waiting_since=None)

    def reported(self, now: float) -> Memory:
        """Return the memory after the queue's asset was reported."""
        return msgspec.structs.replace(self.started(1), reported_at=now)

    def key(self, number: int) -> str:
        """Return the run key of the ``number``-th request, from 1, of the next evaluation."""
        return f"{self.epoch}-{self.sequence + number}"


SENSOR_TAG: Final = "sqs_lease/backlog_sensor"
"""The sensor that a run was started by. Retries and re-executions keep it, so they count as runs of the sensor."""

LONGEST_PAUSE_SECONDS: Final = 900.0
"""Longest pause after failed runs, as after a failed message."""

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
"""Time after its start in which a run may still receive the messages counted now: counts lag by up to a minute."""

LONG_SECONDS: Final = 3600.0
"""Time in progress after which a run is named, with advice for the case that its process is gone."""

GONE_SECONDS: Final = float(MAX_VISIBILITY_SECONDS)
"""Time after which a run that has not ended does not count: SQS does not let a consumer hold a message for longer.

Without run monitoring Dagster leaves a run "started" for ever when the machine of its worker is gone.
"""

_RETRY_SECONDS: Final = 300.0
"""How long a run that is to be retried counts as in progress; the sensor does not wait for a later retry."""


@dataclass(frozen=True, slots=True)
class SensorRuns:
    """The newest runs for a queue.

    Attributes:
        in_progress: Queued, starting, at work, or ending; and failed ones whose automatic retry is about to come.
        failures: How many runs failed since the last success; the success of a retry does not count.
        last_failed: The newest failed run.
    """

    in_progress: Sequence[dg.RunRecord]
    failures: int
    last_failed: dg.RunRecord | None

    @classmethod
    def of(cls, records: Sequence[dg.RunRecord], now: float) -> SensorRuns:
        """Count runs, of which the newest is first; ``now`` is in seconds since the epoch."""
        failed: list[dg.RunRecord] = []
        repeated: set[str | None] = set()
        for record in records:
            run = record.dagster_run
            if run.status is dg.DagsterRunStatus.SUCCESS:
                if run.parent_run_id is None:
                    break
                # A retry may have received other messages, so the messages of the failed run are still not done.
                repeated.add(run.parent_run_id)
            elif is_final_failure(record) or (run.status is dg.DagsterRunStatus.FAILURE and run.run_id in repeated):
                failed.append(record)
        in_progress = [record for record in records if is_in_progress(record, now)]
        return cls(in_progress, len(failed), failed[0] if failed else None)

    def about_to_receive(self, now: float) -> int:
        """Return how many runs have yet to receive; the messages counted now may be theirs."""
        return sum(run.start_time is None or now - run.start_time < _RECEIVING_SECONDS for run in self.in_progress)


def runs_of_sensor(instance: dg.DagsterInstance, sensor: str, job_name: str | None) -> list[dg.RunRecord]:
    """Look up the runs with a sensor's tag, of one job or of all: those that go on, and the newest of the others."""
    tags = {SENSOR_TAG: sensor}
    going = instance.get_run_records(dg.RunsFilter(job_name=job_name, tags=tags, statuses=_IN_PROGRESS))
    ended = instance.get_run_records(dg.RunsFilter(job_name=job_name, tags=tags, statuses=_ENDED), limit=_RECENT_RUNS)
    return [*going, *ended]


def runs_of_assets(instance: dg.DagsterInstance, keys: Iterable[dg.AssetKey], most: int) -> list[dg.RunRecord]:
    """Look up the runs of the ``most`` newest planned materializations of each asset, the newest run first."""
    run_ids = sorted({run_id for key in keys for run_id in runs_planned_for(instance, key, most)})
    return list(instance.get_run_records(dg.RunsFilter(run_ids=run_ids))) if run_ids else []


def is_in_progress(record: dg.RunRecord, now: float) -> bool:
    """Whether a run goes on, or its automatic retry is about to come."""
    status = record.dagster_run.status
    if status is dg.DagsterRunStatus.QUEUED:
        return True
    if status in _IN_PROGRESS:
        return now - began_at(record) < GONE_SECONDS
    return awaits_retry(record, now)


def advice(in_progress: Iterable[dg.RunRecord], now: float) -> str:
    """Return advice on the oldest of some runs in progress if it takes long; empty if not."""
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
    """Whether a run failed a short while ago, and Dagster will retry it but has not begun."""
    run = record.dagster_run
    is_due = run.status is dg.DagsterRunStatus.FAILURE and _will_be_retried(run) and _RETRY_RUN_ID not in run.tags
    return is_due and now - ended_at(record) < _RETRY_SECONDS


def is_final_failure(record: dg.RunRecord) -> bool:
    """Whether a run failed and Dagster does not retry it."""
    return record.dagster_run.status is dg.DagsterRunStatus.FAILURE and not _will_be_retried(record.dagster_run)


def _will_be_retried(run: dg.DagsterRun) -> bool:
    return run.tags.get(_WILL_RETRY, "").lower() == "true"


def began_at(record: dg.RunRecord) -> float:
    """Return when a run started, or took its present state if it has not started, in seconds since the epoch."""
    return float(record.update_timestamp.timestamp() if record.start_time is None else record.start_time)


def ended_at(record: dg.RunRecord) -> float:
    """Return when a run ended, in seconds since the epoch; for one that never started, its last change."""
    return float(record.update_timestamp.timestamp() if record.end_time is None else record.end_time)


def pause_until(failures: int, last_failed: dg.RunRecord, first_pause_seconds: float) -> float:
    """Return the end of the pause after failed runs: the pause doubles with each of them.

    Args:
        failures: How many failed in a row, at least 1.
        last_failed: The newest of them.
        first_pause_seconds: The pause after the first; more than 15 minutes is kept as it is.
    """
    longest: float = max(LONGEST_PAUSE_SECONDS, first_pause_seconds)
    return ended_at(last_failed) + min(first_pause_seconds * 2.0 ** min(failures - 1, 30), longest)


DATA_VERSION_TAG: Final = "dagster/data_version"

_ANSWER_SECONDS: Final = 60.0
"""How long to wait for a run after a report before the backlog, if it is still there, is reported again."""

_READ_SECONDS: Final = 20.0
"""How long reading the queue may take; an evaluation is cut off after 60 s."""

_T = TypeVar("_T")


def build_sqs_backlog_sensor(
    name: str,
    queue: SqsQueueResource,
    target: Target | None = None,
    *,
    queue_asset: dg.AssetSpec | dg.AssetKey | str | None = None,
    min_messages: int = 1,
    max_wait: Duration | None = None,
    max_concurrent_runs: int = 1,
    messages_per_run: int | None = None,
    pause_after_failure: Duration = 30.0,
    partition_key: str | Callable[[Backlog], str] | None = None,
    run_config: RunConfig | Callable[[Backlog], RunConfig] | None = None,
    run_tags: Mapping[str, str] | Callable[[Backlog], Mapping[str, str]] | None = None,
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    description: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> dg.SensorDefinition:
    """Make a sensor that starts runs when messages wait in a queue.

    For example, for an asset ``orders`` that leases messages of the same queue::

        orders_backlog = build_sqs_backlog_sensor(
            "orders_backlog", orders_queue, orders, min_messages=100, max_wait=timedelta(minutes=5)
        )

    A run is started when at least ``min_messages`` can be received, or when the first of them has waited for
    ``max_wait``. The sensor reads nothing but the queue's attributes (``sqs:GetQueueUrl`` and
    ``sqs:GetQueueAttributes``); the runs receive, and those that find the queue empty do nothing.

    After a failed run the sensor pauses for ``pause_after_failure``, twice as long after the next failure and so on, up
    to 15 minutes, until a run succeeds; meanwhile it tries one run at a time. Canceled runs do not count. A retry that
    succeeds does not end the pause, since it may have received other messages.

    The sensor does not receive, so it cannot decide by the content of messages:
    :func:`build_sqs_router <sqs_lease.dagster.router.build_sqs_router>` does.

    A run that has not ended 12 hours after its start does not count as in progress any more.

    Args:
        name: The sensor's name.
        queue: The queue. Its ``EnvVar``s are read in each evaluation.
        target: What to run: a job (also one of :func:`dagster.define_asset_job`), several jobs, or assets in any
            form sensors take them (``AssetsDefinition``, ``AssetSelection``, keys, a selection string). Of several
            jobs, each is treated as if it had a sensor of its own.
        queue_asset: Instead of ``target``: the external asset that stands for the queue. The sensor reports it as
            materialized instead of starting a run, and assets behind it run by their ``AutomationCondition``.
        min_messages: The number of visible messages that starts a run; 1 by default.
        max_wait: The time after which fewer messages start a run. SQS does not tell the age of a message before it is
            received, so the time begins when the sensor first saw messages without starting a run for them. None, the
            default: never.
        max_concurrent_runs: Most runs of the sensor that are queued or at work, 1 by default.
        messages_per_run: How many messages one run takes, its ``lease(max_messages=...)``; needed with more than
            one concurrent run. As many runs are started as the backlog needs, at most three an evaluation.
        pause_after_failure: The pause after a first failed run; 30 s by default, 0 for no pause.
        partition_key: The partition to run, or a function that returns it for a :class:`Backlog`. A partition of a
            dynamic partitions definition is added. With ``queue_asset``, the partition that is reported.
        run_config: The runs' configuration, or a function that makes it.
        run_tags: Tags of the runs, or a function that makes them.
        minimum_interval_seconds: Least time between two evaluations; Dagster's own minimum is about 5 s.
        default_status: Whether the sensor runs without being switched on; it does not, by default.
        description: The sensor's description in the web UI.
        tags: Tags of the sensor itself.

    Raises:
        ValueError: Both or neither of ``target`` and ``queue_asset`` were given, or an argument is out of range.
        TypeError: ``queue`` is not a queue.
    """
    check_queue_resource(queue, f"sensor {name!r}")
    rules = _Rules(
        min_messages=min_messages,
        max_wait_seconds=None if max_wait is None else seconds_of(max_wait, name="max_wait"),
        max_concurrent_runs=max_concurrent_runs,
        messages_per_run=messages_per_run,
        pause_seconds=seconds_of(pause_after_failure, name="pause_after_failure"),
    )
    if (target is None) is (queue_asset is None):
        raise ValueError(f"sensor {name!r}: give either target or queue_asset")
    if queue_asset is not None and (run_config is not None or run_tags is not None or max_concurrent_runs != 1):
        raise ValueError(
            f"sensor {name!r} starts no runs itself, as it has a queue_asset: run_config, run_tags and "
            "max_concurrent_runs are not for it. Set them on the assets behind it, or give a target"
        )
    key, jobs = _asset_key(queue_asset), jobs_of_a_list(target)
    sensor = _BacklogSensor(name, queue, rules, key, jobs, partition_key, run_config, run_tags)

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return sensor.evaluate(context, made)

    made = dg.SensorDefinition(
        name,
        evaluation_fn=evaluate,
        **target_argument(target),
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or f"Starts runs when messages wait in the queue {_shown(queue)}; the runs receive.",
        tags=tags,
    )
    return made


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules that decide when to start how many runs."""

    min_messages: int
    max_wait_seconds: float | None
    max_concurrent_runs: int
    messages_per_run: int | None
    pause_seconds: float

    def __post_init__(self) -> None:
        for name in ("min_messages", "max_concurrent_runs", "messages_per_run"):
            number = getattr(self, name)
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise ValueError(f"{name} must be a whole number from 1 on, not {number!r}")
        if self.max_concurrent_runs > 1 and self.messages_per_run is None:
            raise ValueError(
                "max_concurrent_runs is more than 1: give messages_per_run, the number of messages that one run takes, "
                "so that no more runs are started than the backlog needs"
            )

    def why_to_wait(self, backlog: Backlog) -> str | None:
        """Return why it is too early to start a run; None if it is not."""
        if not backlog.visible:
            return "there are no messages to receive"
        waited = backlog.waited.total_seconds()
        if backlog.visible >= self.min_messages:
            return None
        said = f"{_count(backlog.visible, 'message')} can be received, fewer than {self.min_messages}"
        if self.max_wait_seconds is None:
            return said
        if waited >= self.max_wait_seconds:
            return None
        return f"{said}, and the wait of {waited:.0f} s is shorter than {self.max_wait_seconds:g} s"

    def how_many(self, backlog: Backlog, runs: SensorRuns, now: float) -> tuple[int, str]:
        """Return how many runs to start, and the reason if it is 0."""
        going = len(runs.in_progress)
        if going >= self.max_concurrent_runs:
            newest = runs.in_progress[0].dagster_run
            others = "" if going == 1 else f" and {_count(going - 1, 'other')}"
            said = f"run {newest.run_id}{others} is in progress"
            return 0, f"{said}{advice(runs.in_progress, now)}"
        if runs.last_failed is not None:
            run_id, until = (
                runs.last_failed.dagster_run.run_id,
                pause_until(runs.failures, runs.last_failed, self.pause_seconds),
            )
            if now < until:
                failed = "the last run" if runs.failures == 1 else f"the last {runs.failures} runs"
                return 0, f"{failed} failed, the newest is {run_id}: nothing is started for {until - now:.0f} s more"
            if going:
                return 0, f"runs have failed, so one is tried alone before there are more: {going} in progress"
            return 1, ""
        wanted = 1
        if self.messages_per_run is not None:
            wanted = math.ceil(backlog.visible / self.messages_per_run) - runs.about_to_receive(now)
        if wanted < 1:
            return 0, f"the {_count(going, 'run')} in progress may have yet to receive them"
        return min(wanted, self.max_concurrent_runs - going, MOST_RUNS_AT_ONCE), ""


@dataclass(frozen=True, slots=True)
class _QueueReading:
    """The knowledge of one evaluation after it has read the queue."""

    backlog: Backlog
    memory: Memory
    now: float


@dataclass(frozen=True, slots=True)
class _BacklogSensor:
    name: str
    queue: SqsQueueResource
    rules: _Rules
    queue_asset: dg.AssetKey | None
    jobs: Sequence[str]
    partition_key: str | Callable[[Backlog], str] | None
    run_config: RunConfig | Callable[[Backlog], RunConfig] | None
    run_tags: Mapping[str, str] | Callable[[Backlog], Mapping[str, str]] | None

    def evaluate(self, context: dg.SensorEvaluationContext, made: dg.SensorDefinition) -> dg.SensorResult:
        now = SystemClock().wall()
        memory = self._memory(context)
        try:
            queue = self.queue.process_config_and_initialize().attributes(timeout=_READ_SECONDS)
        except SqsError as error:
            memory = memory.unread(unreadable_since(error, memory.unreadable_since, now))
            return dg.SensorResult(skip_reason=str(error), cursor=memory.cursor())
        memory = memory.seen(queue.visible, now)
        backlog = _backlog(queue, memory, now)
        if (reason := self.rules.why_to_wait(backlog)) is not None:
            return dg.SensorResult(skip_reason=_sentence(reason), cursor=memory.cursor())
        seen = _QueueReading(backlog, memory, now)
        if self.queue_asset is not None:
            return self._report(context, self.queue_asset, seen)
        return self._ask(context, made, seen)

    def _ask(
        self, context: dg.SensorEvaluationContext, made: dg.SensorDefinition, seen: _QueueReading
    ) -> dg.SensorResult:
        """Ask for runs of each job, or of the only target."""
        tag = name_of_sensor(self.name, context)
        requests: list[dg.RunRequest] = []
        reasons: list[str] = []
        for job in self.jobs or (None,):
            runs = SensorRuns.of(runs_of_sensor(context.instance, tag, job), seen.now)
            count, reason = self.rules.how_many(seen.backlog, runs, seen.now)
            if reason:
                reasons.append(f"{job}: {reason}" if job else reason)
            requests += [self._request(tag, job, seen, len(requests) + number) for number in range(1, count + 1)]
        if not requests:
            return _skipped(seen, "; ".join(reasons))
        return dg.SensorResult(
            run_requests=requests,
            cursor=seen.memory.started(len(requests)).cursor(),
            dynamic_partitions_requests=self._added_partitions(context, made, requests),
        )

    def _report(self, context: dg.SensorEvaluationContext, key: dg.AssetKey, seen: _QueueReading) -> dg.SensorResult:
        """Report the queue's asset, for the assets behind it.

        Raises:
            ValueError: The code location has no such asset.
        """
        backlog, memory, now = seen.backlog, seen.memory, seen.now
        records = runs_of_assets(context.instance, _assets_behind(context, key), _RECENT_RUNS)
        _, reason = self.rules.how_many(backlog, SensorRuns.of(records, now), now)
        if reason:
            return _skipped(seen, reason)
        at = memory.reported_at
        if at is not None and 0 <= now - at < _ANSWER_SECONDS and all(ended_at(record) < at for record in records):
            return _skipped(seen, f"they were reported {now - at:.0f} s ago, and no run has come of it yet")
        latest = context.instance.get_latest_materialization_event(key)
        reported = None if latest is None else latest.asset_materialization
        said = f"{_count(backlog.visible, 'visible message')} on {key.to_user_string()}"
        # By it, an evaluation that is repeated because its cursor was not stored sees that it reported before.
        version = {DATA_VERSION_TAG: memory.key(1)}
        if reported is not None and version.items() <= (reported.tags or {}).items():
            return dg.SensorResult(skip_reason=f"Reported already: {said}", cursor=memory.reported(now).cursor())
        event = dg.AssetMaterialization(
            key,
            partition=_given(self.partition_key, backlog),
            description=f"{backlog.visible} messages can be received",
            metadata={
                "sqs/visible": backlog.visible,
                "sqs/in_flight": backlog.in_flight,
                "sqs/delayed": backlog.delayed,
                "sqs/waited_seconds": backlog.waited.total_seconds(),
            },
            tags=version,
        )
        return dg.SensorResult(
            asset_events=[event], skip_reason=f"Reported {said}", cursor=memory.reported(now).cursor()
        )

    def _request(self, tag: str, job: str | None, seen: _QueueReading, number: int) -> dg.RunRequest:
        return dg.RunRequest(
            run_key=seen.memory.key(number),
            run_config=self.run_config(seen.backlog) if callable(self.run_config) else self.run_config,
            tags={**(_given(self.run_tags, seen.backlog) or {}), SENSOR_TAG: tag},
            job_name=job,
            partition_key=_given(self.partition_key, seen.backlog),
        )

    def _added_partitions(
        self, context: dg.SensorEvaluationContext, made: dg.SensorDefinition, requests: Sequence[dg.RunRequest]
    ) -> list[dg.AddDynamicPartitionsRequest]:
        definitions = context.repository_def
        added: list[Mapping[str, str]] = []
        for request in requests:
            # Without definitions, Dagster's own error tells the rest.
            if definitions is not None and request.partition_key is not None:
                job = definitions.get_job(request.job_name or str(made.job_name))
                try:
                    added.append(dynamic_keys(definitions, job, request.partition_key))
                except PartitionKeyError as error:
                    raise ValueError(
                        f"sensor {self.name}: partition_key is {request.partition_key!r}, but its target {error}"
                    ) from None
        return add_requests(added)

    def _memory(self, context: dg.SensorEvaluationContext) -> Memory:
        if not context.cursor:
            return Memory.fresh()
        memory = Memory.of(context.cursor)
        if memory is None:
            context.log.warning(
                "The cursor of %s cannot be read and was reset. It is of another version, or was edited",
                self.name,
            )
            return Memory.fresh()
        return memory


def _backlog(queue: QueueAttributes, memory: Memory, now: float) -> Backlog:
    seen_at = datetime.fromtimestamp(now, UTC)
    return Backlog(queue.visible, queue.in_flight, queue.delayed, memory.waited(now), seen_at)


def _skipped(seen: _QueueReading, reason: str) -> dg.SensorResult:
    said = f"{_count(seen.backlog.visible, 'message')} can be received, but {reason}"
    return dg.SensorResult(skip_reason=said, cursor=seen.memory.cursor())


def _assets_behind(context: dg.SensorEvaluationContext, key: dg.AssetKey) -> list[dg.AssetKey]:
    """Return the assets directly behind the queue's that run by themselves."""
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


def _asset_key(asset: dg.AssetSpec | dg.AssetKey | str | None) -> dg.AssetKey | None:
    if asset is None:
        return None
    return asset.key if isinstance(asset, dg.AssetSpec) else dg.AssetKey.from_coercible(asset)


def _given(value: _T | Callable[[Backlog], _T] | None, backlog: Backlog) -> _T | None:
    return value(backlog) if callable(value) else value


def _shown(queue: SqsQueueResource) -> str:
    return f"of {queue.queue.env_var_name}" if isinstance(queue.queue, dg.EnvVar) else queue.queue


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
