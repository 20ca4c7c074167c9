"""The life of a message: with the visibility timeout alone, and with a lease; both as the in-memory SQS saw it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, Final

from docs.site.pictures.drawing import Drawing, Scale
from sqs_lease import Growing, Keeper, Leaving, Message
from sqs_lease.testing import AuditEntry, AuditKind, MemorySqs, MemoryTransport, VirtualClock, run_virtual

VISIBILITY_SECONDS: Final = 30
RECEIVED_AT: Final = 10.0
WORK_SECONDS: Final = 80.0
LOOK_SECONDS: Final = 5.0
"""How long after a message is visible another consumer receives it."""

_INVISIBLE_FROM: Final = {AuditKind.RECEIVED}
_VISIBLE_FROM: Final = {AuditKind.SENT, AuditKind.RELEASED, AuditKind.EXPIRED}


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which the message was visible, or not."""

    start: float
    end: float
    visible: bool


def history(work: Callable[[MemorySqs, str, VirtualClock], Coroutine[Any, Any, None]]) -> Sequence[AuditEntry]:
    """The life of one message that was sent at 0."""
    clock = VirtualClock()
    sqs = MemorySqs(clock)
    queue_url = sqs.create_queue("orders", visibility_seconds=VISIBILITY_SECONDS)
    sqs.send(queue_url, "an order")

    run_virtual(lambda: work(sqs, queue_url, clock), clock=clock)
    sqs.attributes(queue_url)
    return sqs.trail().entries()


async def without_lease(sqs: MemorySqs, queue_url: str, clock: VirtualClock) -> None:
    """Receive, work, delete; so does a second consumer as soon as there is something to receive."""

    async def consume(start: float) -> None:
        await asyncio.sleep(start - clock.now())
        (message,) = sqs.receive(queue_url, max_messages=1)
        await asyncio.sleep(WORK_SECONDS)
        sqs.delete(queue_url, [message.receipt])

    await asyncio.gather(consume(RECEIVED_AT), consume(RECEIVED_AT + VISIBILITY_SECONDS + LOOK_SECONDS))


async def with_lease(sqs: MemorySqs, queue_url: str, clock: VirtualClock) -> None:
    """Work twice under a lease: the first try fails, the second one succeeds."""
    transport = MemoryTransport(sqs)
    keeper = Keeper(transport, clock=clock, random=Random(0))

    async def receive() -> list[Message]:
        return list(
            await transport.receive(queue_url, max_messages=1, wait_seconds=0, visibility_seconds=VISIBILITY_SECONDS)
        )

    for start, succeeds in ((RECEIVED_AT, False), (RECEIVED_AT + WORK_SECONDS + LOOK_SECONDS, True)):
        await asyncio.sleep(start - clock.now())
        batch = keeper.open_batch(queue_url, policy=Growing(visibility=VISIBILITY_SECONDS))
        batch.add(await receive(), received_at=clock.now())
        await asyncio.sleep(WORK_SECONDS)
        await (batch.succeed() if succeeds else batch.release_all())
    await keeper.close(Leaving.NOTHING)


def spans(entries: Sequence[AuditEntry]) -> Iterator[Span]:
    """When the message was visible, and when not, up to its end."""
    changes = [entry for entry in entries if entry.kind in _VISIBLE_FROM | _INVISIBLE_FROM | {AuditKind.DELETED}]
    for change, after in pairwise(changes):
        yield Span(change.at, after.at, change.kind in _VISIBLE_FROM)


def draw() -> Drawing:
    """The picture."""
    end = RECEIVED_AT + 2 * WORK_SECONDS + 2 * LOOK_SECONDS
    drawing = Drawing(
        960,
        440,
        "With the visibility timeout alone a message is visible again while its work goes on, and a second consumer "
        "works on it, too. With a lease it stays invisible while the work runs, is visible again at once when the work "
        "fails, and is deleted when it succeeds.",
    )
    x = Scale((0, end), (120, 930))
    _without_lease(drawing, x, history(without_lease))
    _with_lease(drawing, x, history(with_lease))
    for at in range(0, int(end) + 1, 30):
        drawing.line((x(at), 402), (x(at), 408))
        drawing.text(x(at), 424, f"{at} s", anchor="middle", kind="small")
    drawing.line((x(0), 402), (x(end), 402))
    return drawing


def _message_bar(drawing: Drawing, x: Scale, y: float, entries: Sequence[AuditEntry]) -> None:
    drawing.text(30, y + 20, "message")
    for span in spans(entries):
        wide = span.end - span.start > 20
        label = ("visible" if span.visible else "invisible to others") if wide else ""
        drawing.bar(x(span.start), x(span.end), y, 30, "visible" if span.visible else "invisible", label)


def _without_lease(drawing: Drawing, x: Scale, entries: Sequence[AuditEntry]) -> None:
    first, second = (entry.at for entry in entries if entry.kind is AuditKind.RECEIVED)
    expired = next(entry.at for entry in entries if entry.kind is AuditKind.EXPIRED)
    drawing.text(30, 34, f"Visibility timeout of {VISIBILITY_SECONDS} s alone", kind="heading")
    drawing.text(30, 70, "work")
    drawing.bar(x(first), x(first + WORK_SECONDS), 50, 26, "quiet", "consumer 1")
    drawing.bar(x(second), x(second + WORK_SECONDS), 80, 26, "bad", "consumer 2: the same work again")
    _message_bar(drawing, x, 116, entries)
    drawing.text(x(expired), 166, "visible again too early", anchor="middle", kind="small")


def _with_lease(drawing: Drawing, x: Scale, entries: Sequence[AuditEntry]) -> None:
    first, second = (entry.at for entry in entries if entry.kind is AuditKind.RECEIVED)
    released = next(entry.at for entry in entries if entry.kind is AuditKind.RELEASED)
    deleted = next(entry.at for entry in entries if entry.kind is AuditKind.DELETED)
    drawing.text(30, 212, "With a lease", kind="heading")
    drawing.text(30, 246, "work")
    drawing.bar(x(first), x(released), 228, 26, "bad", "attempt 1 fails")
    drawing.bar(x(second), x(deleted), 228, 26, "good", "attempt 2 succeeds")
    _message_bar(drawing, x, 264, entries)
    drawing.text(x(released), 312, "visible at once", anchor="middle", kind="small")
    drawing.text(x(deleted), 312, "deleted", anchor="middle", kind="small")
    drawing.text(30, 338, "extended")
    end_of_attempt = {entry.at: released if entry.at < released else deleted for entry in entries}
    for number, entry in enumerate(entry for entry in entries if entry.kind is AuditKind.CHANGED):
        if entry.until is None:
            continue
        y = 330 + 11 * (number % 3)
        drawing.dot(x(entry.at), y, "invisible")
        drawing.line((x(entry.at), y), (x(min(entry.until, end_of_attempt[entry.at])), y), "invisible")
    drawing.text(x(first), 372, "Each dot is a call that moves the deadline on.", kind="small")
