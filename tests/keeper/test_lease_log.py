"""The log says in one line what happened to many leases at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Outcome, Refused, Settled
from sqs_lease.core.messages import Receipt
from sqs_lease.keeper.lease_log import GATHERING_SECONDS, LeaseLog
from sqs_lease.testing import VirtualClock, run_virtual

QUEUE = "https://queue/orders"
RECEIPTS = [Receipt(f"m{number}", f"a-long-receipt-handle-{number}") for number in range(5)]


def logged(caplog: pytest.LogCaptureFixture, *events: LeaseEvent, wait_seconds: float = GATHERING_SECONDS) -> list[str]:
    async def scenario() -> None:
        log = LeaseLog(QUEUE)
        for event in events:
            log.happened(event)
        await asyncio.sleep(wait_seconds)
        log.flush()

    run_virtual(scenario, clock=VirtualClock())
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda receipt: Lost(receipt, "gone"), "Lost the lease of"),
        (lambda receipt: Lapsed(receipt, 1.5), "ran out 1.5 s ago"),
        (lambda receipt: Ending(receipt, 9.0), "cannot be extended any further"),
        (lambda receipt: Refused(receipt, "denied"), "was refused: denied"),
    ],
    ids=["lost", "lapsed", "ending", "refused"],
)
def test_five_leases_of_one_fate_make_one_line(
    caplog: pytest.LogCaptureFixture, make: Callable[[Receipt], LeaseEvent], told: str
) -> None:
    (line,) = logged(caplog, *map(make, RECEIPTS))
    assert told in line
    assert "each of 5 messages (m0, m1, m2 and 2 more)" in line
    assert QUEUE in line


def test_a_single_message_is_named_with_the_end_of_its_receipt_alone(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = logged(caplog, Lost(RECEIPTS[0], "gone"))
    assert "message m0 (receipt …ndle-0)" in line
    assert RECEIPTS[0].handle not in line


def test_different_fates_make_a_line_each_and_settlements_none(caplog: pytest.LogCaptureFixture) -> None:
    lines = logged(caplog, Lapsed(RECEIPTS[0], 1.0), Lost(RECEIPTS[0], "gone"), Settled(RECEIPTS[1], Outcome.DELETED))
    assert len(lines) == 2


def test_what_was_gathered_is_not_lost_when_the_trigger_ends(caplog: pytest.LogCaptureFixture) -> None:
    assert len(logged(caplog, Lapsed(RECEIPTS[0], 1.0), wait_seconds=0)) == 1
