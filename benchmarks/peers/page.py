"""The tables and the picture of `docs/peers.md`, from the results: no figure there is written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from benchmarks.peers.programs import PEERS
from benchmarks.peers.results import Held, Results, Row
from demo.processes import ROOT
from docs.site.pictures import peers

PAGE: Final = ROOT / "docs" / "peers.md"
PICTURE: Final = ROOT / "docs" / "pictures" / "peers.svg"

OURS: Final = "ours"
CONSUMER: Final = "consumer"
OURS_IN_PYTHON: Final = (CONSUMER, OURS, "ours-1000")
THREADS: Final = "boto3-10"
SAME_CALLS: Final = "same-calls"
SAME_REQUESTS: Final = 0.02
"""Two peers send the same requests where their numbers differ by no more than this share."""

CLEARLY: Final = 0.9
"""Better is what is at most so much of ours: less is within what two runs differ by."""

MORE_IS_BETTER: Final = "messages a second"
WITHOUT_WORK: Final = ("seconds to its first message", "processor time a message without work", MORE_IS_BETTER)
"""Of these figures, ours is that of the consumer: it is what is meant for many messages."""

_BEGIN: Final = "<!-- From benchmarks/peers/results.json, by `make benchmark-peers`: begin -->"
_END: Final = "<!-- From benchmarks/peers/results.json: end -->"


def summary(row: Row) -> str:
    """Return a row in a few lines, for the terminal."""
    found = {
        "problem": row.problem,
        "long work": row.long_work,
        "failing work": row.failing_work,
        "outages": row.outages,
        "held": row.held,
        "throughput": row.throughput,
    }
    return "\n".join(f"  {name}: {value}" for name, value in found.items() if value)


def ratios(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the cost of sqs-lease in plain Python beside the cheapest peers: a line for each of its peers.

    Args:
        rows: Those of one run: rows of two runs are not comparable.
    """
    found = {row.name: row for row in rows}
    ours = [row for name in OURS_IN_PYTHON if (row := found.get(name)) is not None]
    threads = _processor_microseconds(found[THREADS]) if THREADS in found else None
    others = {row.name: row.throughput.a_second for row in rows if not _is_ours(row) and row.throughput}
    best = max(others, key=others.__getitem__, default="")
    for row in ours:
        parts = []
        if threads and (own := _processor_microseconds(row)):
            parts.append(f"processor time a message {own / threads:.2f} x {THREADS}")
        if best and others[best] and row.throughput:
            parts.append(f"messages a second {row.throughput.a_second / others[best]:.2f} x the best other ({best})")
        if parts:
            yield f"{row.name}: {'; '.join(parts)}"
    calls = _held_all(found[SAME_CALLS]) if SAME_CALLS in found else None
    for row in ours:
        if calls and calls.processor_percent and (held := _held_all(row)):
            ratio = held.processor_percent / calls.processor_percent
            requests = held.requests_a_minute / calls.requests_a_minute if calls.requests_a_minute else 1.0
            # On a busy machine, the one thread of the other may not keep up.
            how_many = f", with {requests:.2f} x its requests" if abs(requests - 1) > SAME_REQUESTS else ""
            yield f"{row.name} holding {held.messages}: {ratio:.2f} x {SAME_CALLS}{how_many}"


def _is_ours(row: Row) -> bool:
    return row.name == CONSUMER or row.name.startswith(OURS)


def write(results: Results) -> None:
    """Bring the page and its picture up to date."""
    PAGE.write_text(with_results(PAGE.read_text(), results))
    PICTURE.write_text(peers.draw(results).svg())


def with_results(text: str, results: Results) -> str:
    """The page with these results in it.

    Args:
        text: The page, which has the two marks between which the results are.
        results: The results.

    Raises:
        ValueError: The page does not have the marks.
    """
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{PAGE} has lost the marks between which the results stand")
    return f"{before}{begin}\n\n{tables(results)}\n\n{end}{after}"


def tables(results: Results) -> str:
    """All that is written from the results, in Markdown."""
    rows = results.rows
    return "\n\n".join(
        [
            f"Machine: {results.machine}.",
            "### Long work, failing work, outages",
            _table(
                ["", "requests", "to the second consumer", "done", "lost", "visible after", "outages: second/done"],
                [
                    [row.title, _requests(row), _delivered(row), _done(row), _lost(row), _visible(row), _outages(row)]
                    for row in rows
                    if row.name not in PEERS or "work" in PEERS[row.name].scenarios
                ],
            ),
            "### Many at once, and no work at all",
            _table(
                [
                    "",
                    "held at once",
                    "processor",
                    "memory",
                    "requests a minute",
                    "first message",
                    "messages a second",
                    "processor a message",
                ],
                [[row.title, *_held(row), *_throughput(row)] for row in rows],
            ),
            "### Where another one does better",
            "\n".join(f"- {line}" for line in better(rows)) or "In none of these figures, by more than a tenth.",
            "### Versions and configuration",
            _table(
                ["", "version", "how", "on", "load", "without work"],
                [
                    [row.title, row.version, row.how, row.ran_on, f"{row.load:g}", f"{row.sizes.throughput} messages"]
                    for row in rows
                ],
            ),
            *(f"{row.title}: {row.problem}." for row in rows if row.problem),
            *([f"Not measured yet: {', '.join(absent)}."] if (absent := _absent(rows)) else []),
        ]
    )


def better(rows: Sequence[Row]) -> Iterator[str]:
    """Where a peer is clearly better than sqs-lease in plain Python: a sentence for each figure."""
    leases = next((row for row in rows if row.name == OURS), None)
    if leases is None:
        return
    consumer = next((row for row in rows if row.name == CONSUMER), leases)
    figures: Sequence[tuple[str, Callable[[Row], float | None], str]] = (
        ("requests for long work", lambda row: row.long_work.requests if row.long_work else None, "{:.0f}"),
        ("seconds from failure to visible", _visible_seconds, "{:.2f}"),
        (
            "processor for what it holds",
            lambda row: held.processor_percent if (held := _held_all(row)) else None,
            "{:.2f} %",
        ),
        (
            "memory for what it holds",
            lambda row: held.memory_megabytes if (held := _held_all(row)) else None,
            "{:.0f} MB",
        ),
        (
            "requests a minute for what it holds",
            lambda row: held.requests_a_minute if (held := _held_all(row)) else None,
            "{:.0f}",
        ),
        (
            "seconds to its first message",
            lambda row: row.throughput.first_seconds if row.throughput else None,
            "{:.1f}",
        ),
        ("processor time a message without work", _processor_microseconds, "{:.0f} µs"),
        (MORE_IS_BETTER, lambda row: row.throughput.a_second if row.throughput else None, "{:.0f}"),
    )
    yield from _better_in_outages(rows, leases)
    for name, figure, form in figures:
        ours = consumer if name in WITHOUT_WORK else leases
        own = figure(ours)
        if own is None:
            continue
        found = [(row, value) for row in rows if row is not ours and (value := figure(row)) is not None]
        ahead = [
            (row, value)
            for row, value in found
            if (CLEARLY * value > own if name == MORE_IS_BETTER else value < CLEARLY * own)
        ]
        if ahead:
            others = ", ".join(f"{row.title} {form.format(value)}" for row, value in ahead)
            yield f"{name[0].upper()}{name[1:]}: {others}; {ours.title} {form.format(own)}."


def _absent(rows: Sequence[Row]) -> list[str]:
    """The titles of the peers that have no row, because they were never run."""
    return [peer.title for name, peer in PEERS.items() if name not in {row.name for row in rows}]


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(
        f"| {' | '.join(cells)} |"
        for cells in [head, ["---"] * len(head), *([cell or "-" for cell in line] for line in lines)]
    )


def _requests(row: Row) -> str:
    if (work := row.long_work) is None:
        return "-"
    parts = {
        "receive": work.receives,
        "empty": work.empty_receives,
        "extend": work.extensions,
        "delete": work.deletes,
        "other": work.others,
    }
    return f"{work.requests} ({', '.join(f'{count} {name}' for name, count in parts.items() if count)})"


def _delivered(row: Row) -> str:
    if (work := row.long_work) is None:
        return "-"
    return f"{work.deliveries} of {row.sizes.messages}" + (f", {work.again} again to itself" if work.again else "")


def _done(row: Row) -> str:
    return f"{row.long_work.done}" if row.long_work else "-"


def _lost(row: Row) -> str:
    return f"{row.failing_work.lost} of {row.sizes.messages}" if row.failing_work else "-"


def _visible_seconds(row: Row) -> float | None:
    return row.failing_work.visible_after_seconds if row.failing_work else None


def _visible(row: Row) -> str:
    if row.failing_work is None:
        return "-"
    seconds, before = row.failing_work.visible_after_seconds, row.failing_work.delivered_before
    return ("never" if seconds is None else f"{seconds:.2f} s") + (f", {before} before it failed" if before else "")


def _better_in_outages(rows: Sequence[Row], ours: Row) -> Iterator[str]:
    for own in ours.outages:
        found = [(row, outage) for row in rows for outage in row.outages if outage.after_seconds == own.after_seconds]
        ahead = [
            f"{row.title} {outage.deliveries}"
            for row, outage in found
            if outage.deliveries < own.deliveries and outage.done > own.done
        ]
        if ahead:
            yield (
                f"Messages that the second consumer was given in the outage that began at {own.after_seconds} s: "
                f"{', '.join(ahead)}; {ours.title} {own.deliveries}."
            )


def _outages(row: Row) -> str:
    """Messages to the second consumer and messages done, for each outage in the order of their beginnings."""
    return ", ".join(
        f"{outage.deliveries}/{outage.done}" + ("" if outage.survived else " (process ended)") for outage in row.outages
    )


def _held_all(row: Row) -> Held | None:
    """Return the figures of a peer that held all its messages; None if it did not."""
    return row.held if row.held and row.held.messages >= row.sizes.held else None


def _held(row: Row) -> list[str]:
    held = row.held
    if held is None:
        return ["-"] * 4
    lapsed = f", {held.deliveries} to the second" if held.deliveries else ""
    return [
        f"{held.messages} of {row.sizes.held}{lapsed}",
        f"{held.processor_percent:.2f} %",
        f"{held.memory_megabytes:.0f} MB",
        f"{held.requests_a_minute:.0f}",
    ]


def _processor_microseconds(row: Row) -> float | None:
    return row.throughput.processor_microseconds if row.throughput else None


def _throughput(row: Row) -> list[str]:
    found = row.throughput
    if found is None:
        return ["-"] * 3
    used = found.processor_microseconds
    return [f"{found.first_seconds:.1f} s", f"{found.a_second:.0f}", "-" if used is None else f"{used:.0f} µs"]
