r"""The comparison of peers on one SQS server, and its results: `make benchmark-peers`.

    python -m benchmarks.peers [--peers boto3 ours ...] [--scenarios work ...] [--held 10000] [--throughput 100000]

Long work of three peers goes on side by side, because they do little but wait; all else is measured of one peer after
the other.
Each run replaces the rows of its peers in `benchmarks/peers/results.json`, or its scenarios in them, and draws the
table and the picture of `docs/peers.md` from all of them. The processes' output is in `.test-runs/peers`.
At the end it prints the cost of sqs-lease beside the cheapest peers of this run:

    python -m benchmarks.peers --scenarios throughput held --held 1000 \
        --peers boto3 boto3-10 sqs-consumer consumer ours ours-1000 same-calls
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import traceback
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Final

from benchmarks.peers import page
from benchmarks.peers.programs import PEERS, Boto3Threads, Peer
from benchmarks.peers.proxy import Proxy
from benchmarks.peers.results import Results, Row, Sizes, load, save
from benchmarks.peers.scenarios import Ground
from benchmarks.peers.server import elasticmq, server_version
from demo.processes import ROOT
from demo.sqs_server import SqsServer

DIRECTORY: Final = ROOT / ".test-runs" / "peers"

SCENARIOS: Final = {"work": "long work", "held": "many at once", "throughput": "no work"}
"""Long work of all kinds, many messages at once, and no work at all: by their names on the command line."""

WARM_UP_MESSAGES: Final = 10_000

SIDE_BY_SIDE: Final = 3
"""So many peers have long work at the same time."""


def measured(peer: Peer, server: SqsServer, proxy: Proxy, sizes: Sizes, scenarios: Collection[str]) -> Row:
    """Take one peer through the scenarios.

    A scenario that it does not survive leaves its figures out, and says why.
    """
    directory = DIRECTORY / "-".join([peer.name, *scenarios])
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    row = Row(
        name=peer.name,
        title=peer.title,
        version="",
        how=peer.how,
        ran_on=datetime.now(UTC).date().isoformat(),
        sizes=sizes,
        load=round(os.getloadavg()[0], 1),
    )
    problems: list[str] = []
    try:
        row = replace(row, version=peer.version)
        ground = Ground(server, proxy, peer, sizes, directory)
    except (OSError, subprocess.CalledProcessError, RuntimeError) as error:
        return replace(row, problem=f"not installed: {error}")

    def attempt(scenario: str, measure: Callable[[], Any]) -> Any:
        what = SCENARIOS[scenario]
        print(f"{datetime.now(UTC):%H:%M:%S} {peer.name}: {what}", flush=True)
        try:
            return measure()
        # A peer may fail in any way: its row says how.
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            problems.append(f"{what}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
            return None

    long_work, failing_work, outages = None, None, ()
    held = throughput = None
    if "work" in scenarios:
        long_work, failing_work, outages = attempt("work", ground.long_work) or (None, None, ())
    if "held" in scenarios:
        held = attempt("held", ground.held)
    if "throughput" in scenarios:
        throughput = attempt("throughput", ground.throughput)
    return replace(
        row,
        long_work=long_work,
        failing_work=failing_work,
        outages=outages,
        held=held,
        throughput=throughput,
        problem="; ".join(problems),
    )


def warm_up(server: SqsServer, proxy: Proxy, sizes: Sizes) -> None:
    """Have messages go through the server: it compiles its code meanwhile, so that its first calls are slower."""
    directory = DIRECTORY / "warm-up"
    directory.mkdir(exist_ok=True)
    few = replace(sizes, throughput=min(sizes.throughput, WARM_UP_MESSAGES))
    Ground(server, proxy, Boto3Threads(), few, directory).throughput()


def merged(results: Results, row: Row, scenarios: Collection[str] = SCENARIOS) -> Results:
    """The results with a row in the place that its peer has in the order of all.

    Args:
        results: The former ones.
        row: The new one.
        scenarios: The scenarios that were measured for it; the others keep their figures if the version is the same.
    """
    rows = {former.name: former for former in results.rows}
    former = rows.get(row.name)
    if former is not None and former.version == row.version:
        if "work" not in scenarios:
            row = replace(
                row,
                sizes=replace(former.sizes, held=row.sizes.held, throughput=row.sizes.throughput),
                long_work=former.long_work,
                failing_work=former.failing_work,
                outages=former.outages,
            )
        if "held" not in scenarios:
            row = replace(row, sizes=replace(row.sizes, held=former.sizes.held), held=former.held)
        if "throughput" not in scenarios:
            sizes = replace(row.sizes, throughput=former.sizes.throughput)
            row = replace(row, sizes=sizes, throughput=former.throughput)
        others = {what for scenario, what in SCENARIOS.items() if scenario not in scenarios}
        kept = [problem for problem in former.problem.split("; ") if problem.partition(":")[0] in others]
        row = replace(row, problem="; ".join([*kept, *filter(None, [row.problem])]))
    rows[row.name] = row
    order = [*PEERS, *(name for name in rows if name not in PEERS)]
    return replace(results, rows=tuple(rows[name] for name in order if name in rows))


def machine() -> str:
    """Return a description of the machine."""
    return f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, {server_version()}"


def main() -> None:
    """Run them."""
    sizes = Sizes()
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--peers", nargs="+", choices=[*PEERS], default=[*PEERS], help="which; all by default")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=SCENARIOS, help="which; all by default")
    parser.add_argument("--messages", type=int, default=sizes.messages, help="messages with long work")
    parser.add_argument("--work-seconds", type=int, default=sizes.work_seconds, help="how long the work takes")
    parser.add_argument("--held", type=int, default=sizes.held, help="messages held at once")
    parser.add_argument("--throughput", type=int, default=sizes.throughput, help="messages without work")
    options = parser.parse_args()
    sizes = replace(
        sizes,
        messages=options.messages,
        work_seconds=options.work_seconds,
        fixed_visibility_seconds=2 * options.work_seconds,
        held=options.held,
        throughput=options.throughput,
    )
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    writing = Lock()
    rows: list[Row] = []
    # One server and one proxy for all: each peer's queues are deleted when it is done with them.
    with elasticmq(DIRECTORY) as server, Proxy(server.endpoint_url).running() as proxy:

        def measure(name: str, wanted: Collection[str]) -> None:
            peer = PEERS[name]()
            if not (scenarios := [scenario for scenario in wanted if scenario in peer.scenarios]):
                return
            row = measured(peer, server, proxy, sizes, scenarios)
            with writing:
                rows.append(row)
                results = replace(merged(load(), row, scenarios), machine=machine())
                save(results)
                page.write(results)
                print(f"{name}:\n{page.summary(row)}", flush=True)

        if "work" in options.scenarios:
            with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
                list(threads.map(lambda name: measure(name, ["work"]), options.peers))
        if alone := [scenario for scenario in SCENARIOS if scenario in options.scenarios and scenario != "work"]:
            if "throughput" in alone:
                warm_up(server, proxy, sizes)
            for name in options.peers:
                measure(name, alone)
    print("\n".join(page.ratios(rows)))


if __name__ == "__main__":
    main()
