"""`sqs-lease doctor` in a terminal, on the queue of docs/command-line.md: its checks and output, without the calls."""

from __future__ import annotations

import io
import json
from typing import Final

from rich.console import Console
from rich.text import Text

from docs.site.pictures.drawing import Drawing, Kind
from sqs_lease.cli.findings import Finding, SubjectReport, show
from sqs_lease.cli.queue_checks import QueueContext, QueueState, clock_finding, queue_findings

COLUMNS: Final = 80
"""The width of the terminal, in characters."""

LINE: Final = 18
"""The height of a line, in pixels."""

AT: Final = "https://sqs.us-east-1.amazonaws.com"
ARN: Final = "arn:aws:sqs:us-east-1:123456789012:returns"
REGION: Final = ("--region", "us-east-1")

_KINDS: Final[dict[str, Kind]] = {"color(2)": "good", "color(1)": "bad", "color(6)": "invisible"}
"""The kind of text by the colour that the command gives it: green, red, cyan."""


def queue() -> SubjectReport:
    """The findings about a queue with a short timeout, few receives and an ordinary dead-letter queue."""
    redrive = {"deadLetterTargetArn": f"{ARN}-dead-letters", "maxReceiveCount": 2}
    attributes = {"QueueArn": ARN, "VisibilityTimeout": "12", "RedrivePolicy": json.dumps(redrive)}
    url = f"{AT}/123456789012/returns"
    dead = QueueState(f"{url}-dead-letters", {"QueueArn": f"{ARN}-dead-letters"}, REGION)
    reached = f"{AT} answered in 52 ms, region us-east-1, credentials from environment variables"
    allowed = (
        "allowed: GetQueueUrl, GetQueueAttributes, ChangeMessageVisibility, DeleteMessage; not denied, but only a real "
        "call would prove more: ReceiveMessage"
    )
    findings = (
        Finding.fine("access", reached),
        clock_finding(0.0),
        Finding.fine("permissions", allowed),
        *queue_findings(QueueState(url, attributes, REGION), QueueContext(dead_letters=dead)),
    )
    return SubjectReport(subject="returns", detail=url, findings=findings)


def output() -> list[Text]:
    """The lines of the terminal, with their colours."""
    found = queue()
    # Whatever the environment says about colours.
    screen = Console(
        file=io.StringIO(),
        record=True,
        force_terminal=True,
        color_system="standard",
        no_color=False,
        width=COLUMNS,
        highlight=False,
    )
    screen.print(Text("$ sqs-lease doctor returns"))
    show([found], screen)
    screen.print(f"[bold red]{found.problems} problems found.[/]")
    printed = Text.from_ansi(screen.export_text(styles=True))
    # A command is never wrapped by the program, so the terminal does it.
    return [part for line in printed.split() for part in line.divide(range(COLUMNS, len(line), COLUMNS))]


def draw() -> Drawing:
    """The picture."""
    lines = output()
    drawing = Drawing(
        680,
        LINE * len(lines) + 36,
        "The output of sqs-lease doctor returns in a terminal: what is in order has a green mark. Each of three "
        "problems has a red cross, its reason, the change, and a command that makes it.",
    )
    for number, line in enumerate(lines):
        drawing.code(24, 32 + LINE * number, [(part.plain, kind(part)) for part in line.divide(edges(line))])
    return drawing


def edges(line: Text) -> list[int]:
    """Where the style of a line changes, without its beginning and its end."""
    found = {edge for span in line.spans for edge in (span.start, span.end)}
    return sorted(found - {0, len(line)})


def kind(part: Text) -> Kind:
    """The kind of a part of a line that has one style."""
    style = " ".join(str(span.style) for span in part.spans)
    if "dim" in style:
        return "quiet"
    return next((kind for colour, kind in _KINDS.items() if colour in style), "strong" if "bold" in style else "")
