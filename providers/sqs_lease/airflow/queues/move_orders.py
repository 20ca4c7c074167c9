"""What is to be moved out of a dead-letter queue, and how it is done: by a move task of SQS, or message by message.

It knows nothing of tasks and triggers: :mod:`sqs_lease.airflow.queues.redrive` has those.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqs_lease.airflow.receiving.collector import with_visibility
from sqs_lease.clock import Clock
from sqs_lease.core.calls import Verdict
from sqs_lease.core.limits import MAX_IN_FLIGHT
from sqs_lease.core.messages import Message
from sqs_lease.core.specs import resolve_policy
from sqs_lease.keeper.driver import REASON_ATTRIBUTE
from sqs_lease.keeper.keeper import Keeper
from sqs_lease.keeper.moving import DEFAULT_MAX_MESSAGES, Destinations, Matches, MessageMover, MoveCounts
from sqs_lease.sqs.errors import AccessDeniedError, QueueNotFoundError, SqsError
from sqs_lease.sqs.move_tasks import (
    ALREADY_RUNNING,
    CANCELLED,
    CANCELLING,
    COMPLETED,
    MAX_MOVES_PER_SECOND,
    NOT_A_DEAD_LETTER_QUEUE,
    UNKNOWN_SOURCE,
    MoveTask,
    RedriveTransport,
)
from sqs_lease.sqs.transport import Transport
from sqs_lease.sqs.validation import FIFO_SUFFIX, check_whole_number, queue_reference

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
"""Pause between two questions for a move task's progress."""

LOG_SECONDS: Final = 30.0
"""Pause between two log lines about progress."""

NOT_LISTED_SECONDS: Final = 60.0
"""How long a move task that was started may be missing in the service's list."""

CLOCK_SKEW_SECONDS: Final = 300.0
"""By how much this machine's clock may be ahead of the service's."""

CANCELLATION_SECONDS: Final = 15.0
"""How long to wait until a move task that runs already has ended: after a clear, it is being cancelled."""

TIMED_OUT: Final = "timed out"
FAILED: Final = "failed"
FAILED_FOR_GOOD: Final = "failed for good"

_PERMISSIONS: Final = (
    "A move task needs sqs:StartMessageMoveTask, sqs:ListMessageMoveTasks, sqs:CancelMessageMoveTask, "
    "sqs:ReceiveMessage, sqs:DeleteMessage and sqs:GetQueueAttributes on the dead-letter queue, and sqs:SendMessage on "
    "each destination"
)
_NOT_DEAD_LETTERS: Final = (
    "it is not the dead-letter queue of any queue. Name the dead-letter queue, or set it in the RedrivePolicy of the "
    "queue whose failed messages it takes"
)


class MoveError(Exception):
    """Messages could not be moved, or not all of them.

    Attributes:
        status: :data:`FAILED`, :data:`FAILED_FOR_GOOD` or :data:`TIMED_OUT`.
        report: What was moved until then.
    """

    def __init__(self, text: str, status: str, report: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.report = dict(report or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOrder:
    """What is to be moved, as plain values.

    Attributes:
        queue: The dead-letter queue's URL, name or ARN.
        destination: The same of the queue that takes the messages; None sends each back to where it came from.
        max_per_second: Most messages in a second; None for no limit.
        reason: A regular expression that is found in the reason; None for any message.
        older_than_seconds: Age that a message must have reached; None for any.
        newer_than_seconds: Age that a message must not have reached; None for any.
        max_messages: How many messages are looked at with a filter, at most.
    """

    queue: str
    destination: str | None = None
    max_per_second: int | None = None
    reason: str | None = None
    older_than_seconds: float | None = None
    newer_than_seconds: float | None = None
    max_messages: int = DEFAULT_MAX_MESSAGES

    @property
    def is_filtered(self) -> bool:
        """Whether only some messages are to be moved."""
        return (self.reason, self.older_than_seconds, self.newer_than_seconds) != (None, None, None)

    def check(self) -> None:
        """Check the values.

        Raises:
            ValueError: A value is out of range, or a queue is not a name, URL or ARN.
        """
        doing = f"moving messages of {self.queue}"
        queue_reference(self.queue)
        if self.destination is not None:
            queue_reference(self.destination)
        if self.max_per_second is not None:
            check_whole_number(self.max_per_second, "max_per_second", 1, MAX_MOVES_PER_SECOND, doing)
        check_whole_number(self.max_messages, "max_messages", 1, MAX_IN_FLIGHT, doing)
        if self.reason is not None:
            try:
                re.compile(self.reason)
            except re.error as error:
                raise ValueError(f"{doing}: reason is not a regular expression, {self.reason!r}: {error}") from error

    def matcher(self, clock: Clock) -> Matches:
        """Make the test for a message."""
        pattern = None if self.reason is None else re.compile(self.reason)

        def matches(message: Message) -> bool:
            if pattern is not None:
                reason = message.message_attributes.get(REASON_ATTRIBUTE, {}).get("StringValue")
                if reason is None or pattern.search(reason) is None:
                    return False
            age = 0.0 if message.sent_at is None else clock.wall() - message.sent_at.timestamp()
            if self.older_than_seconds is not None and age < self.older_than_seconds:
                return False
            return self.newer_than_seconds is None or age < self.newer_than_seconds

        return matches


@dataclass(frozen=True, slots=True)
class StartedMove:
    """A move task that was started.

    Attributes:
        source_arn: The dead-letter queue.
        handle: The task's handle.
        asked_at: When it was asked for, in seconds since the epoch.
    """

    source_arn: str
    handle: str
    asked_at: float


async def start(transport: RedriveTransport, order: MoveOrder, clock: Clock) -> StartedMove:
    """Start a move task.

    Raises:
        MoveError: It cannot be started: the text says why and what to do.
        SqsError: A queue cannot be used.
    """
    queue_url = await transport.queue_url(order.queue)
    source_arn = (await transport.queue_attributes(queue_url)).arn
    if order.destination is not None:
        destination_arn: str | None = await _arn_of(transport, order.destination)
    else:
        # Named where it can only be one: messages that were sent to the dead-letter queue directly, as by
        # dead_letter(), do not say where they came from, and would end the move task.
        only_source_url = await _only_source(transport, queue_url)
        destination_arn = None if only_source_url is None else await _arn_of(transport, only_source_url)
    give_up_at = clock.now() + CANCELLATION_SECONDS
    while True:
        asked_at = clock.wall()
        try:
            handle = await transport.start_move_task(
                source_arn, destination_arn=destination_arn, max_per_second=order.max_per_second
            )
        except SqsError as error:
            if NOT_A_DEAD_LETTER_QUEUE in error.text.lower():
                raise MoveError(f"queue {queue_url}: {_NOT_DEAD_LETTERS}", FAILED_FOR_GOOD) from error
            if ALREADY_RUNNING not in error.text.lower():
                raise _with_permissions(error) from error
            if clock.now() >= give_up_at:
                raise await _runs_already(transport, queue_url, source_arn) from error
            await asyncio.sleep(LOOK_SECONDS)
        else:
            logger.info("Started to move the messages of %s to %s", queue_url, destination_arn or "their source queues")
            return StartedMove(source_arn, handle, asked_at)


async def follow(transport: RedriveTransport, started: StartedMove, clock: Clock) -> dict[str, Any]:
    """Follow a move task to its end, log its progress, and return what it moved.

    Raises:
        MoveError: It failed, or was cancelled by somebody else.
        SqsError: It cannot be followed.
    """
    following = _Following(started, clock)
    while True:
        try:
            task = following.found(await transport.move_tasks(started.source_arn))
        except SqsError as error:
            if error.verdict is Verdict.REFUSED:
                raise _with_permissions(error) from error
            logger.warning("The progress of the move task cannot be read now: %s", error)
        else:
            if task is not None and not task.is_active:
                return _end_report(task, started.source_arn)
        await asyncio.sleep(LOOK_SECONDS)


async def follow_until(
    transport: RedriveTransport, started: StartedMove, ends_at: float | None, clock: Clock
) -> dict[str, Any]:
    """Follow a move task to its end, and cancel it when its time is up.

    Args:
        transport: Reaches SQS.
        started: The move task.
        ends_at: Until when it may take, in seconds since the epoch; None for ever.
        clock: Source of time.

    Raises:
        MoveError: It failed, its time was up, or it was cancelled by somebody else.
        SqsError: It cannot be followed.
    """
    try:
        async with asyncio.timeout(None if ends_at is None else max(ends_at - clock.wall(), 0.0)):
            return await follow(transport, started, clock)
    except TimeoutError:
        report = await cancel(transport, started, clock)
        raise MoveError(
            f"the move task of {started.source_arn} was cancelled, because execution_timeout was over: "
            f"{_progress(report)}. What was moved stays moved; run it again for the rest",
            TIMED_OUT,
            report,
        ) from None


async def cancel(transport: RedriveTransport, started: StartedMove, clock: Clock) -> dict[str, Any]:
    """Cancel a move task, and return what it moved; one that has ended already is left as it is."""
    try:
        await transport.cancel_move_task(started.source_arn, started.handle)
    except SqsError as error:
        logger.warning("The move task was not cancelled, it may have ended already: %s", error)
    else:
        logger.info("Cancelled the move task of %s", started.source_arn)
    try:
        task = _Following(started, clock).found(await transport.move_tasks(started.source_arn))
    except (SqsError, MoveError):
        task = None
    return {} if task is None else _report(task)


async def move_filtered(
    transport: RedriveTransport,
    keeper: Keeper,
    order: MoveOrder,
    ends_at: float | None,
) -> dict[str, Any]:
    """Move the messages that match, and return the counts.

    Args:
        transport: Reaches SQS.
        keeper: Holds the messages; it is left open.
        order: What is to be moved.
        ends_at: Until when it may take, in seconds since the epoch; None for ever.

    Raises:
        MoveError: Not all of them could be moved.
        SqsError: A queue cannot be used.
    """
    clock = keeper.clock
    queue_url = await transport.queue_url(order.queue)
    attributes = await transport.queue_attributes(queue_url)
    destination_url = only_source_url = None
    if order.destination is None:
        only_source_url = await _only_source(transport, queue_url)
    else:
        destination_url = await transport.queue_url(order.destination)
    if destination_url is not None and destination_url.endswith(FIFO_SUFFIX) != attributes.fifo:
        raise MoveError(
            f"messages of {queue_url} cannot be moved to {destination_url}: one is a FIFO queue and the other is not",
            FAILED_FOR_GOOD,
        )
    if destination_url == queue_url:
        raise MoveError(f"messages of {queue_url} cannot be moved to the same queue", FAILED_FOR_GOOD)
    mover = MessageMover(
        keeper,
        queue_url,
        policy=with_visibility(resolve_policy(None), attributes.visibility_seconds),
        destinations=Destinations(transport, destination_url=destination_url, only_source_url=only_source_url),
        matches=order.matcher(clock),
        max_messages=order.max_messages,
        max_per_second=order.max_per_second,
    )
    logging_progress = asyncio.get_running_loop().create_task(_log_progress(mover, queue_url))
    try:
        async with asyncio.timeout(None if ends_at is None else max(ends_at - clock.wall(), 0.0)):
            await mover.run()
    except TimeoutError:
        report = _filtered_report(mover.counts)
        raise MoveError(
            f"queue {queue_url}: execution_timeout was over: {_progress(report)}. What was moved stays moved, and the "
            "other messages are visible again; run it again for the rest",
            TIMED_OUT,
            report,
        ) from None
    except SqsError as error:
        status = FAILED_FOR_GOOD if error.verdict is Verdict.REFUSED else FAILED
        report = _filtered_report(mover.counts)
        raise MoveError(f"{error} ({_progress(report)} until then)", status, report) from error
    finally:
        logging_progress.cancel()
    return _checked_counts(mover.counts, queue_url, order)


def _checked_counts(counts: MoveCounts, queue_url: str, order: MoveOrder) -> dict[str, Any]:
    report = _filtered_report(counts)
    logger.info("Moved %d of %d messages of %s that were looked at", counts.moved, counts.looked_at, queue_url)
    if not counts.is_whole:
        logger.warning("Looked at %d messages of %s only: raise max_messages for more", order.max_messages, queue_url)
    if counts.hidden:
        logger.warning(
            "About %d messages of %s could not be looked at: others hold them, or earlier messages of their groups do "
            "not match",
            counts.hidden,
            queue_url,
        )
    if counts.failed or counts.duplicated:
        parts = []
        if counts.failed:
            parts.append(f"{counts.failed} were not moved, the first because: {counts.failure}")
        if counts.duplicated:
            parts.append(
                f"{counts.duplicated} were sent but could not be deleted, and are in both queues: check that the "
                "connection may sqs:DeleteMessage"
            )
        raise MoveError(
            f"of {counts.matched} messages of {queue_url} that match, {'; '.join(parts)}", FAILED_FOR_GOOD, report
        )
    return report


async def _log_progress(mover: MessageMover, queue_url: str) -> None:
    while True:
        await asyncio.sleep(LOG_SECONDS)
        logger.info("Moved %d messages of %s, looked at %d", mover.counts.moved, queue_url, mover.counts.looked_at)


async def _arn_of(transport: Transport, queue: str) -> str:
    if queue.startswith("arn:"):
        return queue
    return (await transport.queue_attributes(await transport.queue_url(queue))).arn


async def _only_source(transport: RedriveTransport, queue_url: str) -> str | None:
    """The URL of the only queue whose dead-letter queue this is; None where there are several, or nobody may know.

    Raises:
        MoveError: There is no such queue.
        SqsError: The queue cannot be used.
    """
    try:
        sources = await transport.dead_letter_sources(queue_url)
    except SqsError as error:
        # Emulators may lack this call, and a connection may be allowed to move without being allowed to list.
        if error.verdict is not Verdict.REFUSED or isinstance(error, QueueNotFoundError):
            raise
        logger.info("The source queues of %s are not known: %s", queue_url, error)
        return None
    if not sources:
        raise MoveError(f"queue {queue_url}: {_NOT_DEAD_LETTERS}", FAILED_FOR_GOOD)
    return sources[0] if len(sources) == 1 else None


async def _runs_already(transport: RedriveTransport, queue_url: str, source_arn: str) -> MoveError:
    text = "a move task runs already for this queue, and SQS allows one"
    try:
        active = next((task for task in await transport.move_tasks(source_arn) if task.is_active), None)
    except SqsError:
        active = None
    if active is not None:
        text = f"{text} ({_progress(_report(active))})"
    return MoveError(f"queue {queue_url}: {text}. Wait for its end, or cancel it in the AWS console", FAILED)


def _with_permissions(error: SqsError) -> SqsError | MoveError:
    return MoveError(f"{error}. {_PERMISSIONS}", FAILED_FOR_GOOD) if isinstance(error, AccessDeniedError) else error


class _Following:
    """Finds a move task in the service's list, and logs its progress now and then."""

    def __init__(self, started: StartedMove, clock: Clock) -> None:
        self._started = started
        self._clock = clock
        self._began_at = clock.now()
        self._listed_at: float | None = None
        self._logged_at = clock.now()

    def found(self, tasks: Sequence[MoveTask]) -> MoveTask | None:
        """Return the task; None while it is not listed.

        Raises:
            MoveError: It is not listed for too long.
        """
        task = next((task for task in tasks if self._is_ours(task)), None)
        now = self._clock.now()
        if task is None:
            if now - self._began_at > NOT_LISTED_SECONDS:
                raise MoveError(f"SQS does not list the move task of {self._started.source_arn}", FAILED)
            return None
        self._listed_at = task.started_at
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            logger.info("The move task of %s: %s", self._started.source_arn, _progress(_report(task)))
        return task

    def _is_ours(self, task: MoveTask) -> bool:
        if task.handle:
            return task.handle == self._started.handle
        # A task that has ended has no handle. It is the newest that began when ours did.
        if self._listed_at is not None:
            return task.started_at == self._listed_at
        return task.started_at >= self._started.asked_at - CLOCK_SKEW_SECONDS


def _report(task: MoveTask) -> dict[str, Any]:
    return {"status": task.status, "moved": task.moved, "to_move": task.to_move}


def _filtered_report(counts: MoveCounts) -> dict[str, Any]:
    return {
        "moved": counts.moved,
        "to_move": counts.matched,
        "looked_at": counts.looked_at,
        "duplicated": counts.duplicated,
        "not_moved": counts.failed,
        "hidden": counts.hidden,
    }


def _progress(report: Mapping[str, Any]) -> str:
    if not report:
        return "SQS does not say how many messages were moved"
    total = report["to_move"]
    return f"{report['moved']} messages moved" if total is None else f"{report['moved']} of {total} messages moved"


def _end_report(task: MoveTask, source_arn: str) -> dict[str, Any]:
    report = _report(task)
    if task.status == COMPLETED:
        logger.info("The move task of %s has ended: %s", source_arn, _progress(report))
        return report
    if task.status in (CANCELLED, CANCELLING):
        raise MoveError(f"somebody cancelled the move task of {source_arn}: {_progress(report)}", FAILED, report)
    remedy = "check that the destination exists and that the connection may sqs:SendMessage to it"
    if task.failure == UNKNOWN_SOURCE:
        remedy = (
            "a message was sent to the dead-letter queue directly, as dead_letter() does, so SQS does not know which "
            "queue it came from: name the destination"
        )
    raise MoveError(
        f"the move task of {source_arn} failed with {task.failure or 'no reason given'}, {_progress(report)}: {remedy}",
        FAILED_FOR_GOOD,
        report,
    )
