"""Runs the tests: ``python -m tests.suite test``, ``processes`` or ``check``; see `make help` and CONTRIBUTING.md."""

# ruff: noqa: T201 - what it prints is for people

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.suite import plans
from tests.suite.commands import Command, CommandRun, Outcome
from tests.suite.kept_results import KeptResults, fingerprint
from tests.suite.time_limit import LEFT_OUT

RUNS: Final = plans.ROOT / ".test-runs"
"""Logs and kept results, a directory for each kind of run."""

CHECK_SECONDS: Final = 45.0
"""After this time `make check` begins no more tests, so that it takes less than a minute."""

INTERRUPTED: Final = 130


def main() -> int:
    """Run what the arguments say; 0 when all is good, 1 when something failed, 130 when the run was cut off."""
    options = _options()
    if options.what == "test":
        return _run("test", plans.whole_test(), at_once=options.at_once or 3)
    if options.what == "check":
        files = [Path(os.path.relpath(path, plans.ROOT)) for path in options.paths] or plans.changed_since_main()
        until = time.monotonic() + CHECK_SECONDS
        commands = plans.quick_check(files, until)
        return _run("check", commands, at_once=options.at_once or os.cpu_count() or 2, until=until)
    name = "chaos" if options.full else "processes"
    if options.full:
        os.environ["SQS_LEASE_CHAOS"] = "1"
    results = KeptResults(RUNS / name / "results.json", fingerprint(plans.ROOT))
    if options.again:
        results.forget()
    commands = plans.on_processes(options.host, full=options.full)
    return _run(name, commands, at_once=options.at_once or os.cpu_count() or 2, results=results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.suite", description=__doc__)
    parser.add_argument("--at-once", type=int, help="how many commands run at the same time")
    kinds = parser.add_subparsers(dest="what", required=True)
    kinds.add_parser("test", help="format, types, what is deterministic, and a short run of each host")
    check = kinds.add_parser("check", help="format, types, and the deterministic tests of what changed since main")
    check.add_argument("paths", nargs="*", help="files to test instead of those that changed")
    processes = kinds.add_parser("processes", help="the tests on real processes; continues a run that was cut off")
    processes.add_argument("--host", action="append", choices=plans.HOSTS, default=[], help="all when not given")
    processes.add_argument("--full", action="store_true", help="the long forms: all moments, engines and databases")
    processes.add_argument("--again", action="store_true", help="run also what passed on these sources before")
    return parser.parse_args()


def _run(
    kind: str,
    commands: Sequence[Command],
    *,
    at_once: int,
    until: float = math.inf,
    results: KeptResults | None = None,
) -> int:
    """Run commands, print a line for each and a table in the end."""
    began_at = time.monotonic()
    earlier = [results.good[command.name] for command in commands if results and command.name in results.good]
    left = [command for command in commands if command.name not in {outcome.name for outcome in earlier}]
    if earlier:
        print(f"{len(earlier)} of {len(commands)} passed before on these sources. Left: {_names(left)}")

    def ended(outcome: Outcome) -> None:
        number = len(earlier) + len(run.outcomes)
        print(f"[{number:>2}/{len(commands)}] {_line(outcome)}", flush=True)
        if results is not None:
            results.keep(outcome)
        log = run.log_of(outcome.name)
        if not outcome.is_good:
            print(log.read_text(errors="replace"), flush=True)
            print(f"-- {outcome.name}: {outcome.in_words}; its log is {log.relative_to(plans.ROOT)}", flush=True)
        elif kind == "check" and (said := [line for line in log.read_text().splitlines() if LEFT_OUT in line]):
            print(f"        {said[0]}; make test runs all.")

    run = CommandRun(left, RUNS / kind, at_once, ended, until=until)
    try:
        run.run()
    except KeyboardInterrupt:
        done = {outcome.name for outcome in run.outcomes}
        _print_table([*earlier, *run.outcomes])
        print(f"Cut off. Left: {_names([command for command in left if command.name not in done])}")
        return INTERRUPTED
    outcomes = [*earlier, *run.outcomes]
    _print_table(outcomes)
    if run.left_out:
        print(f"Left out, as the time was up: {_names(run.left_out)}; make test runs all.")
    bad = [outcome.name for outcome in outcomes if not outcome.is_good]
    print(f"{time.monotonic() - began_at:.0f} s. " + (f"Failed: {', '.join(bad)}" if bad else "All good."))
    tests = [sum(getattr(outcome, what) for outcome in outcomes) for what in ("passed", "failed", "skipped")]
    print("{} passed, {} failed, {} skipped".format(*tests))
    return 1 if bad else 0


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
    sys.exit(main())
