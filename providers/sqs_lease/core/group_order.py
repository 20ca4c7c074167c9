"""FIFO queues: a message that was not done holds back those behind it in its message group.

Deleting message k + 1 while k goes back to the queue would have k processed after it. So what is behind a
failed message is released, although its own work succeeded, and comes again after it, in order. A message that
went to the dead-letter queue holds nothing back: it is out of the way. And as long as it is not decided what becomes
of message k, message k + 1 is not deleted either: it waits, held (:func:`ready`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sqs_lease.core.events import Outcome
from sqs_lease.core.failure_rules import DeadLetter, Delete, Release, Settlement
from sqs_lease.core.messages import Lease, Receipt


def hold_back(
    settlements: Mapping[Receipt, Settlement],
    leases: Iterable[Lease],
    outcome_of: Callable[[Receipt], Outcome | None],
) -> dict[Receipt, Settlement]:
    """Turn deletes behind a message that was not done into releases.

    Args:
        settlements: What is asked for.
        leases: All leases of the batch, settled ones included, in the order they were received.
        outcome_of: How a lease ended; None while it is held.

    Returns:
        The settlements to carry out, for the same receipts. Messages that are held and have no settlement yet
        hold nothing back, and neither do messages without a group.
    """
    blocked: set[str] = set()
    carried_out = dict(settlements)
    for lease in leases:
        group = lease.message_group_id
        if group is None:
            continue
        settlement = settlements.get(lease.receipt)
        outcome = outcome_of(lease.receipt)
        if outcome is None and isinstance(settlement, Delete) and group in blocked:
            carried_out[lease.receipt] = Release()
        if outcome is None:
            not_done = settlement is not None and not isinstance(settlement, Delete | DeadLetter)
        else:
            not_done = outcome not in (Outcome.DELETED, Outcome.DEAD_LETTERED)
        if not_done:
            blocked.add(group)
    return carried_out


def ready(
    settlements: Mapping[Receipt, Settlement],
    leases: Iterable[Lease],
    outcome_of: Callable[[Receipt], Outcome | None],
) -> dict[Receipt, Settlement]:
    """Leave out deletes behind a message of the same group that is still worked on.

    Args:
        settlements: What is asked for.
        leases: All leases of the batch, settled ones included, in the order they were received.
        outcome_of: How a lease ended, or is being ended; None while it is only held.

    Returns:
        The settlements that need not wait, in the order of the leases: the earliest of a group first.
    """
    undecided: set[str] = set()
    at_once: dict[Receipt, Settlement] = {}
    for lease in leases:
        group = lease.message_group_id
        settlement = settlements.get(lease.receipt)
        if settlement is not None and not (isinstance(settlement, Delete) and group in undecided):
            at_once[lease.receipt] = settlement
        elif group is not None and outcome_of(lease.receipt) is None:
            undecided.add(group)
    return at_once
