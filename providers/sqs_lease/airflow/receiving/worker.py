"""A batch that a task's own process receives and holds, where no triggerer does: by a keeper in a background thread.

It is used by sensors, which hand what they find over to a keeper's trigger before they end, and in ``dag.test()``,
where the whole DAG runs in one process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from sqs_lease.airflow.aws_connection import AwsConnection, make_transport, translate_aws_errors
from sqs_lease.airflow.receiving.collector import Collector, ReceiveOptions
from sqs_lease.airflow.transfer.lease import HandedLease
from sqs_lease.airflow.transfer.payload import (
    RECEIVED_BY_WORKER,
    BatchValue,
    PayloadError,
    publishable,
    read_leases,
    remove_batch,
)
from sqs_lease.clock import SystemClock
from sqs_lease.core.events import LeaseEvent
from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS
from sqs_lease.core.messages import Lease
from sqs_lease.core.policies import Growing, Never, RenewalPolicy
from sqs_lease.keeper.batch import Batch, EventListener
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.keeper.lease_log import LeaseLog
from sqs_lease.keeper.loop_thread import LoopThread
from sqs_lease.keeper.plain_leases import from_wall_time, to_wall_time
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import Transport

logger = logging.getLogger(__name__)

GIVE_BACK_SECONDS: Final = 10.0
"""How long the end of a task waits for its messages to be released; a worker that stops is not given much more."""

_ENOUGH_SHARE: Final = 0.5
"""A lease that lasts for less than this share of what it was to be extended by was not extended."""


class GivenBackError(RuntimeError):
    """What was received was given back meanwhile, because the task was killed."""


class WorkerLease:
    """At most one batch, with the thread that holds it. As a context manager it gives back what it holds on an error.

    All methods block, and are called from the task's own thread.

    Attributes:
        batch: The batch, once it is being received.
        lease: The lease as plain values, once it was made publishable.
        leases: The leases then, in the order of the messages.
        listener: Is told what happens to the leases as well, in the background thread.

    Args:
        options: What to receive, and how to hold it.

    Raises:
        SqsError: The client could not be made.
    """

    def __init__(self, options: ReceiveOptions) -> None:
        self.options = options
        self.clock = SystemClock()
        self.batch: Batch | None = None
        self.lease: dict[str, Any] = {}
        self.leases: Sequence[Lease] = ()
        self.listener: EventListener | None = None
        self._lease_log = LeaseLog(options.queue)
        self._collector: Collector | None = None
        with translate_aws_errors(options.queue):
            # In this thread: Airflow's connections are read through the task's own channel.
            self._transport: Transport = make_transport(AwsConnection.decode(options.connection))
        self.thread = LoopThread(f"sqs-lease {options.queue}")
        self._keeper: Keeper | None = None
        self._given_back = False

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
            GivenBackError: The batch was given back meanwhile, with all that was still on its way.
        """
        return self.thread.run(self._receive(wait_seconds))

    def publishable(self) -> BatchValue:
        """Store the batch, if it is to be stored, and return what stands for its messages; :attr:`lease` is set.

        Raises:
            PayloadError: It cannot be stored.
            GivenBackError: It was given back meanwhile.
        """
        return self.thread.run(self._publishable())

    def settle_refused(self, refused: Collection[str]) -> bool:
        """Settle messages that Airflow refused by themselves, by their ids; return whether others are left.

        Raises:
            GivenBackError: The batch was given back meanwhile.
        """
        return self.thread.run(self._settle_refused(refused))

    def extend_for(self, seconds: float) -> None:
        """Extend every lease once, for longer than the policy would, because nobody will for that time.

        Leases that are never to be extended are left as they are.

        Raises:
            GivenBackError: The batch was given back meanwhile.
        """
        self.thread.run(self._extend_for(seconds))

    def give_back(self) -> None:
        """Stop receiving, make the held messages visible again, and remove what was stored of them.

        It may be called by a signal handler in the middle of any other method: a poll of :meth:`receive` that is under
        way then ends in its time, and what it brings is given back as well.
        """
        self.thread.run(self._give_back())
        remove_batch(self.lease)

    def close(self) -> None:
        """Stop tracking all leases, without a call; they last until their deadlines."""
        try:
            self.thread.run(self._close())
        finally:
            self.thread.stop()

    async def _receive(self, wait_seconds: float) -> bool:
        # Made here, because it belongs to the thread's event loop.
        self._keeper = keeper = Keeper(self._transport, clock=self.clock)
        self._collector = collector = await Collector.open(self.options.collecting(), self._transport, self.clock)
        self.batch = keeper.open_batch(collector.queue_url, policy=collector.policy, on_event=self._happened)
        if self._given_back:
            collector.stop()
        found = await collector.collect(
            keeper, self.batch, self.clock.wall() + wait_seconds, most_bytes=self.options.most_bytes
        )
        if self._given_back:
            # What was on its way then is given back at the end of the block that this error leaves.
            raise GivenBackError("this task was killed while it received")
        return found

    async def _publishable(self) -> BatchValue:
        batch, collector = self._received()
        self.leases = leases = batch.leases()
        handed = HandedLease(
            self.options.batch_id,
            batch.queue_url,
            collector.policy,
            AwsConnection.decode(self.options.connection),
            to_wall_time(leases, self.clock),
        )
        logger.info("Received %d messages of %s", len(handed.leases), handed.queue_url)
        lease, value = await publishable(self.options.payload, handed, batch.messages())
        self.lease = {**lease, RECEIVED_BY_WORKER: True}
        return value

    async def _settle_refused(self, refused: Collection[str]) -> bool:
        batch, collector = self._received()
        await collector.settle_refused(batch, refused)
        return batch.count_held() > 0

    async def _extend_for(self, seconds: float) -> None:
        batch, collector = self._received()
        if self._keeper is None or isinstance(collector.policy, Never) or collector.policy.max_lease_seconds == 0:
            return
        longer = self._keeper.open_batch(
            batch.queue_url, policy=_extending_by(seconds, collector.policy), on_event=self._happened
        )
        # Extensions under way must have been answered: one that the service carries out after the last would undo it.
        await batch.extend_now()
        leases, messages = batch.leases(), batch.messages()
        self._keeper.drop(batch)
        longer.adopt(leases, messages)
        self.batch = longer
        await longer.extend_now()
        enough = self.clock.now() + seconds * _ENOUGH_SHARE
        short = sum(lease.deadline < enough for lease in longer.leases())
        if short:
            logger.warning(
                "%d of %d leases of %s could not be extended by %g s: others may receive their messages before the "
                "keeper takes over",
                short,
                len(leases),
                batch.queue_url,
                seconds,
            )

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

    def _received(self) -> tuple[Batch, Collector]:
        if self._given_back:
            raise GivenBackError("this task was killed after it received")
        if self.batch is None or self._collector is None:
            raise RuntimeError("nothing was received")
        return self.batch, self._collector

    def _happened(self, event: LeaseEvent) -> None:
        self._lease_log.happened(event)
        if self.listener is not None:
            self.listener(event)


def give_back_handed(lease: Mapping[str, Any]) -> str:
    """Make the messages of a batch visible again that a worker received, and that no triggerer can keep. It blocks.

    Args:
        lease: The lease as plain values, as a worker published it.

    Returns:
        What became of them, for people.
    """
    try:
        handed = read_leases(lease)
        with translate_aws_errors(handed.queue_url):
            transport = make_transport(handed.connection)
        thread = LoopThread(f"sqs-lease {handed.queue_url}")
        try:
            released = thread.run(_release_handed(handed, transport))
        finally:
            thread.stop()
    except (PayloadError, SqsError, TimeoutError) as error:
        return f"Its messages come back when their visibility timeout ends: {error}"
    remove_batch(lease)
    return f"{released} of {len(handed.leases)} messages were given back"


async def _release_handed(handed: HandedLease, transport: Transport) -> int:
    clock = SystemClock()
    keeper = Keeper(transport, clock=clock)
    batch = keeper.open_batch(handed.queue_url, policy=handed.policy)
    try:
        batch.adopt(from_wall_time(handed.leases, clock))
        async with asyncio.timeout(GIVE_BACK_SECONDS):
            await batch.release_all()
        return batch.report().released
    finally:
        await keeper.close(Leaving.NOTHING)
        await transport.aclose()


def _extending_by(seconds: float, policy: RenewalPolicy) -> RenewalPolicy:
    longest = min(max(seconds, policy.visibility_seconds, 1.0), MAX_VISIBILITY_SECONDS)
    return Growing(visibility=longest, max_lease=policy.max_lease)
