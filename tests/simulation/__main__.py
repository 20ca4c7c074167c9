# ruff: noqa: T201 - what it prints is for people
"""Runs schedules and prints the trace of each that breaks a rule.

``python -m tests.simulation --seeds 10000`` runs seeds 0 to 9999 on all processors, ``--seeds 500:600`` those from 500
to 599, and ``--trace 512`` runs one seed and prints its trace in any case. At the end it prints what was simulated.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.schedule import figures_of, run_schedule

CHUNK = 50


def main() -> int:
    """Return 1 if a schedule broke a rule."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default=range(2000), help="how many, or from:to; 2000 by default")
    parser.add_argument("--trace", type=int, metavar="SEED", help="run one seed and print what happens")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many to run side by side")
    options = parser.parse_args()
    if options.trace is not None:
        result = run_schedule(options.trace, tracing=True)
        print(result)
        return 1 if result.violations else 0
    began = time.monotonic()
    chunks = [options.seeds[start : start + CHUNK] for start in range(0, len(options.seeds), CHUNK)]
    failed: list[int] = []
    figures: Counter[str] = Counter()
    with ProcessPoolExecutor(options.processes) as pool:
        for done, (seeds, counted) in enumerate(pool.map(figures_of, chunks), start=1):
            failed += seeds
            figures.update(counted)
            for seed in seeds:
                print(run_schedule(seed, tracing=True))
            if done % 20 == 0 or done == len(chunks):
                at = min(done * CHUNK, len(options.seeds))
                print(f"{at} schedules, {len(failed)} broke a rule, {time.monotonic() - began:.0f} s", flush=True)
    print(", ".join(f"{count:,} {what}" for what, count in figures.items()))
    if failed:
        print(f"Broken by seeds {', '.join(map(str, failed))}")
    return 1 if failed else 0


def _seeds(text: str) -> range:
    start, colon, end = text.partition(":")
    try:
        return range(int(start), int(end)) if colon else range(int(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"a number of seeds, or from:to, not {text!r}") from None


if __name__ == "__main__":
    sys.exit(main())
