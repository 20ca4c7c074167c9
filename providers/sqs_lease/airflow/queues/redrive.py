"""The task that moves messages out of a dead-letter queue, and its triggers.

Without a filter the service does the work, by a *move task* (``StartMessageMoveTask``): the task starts it on a worker,
its trigger follows it, and a worker ends it. Whoever follows knows the move task by its handle, so another triggerer
can take over. The service has no filter. With one, the messages are received with a lease, and those that match are
sent and then deleted (:mod:`sqs_lease.keeper.moving`); another triggerer that takes over begins anew with what is left.

A move task is cancelled when its time is up, when it cannot be followed, and when a user marks or clears its task. It
goes on when a triggerer stops, and when Airflow does not say what became of the task.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final, cast

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout
from airflow.triggers.base import BaseTrigger, TriggerEvent

from sqs_lease.airflow.airflow_api.requests import CommsError, run_of, state_key, task_states, triggers_are_supported
from sqs_lease.airflow.aws_connection import AwsConnection, telling_of_aws
from sqs_lease.airflow.links import SqsQueueLink
from sqs_lease.airflow.queues.move_orders import (
    FAILED,
    FAILED_FOR_GOOD,
    TIMED_OUT,
    MoveError,
    MoveOrder,
    StartedMove,
    abandon,
    follow,
    move_filtered,
    start,
)
from sqs_lease.airflow.queues.worker_calls import WorkerCalls
from sqs_lease.airflow.runtime import (
    DEFERRAL_SECONDS,
    SharedKeeper,
    TriggererKeepers,
    cancelled_once,
    carried_out,
    triggerer_keepers,
)
from sqs_lease.clock import SystemClock
from sqs_lease.core.calls import Verdict
from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.keeper.keeper import Keeper
from sqs_lease.keeper.moving import DEFAULT_MAX_MESSAGES
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.move_tasks import RedriveTransport
from sqs_lease.sqs.transport import Transport

logger = logging.getLogger(__name__)

TRIGGERER_MARGIN: Final = timedelta(minutes=1)
"""The trigger ends the wait itself; Airflow does so this much later, in case no triggerer runs."""

MOVED: Final = "moved"
"""Status of the event when all was moved."""


class SqsMoveMessagesOperator(BaseOperator):
    """Moves the messages of a dead-letter queue back to their source queues, or to another queue (redrive).

    For example, once the mistake that made them fail is corrected::

        SqsMoveMessagesOperator(task_id="redrive", queue_url="orders-dead-letters", max_per_second=50)

    SQS itself moves them, by a move task, while this task waits in the triggerer. With ``reason``, ``older_than`` or
    ``newer_than`` only some messages are moved. SQS cannot do that, so they are received with a lease, those that match
    are sent and deleted when SQS confirmed that, and the others are released at the end, so that none is seen twice. A
    message that was moved has another id and sent time, and its receive count begins anew. Its body, its attributes
    (the reason among them) and its message group stay.

    The return value says what was done: ``moved`` and ``to_move``; without a filter also the ``status`` of the move
    task, and with one ``looked_at``, ``not_moved``, ``duplicated`` (sent but not deleted) and ``hidden`` (held by
    others or, on a FIFO queue, behind messages that do not match). A task that failed leaves it, too. With a filter,
    the numbers begin anew when another triggerer takes over.

    When the task is marked, cleared or killed, or ``execution_timeout`` is over, the move task is cancelled, or what is
    held is released. What was moved until then stays moved.

    Args:
        queue_url: The dead-letter queue's URL, name or ARN (templated).
        destination: The same of the queue that takes the messages, of the same kind (templated). None sends each back
            to the queue that it came from. Messages that were sent to a dead-letter queue directly, as
            ``dead_letter()`` does, do not say which that was: they go to the only queue that has this dead-letter
            queue. With several of them, name the destination.
        max_per_second: Most messages in a second, 1 to 500. None leaves it to SQS, and sets no limit with a filter.
        reason: Move only messages whose reason this regular expression is found in (templated). The reason is the
            message attribute ``sqs_lease_reason``, which ``dead_letter()`` writes; messages without it stay.
        older_than: Move only messages that were sent this long ago, or longer: seconds or a ``timedelta``. On a FIFO
            queue this counts from when they came to the dead-letter queue.
        newer_than: Move only messages that were sent more recently than this.
        max_messages: With a filter: how many messages to look at, at most; 10 000 by default. Those that do not match
            are held meanwhile.
        deferrable: False moves in the worker's own process, which takes a worker slot; True by default.
        aws_conn_id: The Airflow connection; ``aws_default`` by default, None for boto3's own credentials (templated).
        region_name: The AWS region; None takes the connection's, or the queue's own (templated).
        verify: Whether, or by which certificates, TLS is verified; None takes the connection's (templated).
        botocore_config: Arguments of ``botocore.config.Config``; None takes the connection's.
        kwargs: As for every task: ``execution_timeout`` also holds while this one is deferred.

    Raises:
        ValueError: A value is out of range, or a queue is not a name, URL or ARN.
        TypeError: A value cannot be sent to the triggerer.
    """

    template_fields: Sequence[str] = ("aws_conn_id", "destination", "queue_url", "reason", "region_name", "verify")
    operator_extra_links = (SqsQueueLink(),)
    ui_color = "#d6eaf8"

    def __init__(
        self,
        *,
        queue_url: str,
        destination: str | None = None,
        max_per_second: int | None = None,
        reason: str | None = None,
        older_than: Duration | None = None,
        newer_than: Duration | None = None,
        max_messages: int = DEFAULT_MAX_MESSAGES,
        deferrable: bool = True,
        aws_conn_id: str | None = "aws_default",
        region_name: str | None = None,
        verify: bool | str | None = None,
        botocore_config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_url = queue_url
        self.destination = destination
        self.max_per_second = max_per_second
        self.reason = reason
        self.older_than_seconds = None if older_than is None else seconds_of(older_than, name="older_than")
        self.newer_than_seconds = None if newer_than is None else seconds_of(newer_than, name="newer_than")
        self.max_messages = max_messages
        self.deferrable = deferrable
        self.aws_conn_id = aws_conn_id
        self.region_name = region_name
        self.verify = verify
        self.botocore_config = botocore_config
        self._calls: WorkerCalls | None = None
        if not any(isinstance(text, str) and "{{" in text for text in (queue_url, destination, reason)):
            self._order().check()
        self._connection()

    def execute(self, context: Any) -> Any:
        """Start the move task and defer; with a filter, defer at once.

        Returns:
            What was moved, where this process moved it itself.

        Raises:
            AirflowFailException: It cannot be done, and trying again would not help.
            AirflowException: It cannot be done for the moment; the task's retries apply.
        """
        order = self._order()
        try:
            order.check()
        except ValueError as error:
            raise self._failure(AirflowFailException, str(error)) from error
        now = SystemClock().wall()
        ends_at = None if self.execution_timeout is None else now + self.execution_timeout.total_seconds()
        if not (self.deferrable and triggers_are_supported()):
            return self._in_this_process(context, order)
        connection = self._connection().encode()
        trigger: BaseTrigger
        if order.is_filtered:
            trigger = SqsFilteredMoveTrigger(
                connection=connection, deferred_at=now, ends_at=ends_at, order=asdict(order)
            )
        else:
            started: StartedMove = self._called(context, lambda transport: start(transport, order, SystemClock()))
            trigger = SqsMoveTaskTrigger(
                connection=connection,
                deferred_at=SystemClock().wall(),
                ends_at=ends_at,
                source_arn=started.source_arn,
                task_handle=started.handle,
                started_after=started.started_after,
            )
        timeout = None if self.execution_timeout is None else self.execution_timeout + TRIGGERER_MARGIN
        return self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """End as the trigger says.

        Returns:
            What was moved.

        Raises:
            AirflowTaskTimeout: ``execution_timeout`` was over.
            AirflowFailException: It cannot be done, and trying again would not help.
            AirflowException: It could not be done; the task's retries apply.
        """
        report = dict(event["report"])
        if event["status"] == MOVED:
            return report
        raise self._ended_badly(context, event["status"], event["error"], report)

    def on_kill(self) -> None:
        """Cancel the move that this process makes; where a trigger follows it, the trigger does so itself."""
        if self._calls is not None:
            self._calls.cancel()

    def _in_this_process(self, context: Any, order: MoveOrder) -> dict[str, Any]:
        clock = SystemClock()

        async def move(transport: RedriveTransport) -> dict[str, Any]:
            if order.is_filtered:
                async with Keeper(transport, clock=clock) as keeper:
                    return await move_filtered(transport, keeper, order, None)
            started = await start(transport, order, clock)
            try:
                return await follow(transport, started, clock)
            except asyncio.CancelledError:
                await abandon(transport, started, clock)
                raise

        moved: dict[str, Any] = self._called(context, move)
        return moved

    def _called(self, context: Any, work: Any) -> Any:
        """Do some work in this process; what fails it fails the task."""
        try:
            with WorkerCalls(self._connection(), self.queue_url) as self._calls:
                return self._calls.run(lambda transport: work(_redriving(transport)))
        except MoveError as error:
            raise self._ended_badly(context, error.status, str(error), error.report) from error
        except (SqsError, ValueError) as error:
            raise self._ended_badly(context, _status(error), str(error), {}) from error
        except CancelledError:
            raise self._failure(AirflowException, "it was killed, and what it had begun was cancelled") from None
        finally:
            self._calls = None

    def _ended_badly(self, context: Any, status: str, error: str, report: Mapping[str, Any]) -> Any:
        if report:
            context["ti"].xcom_push(key="return_value", value=dict(report))
        kinds = {TIMED_OUT: AirflowTaskTimeout, FAILED: AirflowException}
        return self._failure(kinds.get(status, AirflowFailException), error)

    def _failure(self, kind: type[Any], text: str) -> Any:
        return kind(f"task {self.task_id!r} of DAG {self.dag_id!r}: {text}")

    def _order(self) -> MoveOrder:
        return MoveOrder(
            queue=self.queue_url,
            destination=self.destination or None,
            max_per_second=self.max_per_second,
            reason=self.reason,
            older_than_seconds=self.older_than_seconds,
            newer_than_seconds=self.newer_than_seconds,
            max_messages=self.max_messages,
        )

    def _connection(self) -> AwsConnection:
        return AwsConnection.of(
            self.aws_conn_id, self.region_name, self.verify, self.botocore_config, queue=self.queue_url
        )


class _MoveTrigger(BaseTrigger):
    """What both triggers share: they work with the triggerer's client, and resume their task with a report.

    Args:
        connection: How to reach AWS, as plain values.
        deferred_at: When the task deferred, in seconds since the epoch.
        ends_at: Until when moving may take, in the same; None for ever.
    """

    def __init__(self, *, connection: dict[str, Any], deferred_at: float, ends_at: float | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.connection = connection
        self.deferred_at = deferred_at
        self.ends_at = ends_at
        self._keepers: TriggererKeepers | None = None
        self._shared: SharedKeeper | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, for Airflow."""
        arguments = {
            "connection": self.connection,
            "deferred_at": self.deferred_at,
            "ends_at": self.ends_at,
            **self._arguments(),
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Move, and resume the task with what was moved."""
        self._keepers = keepers = triggerer_keepers()
        await keepers.ready()
        event: dict[str, Any]
        try:
            event = {"status": MOVED, "report": await self._move(await self._acquire(keepers), keepers)}
        except MoveError as error:
            event = {"status": error.status, "error": str(error), "report": error.report}
        except (SqsError, ValueError) as error:
            event = {"status": _status(error), "error": str(error), "report": {}}
        await asyncio.sleep(max(0.0, self.deferred_at + DEFERRAL_SECONDS - keepers.clock.wall()))
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    @carried_out
    async def cleanup(self) -> None:
        """Give the triggerer's client back."""
        if self._keepers is not None and self._shared is not None:
            shared, self._shared = self._shared, None
            await self._keepers.release(shared)

    async def _acquire(self, keepers: TriggererKeepers) -> SharedKeeper:
        if self._shared is None:
            with telling_of_aws(self._queue()):
                self._shared = await keepers.acquire(AwsConnection.decode(self.connection))
        return self._shared

    @abstractmethod
    def _queue(self) -> str:
        """The queue, for errors."""

    @abstractmethod
    def _arguments(self) -> dict[str, Any]:
        """The arguments beyond those of this class."""

    @abstractmethod
    async def _move(self, shared: SharedKeeper, keepers: TriggererKeepers) -> dict[str, Any]:
        """Move, and return the report."""


class SqsMoveTaskTrigger(_MoveTrigger):
    """Follows a move task to its end.

    Args:
        connection: See :class:`_MoveTrigger`.
        deferred_at: See there.
        ends_at: See there.
        source_arn: The dead-letter queue.
        task_handle: The move task's handle.
        started_after: When the move task before it was started, in seconds since the epoch; 0 if there was none.
    """

    def __init__(
        self,
        *,
        connection: dict[str, Any],
        deferred_at: float,
        ends_at: float | None,
        source_arn: str,
        task_handle: str,
        started_after: float,
    ) -> None:
        super().__init__(connection=connection, deferred_at=deferred_at, ends_at=ends_at)
        self.source_arn = source_arn
        self.task_handle = task_handle
        self.started_after = started_after

    @carried_out
    async def on_kill(self) -> None:
        """Cancel the move task, unless its Airflow task is deferred still: then another triggerer follows it."""
        keepers = self._keepers
        if keepers is None:
            return
        try:
            if await self._is_deferred():
                return
        except CommsError as error:
            logger.warning("The move task of %s goes on: %s", self.source_arn, error)
            return
        try:
            shared = await self._acquire(keepers)
        except SqsError as error:
            logger.warning("The move task of %s goes on: %s", self.source_arn, error)
            return
        await abandon(_redriving(shared.transport), self._started(), keepers.clock)

    async def _is_deferred(self) -> bool:
        task = run_of(self.task_instance)
        key = state_key((task.task_id, getattr(self.task_instance, "map_index", -1)))
        states = await task_states(task.dag_id, [task.run_id], [task.task_id])
        return states.get(task.run_id, {}).get(key) == "deferred"

    def _started(self) -> StartedMove:
        return StartedMove(self.source_arn, self.started_after, self.task_handle)

    def _queue(self) -> str:
        return self.source_arn

    def _arguments(self) -> dict[str, Any]:
        return {"source_arn": self.source_arn, "task_handle": self.task_handle, "started_after": self.started_after}

    async def _move(self, shared: SharedKeeper, keepers: TriggererKeepers) -> dict[str, Any]:
        return await follow(_redriving(shared.transport), self._started(), keepers.clock, self.ends_at)


class SqsFilteredMoveTrigger(_MoveTrigger):
    """Moves the messages that match.

    Args:
        connection: See :class:`_MoveTrigger`.
        deferred_at: See there.
        ends_at: See there.
        order: The arguments of :class:`~sqs_lease.airflow.queues.move_orders.MoveOrder`.
    """

    def __init__(
        self, *, connection: dict[str, Any], deferred_at: float, ends_at: float | None, order: dict[str, Any]
    ) -> None:
        super().__init__(connection=connection, deferred_at=deferred_at, ends_at=ends_at)
        self.order = MoveOrder(**order)

    def _queue(self) -> str:
        return self.order.queue

    def _arguments(self) -> dict[str, Any]:
        return {"order": asdict(self.order)}

    async def _move(self, shared: SharedKeeper, keepers: TriggererKeepers) -> dict[str, Any]:
        moving = keepers.loop.create_task(
            move_filtered(_redriving(shared.transport), shared.keeper, self.order, self.ends_at)
        )
        try:
            return await asyncio.shield(moving)
        except asyncio.CancelledError:
            # However often Airflow cancels: sends under way come to their end, and what is held is released.
            await cancelled_once(moving)
            raise


def _status(error: SqsError | ValueError) -> str:
    may_pass = isinstance(error, SqsError) and error.verdict is not Verdict.REFUSED
    return FAILED if may_pass else FAILED_FOR_GOOD


def _redriving(transport: Transport) -> RedriveTransport:
    """The transports of Airflow's connections all have the calls for move tasks."""
    return cast("RedriveTransport", transport)
