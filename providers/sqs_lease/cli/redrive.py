"""`sqs-lease redrive`: SQS moves the messages of a dead-letter queue back to their queues, and this follows it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sqs_lease.cli.move_task import FollowedTask
from sqs_lease.cli.options import EndpointUrl, Json, Profile, Queue, Region, aws_access, queue_given
from sqs_lease.cli.output import CommandError, ExitCode, Mark, console, print_json
from sqs_lease.cli.remarks import print_remarks
from sqs_lease.cli.session import TERMINATED, queue_session
from sqs_lease.core.calls import Verdict
from sqs_lease.core.messages import count_of
from sqs_lease.keeper.endings import end_of
from sqs_lease.sqs.errors import AccessDeniedError, QueueNotFoundError, SqsError
from sqs_lease.sqs.move_tasks import (
    ALREADY_RUNNING,
    CANCELLED,
    CANCELLING,
    COMPLETED,
    MAX_MOVES_PER_SECOND,
    NOT_A_DEAD_LETTER_QUEUE,
    UNKNOWN_CALL_CODES,
    UNKNOWN_SOURCE,
    MoveTask,
    RedriveTransport,
)
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.sqs.validation import FIFO_SUFFIX, name_in_arn, queue_reference


@dataclass(frozen=True, slots=True)
class Move:
    """A move that was checked and not yet started.

    Attributes:
        queue_url: The dead-letter queue.
        attributes: Its attributes.
        destination_arn: The queue that takes all messages; None if each goes back to the queue that it came from.
        where: The same for people: ``back to orders``.
    """

    queue_url: str
    attributes: QueueAttributes
    destination_arn: str | None
    where: str

    @property
    def name(self) -> str:
        """The queue's name."""
        return name_in_arn(self.attributes.arn)


def redrive(
    queue: Queue,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="QUEUE", parser=queue_given, help="Move all to this queue; by default each to its source queue."
        ),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MAX_MOVES_PER_SECOND,
            help="Most messages to move in a second; by default SQS chooses.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be moved, and where.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the move task of the queue, if one runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before moving.")] = False,
    region: Region = None,
    profile: Profile = None,
    endpoint_url: EndpointUrl = None,
    as_json: Json = False,
) -> None:
    """Move the messages of a dead-letter queue back to their queues.

    SQS moves them by a move task, and this command follows it. In a terminal it asks first. `sqs-lease peek` shows why
    they are there. Ctrl-C cancels the task; it prints the number of moved messages, which stay moved.
    """
    screen, aside = console(), Console(stderr=True, highlight=False)
    report: dict[str, Any] = {"to": to, "rate": rate}
    with queue_session(aws_access(region, profile, endpoint_url), queue) as session, _explained(queue):
        if cancel:
            if to is not None or rate is not None or dry_run:
                raise CommandError("--cancel does not move messages: leave out --to, --rate and --dry-run")
            url, cancelled = session.run(_cancel(session.transport, queue))
            if as_json:
                print_json({"queue_url": url, "move": None if cancelled is None else _report(cancelled)})
            print_remarks(aside if as_json else screen, [_end_of_cancel(cancelled, queue)])
            return
        move = session.run(_checked(session.transport, queue, to))
        report |= {"queue_url": move.queue_url, "visible": move.attributes.visible}
        print_remarks(aside if as_json else screen, [(Mark.NOTE, _plan(move, rate))])
        if dry_run:
            if as_json:
                print_json(report)
            return
        if not yes and sys.stdin.isatty():
            typer.confirm("Move them?", abort=True, err=True)
        with _progress(aside, move) as show:
            task, is_interrupted = session.run(_move(session.transport, move, rate, show))
    is_interrupted = is_interrupted and task.status != COMPLETED
    trouble = "" if is_interrupted else _trouble(task)
    if as_json:
        print_json({**report, "move": {**_report(task), "interrupted": is_interrupted, "trouble": trouble or None}})
    print_remarks(aside if as_json else screen, [_end(task, move, trouble, is_interrupted=is_interrupted)])
    if is_interrupted:
        raise typer.Exit(TERMINATED if isinstance(session.ended_by, SystemExit) else ExitCode.INTERRUPTED)
    if trouble:
        raise typer.Exit(ExitCode.TROUBLE)


@contextmanager
def _explained(queue: str) -> Iterator[None]:
    """Turn refusals into errors with a remedy."""
    try:
        yield
    except SqsError as error:
        said = error.text.lower()
        if NOT_A_DEAD_LETTER_QUEUE in said:
            raise _not_dead_letters(queue) from error
        if ALREADY_RUNNING in said:
            text = f"{queue}: a move task of this queue runs already, and SQS allows one. Wait for its end, or cancel "
            raise CommandError(f"{text}it by `sqs-lease redrive {queue} --cancel`", ExitCode.TROUBLE) from error
        if error.code in UNKNOWN_CALL_CODES:
            text = f"{queue}: this SQS server has no move tasks ({error.code})"
            raise CommandError(text, ExitCode.TROUBLE) from error
        if isinstance(error, AccessDeniedError):
            text = f"{error} This prints all permissions of a redrive: sqs-lease policy {queue} --redrive"
            raise CommandError(text, ExitCode.TROUBLE) from error
        raise


def _not_dead_letters(queue: str) -> CommandError:
    return CommandError(
        f"{queue}: it is not the dead-letter queue of any queue, and SQS moves messages out of such queues only. Name "
        "the dead-letter queue, or set this one in the RedrivePolicy of its source queue"
    )


# Checking


async def _checked(transport: RedriveTransport, queue: str, to: str | None) -> Move:
    url = await transport.queue_url(queue)
    attributes = await transport.queue_attributes(url)
    destination_arn = None if to is None else await _named_destination(transport, queue, url, to)
    sources = await _sources(transport, queue, url)
    if to is not None:
        where = f"to {queue_reference(to).name}"
    elif len(sources) == 1:
        # The destination is named, because a message that dead_letter() sent has no source queue for SQS, and would
        # end the task. A dead-letter queue is in the account and the region of its source queues.
        name = queue_reference(sources[0]).name
        destination_arn, where = f"{attributes.arn.rpartition(':')[0]}:{name}", f"back to {name}"
    else:
        where = "back to their source queues"
    return Move(url, attributes, destination_arn, where)


async def _named_destination(transport: RedriveTransport, queue: str, url: str, to: str) -> str:
    destination_url = await transport.queue_url(to)
    if destination_url == url:
        raise CommandError(f"messages of {queue} cannot be moved to the same queue")
    if destination_url.endswith(FIFO_SUFFIX) != url.endswith(FIFO_SUFFIX):
        raise CommandError(f"messages of {queue} cannot be moved to {to}: one is a FIFO queue and the other is not")
    return to if to.startswith("arn:") else (await transport.queue_attributes(destination_url)).arn


async def _sources(transport: RedriveTransport, queue: str, url: str) -> Sequence[str]:
    """Return the URLs of the queues that this is the dead-letter queue of; none if that cannot be asked."""
    try:
        sources = await transport.dead_letter_sources(url)
    except SqsError as error:
        # Emulators may lack this call, and a caller who may move messages need not have the permission to list. SQS
        # itself refuses to move messages out of another queue.
        if error.verdict is not Verdict.REFUSED or isinstance(error, QueueNotFoundError):
            raise
        return ()
    if not sources:
        raise _not_dead_letters(queue)
    return sources


# Moving


async def _move(
    transport: RedriveTransport, move: Move, rate: int | None, show: Callable[[MoveTask], None]
) -> tuple[MoveTask, bool]:
    """Move, and return the task at its end, with whether Ctrl-C or SIGTERM cancelled it."""
    # An interruption until here has nothing to cancel, and starts nothing.
    task = await FollowedTask.next_one(transport, move.attributes.arn)
    starting = asyncio.ensure_future(task.start(move.destination_arn, rate))
    try:
        await asyncio.shield(starting)
        return await task.follow(show), False
    except asyncio.CancelledError:
        # The start may be on its way, and the task would go on without this command.
        await end_of(starting)
        starting.result()
        return await task.cancel(), True


async def _cancel(transport: RedriveTransport, queue: str) -> tuple[str, MoveTask | None]:
    """Cancel the move task of a queue. Return the queue's URL and the task; None if no task runs."""
    url = await transport.queue_url(queue)
    running = await FollowedTask.running(transport, (await transport.queue_attributes(url)).arn)
    return url, None if running is None else await running.cancel()


# Showing


@contextmanager
def _progress(aside: Console, move: Move) -> Iterator[Callable[[MoveTask], None]]:
    """Draw a progress bar in a terminal while the block runs; yield a function that updates it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=aside, disable=not aside.is_terminal, expand=True) as progress:
        bar = progress.add_task("Moving", total=move.attributes.visible)
        yield lambda task: progress.update(bar, completed=task.moved, total=task.to_move)


def _plan(move: Move, rate: int | None) -> str:
    pace = "" if rate is None else f", at most {rate} a second"
    held = f" {move.attributes.in_flight:,} in flight stay." if move.attributes.in_flight else ""
    visible = count_of(move.attributes.visible)
    return f"To move: about {visible} of {move.name}, {move.where}. SQS moves them{pace}.{held}"


def _end(task: MoveTask, move: Move, trouble: str, *, is_interrupted: bool) -> tuple[Mark, str]:
    moved = _moved(task)
    if is_interrupted:
        rest = f"The others are still in {move.name}; run it again for them."
        return Mark.WARNING, f"Stopped. Moved until then: {moved}, {move.where}. {rest}"
    return Mark.BAD if trouble else Mark.GOOD, f"Moved {moved} {move.where}. {trouble}".rstrip()


def _end_of_cancel(task: MoveTask | None, queue: str) -> tuple[Mark, str]:
    if task is None:
        return Mark.NOTE, f"No move task of {queue} runs."
    if task.status in (CANCELLED, CANCELLING):
        return Mark.GOOD, f"Cancelled. Moved until then: {_moved(task)}. The others are still in {queue}."
    return Mark.NOTE, f"The move task ended before it was cancelled: {task.status}, {_moved(task)} moved."


def _trouble(task: MoveTask) -> str:
    """Return why a task did not move all messages, and the remedy; empty if it did."""
    if task.status in (CANCELLED, CANCELLING):
        return "The move task was cancelled, but not by this command."
    if task.status == COMPLETED:
        return ""
    if task.failure == UNKNOWN_SOURCE:
        return (
            "A message was sent to the dead-letter queue directly, as dead_letter() does, so SQS does not know which "
            "queue it came from: name the destination with --to."
        )
    return (
        f"The move task failed with {task.failure or 'no reason given'}: check that the destination exists and that "
        "you may sqs:SendMessage to it."
    )


def _moved(task: MoveTask) -> str:
    if task.to_move is None or task.to_move == task.moved:
        return count_of(task.moved)
    return f"{task.moved:,} of {count_of(task.to_move)}"


def _report(task: MoveTask) -> dict[str, Any]:
    return {"status": task.status, "moved": task.moved, "to_move": task.to_move}
