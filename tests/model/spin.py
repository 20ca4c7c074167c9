"""Compiles the model with some faults and without some rule, and searches all of its states."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MODEL: Final = Path(__file__).parent / "protocol.pml"

MOST_MEGABYTES: Final = 6000
"""The search ends when it needs more."""

LONGEST_TRACE: Final = 100_000


class MissingToolError(RuntimeError):
    """A program that this needs is not installed."""


class SearchError(RuntimeError):
    """The model does not compile, or its search did not end."""


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search.

    Attributes:
        states: How many different states were reached.
        depth: The longest way from the beginning, in steps; with a counterexample its own steps.
        megabytes: The memory that it took.
        seconds: How long it took, without compiling.
        violation: The assertion that failed; None if every state is as it should be.
        trail: The steps of the counterexample, a line for each.
    """

    states: int
    depth: int
    megabytes: float
    seconds: float
    violation: str | None = None
    trail: Sequence[str] = ()


def require_tools() -> None:
    """Check that spin and a C compiler are there.

    Raises:
        MissingToolError: One is not.
    """
    for tool in ("spin", "gcc"):
        if shutil.which(tool) is None:
            raise MissingToolError(f"{tool} is not installed: on Debian and Ubuntu, apt install spin gcc")


def search(defines: Mapping[str, int], directory: Path, *, without: str | None = None) -> Search:
    """Search all states; without a rule, for the shortest counterexample.

    Args:
        defines: How often each fault and each action of a user may happen.
        directory: An empty directory for what is generated.
        without: The rule that is taken out.

    Raises:
        SearchError: The model does not compile, or the search took too much memory.
    """
    flags = [f"-D{name}={value}" for name, value in defines.items()]
    if without is not None:
        flags.append(f"-DWITHOUT_{without}")
    shutil.copy(MODEL, directory / MODEL.name)
    _run(["spin", "-a", *flags, MODEL.name], directory)
    # Breadth first finds the shortest counterexample; depth first, with compressed states, needs the least memory.
    order = ["-O2", "-DCOLLAPSE"] if without is None else ["-O0", "-DBFS"]
    _run(["gcc", "-w", *order, "-DSAFETY", f"-DMEMLIM={MOST_MEGABYTES}", "-o", "search", "pan.c"], directory)
    found = read_search(_run(["./search", f"-m{LONGEST_TRACE}", "-w24", "-n"], directory))
    if found.violation is None:
        return found
    shown = _run(["spin", "-T", "-k", f"{MODEL.name}.trail", *flags, MODEL.name], directory, may_fail=True)
    trail = read_trail(shown)
    return Search(found.states, len(trail), found.megabytes, found.seconds, found.violation, trail)


def read_search(output: str) -> Search:
    """Read what the generated program printed.

    Raises:
        SearchError: It does not say that every state was looked at, or that one is wrong.
    """
    violation = re.search(r"assertion violated (.*) \(at depth", output)
    complete = "Search not completed" not in output and "reached -DMEMLIM" not in output and "too small" not in output
    if violation is None and not (complete and re.search(r"errors: 0$", output, re.MULTILINE)):
        raise SearchError(f"the search did not end:\n{output}")
    return Search(
        states=int(_number(r"^\s*(\d+) states, stored", output)),
        depth=int(_number(r"depth reached (\d+)", output)),
        megabytes=_number(r"([\d.]+)\s+total actual memory usage", output),
        seconds=_number(r"elapsed time ([\d.]+)", output),
        violation=None if violation is None else violation[1],
    )


def read_trail(output: str) -> list[str]:
    """The lines in which the model says what happens, in order."""
    told = (line.strip() for line in output.splitlines())
    return [
        line for line in told if line and not re.match(r"(spin:|#processes|\w+(\[\d+\])? = |\d+:|\d+ process)", line)
    ]


def _number(pattern: str, output: str) -> float:
    found = re.search(pattern, output, re.MULTILINE)
    if found is None:
        raise SearchError(f"no {pattern!r} in what the search printed:\n{output}")
    return float(found[1])


def _run(command: Sequence[str], directory: Path, *, may_fail: bool = False) -> str:
    done = subprocess.run(command, cwd=directory, text=True, capture_output=True, check=False)
    if done.returncode != 0 and not may_fail:
        raise SearchError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr
