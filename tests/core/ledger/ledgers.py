"""Ledgers that hold leases, and what tests ask of them."""

from __future__ import annotations

from random import Random

from sqs_lease.core.calls import Call, Verdict
from sqs_lease.core.ledger import Ledger
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import Fixed

POLICY = Fixed(visibility=30, every=20)
PASSING_VERDICTS = [Verdict.TRANSIENT, Verdict.THROTTLED, Verdict.UNAVAILABLE]
FAILED_VERDICTS = [*PASSING_VERDICTS, Verdict.REFUSED]


def ledger_with(*held: Receipt, policy: Fixed = POLICY, received_at: float = 0.0) -> Ledger:
    ledger = Ledger(Random(0))
    for receipt in held:
        ledger.hold(Lease(receipt, received_at, received_at + 30), policy)
    return ledger


def only(calls: list[Call]) -> Call:
    assert len(calls) == 1
    return calls[0]


def deadline_of(ledger: Ledger, receipt: Receipt) -> float:
    lease = ledger.lease(receipt)
    assert lease is not None
    return lease.deadline
