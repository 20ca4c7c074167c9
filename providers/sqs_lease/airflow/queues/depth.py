"""The task that waits until a queue is deep, or shallow, enough; and its trigger.

SQS gives approximate counts. The age of the oldest message is a metric of CloudWatch, which is a minute or more behind.
It is read only if a bound for it is set, because it needs another permission.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from airflow.sdk import BaseOperator, BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException, TaskDeferralTimeout

from sqs_lease.airflow.airflow_api.requests import triggers_are_supported
from sqs_lease.airflow.aws_connection import AwsConnection
from sqs_lease.airflow.queues.queue_task import TRIGGERER_MARGIN, QueueTask, QueueTrigger
from sqs_lease.airflow.queues.worker_calls import WorkerCalls
from sqs_lease.airflow.runtime import SharedKeeper, TriggererKeepers
from sqs_lease.airflow.threads import CLIENTS
from sqs_lease.clock import Clock, SystemClock
from sqs_lease.core.calls import Verdict
from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.keeper.outcome import TIMED_OUT, OutcomeError
from sqs_lease.sqs.classification import error_from_exception, translate_client_errors
from sqs_lease.sqs.errors import AccessDeniedError, SqsError
from sqs_lease.sqs.oldest_age import OPERATION, oldest_age_request, oldest_age_seconds
from sqs_lease.sqs.transport import QueueAttributes, Transport
from sqs_lease.sqs.validation import queue_reference

logger = logging.getLogger(__name__)

COUNTS: Final = ("visible", "in_flight", "delayed")
"""The counts that SQS gives of a queue."""

SHORTEST_POKE_SECONDS: Final = 1.0
"""Shortest pause of a trigger between two looks, even if ``poke_interval`` is smaller."""


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
            ValueError: A bound is out of range, no bound is given, or no queue can meet the bounds.
        """
        bounds = (self.at_least, self.at_most, self.oldest_at_least_seconds, self.oldest_at_most_seconds)
        if bounds == (None,) * len(bounds):
            raise ValueError(f"{task_id!r} waits for nothing: set at_least, at_most, oldest_at_least or oldest_at_most")
        for name, bound in (("at_least", self.at_least), ("at_most", self.at_most)):
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int) or bound < 0):
                raise ValueError(f"{name} of {task_id!r} must be an integer of at least 0, not {bound!r}")
        if not self.counts or not set(self.counts) <= set(COUNTS):
            raise ValueError(f"counts of {task_id!r} must be one or more of {', '.join(COUNTS)}, not {self.counts!r}")
        if not _fits(self.at_least, self.at_most) or not _fits(
            self.oldest_at_least_seconds, self.oldest_at_most_seconds
        ):
            raise ValueError(f"{task_id!r} can never succeed, because a lower bound is above its upper bound")

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

    def describe(self, depth: Depth) -> str:
        """Say how deep a queue is, as far as it was looked at."""
        text = f"{depth.visible} messages visible, {depth.in_flight} in flight, {depth.delayed} delayed"
        if not self.need_age:
            return text
        if depth.oldest_seconds is None:
            return f"{text}, and CloudWatch has no value for the age of the oldest message"
        return f"{text}, the oldest message is {depth.oldest_seconds:g} s old"


@dataclass(frozen=True, slots=True)
class Depth:
    """How deep a queue is.

    Attributes:
        visible: Approximate number of messages that can be received.
        in_flight: Approximate number of messages that are being worked on.
        delayed: Approximate number of messages whose delay still runs.
        oldest_seconds: Age of the oldest message by CloudWatch; None if CloudWatch was not asked, or has no value.
    """

    visible: int
    in_flight: int
    delayed: int
    oldest_seconds: float | None = None


class SqsQueueDepthSensor(QueueTask, BaseSensorOperator):
    """Waits until the number of messages in a queue, or the age of the oldest one, is within bounds.

    It receives nothing. For example, it waits until a batch is worth its run::

        SqsQueueDepthSensor(task_id="enough", queue_url="orders", at_least=1000)

    or until a queue is drained::

        everything = ("visible", "in_flight", "delayed")
        SqsQueueDepthSensor(task_id="drained", queue_url="orders", at_most=0, counts=everything)

    The return value has ``visible``, ``in_flight``, ``delayed`` and ``oldest_seconds``. The counts of SQS are
    approximate, and become right within about a minute after senders stop: do not delete a queue for them alone.

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
        kwargs: The arguments of :class:`QueueTask` and of every sensor: ``timeout``, ``poke_interval`` (60 s by
            default, 1 s at least) and ``soft_fail``, which skips for the time-out only. ``deferrable=False`` looks in
            the worker's own process, as sensors that poke or are rescheduled do (``mode``).

    Raises:
        ValueError: A bound is missing or out of range, or ``queue_url`` is not a queue name, URL or ARN.
        TypeError: A value cannot be sent to the triggerer.
    """

    timed_out_error = AirflowSensorTimeout

    def __init__(
        self,
        *,
        queue_url: str,
        at_least: int | None = None,
        at_most: int | None = None,
        counts: Collection[str] = ("visible",),
        oldest_at_least: Duration | None = None,
        oldest_at_most: Duration | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(queue_url=queue_url, **kwargs)
        self.at_least = at_least
        self.at_most = at_most
        self.counts = [counts] if isinstance(counts, str) else list(counts)
        self.oldest_at_least_seconds = _seconds(oldest_at_least, "oldest_at_least")
        self.oldest_at_most_seconds = _seconds(oldest_at_most, "oldest_at_most")
        self._bounds().check(self.task_id)

    def execute(self, context: Any) -> Any:
        """Wait: in the triggerer, or in this process.

        Returns:
            The depth, where this process waited.

        Raises:
            AirflowSensorTimeout: The bounds did not hold in time.
            AirflowFailException: The queue or the metric cannot be read, and trying again would not help.
        """
        with self._failing(context):
            queue_reference(self.queue_url)  # A template may have given it.
            if not (self.deferrable and triggers_are_supported()):
                return super().execute(context)
        now = SystemClock().wall()
        return self.defer(
            trigger=SqsQueueDepthTrigger(
                queue=self.queue_url,
                deferred_at=now,
                ends_at=now + self.timeout,
                poke_seconds=float(self.poke_interval),
                **self._connection().encode(),
                **asdict(self._bounds()),
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout) + TRIGGERER_MARGIN,
        )

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
        bounds = self._bounds()
        try:
            depth = self._look(bounds)
        except SqsError as error:
            if error.verdict is Verdict.REFUSED:
                # Not as an exception of Airflow, which its base class would turn into a skip with soft_fail.
                raise
            self.log.warning("%s cannot be looked at now: %s", self.queue_url, error)
            return False
        self.log.info("%s: %s", self.queue_url, bounds.describe(depth))
        return PokeReturnValue(is_done=True, xcom_value=asdict(depth)) if bounds.hold(depth) else False

    def _look(self, bounds: DepthBounds) -> Depth:
        connection = self._connection()
        with WorkerCalls(connection, self.queue_url) as calls:
            attributes = calls.run(lambda transport: _attributes(transport, self.queue_url))
            if not bounds.need_age:
                return _depth(attributes, None)
            # In this thread: Airflow's connections are read through the task's own channel.
            making = cloudwatch_client(connection, attributes.arn)
            return _depth(attributes, calls.run(lambda _: _oldest_age(making, attributes.arn, SystemClock())))

    def _bounds(self) -> DepthBounds:
        return DepthBounds(
            counts=self.counts,
            at_least=self.at_least,
            at_most=self.at_most,
            oldest_at_least_seconds=self.oldest_at_least_seconds,
            oldest_at_most_seconds=self.oldest_at_most_seconds,
        )


class SqsQueueDepthTrigger(QueueTrigger):
    """Looks at a queue again and again until the bounds hold.

    Args:
        poke_seconds: Pause between two looks.
        counts: See :class:`DepthBounds`.
        at_least: See there.
        at_most: See there.
        oldest_at_least_seconds: See there.
        oldest_at_most_seconds: See there.
        common: The arguments of :class:`QueueTrigger`.
    """

    def __init__(
        self,
        *,
        poke_seconds: float,
        counts: Sequence[str],
        at_least: int | None,
        at_most: int | None,
        oldest_at_least_seconds: float | None,
        oldest_at_most_seconds: float | None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.poke_seconds = poke_seconds
        self.bounds = DepthBounds(
            counts=counts,
            at_least=at_least,
            at_most=at_most,
            oldest_at_least_seconds=oldest_at_least_seconds,
            oldest_at_most_seconds=oldest_at_most_seconds,
        )
        self._cloudwatch: Any = None

    def _arguments(self) -> dict[str, Any]:
        return {"poke_seconds": self.poke_seconds, **asdict(self.bounds)}

    async def _work(self, shared: SharedKeeper, keepers: TriggererKeepers) -> dict[str, Any]:
        clock = keepers.clock
        pause = max(self.poke_seconds, SHORTEST_POKE_SECONDS)
        shown: Depth | None = None
        async with AsyncExitStack() as clients:
            while True:
                left = math.inf if self.ends_at is None else self.ends_at - clock.wall()
                try:
                    depth = await self._look(shared.transport, clock, clients)
                except SqsError as error:
                    if error.verdict is Verdict.REFUSED or left <= 0:
                        raise
                    logger.warning("%s cannot be looked at now: %s", self.queue, error)
                else:
                    description = self.bounds.describe(depth)
                    if depth != shown:
                        logger.info("%s: %s", self.queue, description)
                        shown = depth
                    if self.bounds.hold(depth):
                        return asdict(depth)
                    if left <= 0:
                        raise OutcomeError(f"the time is up, and queue {self.queue} has {description}", TIMED_OUT)
                # A last look when the time is up.
                await asyncio.sleep(min(pause, max(left, 0.0)))

    async def _look(self, transport: Transport, clock: Clock, clients: AsyncExitStack) -> Depth:
        attributes = await _attributes(transport, self.queue)
        if not self.bounds.need_age:
            return _depth(attributes, None)
        try:
            with _translate_cloudwatch_errors(attributes.arn):
                if self._cloudwatch is None:
                    # Importing the hook, reading the connection and loading the service's model all block.
                    making = await CLIENTS.run(cloudwatch_client, self.connection, attributes.arn)
                    self._cloudwatch = await clients.enter_async_context(making)
                return _depth(attributes, await _newest_age(self._cloudwatch, attributes.arn, clock))
        except SqsError:
            # The connection may have been changed: it is read again for the next look.
            self._cloudwatch = None
            await clients.aclose()
            raise


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
    with _translate_cloudwatch_errors(arn):
        async with making as client:
            return await _newest_age(client, arn, clock)


async def _newest_age(client: Any, arn: str, clock: Clock) -> float | None:
    """The newest value of the metric, in seconds; None if CloudWatch has no value."""
    return oldest_age_seconds(await client.get_metric_statistics(**oldest_age_request(arn, clock.wall())))


@contextmanager
def _translate_cloudwatch_errors(arn: str) -> Iterator[None]:
    """Turn what a client of CloudWatch raises into errors that name the queue, and a missing permission."""
    try:
        yield
    except SqsError:
        raise
    except Exception as error:
        described = error_from_exception(error, operation=OPERATION, queue=arn)
        if described is None:
            raise
        if isinstance(described, AccessDeniedError):
            raise AccessDeniedError(
                f"The age of the oldest message of {arn} cannot be read from CloudWatch: access denied. Allow "
                f"cloudwatch:{OPERATION} in the caller's IAM policy, or leave out oldest_at_least and oldest_at_most",
                queue=arn,
                code=described.code,
            ) from None
        raise described from None


def _depth(attributes: QueueAttributes, age: float | None) -> Depth:
    return Depth(attributes.visible, attributes.in_flight, attributes.delayed, age)


def _seconds(duration: Duration | None, name: str) -> float | None:
    return None if duration is None else seconds_of(duration, name=name)


def _fits(lower: float | None, upper: float | None) -> bool:
    return lower is None or upper is None or lower <= upper


def _between(value: float, lower: float | None, upper: float | None) -> bool:
    return (lower is None or value >= lower) and (upper is None or value <= upper)
