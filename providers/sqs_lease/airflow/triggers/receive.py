"""The trigger of the sensor's task: waits for messages, holds them, publishes them and ends the task.

As its last act it extends the leases by the hand-off timeout and publishes two XComs of its task: ``lease``, what the
keeper needs, and ``return_value``, the messages without their receipt handles. Then it ends the task as successful from
the triggerer, without another worker slot. Nothing of the batch stays in this process
(:mod:`sqs_lease.airflow.handover`).

When it ends before that (the triggerer stops, a user acts on the task, Airflow does not take the XComs), it releases
what it received. A trigger that resumes after its process was killed looks whether the one before it had come so far.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from airflow.triggers.base import BaseTrigger, TaskSkippedEvent, TaskSuccessEvent, TriggerEvent

from sqs_lease.airflow.airflow_api.requests import (
    RETURN_VALUE_KEY,
    CommsError,
    NoAnswerError,
    RunOfTask,
    publish,
    pull,
    run_of,
)
from sqs_lease.airflow.collector import Collector, ReceiveOptions
from sqs_lease.airflow.connection import AwsConnection
from sqs_lease.airflow.handover import HANDED_KEY, LEASE_KEY, HandedLease, PayloadError, adopt
from sqs_lease.airflow.links import LINK_KEY
from sqs_lease.airflow.payload import (
    BatchValue,
    PublishedMessages,
    find_refused,
    load_lease,
    remove_files,
)
from sqs_lease.airflow.triggers.shared import (
    DEFERRAL_SECONDS,
    SharedKeeper,
    TriggererKeepers,
    last_calls,
    shielded,
    triggerer_keepers,
)
from sqs_lease.core.calls import Verdict
from sqs_lease.core.events import LeaseEvent
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.endings import cancelled_once
from sqs_lease.keeper.lease_log import LeaseLog
from sqs_lease.keeper.telemetry import traceparent_here
from sqs_lease.sqs.classification import translate_client_errors
from sqs_lease.sqs.console import console_link
from sqs_lease.sqs.errors import SqsError

logger = logging.getLogger(__name__)

TIMED_OUT: Final = "timed out"
"""Status of the event when no message came in time."""

FAILED_FOR_GOOD: Final = "failed for good"
"""Status of the event when no retry would help."""

FAILED: Final = "failed"
"""Status of the event when a retry may help."""


class SqsLeaseReceiveTrigger(BaseTrigger):
    """Receives one batch.

    Args:
        options: The arguments of :class:`ReceiveOptions`.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.options = ReceiveOptions(**options)
        self._keepers: TriggererKeepers | None = None
        self._shared_keeper: SharedKeeper | None = None
        self._batch: Batch | None = None  # until it was handed on
        self._stored: HandedLease | None = None
        self._is_written = False
        self._lease_log = LeaseLog(self.options.queue)
        self._log_context = contextvars.copy_context()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, for Airflow."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"options": asdict(self.options)}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for messages and end the task: with them, skipped, or by resuming it to fail."""
        task = run_of(self.task_instance)
        self._log_context = contextvars.copy_context()
        self._keepers = keepers = triggerer_keepers()
        await keepers.ready()
        try:
            if await self._was_handed_on(task, keepers):
                yield TaskSuccessEvent()
                return
            collector = await self._received(task, keepers)
        except SqsError as error:
            for_good = error.verdict is Verdict.REFUSED
            yield await self._failure(keepers, FAILED_FOR_GOOD if for_good else FAILED, str(error))
            return
        except ValueError as error:
            yield await self._failure(keepers, FAILED_FOR_GOOD, f"queue {self.options.queue}: {error}")
            return
        if collector is None:
            if self.options.skip_when_expired:
                logger.info("No message of %s came in time: skipping", self.options.queue)
                yield TaskSkippedEvent()
            else:
                yield await self._failure(keepers, TIMED_OUT, f"no message of {self.options.queue} came in time")
            return
        try:
            await self._hand_on(task, collector)
        except PayloadError as error:
            # Not only when this trigger ends: that is seconds later.
            await self._give_back()
            yield await self._failure(keepers, FAILED, str(error))
            return
        yield TaskSuccessEvent()

    @shielded
    async def cleanup(self) -> None:
        """Release what was received but not handed on."""
        try:
            await self._give_back()
            if self._keepers is not None and self._shared_keeper is not None:
                await self._keepers.release(self._shared_keeper)
        except Exception:
            # Airflow drops what cleanup() raises.
            logger.exception("The sensor's trigger could not be ended properly")
        finally:
            self._shared_keeper = None

    async def _give_back(self) -> None:
        batch, self._batch = self._batch, None
        stored, self._stored = self._stored, None
        if batch is not None:
            await last_calls(batch, batch.release_all())
            if stored is not None:
                await remove_files(stored)

    async def _received(self, task: RunOfTask, keepers: TriggererKeepers) -> Collector | None:
        """Receive, and when cancelled wait for the polls under way: nothing else would hold what they bring."""
        receiving = keepers.loop.create_task(self._receive(task, keepers))
        try:
            return await asyncio.shield(receiving)
        except asyncio.CancelledError:
            await cancelled_once(receiving)
            raise

    async def _receive(self, task: RunOfTask, keepers: TriggererKeepers) -> Collector | None:
        """Receive until there is a batch; return None when the time is up without one."""
        shared_keeper = await self._acquired(keepers, AwsConnection.decode(self.options.connection))

        def open_batch(queue_url: str, policy: RenewalPolicy) -> Batch:
            source = PublishedMessages(task)
            self._batch = shared_keeper.open_batch(queue_url, policy, self._happened, source, self.options.batch_id)
            return self._batch

        collector = await Collector.open(
            self.options,
            shared_keeper.keeper,
            shared_keeper.transport,
            open_batch,
            task,
            traceparent_here(),
            keepers.clock,
        )
        return collector if await collector.collect(self.options.expires_at) else None

    async def _acquired(self, keepers: TriggererKeepers, connection: AwsConnection) -> SharedKeeper:
        if self._shared_keeper is None:
            with translate_client_errors(self.options.queue):
                self._shared_keeper = await keepers.acquire(connection)
        return self._shared_keeper

    async def _hand_on(self, task: RunOfTask, collector: Collector) -> None:
        """Extend the leases once, publish them and their messages, and forget them.

        Once the leases are written, they are no longer this trigger's: one that is cancelled then may have been moved
        to another triggerer, which finds them. What Airflow does not take is given back.
        """
        try:
            await self._publish(task, *await collector.hand_on())
        except asyncio.CancelledError:
            if self._is_written:
                self._forget()
            raise
        except Exception as error:
            if isinstance(error, NoAnswerError | PayloadError) or self.options.payload is not None:
                raise
            refused = await find_refused(collector.batch.messages(), partial(publish, task, RETURN_VALUE_KEY))
            if not refused or not await collector.settle_refused(refused):
                raise
            await self._hand_on(task, collector)
        else:
            self._forget()

    def _forget(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.forget()

    async def _publish(
        self, task: RunOfTask, handed: HandedLease, lease: Mapping[str, Any], published: BatchValue
    ) -> None:
        self._stored = handed
        await publish(task, LEASE_KEY, lease)
        self._is_written = True
        await publish(RunOfTask(task.dag_id, task.run_id, self.options.keeper_task_id), HANDED_KEY, lease)
        mapped_length = handed.messages if self.options.mapped_over else None
        await publish(task, RETURN_VALUE_KEY, published, mapped_length=mapped_length)
        if self.options.queue != handed.queue_url and (link := console_link(handed.queue_url)):
            # Named otherwise, so the task itself could not know the link.
            await self._publish_link(task, link)

    async def _was_handed_on(self, task: RunOfTask, keepers: TriggererKeepers) -> bool:
        """Whether this try had handed its batch on before its process was killed; if only in part, give that back.

        Airflow deletes a task's XComs when its next try begins, so what is there is this try's own.
        """
        try:
            lease, published = await pull(task, LEASE_KEY), await pull(task, RETURN_VALUE_KEY)
            handed = None if lease is None else await load_lease(lease, task)
        except (CommsError, PayloadError) as error:
            logger.warning("Whether this task had received messages before cannot be read; receiving: %s", error)
            return False
        if handed is None:
            return False
        leases = handed.written.leases_now(keepers.clock, handed.queue_url)
        if published is not None and not any(lease.doubtful for lease in leases):
            logger.info("This task had handed %d messages on before its triggerer was lost", len(leases))
            return True
        shared_keeper = await self._acquired(keepers, handed.connection)
        source = PublishedMessages(task, handed.manifest_uri)
        self._batch = shared_keeper.open_batch(handed.queue_url, handed.policy, self._happened, source)
        self._stored = handed
        logger.warning("This task had received %d messages, and could not hand them on: receiving again", len(leases))
        await adopt(self._batch, leases, keepers.rounds)
        await self._give_back()
        return False

    async def _publish_link(self, task: RunOfTask, link: str) -> None:
        try:
            await publish(task, LINK_KEY, link, patience_seconds=0)
        except CommsError as error:
            logger.warning("The link to the queue cannot be published: %s", error)

    async def _failure(self, keepers: TriggererKeepers, status: str, error: str) -> TriggerEvent:
        logger.error("%s", error)
        await asyncio.sleep(max(0.0, self.options.deferred_at + DEFERRAL_SECONDS - keepers.clock.wall()))
        return TriggerEvent({"status": status, "error": error})  # type: ignore[no-untyped-call]

    def _happened(self, event: LeaseEvent) -> None:
        # The keeper's calls serve many triggers: only in its own context does a trigger log to its task.
        self._log_context.run(self._lease_log.happened, event)
