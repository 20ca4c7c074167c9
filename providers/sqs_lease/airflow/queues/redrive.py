"""The task that moves messages out of a dead-letter queue, and its triggers.

Without a filter the service does the work, by a *move task* (``StartMessageMoveTask``): the task starts it on a worker,
and its trigger follows it. The trigger knows the move task by its handle, so another triggerer
can take over. The service has no filter. With one, the messages are received with a lease, and those that match are
sent and then deleted (:mod:`sqs_lease.keeper.moving`); a triggerer that takes over starts again with what is left.

A move task is cancelled when its time is up, when it cannot be followed, and when a user marks or clears its task. It
goes on when a triggerer stops, and when Airflow does not say what became of the task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Final

from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferralError, TaskDeferralTimeout, TaskDeferred

from sqs_lease.airflow.airflow_api.requests import CommsError, run_of, state_key, task_states, triggers_are_supported
from sqs_lease.airflow.dag_file import is_final
from sqs_lease.airflow.queues.queue_task import TRIGGERER_MARGIN, QueueTask, QueueTrigger
from sqs_lease.airflow.queues.worker_calls import WorkerCalls
from sqs_lease.airflow.receiving.collector import takeover_seconds
from sqs_lease.airflow.runtime import SharedKeeper, TriggererKeepers, shielded
from sqs_lease.clock import Clock, SystemClock
from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.keeper.endings import cancelled_once
from sqs_lease.keeper.keeper import Keeper
from sqs_lease.keeper.move_orders import MoveOrder, StartedMove, abandon, follow, move_filtered, start
from sqs_lease.keeper.moving import DEFAULT_MAX_MESSAGES
from sqs_lease.keeper.outcome import FAILED, OutcomeError
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.move_tasks import RedriveTransport

logger = logging.getLogger(__name__)

MOVE_KEY: Final = "move_task"
"""The XCom by which a task whose trigger did not end finds its move task again."""


class SqsMoveMessagesOperator(QueueTask):
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
        kwargs: The arguments of :class:`QueueTask` and of every task. ``deferrable=False`` moves in the worker's own
            process, which takes a worker slot; ``execution_timeout`` also holds while this task is deferred.

    Raises:
        ValueError: A value is out of range, or a queue is not a name, URL or ARN.
        TypeError: A value cannot be sent to the triggerer.
    """

    template_fields: Sequence[str] = (*QueueTask.template_fields, "destination", "reason")
    timed_out_error = AirflowTaskTimeout

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
        **kwargs: Any,
    ) -> None:
        super().__init__(queue_url=queue_url, **kwargs)
        self.destination = destination
        self.max_per_second = max_per_second
        self.reason = reason
        self.older_than_seconds = None if older_than is None else seconds_of(older_than, name="older_than")
        self.newer_than_seconds = None if newer_than is None else seconds_of(newer_than, name="newer_than")
        self.max_messages = max_messages
        self._calls: WorkerCalls | None = None
        self._is_killed = False
        order = self._order()
        order.check_numbers()
        if max_messages != DEFAULT_MAX_MESSAGES and not order.is_filtered:
            # Its author expects that no more are moved.
            raise ValueError(
                f"max_messages={max_messages} has no effect without a filter: SQS itself moves all messages of "
                f"{queue_url}. Give a filter, too; older_than=0 takes any message"
            )
        if all(text is None or is_final(text) for text in (queue_url, destination, reason)):
            order.check()

    def execute(self, context: Any) -> Any:
        """Start the move task and defer; with a filter, defer at once.

        Returns:
            What was moved, where this process moved it itself.

        Raises:
            AirflowTaskTimeout: ``execution_timeout`` was over.
            AirflowFailException: It cannot be done, and trying again would not help.
            AirflowException: It cannot be done for the moment; the task's retries apply.
        """
        order = self._order()
        clock = SystemClock()
        with self._failing(context):
            order.check()
            if not (self.deferrable and triggers_are_supported()):
                with self._calling() as calls:
                    return calls.run(lambda transport: _move_here(transport, order, clock))
            if order.is_filtered:
                return self._defer(SqsFilteredMoveTrigger, clock, **asdict(order))
            with self._calling() as calls:
                started = calls.run(lambda transport: start(transport, order, clock))
                try:
                    found_again = asdict(replace(started, handle=""))
                    context["ti"].xcom_push(key=MOVE_KEY, value=found_again)
                    return self._defer(SqsMoveTaskTrigger, clock, queue=self.queue_url, **asdict(started))
                except BaseException as error:
                    if isinstance(error, TaskDeferred) and not self._is_killed:
                        raise
                    calls.run(lambda transport: abandon(transport, started, clock), even_if_cancelled=True)
                    if self._is_killed:
                        raise CancelledError from error
                    raise

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """Resume after the trigger. If that failed or never ran, cancel the move task that it was to follow."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralError, TaskDeferralTimeout):
            task_instance = context["ti"]
            begun = task_instance.xcom_pull(task_ids=self.task_id, key=MOVE_KEY, map_indexes=task_instance.map_index)
            if begun is not None:
                try:
                    with self._calling() as calls:
                        calls.run(lambda transport: abandon(transport, StartedMove(**begun), SystemClock()))
                except (OutcomeError, SqsError) as error:
                    self.log.warning("The move task of %s may go on: %s", begun["source_arn"], error)
            raise

    def on_kill(self) -> None:
        """Cancel the move that this process makes; where a trigger follows it, the trigger does so itself."""
        # Airflow lets the task go on after this, and kills it some seconds later.
        self._is_killed = True
        if self._calls is not None:
            self._calls.cancel()

    @contextmanager
    def _calling(self) -> Iterator[WorkerCalls]:
        """Make calls in this process until the task is killed."""
        try:
            with WorkerCalls(self._connection(), self.queue_url) as self._calls:
                if self._is_killed:
                    self._calls.cancel()
                yield self._calls
        except CancelledError as error:
            raise OutcomeError("it was killed, and what it had begun was cancelled", FAILED) from error
        finally:
            self._calls = None

    def _defer(self, trigger: type[QueueTrigger], clock: Clock, **arguments: Any) -> Any:
        now = clock.wall()
        limit = self.execution_timeout
        return self.defer(
            trigger=trigger(
                deferred_at=now,
                ends_at=None if limit is None else now + limit.total_seconds(),
                **self._connection().encode(),
                **arguments,
            ),
            method_name="execute_complete",
            timeout=None if limit is None else limit + TRIGGERER_MARGIN,
        )

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


async def _move_here(transport: RedriveTransport, order: MoveOrder, clock: Clock) -> dict[str, Any]:
    if order.is_filtered:
        async with Keeper(transport, clock=clock) as keeper:
            return await move_filtered(transport, keeper, order, takeover_seconds=takeover_seconds())
    started = await start(transport, order, clock)
    try:
        return await follow(transport, started, clock)
    except asyncio.CancelledError:
        await abandon(transport, started, clock)
        raise


class SqsMoveTaskTrigger(QueueTrigger):
    """Follows a move task to its end.

    Args:
        source_arn: The dead-letter queue.
        started_after: When the move task before it was started, in seconds since the epoch; 0 if there was none.
        handle: The move task's handle.
        common: The arguments of :class:`QueueTrigger`.
    """

    def __init__(self, *, source_arn: str, started_after: float, handle: str, **common: Any) -> None:
        super().__init__(**common)
        self.started = StartedMove(source_arn, started_after, handle)

    @shielded
    async def on_kill(self) -> None:
        """Cancel the move task, unless its Airflow task is deferred still: then another triggerer follows it."""
        keepers = self._keepers
        if keepers is None:
            return
        try:
            if await self._is_deferred():
                return
            shared = await self._acquire(keepers)
        except (CommsError, SqsError) as error:
            logger.warning("The move task of %s goes on: %s", self.started.source_arn, error)
            return
        await abandon(shared.transport, self.started, keepers.clock)

    async def _is_deferred(self) -> bool:
        task = run_of(self.task_instance)
        key = state_key((task.task_id, getattr(self.task_instance, "map_index", -1)))
        states = await task_states(task.dag_id, [task.run_id], [task.task_id])
        return states.get(task.run_id, {}).get(key) == "deferred"

    def _arguments(self) -> dict[str, Any]:
        return asdict(self.started)

    async def _work(self, shared: SharedKeeper, keepers: TriggererKeepers) -> dict[str, Any]:
        return await follow(shared.transport, self.started, keepers.clock, self.ends_at)


class SqsFilteredMoveTrigger(QueueTrigger):
    """Moves the messages that match.

    Args:
        queue: See :class:`~sqs_lease.keeper.move_orders.MoveOrder`.
        destination: See there.
        max_per_second: See there.
        reason: See there.
        older_than_seconds: See there.
        newer_than_seconds: See there.
        max_messages: See there.
        common: The other arguments of :class:`QueueTrigger`.
    """

    def __init__(
        self,
        *,
        queue: str,
        destination: str | None,
        max_per_second: int | None,
        reason: str | None,
        older_than_seconds: float | None,
        newer_than_seconds: float | None,
        max_messages: int,
        **common: Any,
    ) -> None:
        super().__init__(queue=queue, **common)
        self.order = MoveOrder(
            queue=queue,
            destination=destination,
            max_per_second=max_per_second,
            reason=reason,
            older_than_seconds=older_than_seconds,
            newer_than_seconds=newer_than_seconds,
            max_messages=max_messages,
        )

    def _arguments(self) -> dict[str, Any]:
        return asdict(self.order)

    async def _work(self, shared: SharedKeeper, keepers: TriggererKeepers) -> dict[str, Any]:
        moving = keepers.loop.create_task(
            move_filtered(
                shared.transport,
                shared.keeper,
                self.order,
                takeover_seconds=takeover_seconds(),
                ends_at=self.ends_at,
            )
        )
        try:
            return await asyncio.shield(moving)
        except asyncio.CancelledError:
            # However often Airflow cancels: sends under way come to their end, and what is held is released.
            await cancelled_once(moving)
            raise
