"""A takeover as a timeline: how long a message stays invisible while one triggerer dies and another one takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Final

from docs.site.pictures.drawing import Drawing, Scale
from sqs_lease import Growing, Keeper, Leaving
from sqs_lease.testing import AuditEntry, AuditKind, MemorySqs, MemoryTransport, VirtualClock, run_virtual

VISIBILITY_SECONDS: Final = 450
"""The visibility timeout of Airflow's sensors by default."""

KILLED_AT: Final = 299.0
"""Just before the first extension: the worst moment."""

TAKEOVER_SECONDS: Final = 141.0
"""The longest time that a takeover was seen to take at Airflow's default settings, on busy processors."""

END: Final = 900.0


def history() -> tuple[Sequence[AuditEntry], float]:
    """The life of the message, and when the second triggerer had it."""
    clock = VirtualClock()
    sqs = MemorySqs(clock)
    queue_url = sqs.create_queue("orders", visibility_seconds=VISIBILITY_SECONDS)
    sqs.send(queue_url, "an order")
    policy = Growing(visibility=VISIBILITY_SECONDS)

    async def work() -> float:
        first, second = (
            Keeper(MemoryTransport(sqs, name=name), clock=clock, random=Random(0)) for name in ("first", "second")
        )
        batch = first.open_batch(queue_url, policy=policy)
        received = await first.transport.receive(
            queue_url, max_messages=1, wait_seconds=0, visibility_seconds=VISIBILITY_SECONDS
        )
        batch.add(received, received_at=0.0)
        await asyncio.sleep(KILLED_AT)
        leases = batch.leases()
        await first.close(Leaving.NOTHING)

        await asyncio.sleep(TAKEOVER_SECONDS)
        taken_over_at = clock.now()
        batch = second.open_batch(queue_url, policy=policy)
        batch.adopt(leases)
        await asyncio.sleep(END - 20 - clock.now())
        await batch.succeed()
        await second.close(Leaving.NOTHING)
        return taken_over_at

    taken_over_at = run_virtual(work, clock=clock)
    return sqs.trail().entries(), taken_over_at


def seconds_left(entries: Sequence[AuditEntry]) -> list[tuple[float, float]]:
    """When and for how much longer the message is invisible: the corners of a saw."""
    corners: list[tuple[float, float]] = []
    until = 0.0
    for entry in entries:
        if entry.until is not None:
            if corners:
                corners.append((entry.at, until - entry.at))
            until = entry.until
            corners.append((entry.at, until - entry.at))
        elif entry.kind is AuditKind.DELETED:
            corners.append((entry.at, until - entry.at))
    return corners


def draw() -> Drawing:
    """The picture."""
    entries, taken_over_at = history()
    corners = seconds_left(entries)
    deleted = entries[-1].at
    lowest = min(left for at, left in corners if at <= taken_over_at)
    drawing = Drawing(
        960,
        430,
        f"A triggerer dies just before it extends a lease. Another one takes over {TAKEOVER_SECONDS:.0f} seconds "
        f"later, when the message is still invisible for {lowest:.0f} seconds, and extends it at once.",
    )
    x, y = Scale((0, END), (120, 930)), Scale((0, 600), (370, 130))
    drawing.text(30, 34, "A triggerer dies, another one takes over", kind="heading")
    drawing.text(30, 66, "triggerer 1")
    drawing.bar(x(0), x(KILLED_AT), 50, 24, "quiet", "holds the message")
    drawing.text(x(KILLED_AT) + 8, 67, "killed, just before it extends", kind="small")
    drawing.text(30, 98, "triggerer 2")
    drawing.bar(x(taken_over_at), x(deleted), 82, 24, "good", "takes over, extends at once")
    drawing.text(30, 136, "seconds left")
    for left in (0, 150, 300, 450):
        drawing.line((x(0), y(left)), (x(END), y(left)), dashed=left > 0)
        drawing.text(x(0) - 8, y(left) + 4, str(left), anchor="end", kind="small")
    drawing.line((x(KILLED_AT), 50), (x(KILLED_AT), y(0)), "bad", dashed=True)
    drawing.line((x(taken_over_at), 82), (x(taken_over_at), y(0)), "good", dashed=True)
    drawing.path([(x(at), y(left)) for at, left in corners], "invisible")
    drawing.dot(x(taken_over_at), y(lowest), "bad")
    drawing.text(x(taken_over_at) + 10, y(lowest) + 2, f"{lowest:.0f} s left at worst", kind="small")
    drawing.text(x(deleted) + 6, y(corners[-1][1]) + 14, "deleted", kind="small")
    for at in range(0, int(END) + 1, 150):
        drawing.line((x(at), y(0)), (x(at), y(0) + 6))
        drawing.text(x(at), y(0) + 22, f"{at} s", anchor="middle", kind="small")
    drawing.text(
        x(0), y(0) + 46, "Left of the visibility timeout of 450 s. At 0 the message would be visible.", kind="small"
    )
    return drawing
