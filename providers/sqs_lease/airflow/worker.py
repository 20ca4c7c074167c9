"""A batch that a task's own process receives and holds, without a triggerer: a background thread is its keeper.

Sensors use it in a worker: they hand their batch over to a keeper's trigger before they end. ``dag.test()`` uses it
too. There sensor, work and keeper run one after the other in one process, without a triggerer. So the sensor receives
by itself (:func:`receive_locally`), and the background thread extends the leases while the work runs. The keeper's task
settles the decided messages each time it runs (:func:`settle_locally`); while others are undecided, it asks to run
again a moment later. This module holds the batches of the process between the two tasks.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

from airflow.sdk import timezone
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException

from sqs_lease.airflow.airflow_api.polling import FailureSignals, are_reported
from sqs_lease.airflow.airflow_api.requests import RunOfTask, push_of_task, task_states
from sqs_lease.airflow.connection import AwsConnection, make_transport
from sqs_lease.airflow.handover import HandedLease
from sqs_lease.airflow.payload import BatchValue, read_lease, remove_batch
from sqs_lease.airflow.settlement.rules import WorkTask
from sqs_lease.airflow.settlement.settler import Progress, Settler
from sqs_lease.airflow.triggers.receive import Collector, ReceiveOptions
from sqs_lease.clock import Clock, SystemClock
from sqs_lease.core.events import LeaseEvent
from sqs_lease.core.failure_rules import FailureRule
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.keeper.lease_log import LeaseLog
from sqs_lease.keeper.loop_thread import LoopThread
from sqs_lease.keeper.telemetry import traceparent_here
from sqs_lease.sqs.classification import translate_client_errors
from sqs_lease.sqs.transport import Transport

logger = logging.getLogger(__name__)

GIVE_BACK_SECONDS: Final = 10.0
"""How long the end of a task waits for its messages to be released; a worker that stops does not have much longer."""


class GivenBackError(RuntimeError):
    """The batch was given back meanwhile, because the task was killed."""


class WorkerLease:
    """At most one batch, with the thread that holds it. As a context manager it gives back what it holds on an error.

    All methods block, and are called from the task's own thread.

    Attributes:
        batch: The batch, once it is being received.
        handed: The batch as it was handed on.
        settler: Told of each event of the leases as well, in the background thread.

    Args:
        options: The queue and the options of receive and leases.
        task: The task that receives.

    Raises:
        SqsError: The client could not be made.
    """

    def __init__(self, options: ReceiveOptions, task: RunOfTask) -> None:
        self.options = options
        self._task = task
        self.clock = SystemClock()
        self.batch: Batch | None = None
        self.handed: HandedLease | None = None
        self.settler: Settler | None = None
        self._lease_log = LeaseLog(options.queue)
        self._collector: Collector | None = None
        with translate_client_errors(options.queue):
            # In this thread: Airflow's connections are read through the task's own channel.
            self._transport: Transport = make_transport(AwsConnection(**options.connection))
        self.thread = LoopThread(f"sqs-lease {options.queue}")
        self._keeper: Keeper | None = None
        self._given_back = False
        # In this thread: the task's span is current here.
        self._received_in = traceparent_here()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self.give_back()
        finally:
            self.close()

    def receive(self, wait_seconds: float) -> bool:
        """Receive a batch; it is extended from then on.

        Args:
            wait_seconds: How long to wait for a first message.

        Returns:
            Whether there is one.

        Raises:
            SqsError: The queue cannot be received from.
            ValueError: ``queue`` is not a queue name, URL or ARN.
            GivenBackError: The batch was given back meanwhile, with all messages that were still on their way.
        """
        return self.thread.run(self._receive(wait_seconds))

    def settle_refused(self, refused: Collection[str]) -> bool:
        """Settle messages that Airflow refused by themselves, by their ids; return whether others are left.

        Raises:
            GivenBackError: The batch was given back meanwhile.
        """
        return self.thread.run(self._received().settle_refused(refused))

    def hand_on(self) -> tuple[dict[str, Any], BatchValue]:
        """Extend every lease once by the hand-off timeout, and store the batch if ``payload`` is set.

        They are held until :meth:`close`, so that messages that Airflow does not take can be given back.

        Returns:
            The lease as plain values, and the return value of the task.

        Raises:
            PayloadError: The batch cannot be stored.
            GivenBackError: It was given back meanwhile.
        """
        return self.thread.run(self._hand_on())

    def give_back(self) -> None:
        """Stop receiving, make the held messages visible again, and remove their files.

        A signal handler may call it in the middle of any other method. A poll of :meth:`receive` that is under way then
        ends in its time, and its messages are given back as well.
        """
        self.thread.run(self._give_back())
        if self.handed is not None:
            remove_batch(self.handed)

    def close(self) -> None:
        """Stop tracking all leases, without a call; they last until their deadlines."""
        try:
            self.thread.run(self._close())
        finally:
            self.thread.stop()

    async def _receive(self, wait_seconds: float) -> bool:
        # Made here, because it belongs to the thread's event loop.
        self._keeper = keeper = Keeper(self._transport, clock=self.clock)

        self._collector = collector = await Collector.open(
            self.options, keeper, self._task, self._happened, self._received_in
        )
        self.batch = collector.batch
        if self._given_back:
            collector.stop()
        found = await collector.collect(self.clock.wall() + wait_seconds)
        if self._given_back:
            # Messages on their way are given back at the end of the block that this error leaves.
            raise GivenBackError("this task was killed while it received")
        return found

    async def _hand_on(self) -> tuple[dict[str, Any], BatchValue]:
        self.handed, lease, value = await self._received().hand_on()
        return lease, value

    async def _give_back(self) -> None:
        self._given_back = True
        if self._collector is not None:
            self._collector.stop()
        if self.batch is None:
            return
        try:
            async with asyncio.timeout(GIVE_BACK_SECONDS):
                await self.batch.release_all()
        except TimeoutError:
            logger.warning(
                "Messages of %s could not be given back in time: they come back when their visibility timeout ends",
                self.batch.queue_url,
            )

    async def _close(self) -> None:
        self._lease_log.flush()
        if self._keeper is not None:
            await self._keeper.close(Leaving.NOTHING)
        await self._transport.aclose()

    def _received(self) -> Collector:
        if self._given_back:
            raise GivenBackError("this task was killed after it received")
        if self._collector is None:
            raise RuntimeError("nothing was received")
        return self._collector

    def _happened(self, event: LeaseEvent) -> None:
        self._lease_log.happened(event)
        if self.settler is not None:
            self.settler.happened(event)


def give_back_handed(lease: Mapping[str, Any], receiving: RunOfTask, written_at: RunOfTask, key: str) -> str:
    """Make the messages of a batch that no keeper takes visible again, once. It blocks.

    Leases that have passed their deadline are left alone.

    Args:
        lease: The lease as plain values, as it was published.
        receiving: The task that received it.
        written_at: The task that has it as an XCom.
        key: The key of that XCom, which is emptied.

    Returns:
        A sentence with the result, for people.
    """
    try:
        handed = read_lease(lease, receiving)
        with translate_client_errors(handed.queue_url):
            transport = make_transport(handed.connection)
        # Before the release: a later try that still found it would take the messages from those who receive them now.
        push_of_task(written_at, key, None)
        thread = LoopThread(f"sqs-lease {handed.queue_url}")
        try:
            released = thread.run(release_handed(handed, transport, SystemClock()))
        finally:
            thread.stop()
    except Exception as error:  # noqa: BLE001 - also Airflow's, and those of an XCom backend of the user's own
        return f"Its messages come back when their visibility timeout ends: {error}"
    remove_batch(handed)
    return f"{released} of {handed.messages} messages were given back"


async def release_handed(handed: HandedLease, transport: Transport, clock: Clock) -> int:
    """Release the leases of a batch that have not passed their deadline; return their number.

    Args:
        handed: The batch.
        transport: Where the calls go; it is closed at the end.
        clock: Source of time.
    """
    keeper = Keeper(transport, clock=clock)
    batch = keeper.open_batch(handed.queue_url, policy=handed.policy)
    try:
        batch.adopt(handed.written)
        async with asyncio.timeout(GIVE_BACK_SECONDS):
            await batch.release_all()
        return batch.report().released
    finally:
        await keeper.close(Leaving.NOTHING)
        await transport.aclose()


AGAIN_SECONDS: Final = 0.5
"""How long until the keeper's task runs again; ``dag.test()`` looks once a second if nothing else is ready."""


_held: dict[str, WorkerLease] = {}
"""The batches held between a sensor's task and the end of its keeper's task, by batch id."""


def receive_locally(
    options: ReceiveOptions, wait_seconds: float, task: RunOfTask
) -> tuple[dict[str, Any], BatchValue] | None:
    """Receive a batch and hold it until its keeper's task has settled it; None if no message came in time.

    Returns:
        The lease as plain values, and the sensor's return value.

    Raises:
        SqsError: The queue cannot be received from.
        ValueError: ``queue`` is not a queue name, URL or ARN.
        PayloadError: The batch cannot be stored.
    """
    with ExitStack() as ending:
        holding = ending.enter_context(WorkerLease(options, task))
        if not holding.receive(wait_seconds):
            return None
        received = holding.hand_on()
        # From here on the batch is held until the keeper's task.
        ending.pop_all()
    if not _held:
        # The process may end without that task: its messages must not wait for their visibility timeout.
        atexit.register(give_back_what_is_left)
    _held[options.batch_id] = holding
    return received


def settle_locally(
    task: RunOfTask,
    receive_task: RunOfTask,
    batch_id: str,
    work: Sequence[WorkTask],
    on_failure: FailureRule,
    *,
    ordered: bool,
) -> dict[str, Any]:
    """Settle the decided messages, and end when all are settled.

    Args:
        task: The keeper's task.
        receive_task: The task that received.
        batch_id: The batch.
        work: The tasks that work on the messages.
        on_failure: The rule for failed messages.
        ordered: Whether the messages of a FIFO group are settled in their order.

    Returns:
        The lease report.

    Raises:
        AirflowRescheduleException: Work has not ended: the task is to be run again.
        AirflowFailException: This process does not hold the batch.
    """
    holding = _held.get(batch_id)
    if holding is None:
        raise AirflowFailException(
            f"{task} keeps what its sensor received in the same dag.test(), and this process does not hold that batch"
        )
    if (still_open := holding.thread.run(_settle(task, receive_task, holding, work, on_failure, ordered))) > 0:
        logger.info("%d messages are still worked on", still_open)
        again_at = timezone.utcnow() + timedelta(seconds=AGAIN_SECONDS)
        raise AirflowRescheduleException(again_at)  # type: ignore[no-untyped-call]
    report = holding.settler.progress.report() if holding.settler is not None else {}
    del _held[batch_id]
    holding.close()
    if holding.handed is not None:
        remove_batch(holding.handed)
    return report


async def _settle(
    task: RunOfTask,
    receive_task: RunOfTask,
    holding: WorkerLease,
    work: Sequence[WorkTask],
    on_failure: FailureRule,
    ordered: bool,
) -> int:
    batch, handed = holding.batch, holding.handed
    if batch is None or handed is None:
        return 0
    if (settler := holding.settler) is None:
        signals = FailureSignals.to(task.dag_id, task.run_id, task.task_id, [one.task_id for one in work])
        settler = holding.settler = Settler(
            task,
            receive_task,
            batch,
            handed.leases,
            work,
            on_failure,
            clock=holding.clock,
            inherited=Progress(),
            signals=signals if are_reported() else None,
            ordered=ordered,
        )
    states = await task_states(task.dag_id, [task.run_id], settler.watched_tasks())
    await settler.look_once(states.get(task.run_id, {}))
    return len(batch.leases())


def give_back_what_is_left() -> None:
    """Make messages visible again that this process still holds after a ``dag.test()`` that did not settle them.

    If that fails, they are visible again when their visibility timeout ends.
    """
    while _held:
        _, holding = _held.popitem()
        with holding:
            holding.give_back()
