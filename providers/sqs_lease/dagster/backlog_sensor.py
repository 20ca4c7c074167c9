"""A sensor that starts runs when messages wait in a queue. It only counts them: receiving is the runs' business.

One evaluation reads the queue's attributes and decides. Nothing in it changes the queue, so it may be cut off, repeated
or tried out in the web UI at any time. What it remembers is its cursor:

- Run keys are numbered there. An evaluation whose cursor was not stored asks for the same keys again, and Dagster
  starts no second run for a key. After a cursor was cleared, other keys are used.
- A run that has a key never comes again, be it successful or failed: each start has a key of its own.

How many runs go on, and how many failed in a row, is not remembered but looked up by the tag that the runs have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import dagster as dg

from sqs_lease.clock import SystemClock
from sqs_lease.core.calls import Verdict
from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.dagster._internals import location_name
from sqs_lease.dagster.backlog_state import (
    SENSOR_TAG,
    UNREADABLE_SECONDS,
    Backlog,
    Memory,
    SensorRuns,
    advice,
    at,
    pause_until,
    report_backlog,
    runs_of_sensor,
)
from sqs_lease.dagster.resource import SqsQueueResource, check_queue_resource
from sqs_lease.dagster.targets import (
    MOST_RUNS_AT_ONCE,
    PartitionKeyError,
    RunConfig,
    Target,
    add_requests,
    dynamic_keys,
    jobs_of_a_list,
    target_argument,
)
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import QueueAttributes

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

    After a failed run nothing is started for ``pause_after_failure``, twice as long after the next one and so on, up
    to 15 minutes, until one succeeds; one run at a time is tried meanwhile. Canceled runs do not count. A retry that
    succeeds does not end the pause, since it may have received other messages.

    No message is received, so nothing can depend on what a message says: for that there is
    :func:`build_sqs_router <sqs_lease.dagster.router.build_sqs_router>`.

    A run that has not ended 12 hours after its start does not count as in progress any more.

    Args:
        name: The sensor's name.
        queue: The queue. Its ``EnvVar``s are read in each evaluation.
        target: What to run: a job (also one of :func:`dagster.define_asset_job`), several jobs, or assets in whatever
            form sensors take them (``AssetsDefinition``, ``AssetSelection``, keys, a selection string). Of several
            jobs, each is treated as if it had a sensor of its own.
        queue_asset: Instead of ``target``: the external asset that stands for the queue. It is reported as materialized
            in place of a run, and assets behind it run by their ``AutomationCondition``.
        min_messages: From how many visible messages on to start; 1 by default.
        max_wait: After what time to start for fewer. SQS tells nobody how old a message is that is not received, so
            it counts from when the sensor first saw messages that it started nothing for. None, the default: never.
        max_concurrent_runs: Most runs of the sensor that are queued or at work, 1 by default.
        messages_per_run: How many messages one run takes, its ``lease(max_messages=...)``; needed with more than
            one concurrent run, of which as many are started as the backlog is worth, at most three an evaluation.
        pause_after_failure: The pause after a first failed run; 30 s by default, 0 for none.
        partition_key: The partition to run, or a function that tells it from what was seen. A partition of a dynamic
            partitions definition is added. With ``queue_asset``, the partition that is reported.
        run_config: The runs' configuration, or a function that makes it.
        run_tags: Tags of the runs, or a function that makes them.
        minimum_interval_seconds: Least time between two evaluations; Dagster's own minimum is about 5 s.
        default_status: Whether the sensor runs without being switched on; it does not, by default.
        description: What the web UI says of it.
        tags: Tags of the sensor itself.

    Raises:
        ValueError: Not just one of ``target`` and ``queue_asset`` was given, or an argument is out of range.
        TypeError: ``queue`` is something else than a queue.
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
    sensor = _BacklogSensor(name, queue, rules, partition_key, run_config, run_tags)
    jobs = jobs_of_a_list(target)
    key = _asset_key(queue_asset)

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        if key is not None:
            return sensor.evaluate(context, lambda seen: sensor.report(context, key, seen))
        return sensor.evaluate(
            context, lambda seen: sensor.request(context, jobs, seen, "" if jobs else str(made.job_name))
        )

    made = dg.SensorDefinition(
        name,
        evaluation_fn=evaluate,
        **target_argument(target),
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or f"Starts work when messages wait in the queue {_shown(queue)}; it receives none.",
        tags=tags,
    )
    return made


@dataclass(frozen=True, slots=True)
class _Rules:
    """When to start how many runs."""

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
                "max_concurrent_runs is more than 1: say by messages_per_run how many messages one run takes, "
                "so that no more runs are started than the backlog is worth"
            )

    def why_to_wait(self, backlog: Backlog) -> str | None:
        """Why it is too early to start anything; None if it is not."""
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
        """How many runs to start, and why if it is 0."""
        going = len(runs.in_progress)
        if going >= self.max_concurrent_runs:
            newest = runs.in_progress[0].dagster_run
            others = "" if going == 1 else f" and {_count(going - 1, 'other')}"
            said = f"run {newest.run_id}{others} of this sensor is in progress"
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
class _Seen:
    """What one evaluation knows once it has read the queue."""

    backlog: Backlog
    memory: Memory
    now: float


@dataclass(frozen=True, slots=True)
class _BacklogSensor:
    name: str
    queue: SqsQueueResource
    rules: _Rules
    partition_key: str | Callable[[Backlog], str] | None
    run_config: RunConfig | Callable[[Backlog], RunConfig] | None
    run_tags: Mapping[str, str] | Callable[[Backlog], Mapping[str, str]] | None

    def evaluate(self, context: dg.SensorEvaluationContext, act: Callable[[_Seen], dg.SensorResult]) -> dg.SensorResult:
        now = SystemClock().wall()
        memory = self._memory(context)
        try:
            queue = self.queue.process_config_and_initialize().attributes(timeout=_READ_SECONDS)
        except SqsError as error:
            memory = memory.unread(now)
            lasted = now - (memory.unreadable_since or now)
            if error.verdict is Verdict.REFUSED or lasted >= UNREADABLE_SECONDS:
                raise
            return dg.SensorResult(skip_reason=str(error), cursor=memory.cursor())
        memory = memory.seen(queue.visible, now)
        backlog = _backlog(queue, memory, now)
        if (reason := self.rules.why_to_wait(backlog)) is not None:
            return dg.SensorResult(skip_reason=_sentence(reason), cursor=memory.cursor())
        return act(_Seen(backlog, memory, now))

    def request(
        self, context: dg.SensorEvaluationContext, jobs: Sequence[str], seen: _Seen, only_job: str
    ) -> dg.SensorResult:
        """Ask for runs of each job; of the only target, which is a job of this name, if there are no names."""
        tag = _tag(self.name, context)
        requests: list[dg.RunRequest] = []
        reasons: list[str] = []
        for job in jobs or (None,):
            runs = runs_of_sensor(context.instance, tag, job, seen.now)
            count, reason = self.rules.how_many(seen.backlog, runs, seen.now)
            if reason:
                reasons.append(f"{job}: {reason}" if job else reason)
            requests += [self._request(tag, job, seen, len(requests) + number) for number in range(1, count + 1)]
        if not requests:
            said = f"{_count(seen.backlog.visible, 'message')} can be received, but {'; '.join(reasons)}"
            return dg.SensorResult(skip_reason=_sentence(said), cursor=seen.memory.cursor())
        return dg.SensorResult(
            run_requests=requests,
            cursor=seen.memory.started(len(requests)).cursor(),
            dynamic_partitions_requests=self._added_partitions(context, requests, only_job),
        )

    def report(self, context: dg.SensorEvaluationContext, key: dg.AssetKey, seen: _Seen) -> dg.SensorResult:
        """Report the queue's asset, for the assets behind it."""
        partition = _given(self.partition_key, seen.backlog)
        event, memory, said = report_backlog(
            context, key, partition, seen.backlog, seen.memory, seen.now, self.rules.pause_seconds
        )
        return dg.SensorResult(
            asset_events=[] if event is None else [event], skip_reason=_sentence(said), cursor=memory.cursor()
        )

    def _request(self, tag: str, job: str | None, seen: _Seen, number: int) -> dg.RunRequest:
        return dg.RunRequest(
            run_key=seen.memory.key(number),
            run_config=self.run_config(seen.backlog) if callable(self.run_config) else self.run_config,
            tags={**(_given(self.run_tags, seen.backlog) or {}), SENSOR_TAG: tag},
            job_name=job,
            partition_key=_given(self.partition_key, seen.backlog),
        )

    def _added_partitions(
        self, context: dg.SensorEvaluationContext, requests: Sequence[dg.RunRequest], only_job: str
    ) -> list[dg.AddDynamicPartitionsRequest]:
        definitions = context.repository_def
        added: list[Mapping[str, str]] = []
        for request in requests:
            # Without definitions Dagster says itself what a partition needs.
            if definitions is not None and request.partition_key is not None:
                job = definitions.get_job(request.job_name or only_job)
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
                "The cursor of %s cannot be read, so it begins anew. It is of another version, or was edited",
                self.name,
            )
            return Memory.fresh()
        return memory


def _backlog(queue: QueueAttributes, memory: Memory, now: float) -> Backlog:
    return Backlog(queue.visible, queue.in_flight, queue.delayed, memory.waited(now), at(now))


def _tag(name: str, context: dg.SensorEvaluationContext) -> str:
    """What the runs of this sensor are tagged with; sensors of other code locations may have its name."""
    location = location_name(context)
    return name if location is None else f"{name}@{location}"


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
