"""The task that waits until a queue is deep, or shallow, enough; and its trigger.

SQS gives approximate counts. The age of the oldest message is a metric of CloudWatch, which is a minute or more behind.
It is read only where a bound for it is set: that needs a permission of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from airflow.sdk import BaseOperator, BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralTimeout,
)
from airflow.triggers.base import BaseTrigger, TriggerEvent

from sqs_lease.airflow.airflow_api.requests import triggers_are_supported
from sqs_lease.airflow.aws_connection import AwsConnection, telling_of_aws
from sqs_lease.airflow.links import SqsQueueLink
from sqs_lease.airflow.queues.worker_calls import WorkerCalls
from sqs_lease.airflow.runtime import DEFERRAL_SECONDS, SharedKeeper, TriggererKeepers, carried_out, triggerer_keepers
from sqs_lease.clock import Clock, SystemClock
from sqs_lease.core.calls import Verdict
from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.sqs.classification import error_from_exception, translate_client_errors
from sqs_lease.sqs.errors import AccessDeniedError, SqsError
from sqs_lease.sqs.transport import QueueAttributes, Transport
from sqs_lease.sqs.validation import queue_reference

logger = logging.getLogger(__name__)

COUNTS: Final = ("visible", "in_flight", "delayed")
"""The counts that SQS gives of a queue."""

METRIC_MINUTES: Final = 15
"""How far to look back for the newest value of the metric: CloudWatch gets one a minute, with some delay."""

TRIGGERER_MARGIN: Final = timedelta(minutes=1)
"""The trigger ends the wait itself; Airflow does so this much later, in case no triggerer runs."""

MET: Final = "met"
TIMED_OUT: Final = "timed out"
FAILED: Final = "failed"
FAILED_FOR_GOOD: Final = "failed for good"

_METRIC: Final = "ApproximateAgeOfOldestMessage"
_CALL: Final = "GetMetricStatistics"


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthBounds:
    """What is waited for, as plain values; a bound that is None always holds.

    Attributes:
        counts: Which of :data:`COUNTS` are added up.
        at_least: The least sum.
        at_most: The largest sum.
        oldest_at_least_seconds: The least age of the oldest message.
        oldest_at_most_seconds: Its largest age.
    """

    counts: Sequence[str]
    at_least: int | None
    at_most: int | None
    oldest_at_least_seconds: float | None
    oldest_at_most_seconds: float | None

    @property
    def need_age(self) -> bool:
        """Whether the age of the oldest message must be known."""
        return (self.oldest_at_least_seconds, self.oldest_at_most_seconds) != (None, None)

    def check(self, task_id: str) -> None:
        """Check the values.

        Raises:
            ValueError: A bound is out of range, there is none, or none can be met.
        """
        bounds = (self.at_least, self.at_most, self.oldest_at_least_seconds, self.oldest_at_most_seconds)
        if bounds == (None,) * len(bounds):
            raise ValueError(f"{task_id!r} waits for nothing: set at_least, at_most, oldest_at_least or oldest_at_most")
        for name, bound in (("at_least", self.at_least), ("at_most", self.at_most)):
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int) or bound < 0):
                raise ValueError(f"{name} of {task_id!r} must be a whole number of messages, not {bound!r}")
        if not self.counts or not set(self.counts) <= set(COUNTS):
            raise ValueError(f"counts of {task_id!r} must be one or more of {', '.join(COUNTS)}, not {self.counts!r}")
        if not _fits(self.at_least, self.at_most) or not _fits(
            self.oldest_at_least_seconds, self.oldest_at_most_seconds
        ):
            raise ValueError(f"{task_id!r} waits for what cannot be: a lower bound is above its upper bound")

    def hold(self, depth: Depth) -> bool:
        """Whether all bounds hold."""
        count = sum(getattr(depth, name) for name in self.counts)
        if not _between(count, self.at_least, self.at_most):
            return False
        if not self.need_age:
            return True
        # Without a value, nothing says how old the oldest message is.
        age = depth.oldest_seconds
        return age is not None and _between(age, self.oldest_at_least_seconds, self.oldest_at_most_seconds)


@dataclass(frozen=True, slots=True)
class Depth:
    """How deep a queue is.

    Attributes:
        visible: Approximate number of messages that can be received.
        in_flight: Approximate number of messages that are being worked on.
        delayed: Approximate number of messages whose delay still runs.
        oldest_seconds: Age of the oldest message by CloudWatch; None where that was not asked, or has no value.
    """

    visible: int
    in_flight: int
    delayed: int
    oldest_seconds: float | None = None

    def __str__(self) -> str:
        age = "" if self.oldest_seconds is None else f", the oldest message is {self.oldest_seconds:g} s old"
        return f"{self.visible} messages visible, {self.in_flight} in flight, {self.delayed} delayed{age}"


class SqsQueueDepthSensor(BaseSensorOperator):
    """Waits until the number of messages in a queue, or the age of the oldest one, is within bounds.

    It receives nothing. For example, it waits until a batch is worth its run::

        SqsQueueDepthSensor(task_id="enough", queue_url="orders", at_least=1000)

    or until a queue is drained::

        everything = ("visible", "in_flight", "delayed")
        SqsQueueDepthSensor(task_id="drained", queue_url="orders", at_most=0, counts=everything)

    The return value has ``visible``, ``in_flight``, ``delayed`` and ``oldest_seconds``. The counts of SQS are
    approximate, and become right within about a minute after senders stop.

    Args:
        queue_url: The queue's URL, name or ARN (templated). ``queue`` is Airflow's own name for a queue of workers.
        at_least: The least number of messages.
        at_most: The largest number of messages.
        counts: Which counts are added up for these: ``visible`` (the default), ``in_flight``, ``delayed``.
        oldest_at_least: The least age of the oldest message: seconds or a ``timedelta``. It is the metric
            ``ApproximateAgeOfOldestMessage`` of CloudWatch, which lags by a minute or more and has no value for queues
            that nobody used for six hours; without a value the bound does not hold. The connection must be allowed to
            call ``cloudwatch:GetMetricStatistics``.
        oldest_at_most: The largest age of the oldest message.
        deferrable: False looks in the worker's own process, as sensors that poke or are rescheduled do (``mode``).
            True, the default, waits in the triggerer.
        aws_conn_id: The Airflow connection; ``aws_default`` by default, None for boto3's own credentials (templated).
        region_name: The AWS region; None takes the connection's, or the queue's own (templated).
        verify: Whether, or by which certificates, TLS is verified; None takes the connection's (templated).
        botocore_config: Arguments of ``botocore.config.Config``; None takes the connection's.
        kwargs: As for every sensor: ``timeout``, ``poke_interval`` (60 s by default), ``soft_fail``, which skips for
            the time-out only, and what every task takes.

    Raises:
        ValueError: A bound is missing or out of range, or ``queue_url`` is not a queue name, URL or ARN.
        TypeError: A value cannot be sent to the triggerer.
    """

    template_fields: Sequence[str] = ("aws_conn_id", "queue_url", "region_name", "verify")
    operator_extra_links = (SqsQueueLink(),)
    ui_color = "#d6eaf8"

    def __init__(
        self,
        *,
        queue_url: str,
        at_least: int | None = None,
        at_most: int | None = None,
        counts: Collection[str] = ("visible",),
        oldest_at_least: Duration | None = None,
        oldest_at_most: Duration | None = None,
        deferrable: bool = True,
        aws_conn_id: str | None = "aws_default",
        region_name: str | None = None,
        verify: bool | str | None = None,
        botocore_config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_url = queue_url
        self.at_least = at_least
        self.at_most = at_most
        self.counts = [counts] if isinstance(counts, str) else list(counts)
        self.oldest_at_least_seconds = _seconds(oldest_at_least, "oldest_at_least")
        self.oldest_at_most_seconds = _seconds(oldest_at_most, "oldest_at_most")
        self.deferrable = deferrable
        self.aws_conn_id = aws_conn_id
        self.region_name = region_name
        self.verify = verify
        self.botocore_config = botocore_config
        self._bounds().check(self.task_id)
        if isinstance(queue_url, str) and "{{" not in queue_url:
            queue_reference(queue_url)
        self._connection()

    def execute(self, context: Any) -> Any:
        """Wait: in the triggerer, or in this process.

        Returns:
            The depth, where this process waited.

        Raises:
            AirflowSensorTimeout: The bounds did not hold in time.
            AirflowFailException: The queue or the metric cannot be read, and trying again would not help.
            AirflowException: They cannot be read for the moment; the task's retries apply.
        """
        if not (self.deferrable and triggers_are_supported()):
            try:
                return super().execute(context)
            except _LookError as error:
                # Not raised as it is within poke(), where Airflow's base class turns it into a skip with soft_fail.
                raise error.failure from error
        self._check_queue()
        now = SystemClock().wall()
        return self.defer(
            trigger=SqsQueueDepthTrigger(
                queue=self.queue_url,
                connection=self._connection().encode(),
                bounds=asdict(self._bounds()),
                poke_seconds=float(self.poke_interval),
                deferred_at=now,
                expires_at=now + self.timeout,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout) + TRIGGERER_MARGIN,
        )

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """End as the trigger says.

        Returns:
            The depth.

        Raises:
            AirflowSensorTimeout: The bounds did not hold in time.
            AirflowFailException: The queue or the metric cannot be read, and trying again would not help.
            AirflowException: They cannot be read for the moment; the task's retries apply.
        """
        if event["status"] == MET:
            return dict(event["depth"])
        kinds = {TIMED_OUT: AirflowSensorTimeout, FAILED: AirflowException}
        raise self._failure(kinds.get(event["status"], AirflowFailException), event["error"])

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """Resume after the trigger, as Airflow's sensors do, but skip with ``soft_fail`` only when the time is up."""
        if not self.soft_fail:
            return super().resume_execution(next_method, next_kwargs, context)
        try:
            return BaseOperator.resume_execution(self, next_method, next_kwargs, context)
        except (AirflowSensorTimeout, TaskDeferralTimeout) as error:
            raise AirflowSkipException(f"the time is up: {error}") from error

    def poke(self, context: Any) -> bool | PokeReturnValue:
        """Look once, in this process."""
        self._check_queue()
        connection, bounds = self._connection(), self._bounds()
        try:
            with WorkerCalls(connection, self.queue_url) as calls:
                attributes = calls.run(lambda transport: _attributes(transport, self.queue_url))
                age = None
                if bounds.need_age:
                    # In this thread: Airflow's connections are read through the task's own channel.
                    making = cloudwatch_client(connection, attributes.arn)
                    age = calls.run(lambda _: _oldest_age(making, attributes.arn, SystemClock()))
        except SqsError as error:
            kind = AirflowFailException if error.verdict is Verdict.REFUSED else AirflowException
            raise _LookError(self._failure(kind, str(error))) from error
        depth = _depth(attributes, age)
        self.log.info("%s: %s", self.queue_url, depth)
        return PokeReturnValue(is_done=True, xcom_value=asdict(depth)) if bounds.hold(depth) else False

    def _check_queue(self) -> None:
        """Check what a template gave."""
        try:
            queue_reference(self.queue_url)
        except ValueError as error:
            raise self._failure(AirflowFailException, str(error)) from error

    def _bounds(self) -> DepthBounds:
        return DepthBounds(
            counts=self.counts,
            at_least=self.at_least,
            at_most=self.at_most,
            oldest_at_least_seconds=self.oldest_at_least_seconds,
            oldest_at_most_seconds=self.oldest_at_most_seconds,
        )

    def _connection(self) -> AwsConnection:
        return AwsConnection.of(
            self.aws_conn_id, self.region_name, self.verify, self.botocore_config, queue=self.queue_url
        )

    def _failure(self, kind: type[AirflowException], text: str) -> AirflowException:
        return kind(f"task {self.task_id!r} of DAG {self.dag_id!r}: {text}")


class _LookError(Exception):
    """The queue could not be looked at; what the task is to fail with."""

    def __init__(self, failure: AirflowException) -> None:
        super().__init__(str(failure))
        self.failure = failure


class SqsQueueDepthTrigger(BaseTrigger):
    """Looks at a queue again and again until the bounds hold.

    Args:
        queue: The queue's URL, name or ARN.
        connection: How to reach AWS, as plain values.
        bounds: The arguments of :class:`DepthBounds`.
        poke_seconds: Pause between two looks.
        deferred_at: When the task deferred, in seconds since the epoch.
        expires_at: Until when to wait, in the same.
    """

    def __init__(
        self,
        *,
        queue: str,
        connection: dict[str, Any],
        bounds: dict[str, Any],
        poke_seconds: float,
        deferred_at: float,
        expires_at: float,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.queue = queue
        self.connection = connection
        self.bounds = DepthBounds(**bounds)
        self.poke_seconds = poke_seconds
        self.deferred_at = deferred_at
        self.expires_at = expires_at
        self._keepers: TriggererKeepers | None = None
        self._shared: SharedKeeper | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, for Airflow."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "queue": self.queue,
            "connection": self.connection,
            "bounds": asdict(self.bounds),
            "poke_seconds": self.poke_seconds,
            "deferred_at": self.deferred_at,
            "expires_at": self.expires_at,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and resume the task."""
        self._keepers = keepers = triggerer_keepers()
        await keepers.ready()
        try:
            with telling_of_aws(self.queue):
                self._shared = await keepers.acquire(AwsConnection.decode(self.connection))
            event = await self._wait(self._shared.transport, keepers.clock)
        except SqsError as error:
            status = FAILED_FOR_GOOD if error.verdict is Verdict.REFUSED else FAILED
            event = {"status": status, "error": str(error)}
        await asyncio.sleep(max(0.0, self.deferred_at + DEFERRAL_SECONDS - keepers.clock.wall()))
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    @carried_out
    async def cleanup(self) -> None:
        """Give the triggerer's client back."""
        if self._keepers is not None and self._shared is not None:
            shared, self._shared = self._shared, None
            await self._keepers.release(shared)

    async def _wait(self, transport: Transport, clock: Clock) -> dict[str, Any]:
        shown: Depth | None = None
        while True:
            left = self.expires_at - clock.wall()
            try:
                depth = await self._look(transport, clock)
            except SqsError as error:
                if error.verdict is Verdict.REFUSED or left <= 0:
                    raise
                logger.warning("%s cannot be looked at now: %s", self.queue, error)
            else:
                if depth != shown:
                    logger.info("%s: %s", self.queue, depth)
                    shown = depth
                if self.bounds.hold(depth):
                    return {"status": MET, "depth": asdict(depth)}
                if left <= 0:
                    return {"status": TIMED_OUT, "error": f"the time is up, and queue {self.queue} has {depth}"}
            # A last look when the time is up.
            await asyncio.sleep(min(self.poke_seconds, max(left, 0.0)))

    async def _look(self, transport: Transport, clock: Clock) -> Depth:
        attributes = await _attributes(transport, self.queue)
        if not self.bounds.need_age:
            return _depth(attributes, None)
        connection = AwsConnection.decode(self.connection)
        # Importing the hook, reading the connection and loading the service's model all block.
        making = await asyncio.to_thread(cloudwatch_client, connection, attributes.arn)
        return _depth(attributes, await _oldest_age(making, attributes.arn, clock))


def cloudwatch_client(connection: AwsConnection, arn: str) -> Any:
    """Make the context manager of an asynchronous client for CloudWatch in the queue's region. It blocks.

    Args:
        connection: How to reach AWS.
        arn: The queue's ARN.

    Raises:
        SqsError: The client cannot be made.
    """
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook

    with translate_client_errors(arn):
        hook: Any = AwsBaseHook(
            aws_conn_id=connection.aws_conn_id,
            client_type="cloudwatch",
            region_name=queue_reference(arn).region,
            verify=connection.verify,
            config=json.loads(connection.botocore_config) if connection.botocore_config else None,
        )
        return hook.get_client_type(region_name=hook.region_name, deferrable=True)


async def _attributes(transport: Transport, queue: str) -> QueueAttributes:
    return await transport.queue_attributes(await transport.queue_url(queue))


async def _oldest_age(making: Any, arn: str, clock: Clock) -> float | None:
    """The newest value of the metric, in seconds; None where there is none.

    Raises:
        SqsError: It cannot be read; the text names the permission where that is missing.
    """
    now = datetime.fromtimestamp(clock.wall(), tz=UTC)
    try:
        async with making as client:
            answer = await client.get_metric_statistics(
                Namespace="AWS/SQS",
                MetricName=_METRIC,
                Dimensions=[{"Name": "QueueName", "Value": queue_reference(arn).name}],
                StartTime=now - timedelta(minutes=METRIC_MINUTES),
                EndTime=now,
                Period=60,
                Statistics=["Maximum"],
            )
    except Exception as error:
        described = error_from_exception(error, operation=_CALL, queue=arn)
        if described is None:
            raise
        if isinstance(described, AccessDeniedError):
            raise AccessDeniedError(
                f"The age of the oldest message of {arn} cannot be read from CloudWatch: access denied. Allow "
                f"cloudwatch:{_CALL} in the caller's IAM policy, or leave out oldest_at_least and oldest_at_most",
                queue=arn,
                code=described.code,
            ) from None
        raise described from None
    points = answer.get("Datapoints") or ()
    newest = max(points, key=lambda point: point["Timestamp"], default=None)
    return None if newest is None else float(newest["Maximum"])


def _depth(attributes: QueueAttributes, age: float | None) -> Depth:
    return Depth(attributes.visible, attributes.in_flight, attributes.delayed, age)


def _seconds(duration: Duration | None, name: str) -> float | None:
    return None if duration is None else seconds_of(duration, name=name)


def _fits(lower: float | None, upper: float | None) -> bool:
    return lower is None or upper is None or lower <= upper


def _between(value: float, lower: float | None, upper: float | None) -> bool:
    return (lower is None or value >= lower) and (upper is None or value <= upper)
