"""A simulated process's way to the service, which carries calls out whatever becomes of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from sqs_lease.core.calls import EntryAnswer, VisibilityChange
from sqs_lease.core.failure_rules import DeadLetter, Delete, Release
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.testing import Fault, FaultRule, MemorySqs, MemoryTransport, Operation, TransportCall
from tests.simulation.journal import Journal
from tests.simulation.world import World, WorldLoop

_T = TypeVar("_T")

SLOW_SECONDS = 1.0
"""A call whose request or answer takes longer counts as disturbed."""


class Wire:
    """A :class:`sqs_lease.sqs.transport.Transport`; watches what is sent through it.

    Args:
        process: The caller's name.
        loop: The caller's event loop.
        faults: What goes wrong on the way.
    """

    def __init__(
        self,
        process: str,
        loop: WorldLoop,
        world: World,
        sqs: MemorySqs,
        journal: Journal,
        *,
        faults: FaultRule,
    ) -> None:
        self._process = process
        self._loop = loop
        self._world = world
        self._journal = journal
        self._faults = faults
        self._fault = Fault()
        self._transport = MemoryTransport(sqs, faults=lambda _: self._fault, name=process)

    async def queue_url(self, queue: str) -> str:
        """As the protocol says."""
        fault = self._draw(Operation.QUEUE_URL, queue, 1)
        return await self._send(fault, lambda: self._transport.queue_url(queue))

    async def queue_attributes(self, queue_url: str) -> QueueAttributes:
        """As the protocol says."""
        fault = self._draw(Operation.QUEUE_ATTRIBUTES, queue_url, 1)
        return await self._send(fault, lambda: self._transport.queue_attributes(queue_url))

    async def receive(
        self,
        queue_url: str,
        *,
        max_messages: int,
        wait_seconds: int,
        visibility_seconds: int | None,
        attempt_id: str | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> Sequence[Message]:
        """As the protocol says."""
        fault = self._draw(Operation.RECEIVE, queue_url, max_messages)
        if on_sent is not None:
            on_sent()
        return await self._send(
            fault,
            lambda: self._transport.receive(
                queue_url,
                max_messages=max_messages,
                wait_seconds=wait_seconds,
                visibility_seconds=visibility_seconds,
                attempt_id=attempt_id,
            ),
        )

    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        """As the protocol says."""
        fault = self._draw(Operation.CHANGE_VISIBILITY, queue_url, len(changes))
        for place, change in enumerate(changes):
            self._check_change(queue_url, change)
            self._note_fault(change.receipt, fault, place)
        self._journal.say(
            self._process, "changes", *(f"{change.receipt} to {change.seconds} s;" for change in changes), fault
        )
        return await self._send(fault, lambda: self._transport.change_visibility(queue_url, changes))

    async def delete(self, queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
        """As the protocol says."""
        fault = self._draw(Operation.DELETE, queue_url, len(receipts))
        for receipt in receipts:
            self._check_delete(receipt)
        self._journal.say(self._process, "deletes", *receipts, fault)
        return await self._send(fault, lambda: self._transport.delete(queue_url, receipts))

    async def send(
        self,
        queue_url: str,
        body: str,
        *,
        message_attributes: Mapping[str, Mapping[str, Any]] | None = None,
        message_group_id: str | None = None,
        deduplication_id: str | None = None,
    ) -> str:
        """As the protocol says."""
        fault = self._draw(Operation.SEND, queue_url, 1)
        self._journal.say(self._process, "dead-letters", body, fault)
        return await self._send(
            fault,
            lambda: self._transport.send(
                queue_url,
                body,
                message_attributes=message_attributes,
                message_group_id=message_group_id,
                deduplication_id=deduplication_id,
            ),
        )

    async def aclose(self) -> None:
        """Nothing to close."""

    def _draw(self, operation: Operation, queue_url: str, entries: int) -> Fault:
        now = self._world.clock.now()
        fault = self._faults(TransportCall(operation, queue_url, entries, now))
        if fault.error is not None and fault.error.code == "RequestThrottled":
            self._journal.throttled.setdefault((self._process, queue_url), []).append(now + fault.before_seconds)
        return fault

    async def _send(self, fault: Fault, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        reply: asyncio.Future[_T] = self._loop.create_future()

        async def serve() -> None:
            # The transport asks for its fault before it first waits.
            self._fault = fault
            try:
                result = await call()
            except SqsError as error:
                self._loop.call_soon(_fail, reply, error)
            else:
                self._loop.call_soon(_resolve, reply, result)

        served = self._world.service.create_task(serve())
        try:
            return await reply
        except asyncio.CancelledError:
            if not fault.unstoppable:
                self._world.service.call_soon(served.cancel)
            raise

    # Invariant 3, as seen from the wire: see checks.py

    def _check_change(self, queue_url: str, change: VisibilityChange) -> None:
        record = self._journal.lease(self._process, change.receipt)
        now = self._world.clock.now()
        what = f"{self._process} sets {change.receipt} to {change.seconds} s"
        if record.lost_at is not None and (now > record.lost_at or change.seconds == 0):
            self._journal.violated("3 nothing lost is touched", f"{what} after it was lost")
        elif record.forgotten_at is not None and now > record.forgotten_at:
            self._journal.violated("3 nothing handed over is touched", f"{what} after it was forgotten")
        elif record.settled is not None:
            self._journal.violated(
                "3 nothing settled is touched", f"{what} after it was {record.settled.outcome.value}"
            )
        elif record.began is None or record.began_at is None:
            if change.seconds == 0:
                self._journal.violated("3 nothing is released unasked", what)
        elif now > record.began_at:
            # On FIFO queues a delete may turn into a release, to keep the order.
            release = Release() if isinstance(record.began, Delete) and queue_url.endswith(".fifo") else record.began
            if not isinstance(release, Release) or change.seconds > release.delay_seconds:
                self._journal.violated("3 nothing is extended after it was settled", f"{what}; began: {record.began}")

    def _check_delete(self, receipt: Receipt) -> None:
        record = self._journal.lease(self._process, receipt)
        what = f"{self._process} deletes {receipt}"
        if record.lost_at is not None:
            self._journal.violated("3 nothing lost is touched", f"{what} after it was lost")
        elif record.settled is not None:
            self._journal.violated(
                "3 nothing settled is touched", f"{what} after it was {record.settled.outcome.value}"
            )
        elif not isinstance(record.began, Delete | DeadLetter):
            self._journal.violated("1 nothing is deleted unasked", f"{what}; began: {record.began}")

    def _note_fault(self, receipt: Receipt, fault: Fault, place: int) -> None:
        now = self._world.clock.now()
        record = self._journal.lease(self._process, receipt)
        record.arrivals.append((now, now + fault.before_seconds))
        if (
            fault.error is not None
            or fault.unreachable
            or fault.request_lost
            or fault.answer_lost
            or place in fault.entry_errors
            or max(fault.before_seconds, fault.after_seconds) > SLOW_SECONDS
        ):
            ends_at = now + fault.before_seconds + fault.after_seconds
            record.disturbed.append((now, ends_at))


def _resolve(reply: asyncio.Future[_T], result: _T) -> None:
    if not reply.done():
        reply.set_result(result)


def _fail(reply: asyncio.Future[Any], error: SqsError) -> None:
    if not reply.done():
        reply.set_exception(error)
