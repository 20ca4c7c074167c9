"""The events of a simulated schedule: the trace for people, and the records for the checks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from sqs_lease.core.calls import Verdict
from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Settled
from sqs_lease.core.failure_rules import Settlement
from sqs_lease.core.messages import Receipt
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.testing import AuditEntry, AuditKind, VirtualClock

ROUNDING_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule was broken."""

    rule: str
    at: float
    detail: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.at:.3f} s: {self.detail}"


class Kind(Enum):
    """The kind of a call."""

    EXTEND = "extends"
    RELEASE = "releases"
    DELETE = "deletes"


@dataclass(slots=True, eq=False)
class SentCall:
    """One call about leases, as its wire saw it; times of the world.

    Attributes:
        seconds: By entry: the new visibility timeout; 0 for deletes.
        arrives_at: When it reaches the service; infinite where it does not.
        answered_at: When an answer that confirms comes back; infinite where none does.
        failing: The places of the entries that the answer does not confirm.
        ended_at: When the caller heard of it, or gave it up; None while it is under way, or if the caller died.
        verdicts: By entry: what the caller heard; None where it gave up.
    """

    kind: Kind
    sent_at: float
    receipts: tuple[Receipt, ...]
    seconds: tuple[int, ...]
    arrives_at: float
    answered_at: float
    failing: frozenset[int]
    ended_at: float | None = None
    verdicts: tuple[Verdict, ...] | None = None

    @property
    def is_throttled(self) -> bool:
        """Whether the service throttled it as a whole."""
        return self.verdicts is not None and all(verdict is Verdict.THROTTLED for verdict in self.verdicts)

    @property
    def is_refused(self) -> bool:
        """Whether the service refused it as a whole, for good."""
        return self.verdicts is not None and all(verdict is Verdict.REFUSED for verdict in self.verdicts)

    @property
    def went_through(self) -> bool:
        """Whether the service answered it, and did not throttle it."""
        unanswered = (Verdict.TRANSIENT, Verdict.UNAVAILABLE)
        answered = self.verdicts is not None and any(verdict not in unanswered for verdict in self.verdicts)
        return answered and not self.is_throttled

    def verdict(self, receipt: Receipt) -> Verdict:
        """The caller's verdict on one entry."""
        return Verdict.TRANSIENT if self.verdicts is None else self.verdicts[self.receipts.index(receipt)]

    def seconds_of(self, receipt: Receipt) -> int:
        """The visibility timeout that was asked for."""
        return self.seconds[self.receipts.index(receipt)]

    def confirms(self, receipt: Receipt, within_seconds: float) -> bool:
        """Whether an answer that confirms this entry comes within a time, if the caller waits for it."""
        return self.receipts.index(receipt) not in self.failing and self.answered_at - self.sent_at < within_seconds

    def overlaps(self, start: float, end: float) -> bool:
        """Whether it was under way at some time between two."""
        return self.sent_at <= end and (self.ended_at is None or self.ended_at >= start)


@dataclass(frozen=True, slots=True)
class Holding:
    """A lease was put into a batch; what its process believed of it then, in times of the world."""

    at: float
    received_at: float
    renewed_at: float
    deadline: float
    doubtful: bool
    adopted: bool
    optimism: float
    """How much longer the process may think that the lease lasts than it does, because calendars differ."""
    policy: RenewalPolicy
    forgotten_before: int
    """How often the process had handed the lease over before."""
    heard: int
    """How many calls about it had been answered before."""


@dataclass(slots=True)
class LeaseRecord:
    """The actions of one process on one lease, and the answers; times of the world, None for not yet."""

    receipt: Receipt
    queue_url: str = ""
    holdings: list[Holding] = field(default_factory=list)
    calls: list[SentCall] = field(default_factory=list)
    began: Settlement | None = None
    """How it is being settled."""
    began_at: float | None = None
    ending_at: list[float] = field(default_factory=list)
    lapsed_at: list[float] = field(default_factory=list)
    """When the process thought that its deadline had passed."""
    lost_at: float | None = None
    settled: Settled | None = None
    settled_at: float | None = None
    forgotten_at: list[float] = field(default_factory=list)

    @property
    def is_forgotten(self) -> bool:
        """Whether the process handed it over, and did not take it back."""
        return len(self.forgotten_at) > max((one.forgotten_before for one in self.holdings), default=0)

    def holding_at(self, at: float) -> Holding | None:
        """The batch that it was in at a time, else the first that it was put into."""
        return next((one for one in reversed(self.holdings) if one.at <= at), next(iter(self.holdings), None))

    def taken_at(self, at: float) -> float:
        """Since when the process had held it at a time, in whichever batch."""
        holding = self.holding_at(at)
        if holding is None:
            return math.inf
        return min(one.at for one in self.holdings if one.forgotten_before == holding.forgotten_before)

    def forgotten_after(self, holding: Holding) -> Sequence[float]:
        """When the process handed it over, of the times after it was put into a batch."""
        return self.forgotten_at[holding.forgotten_before :]

    def deadline_at(self, at: float) -> float:
        """Until when the message was certainly invisible, as far as the process had heard at a time."""
        holding = next((one for one in reversed(self.holdings) if one.at <= at), None)
        if holding is None:
            return -math.inf
        deadline = holding.deadline
        for call in self.calls[holding.heard :]:
            if call.kind is Kind.DELETE or call.ended_at is None or call.ended_at > at:
                continue
            ends_at = call.sent_at + call.seconds_of(self.receipt)
            match call.verdict(self.receipt):
                case Verdict.DONE if call.kind is Kind.EXTEND:
                    deadline = ends_at
                case Verdict.TRANSIENT:
                    deadline = min(deadline, ends_at)
        return deadline

    @property
    def goes_by_calendar(self) -> bool:
        """Whether the process knows only from the one that held it before when it ends."""
        confirmed = any(
            call.kind is Kind.EXTEND and call.verdicts is not None and call.verdict(self.receipt) is Verdict.DONE
            for call in self.calls
        )
        return bool(self.holdings) and self.holdings[0].adopted and not confirmed

    @property
    def ended_at(self) -> float | None:
        """When it was lost or settled."""
        return self.settled_at if self.lost_at is None else self.lost_at


class Journal:
    """Written by the simulated processes and their wires."""

    def __init__(self, clock: VirtualClock, *, tracing: bool) -> None:
        self.clock = clock
        self.violations: list[Violation] = []
        self.trace: list[str] = []
        self.tracing = tracing
        self.forwarded: dict[str, list[float]] = {}
        """By process: when it heard that a message is in a dead-letter queue."""
        self._calls: dict[tuple[str, str], list[SentCall]] = {}
        self._leases: dict[tuple[str, Receipt], LeaseRecord] = {}

    def lease(self, process: str, receipt: Receipt) -> LeaseRecord:
        """The record of one lease of one process."""
        record = self._leases.get((process, receipt))
        if record is None:
            record = self._leases[process, receipt] = LeaseRecord(receipt)
        return record

    def leases(self) -> Mapping[tuple[str, Receipt], LeaseRecord]:
        """All records."""
        return self._leases

    def sent(self, process: str, queue_url: str, call: SentCall) -> None:
        """A process sent a call about leases."""
        self._calls.setdefault((process, queue_url), []).append(call)
        for receipt in call.receipts:
            record = self.lease(process, receipt)
            record.queue_url = queue_url
            record.calls.append(call)

    def did(self, entry: AuditEntry, kind: Kind) -> bool:
        """Whether a call of a kind did this at the service."""
        return any(call.kind is kind for call in self._calls_of(entry))

    def was_given_up(self, entry: AuditEntry) -> bool:
        """Whether the sender of the call that did this had no answer to it."""
        return entry.kind is not AuditKind.RECEIVED and any(
            call.ended_at is None or call.ended_at < call.arrives_at or call.verdicts is None
            for call in self._calls_of(entry)
        )

    def arrived_late(self, entry: AuditEntry) -> bool:
        """Whether the call that did this arrived after its sender had stopped waiting for it."""
        return entry.kind is not AuditKind.RECEIVED and any(
            call.ended_at is not None and call.ended_at < call.arrives_at for call in self._calls_of(entry)
        )

    def _calls_of(self, entry: AuditEntry) -> Sequence[SentCall]:
        record = self._leases.get((entry.caller, Receipt(entry.message_id, entry.handle)))
        calls = [] if record is None else record.calls
        return [call for call in calls if abs(call.arrives_at - entry.at) < ROUNDING_SECONDS]

    def calls(self, process: str, queue_url: str) -> Sequence[SentCall]:
        """The calls of a process about leases of a queue, in the order in which they were sent."""
        return self._calls.get((process, queue_url), ())

    def all_calls(self) -> Mapping[tuple[str, str], Sequence[SentCall]]:
        """All calls about leases, by process and queue."""
        return self._calls

    def violated(self, rule: str, detail: str, *, at: float | None = None) -> None:
        """A rule was broken."""
        self.violations.append(Violation(rule, self.clock.now() if at is None else at, detail))

    def say(self, who: str, *what: object) -> None:
        """A line of the trace; the parts are put together only if the trace is kept."""
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
                record.ending_at.append(now)
            case Lapsed():
                record.lapsed_at.append(now - max(event.overdue_seconds, 0.0))
        self.say(process, "hears", event)
