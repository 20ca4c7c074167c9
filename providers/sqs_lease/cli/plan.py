"""`sqs-lease plan`: what each renewal policy would cost, and what a crash would, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from sqs_lease.cli.durations import shown_duration, typed_duration
from sqs_lease.cli.forecast import MOST_EXTENSIONS, Forecast, TooManyExtensionsError, forecast
from sqs_lease.cli.options import Json
from sqs_lease.cli.output import CommandError, Mark, console, print_json
from sqs_lease.cli.plan_plot import check_file, draw
from sqs_lease.cli.remarks import print_remarks
from sqs_lease.core.limits import DEFAULT_VISIBILITY_SECONDS, MAX_BATCH_ENTRIES, MAX_IN_FLIGHT, MAX_VISIBILITY_SECONDS
from sqs_lease.core.policies import Fixed, RenewalPolicy
from sqs_lease.core.specs import POLICIES, encode_policy

DOLLARS_A_MILLION: Final = 0.40
"""What AWS asked in us-east-1 for a million requests to standard queues when this was written; 0.50 for FIFO queues."""

MOST_DOLLARS: Final = 1_000_000
"""Highest price of a million requests that is taken for a price."""

DAYS_A_MONTH: Final = 30

SIMULATED_MESSAGES: Final = 20
"""Most messages that are held in virtual time. All of a batch fall due together, in tens; what two tens take tells what
a hundred take."""

_MONTH_SECONDS: Final = DAYS_A_MONTH * 86_400


@dataclass(frozen=True, slots=True)
class Plan:
    """What is planned.

    Attributes:
        messages: How many messages a batch has.
        work_seconds: How long the work on it takes.
        visibility_seconds: The visibility timeout that it is received with.
        every_seconds: How often there is such a batch.
        dollars_a_million: The price of a million requests.
    """

    messages: int
    work_seconds: float
    visibility_seconds: int
    every_seconds: float
    dollars_a_million: float

    def forecasts(self) -> dict[str, Forecast]:
        """Hold a batch, or a part of it, by each policy; by the policies' names.

        Raises:
            CommandError: A policy extends too often to be counted.
        """
        return {name: self._forecast(name, kind) for name, kind in POLICIES.items()}

    def _forecast(self, name: str, kind: type[RenewalPolicy]) -> Forecast:
        simulated = min(self.messages, SIMULATED_MESSAGES)
        try:
            return forecast(self._policy(kind), messages=simulated, work_seconds=self.work_seconds)
        except TooManyExtensionsError as error:
            raise CommandError(
                f"{name} would make more than {MOST_EXTENSIONS:,} calls to extend {simulated} messages, which is as "
                f"many as plan counts: with a visibility timeout of {shown_duration(self.visibility_seconds)}, --work "
                f"can be up to {shown_duration(error.counted_seconds)}. Give less --work, or more --visibility"
            ) from None

    def _policy(self, kind: type[RenewalPolicy]) -> RenewalPolicy:
        if kind is Fixed:
            # Most consumers that extend by a fixed period do so twice in a visibility timeout.
            return Fixed(visibility=self.visibility_seconds, every=self.visibility_seconds / 2)
        return kind(visibility=self.visibility_seconds)

    def calls(self, simulated_calls: int) -> int:
        """Calls for the whole batch, where the part of it that was held took so many."""
        return simulated_calls * _tens(self.messages) // _tens(min(self.messages, SIMULATED_MESSAGES))

    def requests_a_month(self, held: Forecast) -> int:
        """The requests of all batches within 30 days."""
        return round(self.calls(held.calls) * _MONTH_SECONDS / self.every_seconds)

    def dollars_a_month(self, held: Forecast) -> float:
        """Their price."""
        return self.requests_a_month(held) * self.dollars_a_million / 1_000_000

    def __str__(self) -> str:
        messages = "1 message" if self.messages == 1 else f"{self.messages:,} messages"
        work, visibility = shown_duration(self.work_seconds), shown_duration(self.visibility_seconds)
        return f"{messages} held for {work} of work, visibility timeout {visibility}"


def plan(
    messages: Annotated[int, typer.Option(metavar="N", min=1, max=MAX_IN_FLIGHT, help="Messages in a batch.")] = 1_000,
    work: Annotated[str, typer.Option(metavar="DURATION", help="How long the work on a batch takes.")] = "1h",
    visibility: Annotated[
        str, typer.Option(metavar="DURATION", help="Visibility timeout to receive with; that of a new queue is 30 s.")
    ] = f"{DEFAULT_VISIBILITY_SECONDS}s",
    every: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How often there is such a batch; by default as soon as the last one is done."
        ),
    ] = None,
    price: Annotated[
        float,
        typer.Option(
            min=0,
            max=MOST_DOLLARS,
            metavar="DOLLARS",
            help="Price of a million requests; in us-east-1, AWS asked 0.40 for standard and 0.50 for FIFO queues.",
        ),
    ] = DOLLARS_A_MILLION,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it, too: a .png or .svg file. Needs the extra plot.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the renewal policies: API calls, their price, and how long a crash delays the messages.

    Nothing is asked of AWS. A batch is held in virtual time, by the same code that holds messages in production.
    """
    work_seconds = typed_duration(work, "--work")
    planned = Plan(
        messages,
        work_seconds,
        _visibility_seconds(visibility),
        work_seconds if every is None else typed_duration(every, "--every"),
        price,
    )
    if plot is not None:
        check_file(plot)
    held = planned.forecasts()
    if plot is not None:
        draw(plot, held, planned.calls, work_seconds=work_seconds, title=str(planned))
    if as_json:
        print_json(_as_json(planned, held))
        return
    screen = console()
    screen.print(str(planned))
    screen.print(_table(planned, held))
    print_remarks(screen, _remarks(planned, held))
    if plot is not None:
        screen.print(f"Drawn: {plot}", markup=False, soft_wrap=True)


def _visibility_seconds(text: str) -> int:
    seconds = typed_duration(text, "--visibility")
    if not 1 <= seconds <= MAX_VISIBILITY_SECONDS:
        raise CommandError(f"--visibility must be 1 second to 12 hours, not {shown_duration(seconds)}")
    return math.ceil(seconds)


def _table(planned: Plan, held: Mapping[str, Forecast]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for heading in (
        "calls\na batch",
        "requests\na month",
        "price\na month",
        "visible after\na crash within",
        "time for\na takeover",
    ):
        table.add_column(heading, justify="right", overflow="fold")
    for name, one in held.items():
        table.add_row(
            Text(name),
            f"{planned.calls(one.calls):,}",
            f"{planned.requests_a_month(one):,}",
            f"${planned.dollars_a_month(one):,.2f}",
            shown_duration(one.longest_wait_seconds),
            "" if one.least_left_seconds is None else shown_duration(one.least_left_seconds),
            style="" if one.visible_after_seconds is None else "dim",
        )
    return table


def _remarks(planned: Plan, held: Mapping[str, Forecast]) -> Iterator[tuple[Mark, str]]:
    for after, names in _lapses(held).items():
        yield (
            Mark.BAD,
            f"{', '.join(names)}: the messages are visible again after {after}, while the work goes on for "
            f"{shown_duration(planned.work_seconds)}. Others work on them, too.",
        )
    if held["growing"].visible_after_seconds is not None:
        yield Mark.NOTE, "SQS keeps no message invisible for longer than 12 h after its receive, whatever extends it."
    growing, fixed = held["growing"], held["fixed"]
    if growing.visible_after_seconds is None and growing.extends < fixed.extends:
        yield (
            Mark.GOOD,
            f"fixed makes {fixed.calls / growing.calls:.1f} times the calls of growing, the default. After a crash "
            f"late in the work, growing leaves the messages invisible for up to "
            f"{shown_duration(growing.longest_wait_seconds)}.",
        )
    yield (
        Mark.NOTE,
        f"A month: {DAYS_A_MONTH} days, {_MONTH_SECONDS / planned.every_seconds:,.0f} batches, one every "
        f"{shown_duration(planned.every_seconds)} (--every), at ${planned.dollars_a_million:.2f} for a million "
        "requests (--price). Each receive brings ten messages; empty receives come on top, and each 64 KiB of a "
        "receive counts as a request.",
    )
    yield Mark.NOTE, "A crash: everything that extends the messages dies at the worst moment, and nothing takes over."
    yield (
        Mark.NOTE,
        "A takeover: what is left of a lease when it is about to be extended. If its process dies just then, another "
        "one has that long to go on.",
    )


def _lapses(held: Mapping[str, Forecast]) -> dict[str, list[str]]:
    """The policies that do not hold the messages to the end of the work, by when they are visible again."""
    lapses: dict[str, list[str]] = {}
    for name, one in held.items():
        if one.visible_after_seconds is not None:
            lapses.setdefault(shown_duration(one.visible_after_seconds), []).append(name)
    return lapses


def _as_json(planned: Plan, held: Mapping[str, Forecast]) -> dict[str, Any]:
    return {
        "messages": planned.messages,
        "work_seconds": planned.work_seconds,
        "visibility_seconds": planned.visibility_seconds,
        "batch_every_seconds": planned.every_seconds,
        "days_a_month": DAYS_A_MONTH,
        "dollars_a_million_requests": planned.dollars_a_million,
        "policies": [
            {
                **encode_policy(one.policy),
                "calls": {
                    "receive": planned.calls(one.receives),
                    "extend": planned.calls(one.extends),
                    "delete": planned.calls(one.deletes),
                    "total": planned.calls(one.calls),
                },
                "requests_a_month": planned.requests_a_month(one),
                "dollars_a_month": round(planned.dollars_a_month(one), 4),
                "visible_within_seconds_after_crash": one.longest_wait_seconds,
                "seconds_for_takeover": one.least_left_seconds,
                "visible_while_working_after_seconds": one.visible_after_seconds,
            }
            for one in held.values()
        ],
    }


def _tens(messages: int) -> int:
    return math.ceil(messages / MAX_BATCH_ENTRIES)
