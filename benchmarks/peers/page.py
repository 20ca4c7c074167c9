"""The table and the picture of `docs/peers.md`, from the results."""

from __future__ import annotations

from typing import Final

from benchmarks.peers.results import Results, Row
from demo.processes import ROOT

PAGE: Final = ROOT / "docs" / "peers.md"


def summary(row: Row) -> str:
    """A row in a few lines, for whoever runs it."""
    return "\n".join(
        f"  {name}: {value}"
        for name, value in (
            ("problem", row.problem),
            ("long work", row.long_work),
            ("failing work", row.failing_work),
            ("outages", row.outages),
            ("held", row.held),
            ("throughput", row.throughput),
        )
        if value
    )


def write(results: Results) -> None:
    """Bring the page and its picture up to date."""
