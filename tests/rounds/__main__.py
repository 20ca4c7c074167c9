"""Plays many rounds: ``python -m tests.rounds --rounds 300 --host plain,spark``; see `tests/rounds/README.md`."""

# ruff: noqa: T201 - what it prints is for people

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from demo.lock import LockedError, locked
from demo.processes import ROOT
from tests.rounds.airflow_host import AirflowHost
from tests.rounds.dagster_host import DagsterHost
from tests.rounds.disks import unmount_left
from tests.rounds.draw import draw
from tests.rounds.plain import FIFO_TRAITS, PlainHost
from tests.rounds.play import Player, Round
from tests.rounds.progress import RoundSummary, Run
from tests.rounds.spark import SparkHost
from tests.rounds.stacks import Host, stack

RUNS: Final = ROOT / ".test-runs" / "rounds"

HOSTS: Final[dict[str, Host]] = {
    host.traits.name: host
    for host in (
        PlainHost(),
        PlainHost(FIFO_TRAITS),
        AirflowHost(),
        DagsterHost(),
        SparkHost("delta"),
        SparkHost("parquet"),
    )
}
LANES: Final = {"plain": 6, "fifo": 6}
"""How many stacks of a host play side by side; one where it is not named."""

FAILED, CANNOT_RUN, INTERRUPTED = 1, 2, 130


def main() -> int:
    """Play what the arguments say.

    Returns:
        0 when no rule was broken, 1 when one was, 2 when nothing could be played, 130 when the run was cut off.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.rounds", description=__doc__)
    parser.add_argument("--rounds", type=int, required=True, help="how many rounds each host plays")
    parser.add_argument("--host", default=",".join(HOSTS), help=f"some of {', '.join(HOSTS)}; all by default")
    parser.add_argument("--seed", type=int, help="the seed of the first round; the next ones have the next numbers")
    parser.add_argument("--keep-going", action="store_true", help="play the rest after a round that broke a rule")
    options = parser.parse_args()
    hosts = options.host.split(",")
    if unknown := set(hosts) - set(HOSTS):
        parser.error(f"no such host: {', '.join(sorted(unknown))}")
    try:
        with locked(RUNS / "lock"):
            # A file for each size, so that a round that is repeated alone does not end the run that it was found in.
            path = RUNS / f"{'+'.join(hosts)}-{options.rounds}.json"
            run = Run.begin(path, options.rounds, hosts, options.seed)
            return Rounds(run, keep_going=options.keep_going).play()
    except LockedError as error:
        print(f"Rounds are under way in this checkout (pid {error.pid}). Wait for their end.", file=sys.stderr)
        return CANNOT_RUN


class Rounds:
    """The rounds of a run that are left.

    Args:
        run: The run.
        keep_going: Whether to play on after a round that broke a rule.
    """

    def __init__(self, run: Run, *, keep_going: bool) -> None:
        self._run = run
        self._keep_going = keep_going
        self._stop = threading.Event()
        self._was_cut_off = False
        self._writing = threading.Lock()
        self._error: BaseException | None = None

    def play(self) -> int:
        """Play them, host by host."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._cut_off)
        stacks = RUNS / "stacks"
        if stacks.exists():
            unmount_left(stacks)
            shutil.rmtree(stacks)
        for name in self._run.hosts:
            left = self._run.left(name)
            if not left:
                continue
            print(f"{name}: {len(left)} of {self._run.rounds} rounds left, of the seeds from {self._run.seed} on.")
            seeds: SimpleQueue[int] = SimpleQueue()
            for seed in left:
                seeds.put(seed)
            lanes = [
                threading.Thread(target=self._lane, args=(HOSTS[name], seeds, stacks / f"{name}-{lane}"))
                for lane in range(min(LANES.get(name, 1), len(left)))
            ]
            for lane in lanes:
                lane.start()
            for lane in lanes:
                lane.join()
            if self._stop.is_set():
                break
        if self._error is not None:
            raise self._error
        print("\n".join(self._run.table()))
        if self._was_cut_off:
            print("Cut off. The same command goes on.")
            return INTERRUPTED
        return FAILED if any(each.findings for played in self._run.kept.values() for each in played) else 0

    def _cut_off(self, *_: object) -> None:
        self._was_cut_off = True
        self._stop.set()

    def _lane(self, host: Host, seeds: SimpleQueue[int], directory: Path) -> None:
        try:
            number = 0
            while not self._stop.is_set() and not seeds.empty():
                number += 1
                self._on_one_stack(host, seeds, directory.with_name(f"{directory.name}-{number}"))
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            self._error = error
            self._stop.set()

    def _on_one_stack(self, host: Host, seeds: SimpleQueue[int], directory: Path) -> None:
        """Play on a stack until all is played, or a round broke a rule: then the state of the stack is unknown."""
        with stack(host, directory) as running:
            player = Player(running, self._stop)
            while not self._stop.is_set():
                try:
                    seed = seeds.get_nowait()
                except Empty:
                    return
                played = player.play(draw(host.traits, seed))
                if played is None:
                    return
                with self._writing:
                    self._keep(host, played, directory)
                if played.findings:
                    if not self._keep_going:
                        self._stop.set()
                    return

    def _keep(self, host: Host, played: Round, directory: Path) -> None:
        kept = RoundSummary.of(played, host.traits.workers)
        self._run.keep(host.traits.name, kept)
        outcome = "; ".join(sorted({rule for rule, _ in kept.findings})) or "good"
        number = len(self._run.kept[host.traits.name])
        faults = ", ".join(kept.faults)
        which = f"[{number:>4}/{self._run.rounds}] {host.traits.name} {kept.seed}"
        print(f"{which} {kept.seconds:6.1f} s  {outcome}  ({faults})", flush=True)
        if played.findings:
            place = RUNS / f"{host.traits.name}-{kept.seed}"
            keep_failed(played, directory, place)
            for _, text in kept.findings[:5]:
                print(f"        {text}")
            print(f"        Logs, notes and ledger are in {place}. Again: SEED={kept.seed} ROUNDS=1", flush=True)


def keep_failed(played: Round, directory: Path, place: Path) -> None:
    """Keep what is known of a round that broke a rule."""
    if place.exists():
        shutil.rmtree(place)
    shutil.copytree(directory, place, ignore=shutil.ignore_patterns("disk"))
    (place / "round.txt").write_text("\n".join(_told(played)) + "\n")
    with (place / "ledger.jsonl").open("w") as file:
        for entry in played.evidence.entries:
            file.write(json.dumps(asdict(entry)) + "\n")


def _told(played: Round) -> Iterator[str]:
    plan, evidence = played.plan, played.evidence
    yield f"{plan.host}, seed {plan.seed}, visibility {plan.visibility_seconds} s, {len(plan.messages)} messages"
    yield from map(str, plan.faults)
    yield ""
    for finding in played.findings:
        yield f"{finding.rule.value}: {finding.text}"
    yield ""
    for window in sorted(evidence.windows, key=lambda each: each.began_at):
        kind = "the machine was busy" if window.kind is None else window.kind.value
        yield f"{window.began_at:.3f} to {window.ended_at:.3f} {kind} {window.worker or ''}"
    yield ""
    for message_id, work in evidence.sent.items():
        yield f"{message_id} {work}"
    yield ""
    for block in sorted(evidence.blocks, key=lambda each: each.began_at):
        end = "well" if block.is_green else "with an error"
        yield f"{block.began_at:.3f} to {block.ended_at:.3f} {block.worker} {end}: {', '.join(sorted(block.ids))}"


if __name__ == "__main__":
    sys.exit(main())
