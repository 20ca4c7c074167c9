"""`sqs-lease redrive`: shows why messages were dead-lettered, then moves them back to their queues."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from sqs_lease.cli.causes import CAUSES_SHOWN, Cause, causes_as_json, causes_of, causes_table
from sqs_lease.cli.move_task import FollowedTask, active_task
from sqs_lease.cli.options import EndpointUrl, Json, Profile, Queue, Region, aws_access, queue_given
from sqs_lease.cli.output import CommandError, ExitCode, Mark, console, print_json
from sqs_lease.cli.remarks import print_remarks
from sqs_lease.cli.sampling import Sample, look
from sqs_lease.cli.session import TERMINATED, queue_session
from sqs_lease.core.calls import Verdict
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
from sqs_lease.sqs.validation import FIFO_SUFFIX, queue_reference

SURVEYED_MESSAGES: Final = 1_000
"""Most messages that are received for the summary."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The messages to move, and the causes why they are there.

    Attributes:
        queue_url: The dead-letter queue.
        attributes: Its attributes.
        destination_arn: The queue that takes all messages; None if each goes back to the queue that it came from.
        where: The same for people: ``back to orders``.
        sample: The sample of messages.
        causes: The causes of the sample.
    """

    queue_url: str
    attributes: QueueAttributes
    destination_arn: str | None
    where: str
    sample: Sample
    causes: Sequence[Cause]

    @property
    def name(self) -> str:
        """The queue's name."""
        return queue_reference(self.attributes.arn).name

    @property
    def is_whole(self) -> bool:
        """Whether all messages that can be received are in the sample."""
        return len(self.sample.messages) >= self.attributes.visible

    @property
    def to_move(self) -> int:
        """The approximate number of messages to move."""
        return len(self.sample.messages) if self.is_whole else self.attributes.visible

    @property
    def counted(self) -> str:
        """The same for people."""
        return f"{'' if self.is_whole else 'about '}{_messages(self.to_move)}"


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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print which messages would be moved.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the move task of the queue, if one runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before moving.")] = False,
    region: Region = None,
    profile: Profile = None,
    endpoint_url: EndpointUrl = None,
    as_json: Json = False,
) -> None:
    """Move the messages of a dead-letter queue back to their queues, after a summary of why they are there.

    For the summary up to 1,000 messages are received, and given back at once. In a terminal it then asks. SQS moves the
    messages by a move task. Ctrl-C cancels the task; it prints the number of moved messages, which stay moved.
    """
    screen, aside = console(), Console(stderr=True, highlight=False)
    with queue_session(aws_access(region, profile, endpoint_url), queue) as session, _explained(queue):
        if cancel:
            if to is not None or rate is not None or dry_run:
                raise CommandError("--cancel does not move messages: leave out --to, --rate and --dry-run")
            url, cancelled = session.run(_cancel(session.transport, queue))
            if as_json:
                print_json({"queue_url": url, "move": None if cancelled is None else _report(cancelled)})
            print_remarks(aside if as_json else screen, [_end_of_cancel(cancelled, queue)])
            return
        with aside.status(Text(f"Looking at {queue} ...")):
            survey = session.run(_survey(session.transport, queue, to))
        if not as_json:
            _show(screen, survey, rate)
        if dry_run or not survey.sample.messages:
            if as_json:
                print_json(_survey_as_json(survey, to, rate))
            return
        if not yes and sys.stdin.isatty():
            typer.confirm(f"Move {survey.counted} of {survey.name} {survey.where}?", abort=True, err=True)
        with _progress(aside, survey) as show:
            task, is_interrupted = session.run(_move(session.transport, survey, rate, show))
    is_interrupted = is_interrupted and task.status != COMPLETED
    trouble = "" if is_interrupted else _trouble(task)
    if as_json:
        report = {**_report(task), "interrupted": is_interrupted, "trouble": trouble or None}
        print_json({**_survey_as_json(survey, to, rate), "move": report})
    print_remarks(aside if as_json else screen, [_end(task, survey, trouble, is_interrupted=is_interrupted)])
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
            raise _runs_already(queue, None) from error
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


def _runs_already(queue: str, task: MoveTask | None) -> CommandError:
    moved = "" if task is None else f" ({_moved(task)} moved)"
    if task is not None and task.status == CANCELLING:
        text = f"a move task of this queue is being cancelled{moved}. Try again when it has ended"
    else:
        text = f"a move task runs already for this queue{moved}, and SQS allows one. Wait for its end, or cancel it by "
        text += f"`sqs-lease redrive {queue} --cancel`"
    return CommandError(f"{queue}: {text}", ExitCode.TROUBLE)


# Looking


async def _survey(transport: RedriveTransport, queue: str, to: str | None) -> Survey:
    url = await transport.queue_url(queue)
    attributes = await transport.queue_attributes(url)
    destination_arn = None if to is None else await _named_destination(transport, queue, url, to)
    # All checks come before the receive: in a queue with consumers it would raise receive counts for nothing, and a
    # running move task leaves out messages that are in flight.
    sources = await _sources(transport, queue, url)
    if sources is None and attributes.dead_letter_arn is not None:
        raise CommandError(
            f"{queue} may be a queue with consumers: it has a dead-letter queue, "
            f"{queue_reference(attributes.dead_letter_arn).name}. Name that one. If {queue} is a dead-letter queue "
            "itself, allow sqs:ListDeadLetterSourceQueues, which shows that"
        )
    active = active_task(await transport.move_tasks(attributes.arn))
    if active is not None:
        raise _runs_already(queue, active)
    if to is not None:
        where = f"to {queue_reference(to).name}"
    elif sources is not None and len(sources) == 1:
        # The destination is named, because a message that dead_letter() sent has no source queue for SQS, and would
        # end the task. A dead-letter queue is in the account and the region of its source queues.
        name = queue_reference(sources[0]).name
        destination_arn, where = f"{attributes.arn.rpartition(':')[0]}:{name}", f"back to {name}"
    else:
        where = "back to their source queues"
    sample = await look(transport, url, SURVEYED_MESSAGES)
    return Survey(url, attributes, destination_arn, where, sample, causes_of(sample))


async def _named_destination(transport: RedriveTransport, queue: str, url: str, to: str) -> str:
    destination_url = await transport.queue_url(to)
    if destination_url == url:
        raise CommandError(f"messages of {queue} cannot be moved to the same queue")
    if destination_url.endswith(FIFO_SUFFIX) != url.endswith(FIFO_SUFFIX):
        raise CommandError(f"messages of {queue} cannot be moved to {to}: one is a FIFO queue and the other is not")
    return to if to.startswith("arn:") else (await transport.queue_attributes(destination_url)).arn


async def _sources(transport: RedriveTransport, queue: str, url: str) -> Sequence[str] | None:
    """Return the URLs of the queues that this is the dead-letter queue of; None if that cannot be asked."""
    try:
        sources = await transport.dead_letter_sources(url)
    except SqsError as error:
        # Emulators may lack this call, and a caller who may move messages need not have the permission to list.
        if error.verdict is not Verdict.REFUSED or isinstance(error, QueueNotFoundError):
            raise
        return None
    if not sources:
        raise _not_dead_letters(queue)
    return sources


# Moving


async def _move(
    transport: RedriveTransport, survey: Survey, rate: int | None, show: Callable[[MoveTask], None]
) -> tuple[MoveTask, bool]:
    """Move, and return the task at its end, with whether Ctrl-C or SIGTERM cancelled it."""
    starting = asyncio.ensure_future(FollowedTask.start(transport, survey.attributes.arn, survey.destination_arn, rate))
    try:
        started = await asyncio.shield(starting)
        return await started.follow(show), False
    except asyncio.CancelledError:
        # The start may be on its way, and the task would go on without this command.
        await end_of(starting)
        return await starting.result().cancel(), True


async def _cancel(transport: RedriveTransport, queue: str) -> tuple[str, MoveTask | None]:
    """Cancel the move task of a queue. Return the queue's URL and the task; None if no task runs."""
    url = await transport.queue_url(queue)
    running = await FollowedTask.running(transport, (await transport.queue_attributes(url)).arn)
    return url, None if running is None else await running.cancel()


# Showing


@contextmanager
def _progress(aside: Console, survey: Survey) -> Iterator[Callable[[MoveTask], None]]:
    """Draw a progress bar in a terminal while the block runs; yield a function that updates it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=aside, disable=not aside.is_terminal, expand=True) as progress:
        bar = progress.add_task("Moving", total=survey.to_move)
        yield lambda task: progress.update(bar, completed=task.moved, total=task.to_move)


def _show(screen: Console, survey: Survey, rate: int | None) -> None:
    looked_at = len(survey.sample.messages)
    if not looked_at:
        held = f" ({survey.attributes.in_flight:,} are in flight)" if survey.attributes.in_flight else ""
        screen.print(f"There is no message in {survey.name} to move{held}.", markup=False)
        return
    part = _messages(looked_at) if survey.is_whole else f"{looked_at:,} of {survey.counted}"
    screen.print(f"{survey.name}: why {part} came there", markup=False)
    screen.print(causes_table(survey.causes))
    print_remarks(screen, _remarks(survey, rate))


def _remarks(survey: Survey, rate: int | None) -> Iterator[tuple[Mark, str]]:
    others = survey.causes[CAUSES_SHOWN:]
    if others:
        messages = sum(cause.messages for cause in others)
        yield Mark.NOTE, f"{len(others):,} other reasons, of {messages:,} messages, are not shown; --json has them."
    if survey.sample.not_given_back:
        yield Mark.BAD, survey.sample.not_given_back
    if survey.attributes.fifo and not survey.is_whole:
        yield Mark.NOTE, "SQS does not show messages of a group behind one that is being received."
    pace = "" if rate is None else f", at most {rate} a second"
    yield Mark.NOTE, f"To move: {survey.counted}, {survey.where}. SQS moves them{pace}."


def _end(task: MoveTask, survey: Survey, trouble: str, *, is_interrupted: bool) -> tuple[Mark, str]:
    moved = _moved(task)
    if is_interrupted:
        rest = f"The others are still in {survey.name}; run it again for them."
        return Mark.WARNING, f"Stopped. Moved until then: {moved}, {survey.where}. {rest}"
    return Mark.BAD if trouble else Mark.GOOD, f"Moved {moved} {survey.where}. {trouble}".rstrip()


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
        return _messages(task.moved)
    return f"{task.moved:,} of {_messages(task.to_move)}"


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def _report(task: MoveTask) -> dict[str, Any]:
    return {"status": task.status, "moved": task.moved, "to_move": task.to_move}


def _survey_as_json(survey: Survey, to: str | None, rate: int | None) -> dict[str, Any]:
    return {
        "queue_url": survey.queue_url,
        "to": to,
        "rate": rate,
        "visible": survey.attributes.visible,
        "looked_at": len(survey.sample.messages),
        "causes": causes_as_json(survey.causes),
    }
