"""The rounds of a long run so far, in a file that is written after each: a run that was cut off goes on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import randrange
from typing import Any

from tests.rounds.play import Round

LARGEST_SEED = 1_000_000


@dataclass(frozen=True, slots=True)
class RoundSummary:
    """The summary of a round.

    Attributes:
        seed: Its seed.
        seconds: How long it took.
        messages: How many were sent.
        receptions: How often the service gave one away.
        faults: The kinds of faults that it had.
        left_out: Those that the machine did not allow.
        findings: The rules that were broken, and how.
        starved_seconds: How long a worker waited for a processor, on the average: the auditor excuses a lease that
            lapses then.
    """

    seed: int
    seconds: float
    messages: int
    receptions: int
    faults: list[str]
    left_out: list[str]
    findings: list[tuple[str, str]]
    starved_seconds: float = 0.0

    @classmethod
    def of(cls, played: Round, workers: int) -> RoundSummary:
        """Sum up a round that was played by so many workers."""
        starved = sum(
            (window.ended_at - window.began_at) * (workers if window.worker is None else 1)
            for window in played.evidence.windows
            if window.kind is None
        )
        left_out = [fault.kind.value for fault in played.left_out]
        return cls(
            seed=played.plan.seed,
            seconds=round(played.seconds, 1),
            messages=len(played.plan.messages),
            receptions=sum(entry.kind == "receive" for entry in played.evidence.entries),
            faults=sorted(fault.kind.value for fault in played.happened),
            left_out=left_out,
            findings=[(finding.rule.value, finding.text) for finding in played.findings],
            starved_seconds=round(starved / workers, 1),
        )

    @classmethod
    def read(cls, stored: dict[str, Any]) -> RoundSummary:
        """Read the summary of a round, as JSON has it."""
        findings = [(rule, text) for rule, text in stored.pop("findings")]
        return cls(**stored, findings=findings)


@dataclass(slots=True)
class Run:
    """A run of so many rounds on each of some hosts.

    Attributes:
        path: The file that it is kept in.
        seed: The seed of the first round; each next one has the next number.
        rounds: How many rounds each host has.
        hosts: The hosts.
        kept: The rounds that were played, by host.
    """

    path: Path
    seed: int
    rounds: int
    hosts: list[str]
    kept: dict[str, list[RoundSummary]] = field(default_factory=dict)

    @classmethod
    def begin(cls, path: Path, rounds: int, hosts: Sequence[str], seed: int | None) -> Run:
        """Go on with the run of a file, if it is the one that is asked for and not over; else begin another one."""
        if path.exists():
            stored = json.loads(path.read_text())
            kept = {host: [RoundSummary.read(each) for each in played] for host, played in stored.pop("kept").items()}
            run = cls(path, stored["seed"], stored["rounds"], stored["hosts"], kept)
            is_asked_for = (run.rounds, run.hosts) == (rounds, list(hosts)) and seed in {None, run.seed}
            if is_asked_for and any(run.left(host) for host in hosts):
                return run
        return cls(path, randrange(LARGEST_SEED) if seed is None else seed, rounds, list(hosts))

    def left(self, host: str) -> list[int]:
        """The seeds of the rounds that a host has still to play."""
        played = {each.seed for each in self.kept.get(host, ())}
        return [seed for seed in range(self.seed, self.seed + self.rounds) if seed not in played]

    def keep(self, host: str, kept: RoundSummary) -> None:
        """Write down a round."""
        self.kept.setdefault(host, []).append(kept)
        content = {
            "seed": self.seed,
            "rounds": self.rounds,
            "hosts": self.hosts,
            "kept": {name: [asdict(each) for each in played] for name, played in self.kept.items()},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".new")
        unfinished.write_text(json.dumps(content, indent=1))
        unfinished.replace(self.path)

    def table(self) -> Iterator[str]:
        """Show the results to people: a line for each host, and one for each kind of fault."""
        columns = ("rounds", 6), ("failed", 6), ("messages", 8), ("receptions", 10), ("seconds", 8), ("starved", 8)
        yield f"{'host':<13} " + " ".join(f"{name:>{width}}" for name, width in columns)
        for host, played in self.kept.items():
            failed = sum(bool(each.findings) for each in played)
            messages, receptions = (sum(getattr(each, what) for each in played) for what in ("messages", "receptions"))
            seconds, starved = (sum(getattr(each, what) for each in played) for what in ("seconds", "starved_seconds"))
            counts = f"{len(played):>6} {failed:>6} {messages:>8} {receptions:>10} {seconds:>8.0f} {starved:>8.0f}"
            yield f"{host:<13} {counts}"
        for host, played in self.kept.items():
            faults = Counter(fault for each in played for fault in each.faults)
            left_out = Counter(fault for each in played for fault in each.left_out)
            yield f"{host}: " + ", ".join(f"{kind} {times}" for kind, times in faults.most_common())
            if left_out:
                yield f"{host}, not possible on this machine: {', '.join(left_out)}"
            for each in played:
                for rule, text in each.findings:
                    yield f"{host} {each.seed}: {rule}: {text}"
