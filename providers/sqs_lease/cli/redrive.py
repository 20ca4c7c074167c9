"""`sqs-lease redrive`: first why messages were dead-lettered, then their move back to where they came from.

All of a queue is moved by a move task of SQS, which this command follows. SQS cannot choose, so with ``--reason`` or
``--max`` the messages are received, sent, and deleted once that is confirmed. It is the work of Airflow's
``SqsMoveMessagesOperator``, by the same code: :mod:`sqs_lease.keeper.move_orders`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from sqs_lease.cli.durations import shown_duration
from sqs_lease.cli.message_text import age_seconds, harmless
from sqs_lease.cli.options import EndpointUrl, Json, Profile, Queue, Region, aws_access
from sqs_lease.cli.output import CommandError, ExitCode, Mark, console, print_json
from sqs_lease.cli.remarks import print_remarks
from sqs_lease.cli.sampling import Sample, look
from sqs_lease.cli.session import Session
from sqs_lease.clock import Clock, SystemClock
from sqs_lease.core.messages import Message
from sqs_lease.keeper.driver import REASON_ATTRIBUTE
from sqs_lease.keeper.keeper import Keeper
from sqs_lease.keeper.move_orders import (
    MoveOrder,
    NoMoveTasksError,
    StartedMove,
    cancel,
    follow,
    move_filtered,
    named_destination,
    only_source,
    start,
)
from sqs_lease.keeper.moving import DEFAULT_MAX_MESSAGES, MoveCounts
from sqs_lease.keeper.outcome import FAILED_FOR_GOOD, OutcomeError
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.move_tasks import MoveTask, RedriveTransport
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.sqs.validation import queue_reference

SURVEYED_MESSAGES: Final = 1_000
"""How many messages are looked at for the summary, at most."""

REASONS_SHOWN: Final = 15
REASON_CHARACTERS: Final = 300

LOOK_SECONDS: Final = 1.0
"""Pause between two questions for a move task's progress."""

TAKEOVER_SECONDS: Final = 20.0
"""How long a message may go without an extension while it is moved: then this machine stood still."""

CANCELLED_SECONDS: Final = 5.0
"""How long to wait until SQS says that a cancelled move task has ended, for its last count."""

_SOURCE_ARN: Final = "DeadLetterQueueSourceArn"
_TOO_OFTEN: Final = "received too often"
_SENT_DIRECTLY: Final = "sent there without a reason"


@dataclass(slots=True)
class Cause:
    """Messages that were dead-lettered for the same reason.

    Attributes:
        reason: What ``dead_letter()`` wrote; empty if it wrote nothing.
        messages: How many.
        sources: The names of the queues that SQS moved them from.
        oldest_seconds: The age of the oldest.
    """

    reason: str
    messages: int = 0
    sources: set[str] = field(default_factory=set)
    oldest_seconds: float = 0.0

    @property
    def text(self) -> str:
        """The reason, or what is known without one."""
        return self.reason or (_TOO_OFTEN if self.sources else _SENT_DIRECTLY)


@dataclass(frozen=True, slots=True)
class Survey:
    """Why the messages of a dead-letter queue are there.

    Attributes:
        queue_url: The queue.
        attributes: What it says of itself.
        sample: The messages that were looked at.
        causes: Why they are there, the most frequent cause first.
        chosen: How many of them to move.
        back_to: The name of the only queue that they can go back to; empty if it is not known to be the only one.
    """

    queue_url: str
    attributes: QueueAttributes
    sample: Sample
    causes: Sequence[Cause]
    chosen: int
    back_to: str = ""

    @property
    def name(self) -> str:
        """The queue's name."""
        return queue_reference(self.attributes.arn).name

    @property
    def is_whole(self) -> bool:
        """Whether all messages that can be received were looked at."""
        return len(self.sample.messages) >= self.attributes.visible


@dataclass(frozen=True, slots=True)
class Moved:
    """How a move ended.

    Attributes:
        report: What was done: ``moved``, ``to_move`` and others.
        interrupted: Whether the user ended it.
        trouble: What went wrong, for people; empty if all went well.
    """

    report: Mapping[str, Any]
    interrupted: bool = False
    trouble: str = ""


def redrive(
    queue: Queue,
    to: Annotated[
        str | None,
        typer.Option(metavar="QUEUE", help="Move all to this queue; by default each to where it came from."),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option("--max", metavar="N", min=1, max=DEFAULT_MAX_MESSAGES, help="Move so many messages, at most."),
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX", help="Move only messages whose reason this is found in, as dead_letter() wrote it."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be moved.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before moving.")] = False,
    region: Region = None,
    profile: Profile = None,
    endpoint_url: EndpointUrl = None,
    as_json: Json = False,
) -> None:
    """Move the messages of a dead-letter queue back to their queues, after a summary of why they are there.

    For the summary up to 1,000 messages are received, and given back at once. In a terminal it then asks. Ctrl-C stops
    the move; what was moved stays moved, and it says how much that was.
    """
    order = MoveOrder(
        queue=queue,
        destination=to,
        reason=reason,
        # Without a reason, all that is looked at is moved.
        max_messages=most if most is not None and reason is None else DEFAULT_MAX_MESSAGES,
    )
    try:
        order.check()
    except ValueError as error:
        raise CommandError(str(error)) from None
    screen, aside = console(), Console(stderr=True, highlight=False)
    with Session(aws_access(region, profile, endpoint_url), queue) as session:
        with aside.status(Text(f"Looking at {queue} ...")), _unusable_as_bad_input():
            survey = session.run(_survey(session.transport, order, is_whole=most is None and reason is None))
        if not as_json:
            _show(screen, survey, order, most)
        if dry_run or not survey.chosen:
            if as_json:
                print_json(_as_json(survey, order, None))
            return
        if survey.sample.not_given_back and (most is not None or reason is not None):
            raise CommandError(
                f"{survey.sample.not_given_back} Nothing was moved: a message must be held while it is moved, which "
                "takes sqs:ChangeMessageVisibility",
                ExitCode.TROUBLE,
            )
        if not yes and sys.stdin.isatty():
            typer.confirm(_question(survey, order, most), default=False, abort=True, err=True)
        try:
            with _unusable_as_bad_input(), _progress(aside, survey, order, most) as (progress, task):
                if most is None and reason is None:
                    moved = session.run(_move_all(session.transport, order, progress, task))
                else:
                    moved = session.run(_move_some(session.transport, order, most, progress, task))
        except OutcomeError as error:
            moved = Moved(error.report, trouble=str(error))
    if as_json:
        print_json(_as_json(survey, order, moved))
    print_remarks(aside if as_json else screen, [_end(moved, survey, order)])
    if moved.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if moved.trouble:
        raise typer.Exit(ExitCode.TROUBLE)


@contextmanager
def _unusable_as_bad_input() -> Iterator[None]:
    """Turn the error of a move that did nothing into one of the command."""
    try:
        yield
    except NoMoveTasksError as error:
        text = f"{str(error).partition(';')[0]}; --max {DEFAULT_MAX_MESSAGES} moves up to so many messages one by one"
        raise CommandError(text, ExitCode.TROUBLE) from error
    except OutcomeError as error:
        if error.report:
            raise
        is_final = error.status == FAILED_FOR_GOOD
        raise CommandError(str(error), ExitCode.BAD_INPUT if is_final else ExitCode.TROUBLE) from error


# Looking


async def _survey(transport: RedriveTransport, order: MoveOrder, *, is_whole: bool) -> Survey:
    url = await transport.queue_url(order.queue)
    attributes = await transport.queue_attributes(url)
    await named_destination(transport, order, url)
    back_to = None
    # Asked first: to look at the messages of a queue that is at work would count as a receive of them.
    if is_whole or order.destination is None:
        back_to = await only_source(transport, url)
        if back_to is None and attributes.dead_letter_arn is not None:
            # Nothing says that it is a dead-letter queue, and it has one itself.
            raise CommandError(
                f"{order.queue} may be a queue at work: it has a dead-letter queue, "
                f"{queue_reference(attributes.dead_letter_arn).name}. Name that one, or move its messages with --to "
                "and --max or --reason"
            )
    sample = await look(transport, url, SURVEYED_MESSAGES)
    causes = _causes(sample)
    name = "" if back_to is None else queue_reference(back_to).name
    if set().union(*(cause.sources for cause in causes)) - {name}:
        name = ""
    chosen = await order.choose(sample.messages, SystemClock())
    return Survey(url, attributes, sample, causes, len(chosen), name)


def _causes(sample: Sample) -> list[Cause]:
    causes: dict[tuple[str, bool], Cause] = {}
    for message in sample.messages:
        reason, source = _reason(message), message.attributes.get(_SOURCE_ARN)
        cause = causes.setdefault((reason, source is None), Cause(reason))
        cause.messages += 1
        cause.oldest_seconds = max(cause.oldest_seconds, age_seconds(message, sample.looked_at) or 0.0)
        if source is not None:
            cause.sources.add(queue_reference(source).name)
    return sorted(causes.values(), key=lambda cause: (-cause.messages, cause.text))


def _reason(message: Message) -> str:
    return str(message.message_attributes.get(REASON_ATTRIBUTE, {}).get("StringValue") or "")


# Moving


async def _move_all(transport: RedriveTransport, order: MoveOrder, progress: Progress, task: TaskID) -> Moved:
    clock = SystemClock()
    started = await start(transport, order, clock)

    def show(move: MoveTask) -> None:
        progress.update(task, completed=move.moved, total=move.to_move)

    try:
        return Moved(await follow(transport, started, clock, on_progress=show, look_seconds=LOOK_SECONDS))
    except asyncio.CancelledError:
        return await _cancelled(transport, started, clock)


async def _cancelled(transport: RedriveTransport, started: StartedMove, clock: Clock) -> Moved:
    try:
        move = await cancel(transport, started, clock)
        give_up_at = clock.now() + CANCELLED_SECONDS
        while move is not None and move.is_active and clock.now() < give_up_at:
            await asyncio.sleep(LOOK_SECONDS / 4)
            move = started.find(await transport.move_tasks(started.source_arn)) or move
    except SqsError as error:
        trouble = f"the move task may go on, because it could not be cancelled: {error}. Cancel it in the AWS console"
        return Moved({}, interrupted=True, trouble=trouble)
    if move is None:
        return Moved({}, interrupted=True)
    return Moved({"status": move.status, "moved": move.moved, "to_move": move.to_move}, interrupted=True)


async def _move_some(
    transport: RedriveTransport, order: MoveOrder, most: int | None, progress: Progress, task: TaskID
) -> Moved:
    counts = MoveCounts()

    async def show() -> None:
        while True:
            progress.update(task, completed=counts.moved)
            await asyncio.sleep(LOOK_SECONDS / 4)

    showing = asyncio.get_running_loop().create_task(show())
    try:
        async with Keeper(transport) as keeper:
            report = await move_filtered(
                transport, keeper, order, takeover_seconds=TAKEOVER_SECONDS, max_moved=most, counts=counts
            )
    except asyncio.CancelledError:
        return Moved({"moved": counts.moved, "to_move": counts.matched}, interrupted=True)
    finally:
        showing.cancel()
        progress.update(task, completed=counts.moved)
    return Moved(report)


# Showing


@contextmanager
def _progress(aside: Console, survey: Survey, order: MoveOrder, most: int | None) -> Iterator[tuple[Progress, TaskID]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=aside, disable=not aside.is_terminal, expand=True) as progress:
        yield progress, progress.add_task("Moving", total=_to_move(survey, order, most))


def _to_move(survey: Survey, order: MoveOrder, most: int | None) -> int:
    """About how many messages there are to move, as far as the survey tells."""
    about = survey.chosen if survey.is_whole or order.reason is not None else survey.attributes.visible
    return about if most is None else min(about, most)


def _question(survey: Survey, order: MoveOrder, most: int | None) -> str:
    about = _to_move(survey, order, most)
    return f"Move {'' if survey.is_whole else 'about '}{_counted(about)} of {survey.name} {_where(survey, order)}?"


def _counted(messages: int) -> str:
    return "1 message" if messages == 1 else f"{messages:,} messages"


def _where(survey: Survey, order: MoveOrder) -> str:
    if order.destination is not None:
        return f"to {queue_reference(order.destination).name}"
    return f"back to {survey.back_to}" if survey.back_to else "back to where they came from"


def _show(screen: Console, survey: Survey, order: MoveOrder, most: int | None) -> None:
    looked_at = len(survey.sample.messages)
    if not looked_at:
        held = f" ({survey.attributes.in_flight:,} are in flight)" if survey.attributes.in_flight else ""
        screen.print(f"There is no message in {survey.name} to move{held}.", markup=False)
        return
    part = _counted(looked_at) if survey.is_whole else f"{looked_at:,} of about {_counted(survey.attributes.visible)}"
    screen.print(f"{survey.name}: why {part} came there", markup=False)
    screen.print(_table(survey, order))
    print_remarks(screen, _remarks(survey, order, most))


def _table(survey: Survey, order: MoveOrder) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("reason", overflow="fold")
    table.add_column("messages", justify="right", no_wrap=True)
    table.add_column("oldest", justify="right", no_wrap=True)
    has_sources = any(cause.sources for cause in survey.causes)
    if has_sources:
        table.add_column("from", overflow="fold")
    pattern = order.pattern()
    for cause in survey.causes[:REASONS_SHOWN]:
        stays = pattern is not None and pattern.search(cause.reason) is None
        text = harmless(cause.text)
        table.add_row(
            Text(
                text if len(text) <= REASON_CHARACTERS else f"{text[: REASON_CHARACTERS - 1]}…",
                style="" if cause.reason else "italic",
            ),
            f"{cause.messages:,}",
            shown_duration(round(cause.oldest_seconds)),
            *([Text(", ".join(sorted(cause.sources)))] if has_sources else []),
            style="dim" if stays else "",
        )
    return table


def _remarks(survey: Survey, order: MoveOrder, most: int | None) -> Iterator[tuple[Mark, str]]:
    if len(survey.causes) > REASONS_SHOWN:
        others = survey.causes[REASONS_SHOWN:]
        messages = sum(cause.messages for cause in others)
        yield Mark.NOTE, f"{len(others):,} other reasons, of {messages:,} messages, are not shown; --json has them."
    if survey.sample.not_given_back:
        yield Mark.BAD, survey.sample.not_given_back
    if survey.attributes.fifo and not survey.is_whole:
        yield Mark.NOTE, "SQS shows no message of a group behind one that is looked at."
    if not survey.chosen:
        yield Mark.WARNING, f"No reason matches {order.reason!r}: nothing to move."
        return
    about = _to_move(survey, order, most)
    by = "SQS moves them" if order.reason is None and most is None else "They are received, sent and deleted one by one"
    least = "" if survey.is_whole else "at least " if order.reason is not None and most is None else "about "
    yield Mark.NOTE, f"To move: {least}{about:,}, {_where(survey, order)}. {by}."


def _end(moved: Moved, survey: Survey, order: MoveOrder) -> tuple[Mark, str]:
    if not moved.report:
        return Mark.BAD, f"Stopped. SQS does not say how many messages were moved. {moved.trouble}".strip()
    done, to_move = moved.report["moved"], moved.report["to_move"]
    text = _counted(done) if to_move in (None, done) else f"{done:,} of {_counted(to_move)}"
    if moved.interrupted:
        rest = f"The others are in {survey.name} still; run it again for them."
        return Mark.WARNING, f"Stopped. Moved until then: {text}, {_where(survey, order)}. {rest}"
    if moved.trouble:
        trouble = moved.trouble.replace("name the destination", "name the destination with --to")
        done_of = f"{done:,}" if to_move is None else f"{done:,} of {_counted(to_move)}"
        return Mark.BAD, f"Moved {done_of} {_where(survey, order)}. {trouble[:1].upper()}{trouble[1:]}"
    return Mark.GOOD, f"Moved {text} {_where(survey, order)}."


def _as_json(survey: Survey, order: MoveOrder, moved: Moved | None) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "queue_url": survey.queue_url,
        "to": order.destination,
        "reason": order.reason,
        "visible": survey.attributes.visible,
        "looked_at": len(survey.sample.messages),
        "matching": survey.chosen,
        "causes": [
            {
                "reason": cause.reason or None,
                "messages": cause.messages,
                "oldest_seconds": cause.oldest_seconds,
                "sources": sorted(cause.sources),
            }
            for cause in survey.causes
        ],
    }
    if moved is not None:
        answer["move"] = {**moved.report, "interrupted": moved.interrupted, "trouble": moved.trouble or None}
    return answer
