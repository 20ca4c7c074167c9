"""Runs the tests: ``python -m tests.suite test``, ``processes`` or ``check``; see `make help` and CONTRIBUTING.md."""

# ruff: noqa: T201 - what it prints is for people

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from demo.lock import LockedError, locked
from tests.suite import plans, versions
from tests.suite.commands import Command, CommandRun, Outcome
from tests.suite.kept_results import KeptResults, fingerprint
from tests.suite.time_limit import LEFT_OUT

RUNS: Final = plans.ROOT / ".test-runs"
"""Logs and kept results, a directory for each kind of run."""

CHECK_SECONDS: Final = 45.0
"""After this time `make check` begins no more tests, so that it takes less than a minute."""

# Where the system tells (Linux does), only those that this process may use.
CORES: Final = min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
"""How many commands run at the same time by default: real processes of hosts need more than a core each."""

FAILED, CANNOT_RUN, INTERRUPTED = 1, 2, 130


class CannotRunError(RuntimeError):
    """The run cannot begin; the message says why, and what to do."""


def main() -> int:
    """Run what the arguments say.

    Returns:
        0 when all is good, 1 when something failed, 2 when nothing could run, 130 when the run was cut off.
    """
    options = _options()
    try:
        match options.what:
            case "test":
                return _test(options)
            case "check":
                return _check(options)
            case "versions":
                return _versions(options)
            case _:
                return _processes(options)
    except CannotRunError as error:
        print(error, file=sys.stderr)
        return CANNOT_RUN


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.suite", description=__doc__)
    parser.add_argument("--at-once", type=int, help="how many commands run at the same time")
    kinds = parser.add_subparsers(dest="what", required=True)
    kinds.add_parser("test", help="format, types, what is deterministic, and a short run of each host")
    check = kinds.add_parser("check", help="format, types, and the deterministic tests of what changed since main")
    check.add_argument("paths", nargs="*", type=Path, help="files to test instead of those that changed")
    processes = kinds.add_parser("processes", help="the tests on real processes; continues a run that was cut off")
    processes.add_argument("--host", action="append", choices=plans.HOSTS, default=[], help="all when not given")
    processes.add_argument("--full", action="store_true", help="the long forms: all databases, sizes and settings")
    processes.add_argument("--again", action="store_true", help="run also what passed on these sources before")
    on_versions = kinds.add_parser("versions", help="the deterministic tests on each Python and set of dependencies")
    on_versions.add_argument("--python", action="append", choices=versions.PYTHONS, default=[])
    on_versions.add_argument(
        "--resolution", action="append", choices=(*versions.RESOLUTIONS, *versions.PLATFORMS), default=[]
    )
    on_versions.add_argument("--room", action="append", choices=versions.ROOMS, default=[])
    return parser.parse_args()


def _test(options: argparse.Namespace) -> int:
    os.environ.pop(plans.FULL_FORM_VARIABLE, None)
    # Two more than there are cores: two of the commands wait most of the time.
    return run("test", plans.whole_test(), at_once=options.at_once or CORES + 2)


def _check(options: argparse.Namespace) -> int:
    until = time.monotonic() + CHECK_SECONDS
    try:
        files = plans.files_below(options.paths) if options.paths else plans.changed_since_main()
    except FileNotFoundError as error:
        raise CannotRunError(str(error)) from error
    except subprocess.CalledProcessError as error:
        raise CannotRunError('git cannot tell what changed. Name what to check: make check FILES="a b".') from error
    tests, untested = plans.nearest_tests(files)
    print(f"{len(files)} files changed, {len(tests)} test files belong to them.")
    if untested:
        print(f"No test of make check belongs to {', '.join(map(str, untested))}: see make test, make test-processes.")
    return run("check", plans.quick_check(tests, until), at_once=options.at_once or CORES, until=until)


def _processes(options: argparse.Namespace) -> int:
    name = "chaos" if options.full else "processes"
    os.environ[plans.FULL_FORM_VARIABLE] = str(int(options.full))
    commands = plans.on_processes(options.host, full=options.full)
    results = KeptResults(RUNS / name / "results.json", lambda: fingerprint(plans.ROOT))
    if options.again:
        results.forget()
    return run(name, commands, at_once=options.at_once or CORES, results=results)


def _versions(options: argparse.Namespace) -> int:
    os.environ.pop(plans.FULL_FORM_VARIABLE, None)
    cells = {cell.name: cell for cell in versions.cells(options.python, options.resolution, options.room)}
    seen: list[Outcome] = []
    # Looked up before the tests: a commit meanwhile is a mistake, but the results are of the commit before.
    commit = versions.commit_of(plans.ROOT)
    # Each environment is large, and the tests of a room keep a core busy.
    code = run("versions", [cell.command for cell in cells.values()], at_once=options.at_once or 1, seen=seen.append)
    versions.record(plans.ROOT, [(cells[outcome.name], outcome) for outcome in seen], datetime.now(UTC).date(), commit)
    return code


def run(
    kind: str,
    commands: Sequence[Command],
    *,
    at_once: int,
    until: float = math.inf,
    results: KeptResults | None = None,
    seen: Callable[[Outcome], object] = lambda _: None,
    runs: Path = RUNS,
) -> int:
    """Run commands, print a line for each, and a table in the end.

    Args:
        kind: The name of the run; it has a directory of that name for its logs.
        commands: What to run.
        at_once: How many run at the same time.
        until: When no more begin, in seconds of the monotonic clock.
        results: Where outcomes are kept, and which commands need not run again.
        seen: Called with each outcome.
        runs: Where the directories of runs are.

    Returns:
        0 when all is good, 1 when something failed, 130 when the run was cut off.

    Raises:
        CannotRunError: Another run of this kind is under way.
    """
    try:
        with locked(runs / kind / "lock"):
            return _run(kind, commands, at_once, until, results, seen, runs / kind)
    except LockedError as error:
        raise CannotRunError(
            f"Another run of this kind is under way in this checkout (pid {error.pid}). Wait for its end."
        ) from None


def _run(
    kind: str,
    commands: Sequence[Command],
    at_once: int,
    until: float,
    results: KeptResults | None,
    seen: Callable[[Outcome], object],
    directory: Path,
) -> int:
    began_at = time.monotonic()
    earlier = [results.good[command.name] for command in commands if results and command.name in results.good]
    left = [command for command in commands if command.name not in {outcome.name for outcome in earlier}]
    if earlier:
        print(f"{len(earlier)} of {len(commands)} passed before on these sources. Left: {_names(left)}")

    def ended(outcome: Outcome) -> None:
        number = len(earlier) + len(under_way.outcomes)
        print(f"[{number:>2}/{len(commands)}] {_line(outcome)}", flush=True)
        seen(outcome)
        if results is not None and not results.keep(outcome):
            print("        The sources changed meanwhile: the next run does this again.")
        log = under_way.log_of(outcome.name)
        said = log.read_text(errors="replace")
        if not outcome.is_good:
            print(said, flush=True)
            print(f"-- {outcome.name}: {outcome.in_words}; its log is {log}", flush=True)
        elif kind == "check":
            for line in said.splitlines():
                if LEFT_OUT in line:
                    print(f"        {line}; make test runs all.")

    under_way = CommandRun(left, directory, at_once, ended, until=until)
    try:
        under_way.run()
    except KeyboardInterrupt:
        good = {outcome.name for outcome in under_way.outcomes if outcome.is_good}
        _print_table([*earlier, *under_way.outcomes])
        print(f"Cut off. Left: {_names([command for command in left if command.name not in good])}")
        return INTERRUPTED
    outcomes = [*earlier, *under_way.outcomes]
    _print_table(outcomes)
    if under_way.left_out:
        print(f"Left out, as the time was up: {_names(under_way.left_out)}; make test runs all.")
    bad = [outcome.name for outcome in outcomes if not outcome.is_good]
    print(f"{time.monotonic() - began_at:.0f} s. " + (f"Failed: {', '.join(bad)}" if bad else "All good."))
    tests = [sum(getattr(outcome, what) for outcome in outcomes) for what in ("passed", "failed", "skipped")]
    print("{} passed, {} failed, {} skipped".format(*tests))
    return FAILED if bad else 0


def _line(outcome: Outcome) -> str:
    times = f"{outcome.seconds:6.1f} s {outcome.processor_seconds:6.1f} s of processor time"
    return f"{outcome.name:<36} {outcome.in_words:<28} {times}"


def _print_table(outcomes: Sequence[Outcome]) -> None:
    print("\nLongest first:")
    for outcome in sorted(outcomes, key=lambda outcome: -outcome.seconds):
        print(f"        {_line(outcome)}")
    seconds = sum(outcome.seconds for outcome in outcomes)
    processor = sum(outcome.processor_seconds for outcome in outcomes)
    print(f"        {'in all':<65} {seconds:6.1f} s {processor:6.1f} s of processor time")


def _names(commands: Sequence[Command]) -> str:
    return ", ".join(command.name for command in commands) or "nothing"


if __name__ == "__main__":
    # The output of tests may be in any alphabet, the terminal's encoding may not.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.exit(main())
