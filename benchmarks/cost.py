"""The cost of holding leases, side by side with an earlier commit.

    python -m benchmarks.cost [--against HEAD~1] [--leases 1000 50000 100000] [--runs 3]

Each figure comes from `benchmarks.keeper_load`, which says what it measures and how. It runs in a process of its own,
on the package of the other commit and on the working tree's in turn, so that a busy machine treats both alike. Both
are first copied into a temporary directory: the checkout is left alone, and may change meanwhile.

Every figure is the best of the runs; where there were several, their median is in brackets. The ratio is that of the
bests: below 1, the working tree is cheaper.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = "providers"
LONGEST_RUN_SECONDS: Final = 600.0

Runs: TypeAlias = Mapping[str, Sequence[float]]
"""Each figure's values, one for each run."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the versions that are compared.

    Attributes:
        name: Its column's heading.
        packages: The directory that has its `sqs_lease`.
    """

    name: str
    packages: Path

    def run(self, measure: str, leases: int, collector: str) -> Mapping[str, float]:
        """Measure in a process of its own.

        Raises:
            subprocess.CalledProcessError: The measurement failed; it wrote why to standard error.
        """
        command = [sys.executable, "-m", "benchmarks.keeper_load", measure, f"--leases={leases}"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.packages), str(ROOT)])}
        answer = subprocess.run(
            [*command, f"--collector={collector}"],
            cwd=self.packages,
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
            timeout=LONGEST_RUN_SECONDS,
        )
        figures: Mapping[str, float] = json.loads(answer.stdout)
        return figures


def measured(sides: Sequence[Side], measure: str, leases: int, *, runs: int, collector: str = "frozen") -> list[Runs]:
    """Measure all sides in turn, several times.

    Args:
        sides: The compared sides.
        measure: What to measure, as `benchmarks.keeper_load` calls it.
        leases: How many leases are held.
        runs: How often.
        collector: See `benchmarks.keeper_load`.

    Returns:
        The figures of each side.
    """
    figures: list[dict[str, list[float]]] = [{} for _ in sides]
    for _ in range(runs):
        for side, collected in zip(sides, figures, strict=True):
            for name, value in side.run(measure, leases, collector).items():
                collected.setdefault(name, []).append(value)
    return list(figures)


class Table:
    """Prints figures of two sides and their ratio, a line at a time.

    Args:
        sides: The compared sides, the earlier one first.
        title: The title of the figures, with their unit.
    """

    def __init__(self, sides: Sequence[Side], title: str) -> None:
        print(f"\n{title}")
        print(f"{'':34}" + "".join(f"{side.name:>20}" for side in sides) + f"{'ratio':>8}")

    def line(self, name: str, before: Sequence[float], now: Sequence[float], *, decimals: int = 1) -> None:
        """Print one figure."""
        ratio = f"{min(now) / min(before):8.2f}" if min(before) > 0 else f"{'':8}"
        print(f"{name:34}{_shown(before, decimals):>20}{_shown(now, decimals):>20}{ratio}", flush=True)


def _shown(values: Sequence[float], decimals: int) -> str:
    best = f"{min(values):,.{decimals}f}"
    return best if len(values) == 1 else f"{best} ({statistics.median(values):,.{decimals}f})"


def compare(sides: Sequence[Side], leases: Sequence[int], runs: int, *, messages: int = 1_000) -> None:
    """Measure all, and print the tables.

    Args:
        sides: The compared sides, the earlier one first.
        leases: How many leases to hold: CPU is measured at each, all else at the last.
        runs: How often what varies is measured.
        messages: For how many the calls are counted; 1 000 by default.
    """
    most = leases[-1]
    table = Table(sides, f"API calls for {messages:,} messages held for one hour, visibility timeout 30 s")
    before, now = measured(sides, "calls", messages, runs=1)
    for policy in before:
        table.line(policy, before[policy], now[policy], decimals=0)

    table = Table(sides, "CPU milliseconds per 1,000 leases and minute, each lease extended three times a minute")
    for held in leases:
        before, now = measured(sides, "cpu", held, runs=runs)
        table.line(f"{held:,} leases", before["milliseconds"], now["milliseconds"])
        for side, figures in zip(sides, (before, now), strict=True):
            if lapsed := max(figures["lapsed"]):
                print(f"    {side.name}: up to {lapsed:,.0f} leases lapsed, the machine was too slow")

    for collector, how, shown, times in _COLLECTORS:
        before, now = measured(sides, "pauses", most, runs=min(runs, times), collector=collector)
        print(f"\nLongest pauses of the event loop with {most:,} leases, CPU milliseconds; {how}")
        for kind in shown:
            table = Table(sides, _PAUSES[kind])
            for name in before:
                if name.startswith(kind):
                    table.line(name.removeprefix(f"{kind}: "), before[name], now[name])

    table = Table(sides, f"Bytes a lease, of {most:,}")
    before, now = measured(sides, "memory", most, runs=1)
    table.line("id, receipt handle, no content", before["bytes"], now["bytes"], decimals=0)


_PAUSES: Final = {
    "step": "One step, up to its next yield",
    "round": "One round of all that was ready",
    "collector": "One pause of the garbage collector, which is part of a step",
}

_COLLECTORS: Final = (
    ("frozen", "what was loaded before is frozen, as in a triggerer", ("step", "round", "collector"), 2),
    ("plain", "the garbage collector looks at 250,000 objects more", ("step",), 1),
)
"""How the garbage collector is set, what that means, which pauses are shown, and how often they are measured."""


@contextmanager
def unpacked(commit: str) -> Iterator[Sequence[Side]]:
    """A commit and the working tree, in a directory that is removed afterwards.

    Raises:
        SystemExit: Git does not know the commit.
    """
    try:
        archive = subprocess.run(
            ["git", "archive", "--format=tar", commit, PACKAGES], cwd=ROOT, capture_output=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr.decode().strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        raise SystemExit(
            f"Cannot unpack {commit} to compare with ({reason}); name another commit by --against"
        ) from error
    with tempfile.TemporaryDirectory() as directory:
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(directory, filter="data")
        shutil.copytree(ROOT / PACKAGES, Path(directory, "now"), ignore=shutil.ignore_patterns("__pycache__"))
        yield [Side(name_of(commit), Path(directory, PACKAGES)), Side("working tree", Path(directory, "now"))]


def name_of(commit: str) -> str:
    """A commit's short hash."""
    command = ["git", "rev-parse", "--short", commit]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()


def main(arguments: Iterable[str] | None = None) -> None:
    """Compare the working tree with a commit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--against", default="HEAD~1", help="the commit to compare with; the parent commit by default")
    parser.add_argument("--leases", type=int, nargs="+", default=[1_000, 50_000, 100_000])
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(None if arguments is None else list(arguments))
    with unpacked(options.against) as sides:
        compare(sides, options.leases, options.runs)


if __name__ == "__main__":
    main()
