"""The checks of what the service does with messages that fail too often, and of permissions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from sqs_lease.cli.contract.checks import MAX_RECEIVES, Check, DiffersError, Outcome, QueueKind
from sqs_lease.cli.contract.ground import HELD_SECONDS, LATE_SECONDS, Ground, Held
from sqs_lease.core.calls import PASSING
from sqs_lease.core.messages import Receipt
from sqs_lease.sqs.errors import AccessDeniedError, InvalidRequestError, SqsError
from sqs_lease.sqs.move_tasks import COMPLETED, FAILED, NOT_A_DEAD_LETTER_QUEUE, UNKNOWN_CALL_CODES

MOVE_SECONDS: Final = 120.0
"""How long SQS may take to begin a move task, to move one message, and to say that it did."""

_NOT_FOR_LEASES: Final = frozenset(
    {"StartMessageMoveTask", "ListMessageMoveTasks", "CancelMessageMoveTask", "ListDeadLetterSourceQueues"}
)


async def _redrive(ground: Ground) -> str:
    attributes = await ground.service.queue_attributes(ground.url)
    dead_arn = (await ground.service.queue_attributes(ground.dead_letter_url)).arn
    if (attributes.dead_letter_arn, attributes.max_receive_count) != (dead_arn, MAX_RECEIVES):
        raise DiffersError(
            f"created with {dead_arn} after {MAX_RECEIVES} receives, it says {attributes.dead_letter_arn} after "
            f"{attributes.max_receive_count}"
        )
    message_id = await ground.send()
    dead = await _dead_lettered(ground)
    if dead.message.message_id != message_id:
        raise DiffersError("the message came to the dead-letter queue with another id")
    return f"after {MAX_RECEIVES} receives the message came to the dead-letter queue, with its id"


async def _dead_lettered(ground: Ground) -> Held:
    """Receive and release the queue's message as often as allowed, and then from the dead-letter queue.

    Raises:
        DiffersError: It did not come there, or came here once more.
    """
    for _ in range(MAX_RECEIVES):
        await ground.release(await ground.hold())
    ends_at = ground.clock.now() + LATE_SECONDS
    while ground.clock.now() <= ends_at:
        # SQS moves it when it would be received once more.
        if not await ground.is_empty():
            raise DiffersError(f"maxReceiveCount is {MAX_RECEIVES}, and the message was received once more")
        now = ground.clock.now()
        there = await ground.comes_again(hidden_from=now, latest=now, url=ground.dead_letter_url)
        if there.held is not None:
            return there.held
    raise DiffersError(f"the message is neither in its queue nor in the dead-letter queue after {LATE_SECONDS:g} s")


async def _move_task(ground: Ground) -> str:
    service = ground.service
    dead_arn = (await service.queue_attributes(ground.dead_letter_url)).arn
    message_id = await ground.send()
    dead = await _dead_lettered(ground)
    await ground.release(dead, url=ground.dead_letter_url)
    try:
        await service.start_move_task(dead_arn)
    except SqsError as error:
        if error.code not in UNKNOWN_CALL_CODES:
            raise
        raise DiffersError("the server has no move tasks", outcome=Outcome.HARMLESS) from error
    ends_at = ground.clock.now() + MOVE_SECONDS
    back = await ground.comes_again(hidden_from=ground.clock.now(), latest=ends_at)
    if back.held is None:
        raise DiffersError(f"the message did not come back within {MOVE_SECONDS:.0f} s")
    while (task := next(iter(await service.move_tasks(dead_arn)), None)) is None or task.status != COMPLETED:
        if ground.clock.now() > ends_at or (task is not None and task.status == FAILED):
            raise DiffersError(f"the move task is listed {'not at all' if task is None else f'as {task.status}'}")
        await asyncio.sleep(1)
    await _refuses_other_sources(ground)
    same = "the same" if back.held.message.message_id == message_id else "another"
    return f"the message came back to its queue, with {same} id"


async def _refuses_other_sources(ground: Ground) -> None:
    arn = (await ground.service.queue_attributes(ground.url)).arn
    try:
        await ground.service.start_move_task(arn)
    except InvalidRequestError as error:
        if NOT_A_DEAD_LETTER_QUEUE in error.text.lower():
            return
        said = f"{error.code}: {error.text}"
    else:
        said = "with a task"
    what = f"moving from a queue that is not a dead-letter queue was answered {said}"
    raise DiffersError(what, outcome=Outcome.HARMLESS)


async def _permissions(ground: Ground) -> str:
    service, receipt = ground.service, Receipt("no-such-message", "no-such-handle")
    name = ground.url.rpartition("/")[2]
    denied = []
    try:
        arn = (await service.queue_attributes(ground.url)).arn
    except AccessDeniedError:
        denied.append("GetQueueAttributes")
        arn = ""
    # Each is refused for its receipt or its task, or has nothing to do.
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "GetQueueUrl": lambda: service.queue_url(name),
        "ReceiveMessage": lambda: ground.receive(wait=0),
        "ChangeMessageVisibility": lambda: ground.change([receipt], HELD_SECONDS),
        "DeleteMessage": lambda: ground.delete([receipt]),
        "SendMessage": ground.send,
        "ListDeadLetterSourceQueues": lambda: service.dead_letter_sources(ground.url),
    }
    if arn:
        calls |= {
            "StartMessageMoveTask": lambda: service.start_move_task(arn),
            "ListMessageMoveTasks": lambda: service.move_tasks(arn),
            "CancelMessageMoveTask": lambda: service.cancel_move_task(arn, "no-such-task"),
        }
    for action, call in calls.items():
        try:
            await call()
        except AccessDeniedError:
            denied.append(action)
        except SqsError as error:
            # Servers that have no move tasks may not answer such calls at all.
            if error.verdict in PASSING and action not in _NOT_FOR_LEASES:
                raise
    if denied:
        actions = ", ".join(f"sqs:{action}" for action in denied)
        what = f"denied to this caller: {actions}. Allow {'it' if len(denied) == 1 else 'them'} in its IAM policy"
        outcome = Outcome.HARMLESS if _NOT_FOR_LEASES.issuperset(denied) else Outcome.DIFFERS
        raise DiffersError(what, outcome=outcome)
    return f"GetQueueAttributes and {len(calls)} other calls are not denied"


PERMISSIONS: Final = Check(
    "permissions",
    "The caller may do what leases, dead_letter() and a redrive call.",
    "Leases are not received, extended or settled by this caller; `sqs-lease policy` prints what it needs.",
    QueueKind.STANDARD,
    _permissions,
)

DEAD_LETTERS: Final = (
    Check(
        "redrive",
        "A message that was received maxReceiveCount times goes to the dead-letter queue, with its id.",
        "A message that always fails comes back without end.",
        QueueKind.WITH_DEAD_LETTERS,
        _redrive,
    ),
    Check(
        "move_task",
        "A move task brings the messages of a dead-letter queue back, and is listed until it is completed.",
        "`sqs-lease redrive` does not work; leases do.",
        QueueKind.WITH_DEAD_LETTERS,
        _move_task,
    ),
)
"""In the order in which people read them."""
