"""`sqs-lease plan`: calls and their price by renewal policy, and how long a crash keeps messages away.

The rules of the policies are not repeated here. A message is held in virtual time, without I/O, by the same
:class:`~sqs_lease.core.ledger.Ledger` that holds messages in production, and its calls are counted. One message stands
for ten: the messages of a batch are received together, so they fall due together, and a call is for ten of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from sqs_lease.cli.durations import shown_duration, typed_duration
from sqs_lease.cli.options import Json
from sqs_lease.cli.output import CommandError, Mark, console, print_json
from sqs_lease.cli.prices import DOLLARS_A_MILLION
from sqs_lease.cli.remarks import print_remarks
from sqs_lease.core.calls import EntryAnswer, ExtendCall, Verdict
from sqs_lease.core.events import Lapsed
from sqs_lease.core.ledger import Ledger
from sqs_lease.core.limits import DEFAULT_VISIBILITY_SECONDS, MAX_BATCH_ENTRIES, MAX_IN_FLIGHT, MAX_VISIBILITY_SECONDS
from sqs_lease.core.messages import Lease, Receipt, count_of
from sqs_lease.core.policies import Fixed, RenewalPolicy
from sqs_lease.core.specs import POLICIES, encode_policy

MOST_DOLLARS: Final = 1_000_000
"""Highest price of a million requests that is accepted."""

DAYS_A_MONTH: Final = 30

ANSWER_SECONDS: Final = 0.02
"""How long SQS takes for an answer in virtual time."""

_MONTH_SECONDS: Final = DAYS_A_MONTH * 86_400


@dataclass(frozen=True, slots=True)
class Hold:
    """The hold of a message by the ledger, from its receive to the end of the work.

    Attributes:
        policy: The renewal policy, with its visibility timeout.
        extensions: How often the message was extended.
        longest_wait_seconds: The most time that was left of its lease at any moment. After a crash at that moment, the
            message is visible again only after this time.
        visible_after_seconds: When its lease ended although the work went on, in seconds from the receive; None if it
            was held to the end.
    """

    policy: RenewalPolicy
    extensions: int
    longest_wait_seconds: float
    visible_after_seconds: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The workload to plan for.

    Attributes:
        messages: The number of messages of a batch.
        work_seconds: How long the work on it takes.
        visibility_seconds: The visibility timeout that it is received with.
        every_seconds: The time from one batch to the next.
        dollars_a_million: The price of a million requests.
    """

    messages: int
    work_seconds: float
    visibility_seconds: int
    every_seconds: float
    dollars_a_million: float

    def holds(self) -> dict[str, Hold]:
        """Hold a message of the batch by each policy; return the results by the policies' names."""
        return {name: hold(self._policy(kind), self.work_seconds) for name, kind in POLICIES.items()}

    def _policy(self, kind: type[RenewalPolicy]) -> RenewalPolicy:
        if kind is Fixed:
            # Most consumers that extend by a fixed period do so twice in a visibility timeout.
            return Fixed(visibility=self.visibility_seconds, every=self.visibility_seconds / 2)
        return kind(visibility=self.visibility_seconds)

    def calls(self, held: Hold) -> dict[str, int]:
        """Return the numbers of calls for a batch, by their purpose."""
        tens = math.ceil(self.messages / MAX_BATCH_ENTRIES)
        calls = {"receive": tens, "extend": tens * held.extensions, "delete": tens}
        return {**calls, "total": sum(calls.values())}

    def requests_a_month(self, held: Hold) -> int:
        """Return the requests of all batches within 30 days."""
        return round(self.calls(held)["total"] * _MONTH_SECONDS / self.every_seconds)

    def dollars_a_month(self, held: Hold) -> float:
        """Return their price."""
        return self.requests_a_month(held) * self.dollars_a_million / 1_000_000

    def __str__(self) -> str:
        work, visibility = shown_duration(self.work_seconds), shown_duration(self.visibility_seconds)
        return f"{count_of(self.messages)} held for {work} of work, visibility timeout {visibility}"


def plan(
    messages: Annotated[int, typer.Option(metavar="N", min=1, max=MAX_IN_FLIGHT, help="Messages in a batch.")] = 1_000,
    work: Annotated[str, typer.Option(metavar="DURATION", help="How long the work on a batch takes.")] = "1h",
    visibility: Annotated[
        str, typer.Option(metavar="DURATION", help="Visibility timeout to receive with; that of a new queue is 30 s.")
    ] = f"{DEFAULT_VISIBILITY_SECONDS}s",
    every: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Time from one batch to the next; by default the time of the work."),
    ] = None,
    price: Annotated[
        float,
        typer.Option(
            min=0,
            max=MOST_DOLLARS,
            metavar="DOLLARS",
            help="Price of a million requests; in us-east-1 it was 0.40 for standard and 0.50 for FIFO queues.",
        ),
    ] = DOLLARS_A_MILLION,
    as_json: Json = False,
) -> None:
    """Compare the renewal policies: API calls, their price, and how long a crash delays the messages.

    It does not call AWS. A message is held in virtual time, by the same code that holds messages in production.
    """
    work_seconds = typed_duration(work, "--work")
    planned = Plan(
        messages,
        work_seconds,
        _visibility_seconds(visibility),
        work_seconds if every is None else typed_duration(every, "--every"),
        price,
    )
    holds = planned.holds()
    if as_json:
        print_json(_as_json(planned, holds))
        return
    screen = console()
    screen.print(str(planned))
    screen.print(_table(planned, holds))
    print_remarks(screen, _remarks(planned, holds))


def hold(policy: RenewalPolicy, work_seconds: float) -> Hold:
    """Hold a message in virtual time until its work has ended. Each call to SQS succeeds.

    Args:
        policy: The renewal policy, with a visibility timeout.
        work_seconds: How long the work takes.
    """
    receipt = Receipt("0", "")
    longest_wait = float(policy.visibility_seconds)
    visible_after: float | None = None
    extensions = 0
    ledger = Ledger(Random(0))  # only the pauses after failures are random, and here nothing fails
    ledger.hold(Lease(receipt, 0.0, longest_wait), policy)
    now = 0.0
    while (due := ledger.next_due()) is not None and (now := max(now, due)) < work_seconds:
        calls = ledger.due(now)
        for event in ledger.take_events():
            if isinstance(event, Lapsed) and visible_after is None:
                visible_after = now - event.overdue_seconds
        for call in calls:
            if isinstance(call, ExtendCall):
                extensions += 1
                longest_wait = max(longest_wait, float(call.changes[0].seconds))
            now += ANSWER_SECONDS
            ledger.report(call, [EntryAnswer(receipt, Verdict.DONE)], now)
    return Hold(policy, extensions, longest_wait, visible_after)


def _visibility_seconds(text: str) -> int:
    seconds = typed_duration(text, "--visibility")
    if not 1 <= seconds <= MAX_VISIBILITY_SECONDS:
        raise CommandError(f"--visibility must be 1 second to 12 hours, not {shown_duration(seconds)}")
    return math.ceil(seconds)


def _table(planned: Plan, holds: Mapping[str, Hold]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for heading in ("calls\na batch", "requests\na month", "price\na month", "visible after\na crash within"):
        table.add_column(heading, justify="right", overflow="fold")
    for name, held in holds.items():
        table.add_row(
            Text(name),
            f"{planned.calls(held)['total']:,}",
            f"{planned.requests_a_month(held):,}",
            f"${planned.dollars_a_month(held):,.2f}",
            shown_duration(held.longest_wait_seconds),
            style="" if held.visible_after_seconds is None else "dim",
        )
    return table


def _remarks(planned: Plan, holds: Mapping[str, Hold]) -> Iterator[tuple[Mark, str]]:
    for after, names in _lapses(holds).items():
        yield (
            Mark.BAD,
            f"{', '.join(names)}: the messages are visible again after {after}, while the work goes on for "
            f"{shown_duration(planned.work_seconds)}. Other consumers work on them, too.",
        )
    if holds["growing"].visible_after_seconds is not None:
        yield Mark.NOTE, "SQS keeps a message invisible for 12 h after its receive at most, in spite of extensions."
    yield (
        Mark.NOTE,
        f"A month: {DAYS_A_MONTH} days, {_MONTH_SECONDS / planned.every_seconds:,.0f} batches, one every "
        f"{shown_duration(planned.every_seconds)} (--every), at ${planned.dollars_a_million:.2f} for a million "
        "requests (--price). Each receive brings ten messages; empty receives come on top, and each 64 KiB of a "
        "receive counts as a request.",
    )
    yield Mark.NOTE, "A crash: the process that extends the messages dies at the worst moment, without a successor."


def _lapses(holds: Mapping[str, Hold]) -> dict[str, list[str]]:
    """Return the policies that do not hold the messages to the end of the work, by the time of visibility."""
    lapses: dict[str, list[str]] = {}
    for name, held in holds.items():
        if held.visible_after_seconds is not None:
            lapses.setdefault(shown_duration(held.visible_after_seconds), []).append(name)
    return lapses


def _as_json(planned: Plan, holds: Mapping[str, Hold]) -> dict[str, Any]:
    return {
        "messages": planned.messages,
        "work_seconds": planned.work_seconds,
        "visibility_seconds": planned.visibility_seconds,
        "batch_every_seconds": planned.every_seconds,
        "days_a_month": DAYS_A_MONTH,
        "dollars_a_million_requests": planned.dollars_a_million,
        "policies": [
            {
                **encode_policy(held.policy),
                "calls": planned.calls(held),
                "requests_a_month": planned.requests_a_month(held),
                "dollars_a_month": round(planned.dollars_a_month(held), 4),
                "visible_within_seconds_after_crash": held.longest_wait_seconds,
                "visible_while_working_after_seconds": held.visible_after_seconds,
            }
            for held in holds.values()
        ],
    }
