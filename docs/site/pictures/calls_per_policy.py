"""The cost of each renewal policy: the requests that it takes to hold 1 000 messages for an hour."""

from __future__ import annotations

from typing import Final

from benchmarks.ledger import calls_in_an_hour
from docs.site.pictures.drawing import Drawing, Scale
from sqs_lease import Buffered, Fixed, Growing, RenewalPolicy, Threshold

TENTH: Final = 100
"""Of the messages: calls are for ten messages each, so that all of them take ten times the calls."""

POLICIES: Final[dict[str, RenewalPolicy]] = {
    "Growing(), the default": Growing(visibility=30),
    "Buffered()": Buffered(visibility=30),
    "Threshold()": Threshold(visibility=30),
    "Fixed(every=15)": Fixed(visibility=30, every=15),
}


def draw() -> Drawing:
    """The picture."""
    calls = {name: 10 * calls_in_an_hour(policy, count=TENTH) for name, policy in POLICIES.items()}
    drawing = Drawing(
        960,
        250,
        "Requests to hold 1 000 messages for an hour at a visibility timeout of 30 seconds: "
        + ", ".join(f"{name} {count}" for name, count in calls.items()),
    )
    x = Scale((0, max(calls.values())), (220, 860))
    drawing.text(30, 34, "Requests to hold 1 000 messages for an hour", kind="heading")
    drawing.text(30, 56, "at a visibility timeout of 30 s, receives and deletes included", kind="small")
    for number, (name, count) in enumerate(calls.items()):
        y = 76 + number * 40
        drawing.text(30, y + 20, name)
        drawing.bar(x(0), x(count), y, 28, "good" if number == 0 else "quiet")
        drawing.text(x(count) + 8, y + 20, f"{count:,}".replace(",", " "))
    return drawing
