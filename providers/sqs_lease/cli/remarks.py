"""Remarks below or above a table: each with its mark, wrapped beside it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sqs_lease.cli.message_text import one_line
from sqs_lease.cli.output import Mark, marked


def print_remarks(screen: Console, remarks: Iterable[tuple[Mark, str]]) -> None:
    """Print remarks in order; print nothing without remarks.

    Args:
        screen: The console.
        remarks: The mark and the text of each. The text is printed without markup, on one line before it is wrapped.
    """
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for mark, text in remarks:
        grid.add_row(marked(mark, screen), Text(one_line(text)))
    if grid.row_count:
        screen.print(grid)
