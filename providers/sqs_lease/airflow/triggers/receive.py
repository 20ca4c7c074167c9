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
from collections.abc import AsyncIterator, Sequence
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
from sqs_lease.airflow.connection import AwsConnection, translate_aws_errors
from sqs_lease.airflow.handover import HANDED_KEY, LEASE_KEY, HandedLease, PayloadError, adopt, hand_on, warn_if_plain
from sqs_lease.airflow.links import LINK_KEY
from sqs_lease.airflow.payload import (
    PublishedMessages,
    find_refused,
    load_lease,
    publishable,
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
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.endings import cancelled_once
from sqs_lease.keeper.lease_log import LeaseLog
from sqs_lease.keeper.plain_leases import WrittenBatch
from sqs_lease.keeper.telemetry import trace_of, traceparent_here
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
        self._collector: Collector | None = None
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
            found = await self._received(task, keepers)
        except SqsError as error:
            for_good = error.verdict is Verdict.REFUSED
            yield await self._failure(keepers, FAILED_FOR_GOOD if for_good else FAILED, str(error))
            return
        except ValueError as error:
            yield await self._failure(keepers, FAILED_FOR_GOOD, f"queue {self.options.queue}: {error}")
            return
        if not found:
            if self.options.skip_when_expired:
                logger.info("No message of %s came in time: skipping", self.options.queue)
                yield TaskSkippedEvent()
            else:
                yield await self._failure(keepers, TIMED_OUT, f"no message of {self.options.queue} came in time")
            return
        try:
            await self._hand_on(task, keepers)
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

    async def _received(self, task: RunOfTask, keepers: TriggererKeepers) -> bool:
        """Receive, and when cancelled wait for the polls under way: nobody would hold what they bring."""
        receiving = keepers.loop.create_task(self._receive(task, keepers))
        try:
            return await asyncio.shield(receiving)
        except asyncio.CancelledError:
            await cancelled_once(receiving)
            raise

    async def _receive(self, task: RunOfTask, keepers: TriggererKeepers) -> bool:
        """Receive until there is a batch; return False when the time is up without one."""
        shared_keeper = await self._acquired(keepers, AwsConnection.decode(self.options.connection))
        self._collector = collector = await Collector.open(
            self.options.collecting(), shared_keeper.transport, keepers.clock
        )
        self._batch = batch = self._open_batch(task, shared_keeper, collector)
        return await collector.collect(
            shared_keeper.keeper, batch, self.options.expires_at, most_bytes=self.options.most_bytes
        )

    async def _acquired(self, keepers: TriggererKeepers, connection: AwsConnection) -> SharedKeeper:
        if self._shared_keeper is None:
            with translate_aws_errors(self.options.queue):
                self._shared_keeper = await keepers.acquire(connection)
        return self._shared_keeper

    def _open_batch(self, task: RunOfTask, shared_keeper: SharedKeeper, collector: Collector) -> Batch:
        return shared_keeper.open_batch(
            collector.queue_url, collector.policy, self._happened, PublishedMessages(task), self.options.batch_id
        )

    async def _hand_on(self, task: RunOfTask, keepers: TriggererKeepers) -> None:
        """Extend the leases once, publish them and their messages, and forget them.

        What Airflow does not take is held again by this trigger. Once the leases are written, they are no longer this
        trigger's: one that is cancelled then may have been moved to another triggerer, which finds them.
        """
        batch, shared_keeper, collector = self._batch, self._shared_keeper, self._collector
        if batch is None or shared_keeper is None or collector is None:
            return
        contents: dict[Receipt, Message] = {message.receipt: message for message in batch.messages()}
        written = await hand_on(batch, collector.policy, self.options.handoff_timeout_seconds, keepers.clock)
        messages = [contents[lease.receipt] for lease in written.leases]
        handed = HandedLease(
            batch.queue_url,
            collector.policy,
            shared_keeper.connection,
            written,
            len(messages),
            trace=await trace_of(messages, traceparent_here()),
        )
        try:
            logger.info("Received %d messages of %s", len(messages), handed.queue_url)
            await self._publish(task, handed, messages)
            self._batch = None
        except asyncio.CancelledError:
            self._batch = None
            if not self._is_written:
                self._hold_again(task, shared_keeper, collector, written, messages)
            raise
        except Exception as error:
            batch = self._hold_again(task, shared_keeper, collector, written, messages)
            if isinstance(error, NoAnswerError | PayloadError):
                raise
            if self.options.payload is not None or not await self._without_refused(task, collector, batch):
                raise
        else:
            return
        await self._hand_on(task, keepers)

    def _hold_again(
        self,
        task: RunOfTask,
        shared_keeper: SharedKeeper,
        collector: Collector,
        written: WrittenBatch,
        messages: Sequence[Message],
    ) -> Batch:
        self._batch = batch = self._open_batch(task, shared_keeper, collector)
        batch.adopt(written, messages)
        return batch

    async def _publish(self, task: RunOfTask, handed: HandedLease, messages: Sequence[Message]) -> None:
        handed, lease, published = await publishable(self.options.payload, handed, messages, task)
        self._stored = handed
        warn_if_plain(lease)
        await publish(task, LEASE_KEY, lease)
        self._is_written = True
        await publish(RunOfTask(task.dag_id, task.run_id, self.options.keeper_task_id), HANDED_KEY, lease)
        mapped_length = len(messages) if self.options.mapped_over else None
        await publish(task, RETURN_VALUE_KEY, published, mapped_length=mapped_length)
        if self.options.queue != handed.queue_url and (link := console_link(handed.queue_url)):
            # Named otherwise, so the task itself could not know the link.
            await self._publish_link(task, link)

    async def _without_refused(self, task: RunOfTask, collector: Collector, batch: Batch) -> bool:
        """Settle messages that Airflow refuses by themselves; return whether there were any, and others are left."""
        refused = await find_refused(batch.messages(), partial(publish, task, RETURN_VALUE_KEY))
        if refused:
            await collector.settle_refused(batch, refused)
        return bool(refused) and batch.count_held() > 0

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
        logger.warning("This task had received %d messages, and could not hand them on: receiving anew", len(leases))
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
