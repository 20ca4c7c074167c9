"""Looks through large batches a slice at a time, so that the event loop gets to other things in between.

A triggerer's event loop serves all of its triggers. Airflow warns when it stands still for 0.2 s, and 50 000 leases
that are taken over at once take several times as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sqs_lease.clock import Clock
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.plain_leases import to_wall_time
from sqs_lease.keeper.turns import LEASES_IN_A_ROUND, Turns


async def held_by(batch: Batch, turns: Turns, clock: Clock) -> tuple[list[Lease], list[Message]]:
    """Return the leases that a batch still holds, in times since the epoch, and their messages in the same order.

    Args:
        batch: The batch; what ends meanwhile may be left out or not, but both lists are of the same messages.
        turns: Where slices take their turns.
        clock: The batch's clock.
    """
    leases = batch.leases()
    await asyncio.sleep(0)
    contents = await _by_receipt(batch.messages(), turns)
    held: list[Lease] = []
    messages: list[Message] = []
    for start in range(0, len(leases), LEASES_IN_A_ROUND):
        some = leases[start : start + LEASES_IN_A_ROUND]
        await turns.take(len(some))
        both = [(lease, contents[lease.receipt]) for lease in some if lease.receipt in contents]
        held += to_wall_time([lease for lease, _ in both], clock)
        messages += [message for _, message in both]
    return held, messages


async def adopt(batch: Batch, leases: Sequence[Lease], messages: Sequence[Message], turns: Turns) -> None:
    """Let a batch hold leases that were held elsewhere, see :meth:`Batch.adopt`.

    Whoever is cancelled meanwhile finds all of them held.

    Args:
        batch: The batch.
        leases: The leases, in times of the keeper's clock.
        messages: Their messages, as far as their content is known.
        turns: Where slices take their turns.

    Raises:
        KeeperClosedError: The keeper was closed, or the batch dropped: nobody would extend them.
    """
    contents: dict[Receipt, Message] = {}

    def adopt_some(some: Sequence[Lease]) -> None:
        batch.adopt(some, [contents[lease.receipt] for lease in some if lease.receipt in contents])

    adopted = 0
    try:
        contents = await _by_receipt(messages, turns)
        while adopted < len(leases):
            some = leases[adopted : adopted + LEASES_IN_A_ROUND]
            await turns.take(len(some))
            adopted += len(some)
            adopt_some(some)
    except BaseException:
        adopt_some(leases[adopted:])
        raise


async def _by_receipt(messages: Sequence[Message], turns: Turns) -> dict[Receipt, Message]:
    contents: dict[Receipt, Message] = {}
    for start in range(0, len(messages), LEASES_IN_A_ROUND):
        some = messages[start : start + LEASES_IN_A_ROUND]
        await turns.take(len(some))
        contents.update((message.receipt, message) for message in some)
    return contents
