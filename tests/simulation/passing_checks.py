"""The rules for each time a batch is passed on or adopted: for its text as written, and as read.

2. **The holder that passes on extends once what lasts shorter** than asked for, and waits for the answer as long as a
   call may take. Left alone is what its policy never extends, or cannot extend further.

   **A written deadline is one that the service confirmed**: each deadline is the one that the last confirmed call gave,
   counted from before that call; a wish is never written.

   **The next holder relies on no lease after its deadline.** By calendars that agree, it believes a deadline until
   up to ``CLOCK_ERROR_SECONDS`` before its end and never beyond, and loses no more than twice that of it. One whose
   calendar is behind by ``b`` may believe a deadline for ``b`` less that margin too long, where ``b`` is less than the
   time that has passed since the write; where it is more, its calendar is before the time of writing, and it believes
   none. A calendar's time beyond a deadline does not make a lease older.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqs_lease.core.ledger import CAP_MARGIN_SECONDS
from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.keeper.plain_leases import WrittenBatch
from tests.simulation.journal import Journal, Kind
from tests.simulation.world import ProcessClock

CLOCK_ERROR_SECONDS = 5.0
ROUNDING_SECONDS = 0.001


def optimism_of(elapsed: float, *, behind: float) -> float:
    """By how much a holder may think that leases last longer than they do.

    Args:
        elapsed: How long ago they were written.
        behind: By how much its calendar is behind that of the writer; negative if it is ahead.
    """
    if behind - elapsed > CLOCK_ERROR_SECONDS:
        return 0.0  # it can tell
    return max(min(behind, elapsed) - CLOCK_ERROR_SECONDS, 0.0)


def check_extended(journal: Journal, process: str, receipts: Iterable[Receipt], since: float, seconds: float) -> None:
    """Check at this moment that a process extended what it passes on and what lasts shorter, or tried to.

    Args:
        journal: Told of violations.
        process: The process.
        receipts: The receipts that it passed on, without leases that are never extended.
        since: When it began.
        seconds: How long they were to last from then on.
    """
    now = journal.clock.now()
    for receipt in receipts:
        record = journal.lease(process, receipt)
        if record.began is not None or record.ending_at or record.deadline_at(now) > since + seconds - ROUNDING_SECONDS:
            continue
        last = record.holdings[-1]
        if any(one.at == since for one in record.holdings[:-1]):
            continue  # it was adopted at this very moment, as time goes here
        longest = min(last.policy.max_lease_seconds, MAX_VISIBILITY_SECONDS - CAP_MARGIN_SECONDS)
        is_at_its_end = last.received_at + longest - last.deadline < 1
        if not is_at_its_end and not any(call.kind is Kind.EXTEND for call in record.calls[last.heard :]):
            journal.violated("2 what is passed on is extended once", f"{receipt} by {process}")


def check_written(journal: Journal, process: str, clock: ProcessClock, written: WrittenBatch) -> None:
    """Check what a process writes down at this moment."""
    now = journal.clock.now()
    for lease in written.leases:
        record = journal.lease(process, lease.receipt)
        deadline = now + lease.deadline - clock.wall()
        # When a deadline was that has passed says nothing to anybody.
        off = max(deadline, now) - max(record.deadline_at(now), now)
        if record.began is None and abs(off) > ROUNDING_SECONDS:
            detail = f"{lease.receipt} by {process}: {deadline:.3f} for {record.deadline_at(now):.3f}"
            journal.violated("2 what is written is what was confirmed", detail)


def check_read(
    journal: Journal,
    whose: str,
    now: float,
    written: WrittenBatch,
    held: Sequence[Lease],
    elapsed: float,
    behind: float,
) -> None:
    """Check what a process believes at this moment of leases that it adopts.

    Args:
        journal: Told of violations.
        whose: For the journal.
        now: The time of the process' clock.
        written: The batch that it read.
        held: The leases that it holds by that.
        elapsed: How long ago it was written.
        behind: By how much its calendar is behind that of the writer.
    """
    agree = abs(behind) <= CLOCK_ERROR_SECONDS - ROUNDING_SECONDS
    by_receipt = {lease.receipt: lease for lease in held}
    for lease in written.leases:
        if (read := by_receipt.get(lease.receipt)) is None:
            continue
        left_when_written = lease.deadline - written.written_at
        left, believed = left_when_written - elapsed, read.deadline - now
        what = f"{lease.receipt} {whose}, {left:.3f} s left"
        if believed > max(left + optimism_of(elapsed, behind=behind), 0.0) + ROUNDING_SECONDS:
            journal.violated("2 an adopted lease is believed until its deadline", f"{what}, believed: {believed:.3f}")
        lasts = left > 2 * CLOCK_ERROR_SECONDS + ROUNDING_SECONDS
        if agree and lasts and (believed < left - 2 * CLOCK_ERROR_SECONDS or (read.doubtful and not lease.doubtful)):
            journal.violated("2 a good lease is believed", f"{what}, believed: {believed:.3f}")
        age, age_when_written = now - read.received_at, written.written_at - lease.received_at
        if age > age_when_written + max(left_when_written, 0.0) + ROUNDING_SECONDS:
            detail = f"{what}: {age:.3f} s old, {age_when_written:.3f} s when it was written"
            journal.violated("2 a calendar makes no lease older", detail)
