"""What happened in a simulated schedule: the trace for people, and what the checks look up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Settled
from sqs_lease.core.failure_rules import Settlement
from sqs_lease.core.messages import Receipt
from sqs_lease.testing import VirtualClock


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule was broken."""

    rule: str
    at: float
    detail: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.at:.3f} s: {self.detail}"


@dataclass(slots=True)
class LeaseRecord:
    """What one process did and heard about one lease; times of the world, None for not yet."""

    handle: str
    began: Settlement | None = None
    """How it is being settled."""
    began_at: float | None = None
    ending_at: float | None = None
    lapsed_at: list[float] = field(default_factory=list)
    """When the process thought that its deadline had passed."""
    lost_at: float | None = None
    settled: Settled | None = None
    settled_at: float | None = None
    forgotten_at: float | None = None
    disturbed: list[tuple[float, float]] = field(default_factory=list)
    """From when until when a call about it was disturbed."""
    arrivals: list[tuple[float, float]] = field(default_factory=list)
    """When changes of its visibility were sent, and when they reached the service."""


class Journal:
    """Written by the simulated processes and their wires."""

    def __init__(self, clock: VirtualClock, *, tracing: bool) -> None:
        self.clock = clock
        self.violations: list[Violation] = []
        self.trace: list[str] = []
        self.tracing = tracing
        self.throttled: dict[tuple[str, str], list[float]] = {}
        """By process and queue: when the service throttled it."""
        self._leases: dict[tuple[str, Receipt], LeaseRecord] = {}

    def lease(self, process: str, receipt: Receipt) -> LeaseRecord:
        """The record of one lease of one process."""
        record = self._leases.get((process, receipt))
        if record is None:
            record = self._leases[process, receipt] = LeaseRecord(receipt.handle)
        return record

    def leases(self) -> Mapping[tuple[str, Receipt], LeaseRecord]:
        """All records."""
        return self._leases

    def violated(self, rule: str, detail: str, *, at: float | None = None) -> None:
        """A rule was broken."""
        self.violations.append(Violation(rule, self.clock.now() if at is None else at, detail))

    def say(self, who: str, *what: object) -> None:
        """A line of the trace; the parts are put together only if somebody reads it."""
        if self.tracing:
            self.trace.append(f"{self.clock.now():10.3f} {who:<8} {' '.join(map(str, what))}")

    def heard(self, process: str, event: LeaseEvent) -> None:
        """A keeper told of an event."""
        record = self.lease(process, event.receipt)
        now = self.clock.now()
        match event:
            case Lost():
                record.lost_at = now
            case Settled():
                if record.settled is not None:
                    self.violated("settled once", f"{process} was told twice of the end of {event.receipt}")
                record.settled = event
                record.settled_at = now
            case Ending():
                record.ending_at = now
            case Lapsed():
                record.lapsed_at.append(now - max(event.overdue_seconds, 0.0))
        self.say(process, "hears", event)
