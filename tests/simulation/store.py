"""Data that outlives processes: the runs with their leases and the state of their work, and the table they write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from sqs_lease.core.failure_rules import FailureRule
from sqs_lease.core.messages import Message
from sqs_lease.core.policies import RenewalPolicy


class Work(Enum):
    """How far the work on one message of a run is."""

    WORKING = "working"
    SUCCEEDED = "succeeded"
    FAILED = "failed for good"
    ABANDONED = "abandoned"


@dataclass(slots=True, eq=False)
class Run:
    """One batch and the work on it.

    Attributes:
        messages: By message id: its newest reception, in the order of the first ones.
        written: The leases, as their last holder wrote them down; empty before that.
        written_at: When that was.
        owners: The holders and when each began, in order; None for no holder.
        written_with_error: How wrong the calendar was of the machine that wrote the leases down.
        optimism: By how much the holders may think a lease to last longer than it does, because of their calendars.
        doubted: Whether a holder with another calendar read what is written. It may have held good leases in doubt, and
            shortened them by that; who reads the same text again does not know.
        intents: By message id: when it was written down that its settlement begins.
        gone_back: Messages that ended otherwise than by being deleted, here or after a copy was sent elsewhere.
        unclear: Messages that may have gone back before the process took the run over that holds it now.
        settled: Messages with which the run is done.
    """

    number: int
    queue_url: str
    policy: RenewalPolicy
    rule: FailureRule
    hosted: bool
    messages: dict[str, Message]
    arrived: dict[str, float]
    """By handle: when a process had the message."""
    owners: list[tuple[float, str | None]]
    settle_within_seconds: float = 0.0
    written: str = ""
    written_at: float = 0.0
    written_with_error: float = 0.0
    optimism: float = 0.0
    doubted: bool = False
    work: dict[str, Work] = field(default_factory=dict)
    intents: dict[str, float] = field(default_factory=dict)
    gone_back: set[str] = field(default_factory=set)
    unclear: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)

    @property
    def owner(self) -> str | None:
        """The process that holds it now."""
        return self.owners[-1][1]

    def received_at(self, handle: str) -> float:
        """When a process had a message, by its handle."""
        return self.arrived[handle]

    def take_in(self, message: Message) -> None:
        """A message was received, perhaps again; answers may come in another order than that of the receives."""
        known = self.messages.get(message.message_id)
        if known is None or known.receive_count < message.receive_count:
            self.messages[message.message_id] = message
            # An earlier reception of it may have been lost while the batch was still being filled.
            self.settled.discard(message.message_id)

    def earlier_in_group(self, message_id: str) -> Sequence[str]:
        """The messages of the same group before one; none on standard queues, where groups have no order."""
        group = self.messages[message_id].message_group_id
        if group is None or not self.queue_url.endswith(".fifo"):
            return []
        ids = list(self.messages)
        return [other for other in ids[: ids.index(message_id)] if self.messages[other].message_group_id == group]

    @property
    def done(self) -> bool:
        """Whether nothing of it is left to settle."""
        return len(self.settled) == len(self.messages)

    def __str__(self) -> str:
        return f"run {self.number}"


class Table:
    """Rows by message id. A commit is one atomic step that leaves out what is there already."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.committed_at: dict[str, float] = {}

    def commit(self, message_id: str, now: float) -> None:
        """Put a row in unless it is there."""
        if message_id not in self.committed_at:
            self.rows.append(message_id)
            self.committed_at[message_id] = now


class Store:
    """The orchestrator's database: always there, never slow. Its data about a process may be out of date."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.by_handle: dict[str, Run] = {}
        self.heartbeats: dict[str, float] = {}
        self.table = Table()

    def new_owner(self, run: Run, owner: str | None, now: float) -> None:
        """Hand a run over, at once and atomically."""
        run.owners.append((now, owner))
