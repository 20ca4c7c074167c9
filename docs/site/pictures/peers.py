"""Costs of other consumers of SQS: requests for long work, and how long a failed message stays invisible."""

from __future__ import annotations

import re

from benchmarks.peers.results import FailingWork, Results, load
from docs.site.pictures.drawing import Drawing, Scale, Style

OURS = ("ours", "consumer")
"""How the names of our own rows begin."""


def draw(results: Results | None = None) -> Drawing:
    """The picture.

    Args:
        results: The measured results; those of the results file by default.
    """
    measured = [
        (row.name, re.sub(r"[*`]", "", row.title), row.long_work, row.failing_work)
        for row in (results or load()).rows
        if row.long_work is not None and row.failing_work is not None
    ]
    drawing = Drawing(
        960,
        76 + 34 * len(measured),
        "Requests for long work, and seconds from a failure to when the message is visible again: "
        + "; ".join(f"{title} {work.requests}, {_visible(failing)}" for _, title, work, failing in measured),
    )
    drawing.text(30, 34, "Requests while the work lasts", kind="heading")
    drawing.text(560, 34, "Seconds from failure to visible", kind="heading")
    requests = Scale((0, max((work.requests for _, _, work, _ in measured), default=1)), (240, 480))
    longest = max((failing.visible_after_seconds or 0.0 for _, _, _, failing in measured), default=0.0)
    seconds = Scale((0, longest or 1.0), (560, 860))
    for number, (name, title, work, failing) in enumerate(measured):
        y = 56 + 34 * number
        style: Style = "good" if name.startswith(OURS) else "quiet"
        drawing.text(30, y + 17, title, kind="small")
        drawing.bar(requests(0), requests(work.requests), y, 24, style)
        drawing.text(requests(work.requests) + 6, y + 17, str(work.requests), kind="small")
        visible = failing.visible_after_seconds
        if visible is not None:
            drawing.bar(seconds(0), seconds(visible), y, 24, style)
        drawing.text(seconds(visible or 0.0) + 6, y + 17, _visible(failing), kind="small")
    return drawing


def _visible(failing: FailingWork) -> str:
    if failing.visible_after_seconds is None:
        return f"never, {failing.lost} lost"
    return f"{failing.visible_after_seconds:.2f}"
