"""The trigger of the sensor's task: waits for messages, holds them, publishes them and ends the task.

It publishes two XComs of its task: ``return_value``, the messages without their receipt handles, and ``lease``, what
the keeper needs, and then ends the task as successful from the triggerer, without another worker slot. From then on
:class:`~sqs_lease.airflow.transfer.handoff.HandOff` holds the batch until the keeper's trigger takes it.

When it ends before that (the triggerer stops, a user acts on the task, Airflow does not take the XComs), it
releases what it received: only this trigger knows of those leases, and a trigger that resumes receives anew.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
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
    run_of,
)
from sqs_lease.airflow.aws_connection import AwsConnection, translate_aws_errors
from sqs_lease.airflow.links import LINK_KEY
from sqs_lease.airflow.receiving.collector import Collector, ReceiveOptions
from sqs_lease.airflow.runtime import (
    DEFERRAL_SECONDS,
    SharedBatch,
    SharedKeeper,
    TriggererKeepers,
    shielded,
    triggerer_keepers,
)
from sqs_lease.airflow.transfer.handoff import HandOff, held_by
from sqs_lease.airflow.transfer.lease import LEASE_KEY, HandedLease
from sqs_lease.airflow.transfer.payload import PayloadError, PublishedMessages, find_refused, publishable, remove_files
from sqs_lease.core.calls import Verdict
from sqs_lease.core.events import LeaseEvent
from sqs_lease.core.messages import Message
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.endings import cancelled_once
from sqs_lease.keeper.keeper import Leaving
from sqs_lease.keeper.lease_log import LeaseLog
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
        self._batch: SharedBatch | None = None
        self._collector: Collector | None = None
        self._lease: dict[str, Any] = {}
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
            batch, policy = await self._received(task, keepers)
        except SqsError as error:
            for_good = error.verdict is Verdict.REFUSED
            yield await self._failure(keepers, FAILED_FOR_GOOD if for_good else FAILED, str(error))
            return
        except ValueError as error:
            yield await self._failure(keepers, FAILED_FOR_GOOD, f"queue {self.options.queue}: {error}")
            return
        if batch is None:
            if self.options.skip_when_expired:
                logger.info("No message of %s came in time: skipping", self.options.queue)
                yield TaskSkippedEvent()
            else:
                yield await self._failure(keepers, TIMED_OUT, f"no message of {self.options.queue} came in time")
            return
        try:
            await self._publish(task, batch, policy, keepers)
        except PayloadError as error:
            # Not only when this trigger ends: that is seconds later.
            await batch.batch.release_all()
            yield await self._failure(keepers, FAILED, str(error))
            return
        keeper_task = RunOfTask(task.dag_id, task.run_id, self.options.keeper_task_id)
        HandOff(
            keepers,
            self.options.batch_id,
            batch,
            keeper_task,
            self.options.handoff_timeout_seconds,
            released=partial(remove_files, self._lease),
            receive_task=task,
            messages=self._lease["messages"],
        ).start()
        yield TaskSuccessEvent()

    @shielded
    async def cleanup(self) -> None:
        """Release what was received but not handed on."""
        keepers, batch = self._keepers, self._batch
        try:
            if keepers is not None and batch is not None and batch.owner is self:
                await keepers.leave(self.options.batch_id, batch, Leaving.RELEASE)
                await remove_files(self._lease)
            if keepers is not None and self._shared_keeper is not None:
                await keepers.release(self._shared_keeper)
        except Exception:
            # Airflow drops what cleanup() raises.
            logger.exception("The sensor's trigger could not be ended properly")
        finally:
            self._batch = self._shared_keeper = None

    async def _received(self, task: RunOfTask, keepers: TriggererKeepers) -> tuple[SharedBatch | None, RenewalPolicy]:
        """Receive, and when cancelled wait for the polls under way: nobody would hold what they bring."""
        receiving = keepers.loop.create_task(self._receive(task, keepers))
        try:
            return await asyncio.shield(receiving)
        except asyncio.CancelledError:
            await cancelled_once(receiving)
            raise

    async def _receive(self, task: RunOfTask, keepers: TriggererKeepers) -> tuple[SharedBatch | None, RenewalPolicy]:
        """Receive until there is a batch; without one when the time is up."""
        with translate_aws_errors(self.options.queue):
            self._shared_keeper = await keepers.acquire(AwsConnection.decode(self.options.connection))
        shared_keeper = self._shared_keeper
        self._collector = collector = await Collector.open(
            self.options.collecting(), shared_keeper.transport, keepers.clock
        )
        source = PublishedMessages(task)
        batch = shared_keeper.open_batch(collector.queue_url, collector.policy, self._happened, source)
        batch.owner = self
        self._batch = batch
        found = await collector.collect(
            shared_keeper.keeper, batch.batch, self.options.expires_at, most_bytes=self.options.most_bytes
        )
        return (batch if found else None), collector.policy

    async def _publish(
        self, task: RunOfTask, shared: SharedBatch, policy: RenewalPolicy, keepers: TriggererKeepers
    ) -> None:
        # Both in the order of arrival, without what was lost meanwhile.
        leases, messages = await held_by(shared.batch, keepers.rounds, keepers.clock)
        handed = HandedLease(
            self.options.batch_id,
            shared.batch.queue_url,
            policy,
            shared.shared_keeper.connection,
            leases,
        )
        logger.info("Received %d messages of %s", len(messages), handed.queue_url)
        self._lease, published = await publishable(self.options.payload, handed, messages)
        await publish(task, LEASE_KEY, self._lease)
        mapped_length = len(messages) if self.options.mapped_over else None
        try:
            await publish(task, RETURN_VALUE_KEY, published, mapped_length=mapped_length)
        except NoAnswerError:
            raise
        except Exception:
            if isinstance(published, Mapping) or not await self._without_refused(task, shared.batch, messages):
                raise
            await self._publish(task, shared, policy, keepers)
            return
        if isinstance(published, Mapping):
            # Large batches would fill the triggerer's memory until they are settled; the file has them.
            shared.batch.drop_contents()
        if self.options.queue != handed.queue_url and (link := console_link(handed.queue_url)):
            # Named otherwise, so the task itself could not know the link.
            await self._publish_link(task, link)

    async def _without_refused(self, task: RunOfTask, batch: Batch, messages: Sequence[Message]) -> bool:
        """Settle messages that Airflow refuses by themselves; return whether there were any, and others are left."""
        refused = await find_refused(messages, partial(publish, task, RETURN_VALUE_KEY))
        if refused and self._collector is not None:
            await self._collector.settle_refused(batch, refused)
        return bool(refused) and batch.count_held() > 0

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
