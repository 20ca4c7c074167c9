"""`sqs-lease peek`: a sample of messages. SQS shows messages only by a receive, so the command warns first."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
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
from sqs_lease.cli.sampling import Sample, look
from sqs_lease.cli.session import queue_session
from sqs_lease.core.messages import Message
from sqs_lease.sqs.move_tasks import RedriveTransport
from sqs_lease.sqs.transport import QueueAttributes

MOST_MESSAGES: Final = 10_000

ANY_WIDTH: Final = 10_000
"""A width that is larger than any terminal's."""


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
    """
    with queue_session(aws_access(region, profile, endpoint_url), queue) as session:
        url, attributes = session.run(_read(session.transport, queue))
        remarks = Console(stderr=True, highlight=False)
        print_remarks(remarks, _price(attributes))
        if attributes.max_receive_count is not None and not yes and sys.stdin.isatty():
            typer.confirm(f"Receive up to {most:,} messages?", default=True, abort=True, err=True)
        sample = session.run(look(session.transport, url, most))
    if as_json:
        print_json(_as_json(url, attributes, sample, bodies=bodies))
    else:
        _show(console(), attributes, sample, bodies=bodies)
    if sample.not_given_back:
        print_remarks(remarks, [(Mark.BAD, sample.not_given_back)])
        raise typer.Exit(ExitCode.TROUBLE)


async def _read(transport: RedriveTransport, queue: str) -> tuple[str, QueueAttributes]:
    url = await transport.queue_url(queue)
    return url, await transport.queue_attributes(url)


def _price(attributes: QueueAttributes) -> Iterator[tuple[Mark, str]]:
    name = _name(attributes.arn)
    counts = "Peeking receives the messages: the receive count of each goes up by one."
    if attributes.max_receive_count is None or attributes.dead_letter_arn is None:
        yield Mark.NOTE, f"{counts} {name} has no dead-letter queue, so that has no effect."
    else:
        yield (
            Mark.WARNING,
            f"{counts} {name} allows {attributes.max_receive_count} receives (maxReceiveCount): a message that already "
            f"had that many is not shown, but moves to {_name(attributes.dead_letter_arn)}.",
        )
    if attributes.fifo:
        yield Mark.NOTE, "Messages behind these in their message groups are not shown, and wait until these are back."


def _show(screen: Console, attributes: QueueAttributes, sample: Sample, *, bodies: bool) -> None:
    name = _name(attributes.arn)
    about = f"about {attributes.visible:,} visible, {attributes.in_flight:,} in flight, {attributes.delayed:,} delayed"
    if not sample.messages:
        screen.print(f"No message of {name} could be received ({about}).", markup=False)
        return
    noun = "message" if len(sample.messages) == 1 else "messages"
    screen.print(f"{len(sample.messages):,} {noun} of {name} ({about})", markup=False)
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
    has_attributes = any(message.message_attributes for message in sample.messages)
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
    for message in sample.messages:
        age = age_seconds(message, sample.looked_at)
        most = attributes.max_receive_count
        is_last = most is not None and message.receive_count >= most
        message_id = _literal(message.message_id)
        group = _literal(message.message_group_id or "")
        names = _literal(", ".join(sorted(message.message_attributes)))
        table.add_row(
            _with_details(message_id, group=group, attributes=names) if below else message_id,
            "" if age is None else shown_duration(round(age)),
            Text(
                f"{message.receive_count}" if most is None else f"{message.receive_count} of {most}",
                style=Mark.WARNING if is_last else "",
            ),
            f"{size_bytes(message):,}",
            *([group] if has_groups and not below else []),
            *([names] if has_attributes and not below else []),
        )
    return table


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
            f"{last:,} had the last receive that {_name(attributes.arn)} allows: at the next one, SQS moves them to "
            f"{_name(attributes.dead_letter_arn)}.",
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
        "messages": [
            {
                "message_id": message.message_id,
                "sent_at": None if message.sent_at is None else message.sent_at.isoformat(),
                "age_seconds": age_seconds(message, sample.looked_at),
                "receive_count": message.receive_count,
                "bytes": size_bytes(message),
                "message_group_id": message.message_group_id,
                "attributes": sorted(message.message_attributes),
                **({"body": message.body} if bodies else {}),
            }
            for message in sample.messages
        ],
    }


def _name(arn: str) -> str:
    return arn.rpartition(":")[2]
