"""The examples in `dagster_defs`: a message that is not what its job expects does not stop the other ones."""

import json
from pathlib import Path

import dagster as dg
import pytest

from dagster_defs.defs.bookings import bookings_in_order
from dagster_defs.defs.orders import orders_in_steps
from dagster_defs.queues import bookings_queue, orders_queue
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.dagster import BATCH_TAG
from sqs_lease.dagster.run_batch.folder import BatchFolder
from sqs_lease.testing import LeasedQueues

GOOD = json.dumps({"order_id": 1, "amount": 5, "total": 5})
BAD = [
    "no JSON",
    "[]",
    '{"order_id": 2, "amount": "much", "total": "much"}',
    '{"order_id": 2, "amount": null, "total": null}',
    '{"order_id": 2, "amount": -1, "total": -1}',
]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_booking_and_those_behind_it_in_its_account_come_back_and_other_accounts_are_done(
    leased_queues: LeasedQueues, bad: str
) -> None:
    queue = leased_queues.create(bookings_queue.queue)
    for account, body in (("a", bad), ("b", GOOD), ("a", '{"amount": 7}')):
        queue.send(body, message_group_id=account)
    resources = {"bookings_queue": bookings_queue}
    assert bookings_in_order.execute_in_process(resources=resources).success
    assert sorted(queue.visible) == sorted([bad, '{"amount": 7}'])


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_order_is_failed_by_a_step_and_the_others_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    monkeypatch.setattr("dagster_defs.defs.orders.LAKE", tmp_path)
    folder = BatchFolder(tmp_path / "batch")
    messages = [Message(Receipt("bad", ""), bad), Message(Receipt("good", ""), GOOD)]
    folder.create(batch_id="test", queue_url=orders_queue.queue, messages=messages)
    result = orders_in_steps.execute_in_process(
        tags={BATCH_TAG: str(folder)}, resources={"orders_queue": orders_queue, "io_manager": dg.mem_io_manager}
    )
    assert result.success
    assert [list(piece.failed) for piece in folder.pieces().values() if piece.failed] == [["bad"]]
    (stored,) = (tmp_path / "orders").iterdir()
    assert json.loads(GOOD) in [json.loads(line) for line in stored.read_text().splitlines()]
