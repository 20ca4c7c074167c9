"""The log says in one line what happened to many leases at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Outcome, Refused, Settled
from sqs_lease.core.messages import Receipt
from sqs_lease.keeper.gathered_log import GATHERING_SECONDS
from sqs_lease.keeper.lease_log import LeaseLog
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
        (lambda receipt: Settled(receipt, Outcome.FAILED, "denied"), "as asked (failed), so it comes, or came, back"),
        (lambda receipt: Settled(receipt, Outcome.LOST, "gone"), "as asked (lost), so it comes, or came, back"),
        (lambda receipt: Settled(receipt, Outcome.UNCERTAIN), "after its lease had lapsed"),
    ],
    ids=["lost", "lapsed", "ending", "refused", "unsettled", "lost when settled", "uncertain"],
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


def test_different_fates_make_a_line_each_and_settlements_that_went_as_asked_no_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = logged(caplog, Lapsed(RECEIPTS[0], 1.0), Lost(RECEIPTS[0], "gone"), Settled(RECEIPTS[1], Outcome.DELETED))
    assert len(lines) == 2


def test_gathered_lines_are_not_lost_when_the_trigger_ends(caplog: pytest.LogCaptureFixture) -> None:
    assert len(logged(caplog, Lapsed(RECEIPTS[0], 1.0), wait_seconds=0)) == 1


def test_long_trouble_makes_few_lines_that_count_all_messages(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        log = LeaseLog(QUEUE)
        for number in range(10_000):
            log.happened(Settled(Receipt(f"m{number}", "handle"), Outcome.FAILED, "denied"))
            await asyncio.sleep(0.01)
        log.flush()

    run_virtual(scenario, clock=VirtualClock())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 8
    assert sum(int(line.partition("each of ")[2].partition(" ")[0]) for line in lines) == 10_000


def test_after_a_while_without_events_the_next_is_told_soon_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        log = LeaseLog(QUEUE)
        for _ in range(2):
            for receipt in RECEIPTS:
                log.happened(Lost(receipt, "gone"))
                await asyncio.sleep(1)
            await asyncio.sleep(60)
            caplog.clear()
            log.happened(Lost(RECEIPTS[0], "gone"))
            await asyncio.sleep(GATHERING_SECONDS)
            assert len(caplog.records) == 1

    run_virtual(scenario, clock=VirtualClock())
