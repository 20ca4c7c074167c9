"""A simulated process's way to the service, which carries calls out whatever becomes of the caller.

It writes down every call about leases, and checks the third invariant as each is sent: see :mod:`checks`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from sqs_lease.core.calls import EntryAnswer, Verdict, VisibilityChange
from sqs_lease.core.failure_rules import DeadLetter, Delete, Release
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.testing import Fault, FaultRule, MemorySqs, MemoryTransport, Operation, TransportCall
from tests.simulation.journal import Journal, Kind, LeaseRecord, SentCall
from tests.simulation.store import Store
from tests.simulation.world import World, WorldLoop

ROUNDING_SECONDS = 0.001

_T = TypeVar("_T")


class Wire:
    """A :class:`sqs_lease.sqs.transport.Transport`; watches what is sent through it.

    Args:
        process: The caller's name.
        loop: The caller's event loop.
        faults: The faults on the way.
    """

    def __init__(
        self,
        process: str,
        loop: WorldLoop,
        world: World,
        sqs: MemorySqs,
        store: Store,
        journal: Journal,
        *,
        faults: FaultRule,
    ) -> None:
        self._process = process
        self._loop = loop
        self._world = world
        self._store = store
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
        for change in changes:
            self._check_change(queue_url, change)
        releases = all(self._is_release(change) for change in changes)
        call = self._write_down(
            queue_url,
            Kind.RELEASE if releases else Kind.EXTEND,
            [change.receipt for change in changes],
            [change.seconds for change in changes],
            fault,
        )
        return await self._hear(call, fault, lambda: self._transport.change_visibility(queue_url, changes))

    async def delete(self, queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
        """As the protocol says."""
        fault = self._draw(Operation.DELETE, queue_url, len(receipts))
        for receipt in receipts:
            self._check_delete(receipt)
        call = self._write_down(queue_url, Kind.DELETE, receipts, [0] * len(receipts), fault)
        return await self._hear(call, fault, lambda: self._transport.delete(queue_url, receipts))

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
        sent = await self._send(
            fault,
            lambda: self._transport.send(
                queue_url,
                body,
                message_attributes=message_attributes,
                message_group_id=message_group_id,
                deduplication_id=deduplication_id,
            ),
        )
        self._journal.forwarded.setdefault(self._process, []).append(self._world.clock.now())
        return sent

    async def aclose(self) -> None:
        """Nothing to close."""

    def _draw(self, operation: Operation, queue_url: str, entries: int) -> Fault:
        return self._faults(TransportCall(operation, queue_url, entries, self._world.clock.now()))

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

    async def _hear(
        self, sent: SentCall, fault: Fault, call: Callable[[], Coroutine[Any, Any, Sequence[EntryAnswer]]]
    ) -> Sequence[EntryAnswer]:
        try:
            answers = await self._send(fault, call)
            sent.verdicts = tuple(answer.verdict for answer in answers)
        finally:
            sent.ended_at = self._world.clock.now()
        return answers

    def _write_down(
        self, queue_url: str, kind: Kind, receipts: Sequence[Receipt], seconds: Sequence[int], fault: Fault
    ) -> SentCall:
        now = self._world.clock.now()
        lost = fault.unreachable or fault.request_lost or (fault.error is not None and not fault.carried_out)
        arrives_at = math.inf if lost else now + fault.before_seconds
        unheard = lost or fault.answer_lost or fault.error is not None
        answered_at = math.inf if unheard else now + fault.before_seconds + fault.after_seconds
        call = SentCall(
            kind, now, tuple(receipts), tuple(seconds), arrives_at, answered_at, frozenset(fault.entry_errors)
        )
        self._journal.sent(self._process, queue_url, call)
        self._journal.say(
            self._process,
            kind.value,
            *(f"{receipt} {by} s;" for receipt, by in zip(receipts, seconds, strict=True)),
            fault,
        )
        return call

    def _is_release(self, change: VisibilityChange) -> bool:
        record = self._journal.lease(self._process, change.receipt)
        if record.began is None or record.began_at is None:
            return change.seconds == 0
        if isinstance(record.began, Release):
            return change.seconds <= record.began.delay_seconds
        return change.seconds == 0

    # Invariant 3, as seen from the wire: see checks.py

    def _check_change(self, queue_url: str, change: VisibilityChange) -> None:
        record = self._journal.lease(self._process, change.receipt)
        now = self._world.clock.now()
        what = f"{self._process} sets {change.receipt} to {change.seconds} s"
        if not self._check_is_held(record, what, releases=change.seconds == 0):
            return
        if record.began is None or record.began_at is None:
            if change.seconds == 0:
                self._journal.violated("3 nothing is released unasked", what)
        elif now > record.began_at and not self._is_release(change) and not self._waits_for_others(record):
            self._journal.violated("3 nothing is extended after it was settled", f"{what}; began: {record.began}")
        elif record.began is None and now + change.seconds < record.deadline_at(now) - ROUNDING_SECONDS:
            detail = f"{what}, {record.deadline_at(now) - now:.3f} s were left"
            self._journal.violated("3 an extension never shortens", detail)
        elif change.seconds == 0 and isinstance(record.began, Delete) and not queue_url.endswith(".fifo"):
            # On FIFO queues a delete may turn into a release, to keep the order.
            self._journal.violated("3 nothing is released unasked", f"{what}; began: {record.began}")

    def _check_delete(self, receipt: Receipt) -> None:
        record = self._journal.lease(self._process, receipt)
        what = f"{self._process} deletes {receipt}"
        if self._check_is_held(record, what, releases=True) and not isinstance(record.began, Delete | DeadLetter):
            self._journal.violated("1 nothing is deleted unasked", f"{what}; began: {record.began}")

    def _check_is_held(self, record: LeaseRecord, what: str, *, releases: bool) -> bool:
        now = self._world.clock.now()
        if record.lost_at is not None and (now > record.lost_at or releases):
            self._journal.violated("3 nothing lost is touched", f"{what} after it was lost")
        elif record.settled_at is not None and record.settled is not None and now > record.settled_at:
            outcome = record.settled.outcome.value
            self._journal.violated("3 nothing settled is touched", f"{what} after it was {outcome}")
        elif record.is_forgotten and now > record.forgotten_at[-1]:
            self._journal.violated("3 nothing handed over is touched", f"{what} after it was forgotten")
        elif any(_refused(call, record.receipt) for call in record.calls if call.kind is not Kind.EXTEND):
            self._journal.violated("3 what was refused is not asked again", what)
        else:
            return True
        return False

    def _waits_for_others(self, record: LeaseRecord) -> bool:
        """Whether its delete waits, or did until now, for an earlier message of its group: it is extended meanwhile."""
        now = self._world.clock.now()
        run = self._store.by_handle[record.receipt.handle]
        earlier = run.earlier_in_group(record.receipt.message_id)
        records = (self._journal.lease(self._process, run.messages[message_id].receipt) for message_id in earlier)
        return isinstance(record.began, Delete) and any(
            other.holdings
            and other.ended_at in (None, now)
            and (not other.is_forgotten or other.forgotten_at[-1] == now)
            for other in records
        )


def _refused(call: SentCall, receipt: Receipt) -> bool:
    return call.verdicts is not None and call.verdict(receipt) is Verdict.REFUSED


def _resolve(reply: asyncio.Future[_T], result: _T) -> None:
    if not reply.done():
        reply.set_result(result)


def _fail(reply: asyncio.Future[Any], error: SqsError) -> None:
    if not reply.done():
        reply.set_exception(error)
