"""The checks of FIFO queues: order, groups that wait, deduplication, repeated receives, and old receipt handles."""

from __future__ import annotations

from typing import Final

from sqs_lease.cli.contract.checks import Check, DiffersError, Outcome, QueueKind
from sqs_lease.cli.contract.ground import Ground, shown
from sqs_lease.cli.contract.standard_queues import lapsed_lease
from sqs_lease.core.calls import Verdict
from sqs_lease.core.limits import MAX_BATCH_ENTRIES


async def _order(ground: Ground) -> str:
    bodies = [f"message {number}" for number in range(5)]
    for body in bodies:
        await ground.send(body, group="a")
    came: list[str] = []
    while len(came) < len(bodies):
        messages = await ground.receive(2)
        if not messages:
            raise DiffersError(f"{len(came)} of {len(bodies)} messages of a group came")
        if {message.message_group_id for message in messages} != {"a"}:
            raise DiffersError("messages came without their message group")
        came += [message.body for message in messages]
        await ground.delete([message.receipt for message in messages])
    if came != bodies:
        raise DiffersError(f"the messages of a group came in the order {', '.join(body[-1] for body in came)}")
    return "five messages of a group came in their order"


async def _blocked_group(ground: Ground) -> str:
    for body in ("first", "second", "third"):
        await ground.send(body, group="a")
    first = await ground.hold()
    if not await ground.is_empty():
        raise DiffersError("a message of a group came while one before it was in flight")
    await ground.send("other", group="b")
    others = await ground.receive(MAX_BATCH_ENTRIES)
    if [message.body for message in others] != ["other"]:
        raise DiffersError("a message of another group did not come while a group was blocked")
    await ground.release(first)
    held = await ground.receive(2)
    if not held or held[0].body != "first":
        raise DiffersError("after its release, the first message of a group did not come first")
    # Where both came, the group stays blocked by the second one.
    if len(held) == 2:
        await ground.change([held[0].receipt], 0)
        if not await ground.is_empty():
            raise DiffersError("a message of a group came while a later one was in flight")
    return "a group waits for its messages in flight, and other groups do not"


async def _deduplication(ground: Ground) -> str:
    for _ in range(2):
        await ground.send("once", deduplication_id="once")
    await ground.delete([(await ground.hold()).receipt])
    if not await ground.is_empty():
        raise DiffersError("two sends with one deduplication id brought two messages")
    await ground.send("once", deduplication_id="once")
    if not await ground.is_empty():
        raise DiffersError("after the message was deleted, a send with its deduplication id brought another one")
    return "three sends with one deduplication id brought one message"


async def _attempt_id(ground: Ground) -> str:
    for group in ("a", "b"):
        await ground.send(f"message of {group}", group=group)
    attempt = "sqs-lease-verify-attempt"
    first = await ground.receive(1, attempt_id=attempt)
    again = await ground.receive(1, attempt_id=attempt, wait=1)
    if not first:
        raise DiffersError("a message that is visible did not come")
    if [message.message_id for message in again] != [message.message_id for message in first]:
        what = "other messages" if again else "no message"
        raise DiffersError(f"the repeated receive brought {what}", outcome=Outcome.HARMLESS)
    (answer,) = await ground.change([again[0].receipt], 60)
    if answer.verdict is not Verdict.DONE:
        raise DiffersError(f"extending what the repeated receive brought was answered {shown(answer)}")
    return "the repeated receive brought the same message"


FIFO: Final = (
    Check(
        "fifo_order",
        "The messages of a group come in their order, and name their group.",
        "A group's messages are worked on and deleted in another order.",
        QueueKind.FIFO,
        _order,
    ),
    Check(
        "fifo_blocked_group",
        "While a message of a group is in flight, no other of the group comes; a released one comes first again.",
        "Two consumers work on one group at once, or a later message before one that failed.",
        QueueKind.FIFO,
        _blocked_group,
    ),
    Check(
        "fifo_deduplication",
        "Of two sends with one deduplication id within 5 minutes, the second adds no message.",
        "dead_letter() that is repeated after a lost answer puts a message into the dead-letter queue twice.",
        QueueKind.FIFO,
        _deduplication,
    ),
    Check(
        "fifo_attempt_id",
        "A receive that is repeated with its ReceiveRequestAttemptId brings the same messages.",
        "After a lost answer, messages come only when their visibility timeout ends, and their groups wait.",
        QueueKind.FIFO,
        _attempt_id,
    ),
    Check(
        "fifo_lapsed_lease",
        "After a lease ended, extending and deleting are answered as done or as lost.",
        "A lost lease is not noticed as lost: its calls are repeated, and the log blames permissions.",
        QueueKind.FIFO,
        lapsed_lease,
    ),
)
"""In the order in which people read them."""
