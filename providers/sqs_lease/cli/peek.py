"""`sqs-lease peek`: a sample of messages. SQS shows messages only by a receive, so the command warns first."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.console import Console, Group
from rich.measure import Measurement
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from sqs_lease.cli.durations import shown_duration
from sqs_lease.cli.message_text import age_seconds, harmless, size_bytes
from sqs_lease.cli.options import EndpointUrl, Json, Profile, Queue, Region, aws_access
from sqs_lease.cli.output import ExitCode, Mark, console, print_json
from sqs_lease.cli.remarks import print_remarks
from sqs_lease.cli.session import queue_session
from sqs_lease.clock import SystemClock
from sqs_lease.core.events import Outcome
from sqs_lease.core.messages import Message, count_of
from sqs_lease.core.policies import Growing
from sqs_lease.keeper.driver import REASON_ATTRIBUTE
from sqs_lease.keeper.keeper import Keeper
from sqs_lease.keeper.receiver import Receiver, Reception
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.move_tasks import RedriveTransport
from sqs_lease.sqs.transport import QueueAttributes, Transport
from sqs_lease.sqs.validation import name_in_arn

MOST_MESSAGES: Final = 10_000

CAUSE_CHARACTERS: Final = 300
"""How much of the reason for a dead letter is shown to people."""

HELD_SECONDS: Final = 60
"""The visibility timeout that messages are received with."""

WAIT_SECONDS: Final = 2.0
"""How long to wait for a first message."""

LINGER_SECONDS: Final = 1.0
"""How long to wait for more after that."""

_SOURCE_ARN: Final = "DeadLetterQueueSourceArn"

ANY_WIDTH: Final = 10_000
"""A width that is larger than any terminal's."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of messages.

    Attributes:
        messages: The messages.
        looked_at: When they were received, in seconds since the epoch.
        given_back: How many of them are visible again; the others will be within a minute.
        error: Why there may be more messages than these; None if the queue gave all that it had, or as many as wanted.
    """

    messages: Sequence[Message]
    looked_at: float
    given_back: int
    error: SqsError | None = None

    @property
    def trouble(self) -> list[str]:
        """Return sentences with what went wrong: there may be more messages, or some could not be given back."""
        texts = [] if self.error is None else [f"There may be more messages than these. {self.error}"]
        if left := len(self.messages) - self.given_back:
            texts.append(f"{left:,} could not be given back: they are visible again within {HELD_SECONDS} s.")
        return texts


def peek(
    queue: Queue,
    most: Annotated[
        int, typer.Option("--max", metavar="N", min=1, max=MOST_MESSAGES, help="Most messages to look at.")
    ] = 10,
    bodies: Annotated[bool, typer.Option("--bodies", help="Show the messages' bodies, too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, even if a receive could cost a message.")] = (
        False
    ),
    region: Region = None,
    profile: Profile = None,
    endpoint_url: EndpointUrl = None,
    as_json: Json = False,
) -> None:
    """Look at some messages of a queue, and give them back at once.

    SQS shows a message only to a consumer that receives it. So the receive count of each message goes up by one, and
    other consumers cannot receive it for a moment. In a terminal it asks first if the queue has a dead-letter queue.

    Of a dead letter it shows the reason that `dead_letter()` wrote, or the queue that SQS moved it from.
    """
    with queue_session(aws_access(region, profile, endpoint_url), queue) as session:
        url, attributes = session.run(_read(session.transport, queue))
        remarks = Console(stderr=True, highlight=False)
        print_remarks(remarks, _price(attributes))
        if attributes.max_receive_count is not None and not yes and sys.stdin.isatty():
            typer.confirm(f"Receive up to {count_of(most)}?", default=True, abort=True, err=True)
        sample = session.run(look(session.transport, url, most))
    if as_json:
        print_json(_as_json(url, attributes, sample, bodies=bodies))
    else:
        _show(console(), attributes, sample, bodies=bodies)
    if sample.trouble:
        print_remarks(remarks, [(Mark.BAD, text) for text in sample.trouble])
        raise typer.Exit(ExitCode.TROUBLE)


async def _read(transport: RedriveTransport, queue: str) -> tuple[str, QueueAttributes]:
    url = await transport.queue_url(queue)
    return url, await transport.queue_attributes(url)


async def look(transport: Transport, url: str, most: int) -> Sample:
    """Receive some messages and give them back, also when it is cancelled.

    Args:
        transport: Reaches SQS.
        url: The queue's URL.
        most: Most messages to receive.

    Raises:
        sqs_lease.sqs.errors.SqsError: The queue cannot be received from.
    """
    clock = SystemClock()
    async with Keeper(transport, clock=clock) as keeper:
        batch = keeper.open_batch(url, policy=Growing(visibility=HELD_SECONDS))

        def hold(reception: Reception) -> None:
            batch.add(reception.messages, received_at=reception.received_at, sent_at=reception.sent_at)

        receiver = Receiver(transport, url, visibility_seconds=HELD_SECONDS, clock=clock)
        try:
            collected = await receiver.collect(most, wait=WAIT_SECONDS, linger=LINGER_SECONDS, on_received=hold)
        finally:
            settled = await batch.release_all()
    given_back = sum(each.outcome is Outcome.RELEASED for each in settled.values())
    return Sample(collected.messages, clock.wall(), given_back, collected.error)


def _price(attributes: QueueAttributes) -> Iterator[tuple[Mark, str]]:
    name = name_in_arn(attributes.arn)
    counts = "Peeking receives the messages: the receive count of each goes up by one."
    if attributes.max_receive_count is None or attributes.dead_letter_arn is None:
        yield Mark.NOTE, f"{counts} {name} has no dead-letter queue, so that has no effect."
    else:
        yield (
            Mark.WARNING,
            f"{counts} {name} allows {count_of(attributes.max_receive_count, 'receive')} (maxReceiveCount): a message "
            f"that already had that many is not shown, but moves to {name_in_arn(attributes.dead_letter_arn)}.",
        )
    if attributes.fifo:
        yield Mark.NOTE, "Messages behind these in their message groups are not shown, and wait until these are back."


def _show(screen: Console, attributes: QueueAttributes, sample: Sample, *, bodies: bool) -> None:
    name = name_in_arn(attributes.arn)
    about = f"about {attributes.visible:,} visible, {attributes.in_flight:,} in flight, {attributes.delayed:,} delayed"
    if not sample.messages:
        screen.print(f"No message of {name} could be received ({about}).", markup=False)
        return
    screen.print(f"{count_of(len(sample.messages))} of {name} ({about})", markup=False)
    screen.print(_table(attributes, sample, screen))
    if bodies:
        for message in sample.messages:
            screen.print(Rule(_literal(message.message_id), align="left", style="dim"))
            screen.print(_literal(message.body), soft_wrap=True)
    print_remarks(screen, _remarks(attributes, sample.messages))


def _table(attributes: QueueAttributes, sample: Sample, screen: Console) -> Table:
    table = _rows(attributes, sample, below=False)
    needed = Measurement.get(screen, screen.options.update_width(ANY_WIDTH), table).maximum
    return table if needed <= screen.width else _rows(attributes, sample, below=True)


def _rows(attributes: QueueAttributes, sample: Sample, *, below: bool) -> Table:
    """Return a table with a row for each message; optional values have columns of their own, or are below its id."""
    has_attributes = any(_attributes(message) for message in sample.messages)
    has_causes = any(_cause(message) for message in sample.messages)
    has_groups = any(message.message_group_id is not None for message in sample.messages)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("message", overflow="fold")
    table.add_column("age", justify="right")
    table.add_column("received", justify="right")
    table.add_column("bytes", justify="right")
    if has_groups and not below:
        table.add_column("group", overflow="fold")
    if has_attributes and not below:
        table.add_column("attributes", overflow="fold")
    if has_causes and not below:
        table.add_column("cause", overflow="fold")
    for message in sample.messages:
        age = age_seconds(message, sample.looked_at)
        most = attributes.max_receive_count
        is_last = most is not None and message.receive_count >= most
        message_id = _literal(message.message_id)
        group = _literal(message.message_group_id or "")
        names = _literal(_attributes(message))
        cause = _literal(_cause(message))
        table.add_row(
            _with_details(message_id, group=group, attributes=names, cause=cause) if below else message_id,
            "" if age is None else shown_duration(round(age)),
            Text(
                f"{message.receive_count}" if most is None else f"{message.receive_count} of {most}",
                style=Mark.WARNING if is_last else "",
            ),
            f"{size_bytes(message):,}",
            *([group] if has_groups and not below else []),
            *([names] if has_attributes and not below else []),
            *([cause] if has_causes and not below else []),
        )
    return table


def _attributes(message: Message) -> str:
    """Return the names of its attributes; the reason of `dead_letter()` is shown as the cause."""
    return ", ".join(sorted(name for name in message.message_attributes if name != REASON_ATTRIBUTE))


def _cause(message: Message) -> str:
    """Return why a message was dead-lettered; empty if it does not say."""
    source, reason = _source_queue(message), _reason(message)
    if len(reason) > CAUSE_CHARACTERS:
        reason = f"{reason[:CAUSE_CHARACTERS]}…"
    if not source:
        return reason
    # dead_letter() sends a message of its own, without a source. So a reason beside one is that of an earlier time,
    # before a redrive.
    return f"received too often from {source}" + (f"; before a redrive: {reason}" if reason else "")


def _reason(message: Message) -> str:
    return str(message.message_attributes.get(REASON_ATTRIBUTE, {}).get("StringValue") or "")


def _source_queue(message: Message) -> str:
    """Return the name of the queue that SQS moved a message from; empty if it moved it from none."""
    return name_in_arn(message.attributes.get(_SOURCE_ARN, ""))


def _literal(text: str) -> Text:
    """Return a sender's or a server's text, in which neither Rich nor the terminal finds anything to obey."""
    return Text(harmless(text), overflow="fold")


def _with_details(message_id: Text, **details: Text) -> Group:
    lines = (Text.assemble(f"{name} ", text) for name, text in details.items() if text)
    # An id in two lines cannot be searched for or copied, so the other columns are narrower.
    return Group(message_id, *(Padding(line, (0, 0, 0, 2)) for line in lines))


def _remarks(attributes: QueueAttributes, messages: Sequence[Message]) -> Iterator[tuple[Mark, str]]:
    most = attributes.max_receive_count
    if most is None or attributes.dead_letter_arn is None:
        return
    last = sum(message.receive_count >= most for message in messages)
    if last:
        yield (
            Mark.WARNING,
            f"{last:,} had the last receive that {name_in_arn(attributes.arn)} allows: at the next one, SQS moves them "
            f"to {name_in_arn(attributes.dead_letter_arn)}.",
        )


def _as_json(url: str, attributes: QueueAttributes, sample: Sample, *, bodies: bool) -> dict[str, Any]:
    return {
        "queue_url": url,
        "visible": attributes.visible,
        "in_flight": attributes.in_flight,
        "delayed": attributes.delayed,
        "max_receive_count": attributes.max_receive_count,
        "dead_letter_arn": attributes.dead_letter_arn,
        "given_back": sample.given_back,
        "error": None if sample.error is None else str(sample.error),
        "messages": [
            {
                "message_id": message.message_id,
                "sent_at": None if message.sent_at is None else message.sent_at.isoformat(),
                "age_seconds": age_seconds(message, sample.looked_at),
                "receive_count": message.receive_count,
                "bytes": size_bytes(message),
                "message_group_id": message.message_group_id,
                "attributes": sorted(message.message_attributes),
                "reason": _reason(message) or None,
                "source_queue": _source_queue(message) or None,
                **({"body": message.body} if bodies else {}),
            }
            for message in sample.messages
        ],
    }
