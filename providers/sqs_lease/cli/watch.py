"""`sqs-lease watch`: how deep queues are, read again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sqs_lease.cli.durations import shown_duration
from sqs_lease.cli.host_batches import WatchedHosts, described
from sqs_lease.cli.options import EndpointUrl, Json, Profile, Queues, Region, aws_access
from sqs_lease.cli.output import ExitCode, Mark, console, marked, print_json
from sqs_lease.cli.queue_readings import WatchedQueue, sparkline
from sqs_lease.cli.session import Session
from sqs_lease.clock import SystemClock
from sqs_lease.core.limits import MAX_IN_FLIGHT

MANY_IN_FLIGHT: Final = 0.9 * MAX_IN_FLIGHT
"""From so many messages on a queue is near what SQS allows in flight."""

_WIDE_COLUMNS: Final = 100
_NARROW_COLUMNS: Final = 70


def watch(
    queues: Queues,
    once: Annotated[bool, typer.Option("--once", help="Print one reading and end; so does --json.")] = False,
    interval: Annotated[
        float, typer.Option(min=1, max=3_600, metavar="SECONDS", help="Pause between two readings.")
    ] = 5.0,
    airflow: Annotated[
        str | None, typer.Option(metavar="URL", help="Show the batches at work in an Airflow, by its REST API.")
    ] = None,
    dagster: Annotated[
        str | None, typer.Option(metavar="URL", help="Show the last batch of each asset in a Dagster, by GraphQL.")
    ] = None,
    region: Region = None,
    profile: Profile = None,
    endpoint_url: EndpointUrl = None,
    as_json: Json = False,
) -> None:
    """Watch how deep queues are: visible, in flight, delayed, dead letters, and how fast they grow or shrink.

    It receives nothing. Counts of SQS are approximate. Ctrl-C ends it. Where the output is not a terminal, it prints one
    reading.
    """
    access = aws_access(region, profile, endpoint_url)
    screen = console()
    with Session(access, *queues) as session:
        watched = [
            WatchedQueue(queue, session.transport_of(queue), SystemClock()) for queue in dict.fromkeys(queues)
        ]
        hosts = WatchedHosts(airflow, dagster)
        session.run(_read(watched, hosts))
        is_one_reading = once or as_json or not screen.is_terminal
        if as_json:
            print_json(_as_json(watched, hosts))
        elif is_one_reading:
            screen.print(_table(watched, screen, live=False))
            for part in _hosts_parts(hosts, screen):
                screen.print(part)
        else:
            _watch(session, watched, hosts, interval, screen)
    if hosts.trouble and is_one_reading:
        raise typer.Exit(ExitCode.TROUBLE)


async def _read(watched: Sequence[WatchedQueue], hosts: WatchedHosts) -> None:
    await asyncio.gather(*(queue.read() for queue in watched), asyncio.to_thread(hosts.read))


def _watch(
    session: Session, watched: Sequence[WatchedQueue], hosts: WatchedHosts, interval: float, screen: Console
) -> None:
    def draw() -> RenderableType:
        parts = (_table(watched, screen, live=True), *_hosts_parts(hosts, screen), *_below(watched, interval, screen))
        return Group(*parts)

    async def go_on() -> None:
        while True:
            await asyncio.sleep(interval)
            await _read(watched, hosts)

    try:
        # It calls draw() itself, so that a resized terminal is drawn again within a second.
        with Live(get_renderable=draw, console=screen, refresh_per_second=2, vertical_overflow="visible"):
            session.run(go_on())
    except KeyboardInterrupt:
        # How it is meant to end.
        return


def _table(watched: Sequence[WatchedQueue], screen: Console, *, live: bool) -> Table:
    width = screen.width
    is_wide, is_narrow = width >= _WIDE_COLUMNS, width < _NARROW_COLUMNS
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=is_narrow)
    table.add_column("\nqueue", overflow="fold")
    for heading in ("\nvisible", "in\nflight", "\ndelayed", "dead\nletters"):
        table.add_column(heading, justify="right", overflow="fold")
    if live and not is_narrow:
        table.add_column("a\nminute", justify="right", no_wrap=True)
        table.add_column("\ntrend", no_wrap=True)
    for queue in watched:
        reading = queue.readings[-1]
        counts = reading.attributes
        row = [
            Text(queue.name),
            Text(f"{counts.visible:,}"),
            Text(f"{counts.in_flight:,}", style=Mark.WARNING if counts.in_flight >= MANY_IN_FLIGHT else ""),
            Text(f"{counts.delayed:,}"),
            Text("" if reading.dead_letters is None else f"{reading.dead_letters:,}"),
        ]
        if reading.dead_letters:
            row[-1].stylize(Mark.BAD)
        if live and not is_narrow:
            change = queue.change_a_minute()
            row.append(Text("" if change is None else f"{round(change):+,}" if round(change) else "0"))
            bars = sparkline([each.attributes.visible for each in queue.readings], 30 if is_wide else 10)
            row.append(Text(bars, style="cyan"))
        table.add_row(*row, style="dim" if queue.trouble else "")
    return table


def _hosts_parts(hosts: WatchedHosts, screen: Console) -> Iterator[RenderableType]:
    """What the hosts say about their batches, or why a host says nothing."""
    if hosts.batches:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("batch", overflow="fold")
        if screen.width >= _WIDE_COLUMNS:
            table.add_column("run", overflow="fold")
        table.add_column("state", no_wrap=True)
        table.add_column("messages", overflow="fold")
        now = time.time()
        for batch in hosts.batches:
            since = "" if batch.at is None else f" {shown_duration(round(max(now - batch.at, 0.0)))}"
            state = f"{batch.state}{since} ago" if batch.host == "Dagster" else f"{batch.state}{since}"
            run = [Text(batch.run)] if screen.width >= _WIDE_COLUMNS else []
            table.add_row(Text(f"{batch.host} {batch.name}"), *run, Text(state), Text(described(batch.counts)))
        yield table
    for trouble in hosts.trouble:
        yield Text.assemble(marked(Mark.BAD, screen), f" {trouble}")


def _below(watched: Sequence[WatchedQueue], interval: float, screen: Console) -> Iterator[Text]:
    for queue in watched:
        if queue.trouble:
            yield Text.assemble(marked(Mark.BAD, screen), f" {queue.name} as it was: {queue.trouble}")
    requests = sum(1 if queue.readings[-1].dead_letters is None else 2 for queue in watched) * 3_600 / interval
    at = datetime.now(tz=UTC).astimezone().strftime("%H:%M:%S")
    yield Text(
        f"{at}, every {interval:g} s ({requests:,.0f} requests an hour). Ctrl-C ends.",
        style="dim",
    )


def _as_json(watched: Sequence[WatchedQueue], hosts: WatchedHosts) -> dict[str, Any]:
    batches = {} if not hosts.are_asked else {"batches": [asdict(batch) for batch in hosts.batches]}
    return {
        "read_at": datetime.now(tz=UTC).isoformat(),
        "queues": [
            {
                "queue": queue.name,
                "queue_url": queue.url,
                "visible": queue.readings[-1].attributes.visible,
                "in_flight": queue.readings[-1].attributes.in_flight,
                "delayed": queue.readings[-1].attributes.delayed,
                "dead_letter_arn": queue.readings[-1].attributes.dead_letter_arn,
                "dead_letters": queue.readings[-1].dead_letters,
            }
            for queue in watched
        ],
        **batches,
        **({"trouble": list(hosts.trouble)} if hosts.trouble else {}),
    }
