"""``dag.test()``: sensor, work and keeper run one after the other in one process, which holds the leases all along.

There is no triggerer then, and whatever runs keeps everything else waiting. So the sensor receives by itself, a
background thread extends the leases while the work runs, and the keeper's task settles what is decided whenever
it is run; while something is not, it asks to be run again a moment later.

This module is the one place of the process for the batches between the two tasks.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from airflow.sdk import timezone
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException

from sqs_lease.airflow.airflow_api.polling import FailureSignals
from sqs_lease.airflow.airflow_api.requests import RunOfTask, task_states
from sqs_lease.airflow.collector import ReceiveOptions
from sqs_lease.airflow.failures.report import are_reported
from sqs_lease.airflow.payload import BatchValue, remove_batch
from sqs_lease.airflow.settlement.progress import Progress
from sqs_lease.airflow.settlement.rules import WorkTask
from sqs_lease.airflow.settlement.settler import Settler
from sqs_lease.airflow.worker import WorkerLease
from sqs_lease.core.failure_rules import FailureRule

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 0.5
"""How long until the keeper's task runs again; ``dag.test()`` looks once a second if nothing else is ready."""


@dataclass(slots=True)
class _Held:
    holding: WorkerLease
    settler: Settler | None = None


_held: dict[str, _Held] = {}
"""What is held between a sensor's task and the end of its keeper's, by batch id."""


@dataclass(frozen=True, slots=True)
class ReceivedLocally:
    """A batch that this process holds until its keeper's task settled it.

    Attributes:
        lease: The lease as plain values.
        messages: What the sensor returns.
    """

    lease: dict[str, Any]
    messages: BatchValue


def receive_locally(options: ReceiveOptions, wait_seconds: float, task: RunOfTask) -> ReceivedLocally | None:
    """Receive a batch and hold it; None if no message came in time.

    Raises:
        SqsError: The queue cannot be received from.
        ValueError: ``queue`` is not a queue name, URL or ARN.
        PayloadError: The batch cannot be stored.
    """
    with ExitStack() as ending:
        holding = ending.enter_context(WorkerLease(options, task))
        if not holding.receive(wait_seconds):
            return None
        messages = holding.publishable()
        # From here on it is held on until the keeper's task.
        ending.pop_all()
    if not _held:
        # The process may end without that task: nobody is to wait for a visibility timeout then.
        atexit.register(give_back_what_is_left)
    _held[options.batch_id] = _Held(holding)
    return ReceivedLocally(holding.lease, messages)


def settle_locally(
    task: RunOfTask,
    receive_task: RunOfTask,
    batch_id: str,
    work: Sequence[WorkTask],
    on_failure: FailureRule,
    *,
    ordered: bool,
) -> dict[str, Any]:
    """Settle what is decided, and end when that is everything.

    Args:
        task: The keeper's task.
        receive_task: The task that received.
        batch_id: Which batch.
        work: The tasks that work on the messages.
        on_failure: What becomes of failed messages.
        ordered: Whether the messages of a FIFO group are settled in their order.

    Returns:
        The lease report.

    Raises:
        AirflowRescheduleException: Work has not ended: the task is to be run again.
        AirflowFailException: This process does not hold the batch.
    """
    held = _held.get(batch_id)
    if held is None:
        raise AirflowFailException(
            f"{task} keeps what its sensor received in the same dag.test(), and this process does not hold that batch"
        )
    holding = held.holding
    if (still_open := holding.thread.run(_settle(task, receive_task, held, work, on_failure, ordered))) > 0:
        logger.info("%d messages are still worked on", still_open)
        again_at = timezone.utcnow() + timedelta(seconds=AGAIN_SECONDS)
        raise AirflowRescheduleException(again_at)  # type: ignore[no-untyped-call]
    report = held.settler.progress.report() if held.settler is not None else {}
    del _held[batch_id]
    holding.close()
    if holding.handed is not None:
        remove_batch(holding.handed)
    return report


async def _settle(
    task: RunOfTask,
    receive_task: RunOfTask,
    held: _Held,
    work: Sequence[WorkTask],
    on_failure: FailureRule,
    ordered: bool,
) -> int:
    batch = held.holding.batch
    if batch is None:
        return 0
    if held.settler is None:
        signals = FailureSignals.to(task.dag_id, task.run_id, task.task_id, [one.task_id for one in work])
        held.settler = Settler(
            task,
            receive_task,
            batch,
            held.holding.leases,
            work,
            on_failure,
            clock=held.holding.clock,
            inherited=Progress(),
            signals=signals if are_reported() else None,
            ordered=ordered,
        )
        held.holding.listener = held.settler.happened
    states = await task_states(task.dag_id, [task.run_id], held.settler.watched_tasks())
    await held.settler.look_once(states.get(task.run_id, {}))
    return len(batch.leases())


def give_back_what_is_left() -> None:
    """Make visible again what this process still holds of a ``dag.test()`` that ended without settling it.

    Where that fails, the messages are visible again when their visibility timeout ends.
    """
    while _held:
        _, held = _held.popitem()
        with held.holding:
            held.holding.give_back()
