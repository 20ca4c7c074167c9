"""What to move out of a dead-letter queue, and how: by a move task of SQS, or message by message.

It knows nothing of hosts: Airflow's task and the command ``sqs-lease redrive`` both move by it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, Final

from sqs_lease.clock import Clock
from sqs_lease.core.calls import Verdict
from sqs_lease.core.limits import MAX_IN_FLIGHT
from sqs_lease.core.messages import Message
from sqs_lease.core.policies import Growing, with_visibility
from sqs_lease.keeper.driver import REASON_ATTRIBUTE
from sqs_lease.keeper.endings import end_of
from sqs_lease.keeper.keeper import Keeper
from sqs_lease.keeper.moving import DEFAULT_MAX_MESSAGES, Destinations, MessageMover, MoveCounts
from sqs_lease.keeper.outcome import FAILED, FAILED_FOR_GOOD, TIMED_OUT, OutcomeError
from sqs_lease.keeper.text_search import SearchError, found_in
from sqs_lease.sqs.errors import AccessDeniedError, QueueNotFoundError, SqsError
from sqs_lease.sqs.move_tasks import (
    ALREADY_RUNNING,
    CANCELLED,
    CANCELLING,
    COMPLETED,
    MAX_MOVES_PER_SECOND,
    NOT_A_DEAD_LETTER_QUEUE,
    RUNNING,
    UNKNOWN_CALL_CODES,
    UNKNOWN_SOURCE,
    MoveTask,
    RedriveTransport,
)
from sqs_lease.sqs.validation import FIFO_SUFFIX, check_whole_number, queue_reference

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
"""Pause between two questions for a move task's progress."""

LOG_SECONDS: Final = 30.0
"""Pause between two log lines about progress."""

NOT_LISTED_SECONDS: Final = 60.0
"""How long a move task that was started may be missing in the service's list."""

PATIENCE_SECONDS: Final = 15.0
"""How long to try to start or cancel a move task. After a clear, the one before is still being cancelled."""

CANCEL_AGAIN_SECONDS: Final = 1.0
"""Pause before a cancellation that failed is tried again: a process that is killed has 5 s."""

_PERMISSIONS: Final = (
    "A move task needs sqs:StartMessageMoveTask, sqs:ListMessageMoveTasks, sqs:CancelMessageMoveTask, "
    "sqs:ReceiveMessage, sqs:DeleteMessage and sqs:GetQueueAttributes on the dead-letter queue, and sqs:SendMessage on "
    "each destination"
)
_NOT_DEAD_LETTERS: Final = (
    "it is not the dead-letter queue of any queue. Name the dead-letter queue, or set it in the RedrivePolicy of the "
    "queue whose failed messages it takes"
)


class NoMoveTasksError(OutcomeError):
    """The server is not SQS, and has no move tasks."""


class _NotFollowedError(OutcomeError):
    """Nobody can tell what becomes of a move task that runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOrder:
    """What to move, as plain values.

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
        """Whether to move only some messages."""
        return (self.reason, self.older_than_seconds, self.newer_than_seconds) != (None, None, None)

    def check(self) -> None:
        """Check the values.

        Raises:
            ValueError: A value is out of range, or a queue is not a name, URL or ARN.
        """
        self.check_numbers()
        queue_reference(self.queue)
        if self.destination is not None:
            queue_reference(self.destination)
        if self.reason is not None:
            # An empty one would be found in every reason.
            if not isinstance(self.reason, str) or not self.reason:
                raise ValueError(f"{self._doing}: reason must be a regular expression, not {self.reason!r}")
            try:
                re.compile(self.reason)
            except re.error as error:
                raise ValueError(
                    f"{self._doing}: reason is not a regular expression, {self.reason!r}: {error}"
                ) from error

    def check_numbers(self) -> None:
        """Check the numbers alone, while the texts are templates.

        Raises:
            ValueError: A number is out of range.
        """
        if self.max_per_second is not None:
            check_whole_number(self.max_per_second, "max_per_second", 1, MAX_MOVES_PER_SECOND, self._doing)
        check_whole_number(self.max_messages, "max_messages", 1, MAX_IN_FLIGHT, self._doing)
        older, newer = self.older_than_seconds, self.newer_than_seconds
        if older is not None and newer is not None and older >= newer:
            raise ValueError(
                f"{self._doing}: no message is {older:g} s old or older, and newer than {newer:g} s: older_than must "
                "be less than newer_than"
            )

    @property
    def _doing(self) -> str:
        return f"moving messages of {self.queue}"

    def pattern(self) -> re.Pattern[str] | None:
        """The text to look for in the reason; None to move any message."""
        return None if self.reason is None else re.compile(self.reason)

    async def choose(self, messages: Sequence[Message], clock: Clock) -> list[Message]:
        """Find those of some messages that the order is about.

        Args:
            messages: The messages.
            clock: Tells how old they are.

        Raises:
            OutcomeError: Looking for the reason took too long.
        """
        of_age = [message for message in messages if self._is_of_age(message, clock)]
        if self.reason is None:
            return of_age
        reasons = list(dict.fromkeys(reason for one in of_age if (reason := _reason(one)) is not None))
        try:
            found = await found_in(self.reason, reasons)
        except SearchError as error:
            raise OutcomeError(f"{self._doing}: reason: {error}", FAILED) from error
        wanted = {reason for reason, is_found in zip(reasons, found, strict=True) if is_found}
        return [message for message in of_age if _reason(message) in wanted]

    def _is_of_age(self, message: Message, clock: Clock) -> bool:
        age = 0.0 if message.sent_at is None else clock.wall() - message.sent_at.timestamp()
        if self.older_than_seconds is not None and age < self.older_than_seconds:
            return False
        return self.newer_than_seconds is None or age < self.newer_than_seconds


def _reason(message: Message) -> str | None:
    reason: str | None = message.message_attributes.get(REASON_ATTRIBUTE, {}).get("StringValue")
    return reason


@dataclass(frozen=True, slots=True)
class StartedMove:
    """A move task that was started.

    Attributes:
        source_arn: The dead-letter queue.
        started_after: When the move task before it was started, by the service's clock, in seconds since the epoch; 0
            if there was none.
        handle: The task's handle; empty if only the service knows it.
    """

    source_arn: str
    started_after: float
    handle: str = field(default="", repr=False)

    def find(self, tasks: Sequence[MoveTask]) -> MoveTask | None:
        """Find it in the service's list, which has the handles of running tasks only."""
        later = [task for task in tasks if task.started_at > self.started_after]
        ours = (task for task in tasks if task.handle and task.handle == self.handle)
        return next(ours, None) or min(later, key=attrgetter("started_at"), default=None)


async def start(transport: RedriveTransport, order: MoveOrder, clock: Clock) -> StartedMove:
    """Start a move task. Cancelled, it leaves none behind.

    Raises:
        OutcomeError: It cannot be started: the text says why and what to do.
        SqsError: A queue cannot be used.
    """
    queue_url = await transport.queue_url(order.queue)
    source_arn = (await transport.queue_attributes(queue_url)).arn
    destination_arn = await _destination_arn(transport, order, queue_url, source_arn)
    with _translate_move_task_errors(queue_url):
        tasks = await transport.move_tasks(source_arn)
        unknown = StartedMove(source_arn, max((task.started_at for task in tasks), default=0.0))
        is_lost = False
        give_up_at = clock.now() + PATIENCE_SECONDS
        try:
            while True:
                request = transport.start_move_task(
                    source_arn, destination_arn=destination_arn, max_per_second=order.max_per_second
                )
                asking = asyncio.get_running_loop().create_task(request)
                try:
                    return replace(unknown, handle=await asyncio.shield(asking))
                except SqsError as error:
                    runs_already = ALREADY_RUNNING in error.text.lower()
                    if error.verdict is Verdict.REFUSED and not runs_already:
                        raise
                    # An earlier request of ours may have been carried out although its answer was lost.
                    is_lost = is_lost or error.verdict is Verdict.TRANSIENT
                    tasks = await transport.move_tasks(source_arn)
                    task = unknown.find(tasks) if is_lost else None
                    if task is not None and task.handle:
                        return replace(unknown, handle=task.handle)
                    if clock.now() >= give_up_at:
                        raise (_runs_already(queue_url, tasks) if runs_already else error) from None
                await asyncio.sleep(LOOK_SECONDS)
        except asyncio.CancelledError:
            await end_of(asking)
            await abandon(transport, unknown, clock)
            raise


async def follow(
    transport: RedriveTransport,
    started: StartedMove,
    clock: Clock,
    ends_at: float | None = None,
    *,
    on_progress: Callable[[MoveTask], None] | None = None,
    look_seconds: float | None = None,
) -> dict[str, Any]:
    """Follow a move task to its end, log its progress, and return what it moved.

    It is cancelled when its time is up, and when it can no longer be followed.

    Args:
        transport: Reaches SQS.
        started: The move task.
        clock: Source of time.
        ends_at: Until when it may take, in seconds since the epoch; None for ever.
        on_progress: Told the move task each time that SQS was asked about it.
        look_seconds: Pause between two questions; :data:`LOOK_SECONDS` by default.

    Raises:
        OutcomeError: It failed, its time was up, it cannot be followed, or it was cancelled by somebody else.
    """
    try:
        async with asyncio.timeout(None if ends_at is None else max(ends_at - clock.wall(), 0.0)):
            return await _followed(
                transport, started, clock, on_progress, LOOK_SECONDS if look_seconds is None else look_seconds
            )
    except TimeoutError:
        why, status = "execution_timeout was over", TIMED_OUT
    except _NotFollowedError as error:
        why, status = str(error), error.status
    try:
        task = await cancel(transport, started, clock)
    except SqsError as error:
        text = f"{why}, and the move task of {started.source_arn} may go on: {error} Or cancel it in the AWS console"
        raise OutcomeError(text, status) from error
    if task is not None and task.status not in (RUNNING, CANCELLING, CANCELLED):
        return _end_report(task, started.source_arn)
    report = {} if task is None else _report(task)
    raise OutcomeError(
        f"the move task of {started.source_arn} was cancelled, because {why}: {_progress(report)}. What was moved "
        "stays moved; run it again for the rest",
        status,
        report,
    )


async def cancel(transport: RedriveTransport, started: StartedMove, clock: Clock) -> MoveTask | None:
    """Cancel a move task unless it has ended.

    Returns:
        The task as SQS lists it afterwards; None if it does not list it.

    Raises:
        SqsError: It could not be cancelled, and goes on.
    """
    give_up_at = clock.now() + PATIENCE_SECONDS
    while True:
        failure: SqsError | None = None
        task = await _listed(transport, started)
        handle = started.handle or ("" if task is None else task.handle)
        if handle and (task is None or task.status == RUNNING):
            try:
                await transport.cancel_move_task(started.source_arn, handle)
            except SqsError as error:
                failure = error
            task = await _listed(transport, started)
        if failure is None or (task is not None and task.status != RUNNING):
            return task
        if failure.verdict is Verdict.REFUSED or clock.now() >= give_up_at:
            raise failure
        await asyncio.sleep(CANCEL_AGAIN_SECONDS)


async def abandon(transport: RedriveTransport, started: StartedMove, clock: Clock) -> None:
    """Cancel a move task that is no longer followed, and log what became of it."""
    try:
        task = await cancel(transport, started, clock)
    except SqsError as error:
        logger.warning("The move task of %s may go on: %s", started.source_arn, error)
    else:
        if task is not None:
            progress = _progress(_report(task))
            logger.info("The move task of %s was cancelled or has ended: %s", started.source_arn, progress)


async def _listed(transport: RedriveTransport, started: StartedMove) -> MoveTask | None:
    try:
        return started.find(await transport.move_tasks(started.source_arn))
    except SqsError:
        return None


async def _followed(
    transport: RedriveTransport,
    started: StartedMove,
    clock: Clock,
    on_progress: Callable[[MoveTask], None] | None,
    look_seconds: float,
) -> dict[str, Any]:
    listed_at = logged_at = clock.now()
    while True:
        try:
            tasks = await transport.move_tasks(started.source_arn)
        except SqsError as error:
            if error.verdict is Verdict.REFUSED:
                raise _NotFollowedError(str(error), FAILED_FOR_GOOD) from error
            progress = f"it cannot be read now: {error}"
        else:
            if (task := started.find(tasks)) is not None:
                if on_progress is not None:
                    on_progress(task)
                if not task.is_active:
                    return _end_report(task, started.source_arn)
                listed_at = clock.now()
                progress = _progress(_report(task))
            elif clock.now() - listed_at > NOT_LISTED_SECONDS:
                raise _NotFollowedError("SQS no longer lists it", FAILED)
            else:
                progress = "SQS does not list it now"
        if clock.now() - logged_at >= LOG_SECONDS:
            logged_at = clock.now()
            logger.info("The move task of %s: %s", started.source_arn, progress)
        await asyncio.sleep(look_seconds)


async def move_filtered(
    transport: RedriveTransport,
    keeper: Keeper,
    order: MoveOrder,
    *,
    takeover_seconds: float,
    ends_at: float | None = None,
    max_moved: int | None = None,
    counts: MoveCounts | None = None,
) -> dict[str, Any]:
    """Move the messages that match, and return the counts.

    Args:
        transport: Reaches SQS.
        keeper: Holds the messages; it is left open.
        order: What to move.
        takeover_seconds: How long nobody may extend a lease, e.g. while another process takes over.
        ends_at: Until when it may take, in seconds since the epoch; None, the default, for ever.
        max_moved: How many messages to move, at most; None, the default, for all that match.
        counts: Updated while messages move, so that the caller can show progress.

    Raises:
        OutcomeError: Not all of them could be moved.
        SqsError: A queue cannot be used.
    """
    clock = keeper.clock
    queue_url = await transport.queue_url(order.queue)
    attributes = await transport.queue_attributes(queue_url)
    destination_url = await named_destination(transport, order, queue_url)
    only_source_url = await only_source(transport, queue_url) if destination_url is None else None
    mover = MessageMover(
        keeper,
        queue_url,
        policy=with_visibility(Growing(), takeover_seconds, attributes.visibility_seconds),
        destinations=Destinations(transport, destination_url=destination_url, only_source_url=only_source_url),
        choose=partial(order.choose, clock=clock),
        max_messages=order.max_messages,
        max_per_second=order.max_per_second,
        max_moved=max_moved,
        counts=counts,
    )
    logging_progress = asyncio.get_running_loop().create_task(_log_progress(mover, queue_url))
    try:
        async with asyncio.timeout(None if ends_at is None else max(ends_at - clock.wall(), 0.0)):
            await mover.run()
    except TimeoutError:
        report = _filtered_report(mover.counts)
        raise OutcomeError(
            f"queue {queue_url}: execution_timeout was over: {_progress(report)}. What was moved stays moved, and the "
            "other messages are visible again; run it again for the rest",
            TIMED_OUT,
            report,
        ) from None
    except OutcomeError as error:
        error.report.update(_filtered_report(mover.counts))
        raise
    except SqsError as error:
        status = FAILED_FOR_GOOD if error.verdict is Verdict.REFUSED else FAILED
        report = _filtered_report(mover.counts)
        raise OutcomeError(f"{error} ({_progress(report)} until then)", status, report) from error
    finally:
        logging_progress.cancel()
    return _checked_counts(mover.counts, queue_url, order, is_limited=max_moved is not None)


def _checked_counts(counts: MoveCounts, queue_url: str, order: MoveOrder, *, is_limited: bool) -> dict[str, Any]:
    report = _filtered_report(counts)
    logger.info("Moved %d of %d messages of %s that were looked at", counts.moved, counts.looked_at, queue_url)
    if not counts.is_whole and not is_limited:
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
        raise OutcomeError(
            f"of {counts.matched} messages of {queue_url} that match, {'; '.join(parts)}", FAILED_FOR_GOOD, report
        )
    return report


async def _log_progress(mover: MessageMover, queue_url: str) -> None:
    while True:
        await asyncio.sleep(LOG_SECONDS)
        logger.info("Moved %d messages of %s, looked at %d", mover.counts.moved, queue_url, mover.counts.looked_at)


async def _destination_arn(
    transport: RedriveTransport, order: MoveOrder, queue_url: str, source_arn: str
) -> str | None:
    if order.destination is None:
        # Named where it can only be one: messages that were sent to the dead-letter queue directly, as by
        # dead_letter(), do not say where they came from, and would end the move task.
        only_source_url = await only_source(transport, queue_url)
        if only_source_url is None:
            return None
        # A dead-letter queue is in the account and region of its source queues.
        return f"{source_arn.rpartition(':')[0]}:{queue_reference(only_source_url).name}"
    if order.destination.startswith("arn:"):
        return order.destination
    return (await transport.queue_attributes(await transport.queue_url(order.destination))).arn


async def named_destination(transport: RedriveTransport, order: MoveOrder, queue_url: str) -> str | None:
    """Return the URL of the queue that an order names for all messages; None if it names none.

    Args:
        transport: Reaches SQS.
        order: What to move.
        queue_url: The queue that the messages are in.

    Raises:
        SqsError: There is no such queue, or it cannot be looked up.
        OutcomeError: Messages of the one queue cannot be moved to the other.
    """
    if order.destination is None:
        return None
    destination_url = await transport.queue_url(order.destination)
    if destination_url.endswith(FIFO_SUFFIX) != queue_url.endswith(FIFO_SUFFIX):
        raise OutcomeError(
            f"messages of {queue_url} cannot be moved to {destination_url}: one is a FIFO queue and the other is not",
            FAILED_FOR_GOOD,
        )
    if destination_url == queue_url:
        raise OutcomeError(f"messages of {queue_url} cannot be moved to the same queue", FAILED_FOR_GOOD)
    return destination_url


async def only_source(transport: RedriveTransport, queue_url: str) -> str | None:
    """Return the URL of the only queue whose dead-letter queue this is; None for several, or where nobody may know.

    Args:
        transport: Reaches SQS.
        queue_url: The dead-letter queue.

    Raises:
        OutcomeError: The queue does not exist.
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
        raise OutcomeError(f"queue {queue_url}: {_NOT_DEAD_LETTERS}", FAILED_FOR_GOOD)
    return sources[0] if len(sources) == 1 else None


def _runs_already(queue_url: str, tasks: Sequence[MoveTask]) -> OutcomeError:
    text = "a move task runs already for this queue, and SQS allows one"
    if (active := next((task for task in tasks if task.is_active), None)) is not None:
        text = f"{text} ({_progress(_report(active))})"
    return OutcomeError(f"queue {queue_url}: {text}. Wait for its end, or cancel it in the AWS console", FAILED)


@contextmanager
def _translate_move_task_errors(queue_url: str) -> Iterator[None]:
    """Add to the errors of move task calls what the calls need."""
    try:
        yield
    except SqsError as error:
        if NOT_A_DEAD_LETTER_QUEUE in error.text.lower():
            raise OutcomeError(f"queue {queue_url}: {_NOT_DEAD_LETTERS}", FAILED_FOR_GOOD) from error
        if error.code in UNKNOWN_CALL_CODES:
            raise NoMoveTasksError(
                f"queue {queue_url}: this SQS server has no move tasks ({error.code}); older_than=0 moves messages "
                "one by one",
                FAILED_FOR_GOOD,
            ) from error
        if isinstance(error, AccessDeniedError):
            raise OutcomeError(f"{error}. {_PERMISSIONS}", FAILED_FOR_GOOD) from error
        raise


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
        raise OutcomeError(f"somebody cancelled the move task of {source_arn}: {_progress(report)}", FAILED, report)
    remedy = "check that the destination exists and that the connection may sqs:SendMessage to it"
    if task.failure == UNKNOWN_SOURCE:
        remedy = (
            "a message was sent to the dead-letter queue directly, as dead_letter() does, so SQS does not know which "
            "queue it came from: name the destination"
        )
    raise OutcomeError(
        f"the move task of {source_arn} failed with {task.failure or 'no reason given'}, {_progress(report)}: {remedy}",
        FAILED_FOR_GOOD,
        report,
    )
