"""Plays a perfect, instant service to one ledger on a clock that jumps: what was called, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from sqs_lease.core.calls import Call, DeleteCall, EntryAnswer, ExtendCall, ReleaseCall, Verdict
from sqs_lease.core.ledger import Ledger
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import RenewalPolicy


def receipts(count: int) -> list[Receipt]:
    return [Receipt(f"message-{number}", f"handle-{number}") for number in range(count)]


def answers(call: Call, verdict: Verdict, *, text: str = "") -> list[EntryAnswer]:
    return [EntryAnswer(receipt, verdict, text=text) for receipt in call.receipts]


class Timeline:
    """Runs a ledger through time and writes down each call as ``(time, what, seconds)``."""

    def __init__(self, policy: RenewalPolicy, count: int = 1, *, visibility: float | None = None) -> None:
        self.ledger = Ledger(Random(0))
        self.policy = policy
        self.now = 0.0
        self.calls: list[tuple[float, Call]] = []
        self.receipts = receipts(count)
        for receipt in self.receipts:
            deadline = policy.visibility_seconds if visibility is None else visibility
            self.ledger.hold(Lease(receipt, received_at=0.0, deadline=deadline), policy)

    def run_until(self, end: float, *, after_each_call: Callable[[], None] = lambda: None) -> None:
        """Perform everything that falls due up to ``end``."""
        while (due := self.ledger.next_due()) is not None and due <= end:
            self.now = max(self.now, due)
            self.perform()
            after_each_call()
        self.now = end

    def perform(self) -> None:
        for call in self.ledger.due(self.now):
            self.calls.append((self.now, call))
            self.ledger.report(call, answers(call, Verdict.DONE), self.now)

    def extensions(self) -> list[tuple[float, int]]:
        """When and by how many seconds leases were extended."""
        return [
            (at, change.seconds) for at, call in self.calls if isinstance(call, ExtendCall) for change in call.changes
        ]

    def deletes(self) -> list[float]:
        return [at for at, call in self.calls if isinstance(call, DeleteCall) for _ in call.receipts]

    def releases(self) -> list[tuple[float, int]]:
        return [
            (at, change.seconds) for at, call in self.calls if isinstance(call, ReleaseCall) for change in call.changes
        ]

    def deadlines(self) -> Iterable[float]:
        leases = [self.ledger.lease(receipt) for receipt in self.receipts]
        return [lease.deadline for lease in leases if lease is not None]
