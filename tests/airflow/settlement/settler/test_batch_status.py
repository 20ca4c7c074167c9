"""The keeper's record for the page of leases: numbers and times, with the notes that it writes anyway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest
from airflow.sdk.execution_time.comms import SetXCom

from sqs_lease.airflow.airflow_api.polling import LONGEST_POLL_SECONDS
from sqs_lease.airflow.settlement.settler import FIRST_NOTE_SECONDS, NOTE_SECONDS, PROGRESS_KEY
from sqs_lease.core.failure_rules import release
from sqs_lease.core.ledger import Ledger, Outlook
from sqs_lease.core.messages import Receipt
from sqs_lease.core.policies import Fixed, Growing
from sqs_lease.keeper.event_loop_rounds import LEASES_IN_A_ROUND
from sqs_lease.testing import VirtualClock
from tests.airflow.leased_messages import ALL_HELD, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import CHECK, RECEIVE, RUN_ID

SOON = FIRST_NOTE_SECONDS + LONGEST_POLL_SECONDS


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


def status(world: LeasedMessages) -> Any:
    return (world.supervisor.xcoms.get((RUN_ID, RECEIVE.task_id, -1, PROGRESS_KEY)) or {}).get("status")


def writes(world: LeasedMessages) -> int:
    return sum(isinstance(asked, SetXCom) and asked.key == PROGRESS_KEY for asked in world.supervisor.asked)


def wall(clock: VirtualClock, at: float) -> int:
    return round(at + clock.wall() - clock.now())


def test_a_batch_that_was_just_taken_says_what_is_held_and_what_comes_next(world: LeasedMessages) -> None:
    async def scenario() -> None:
        began_at = world.clock.now()
        running = await world.receive_and_keep(policy=Fixed(visibility=120, every=60))
        taken_by = world.clock.now()
        await asyncio.sleep(SOON)
        written = status(world)
        assert written["queue_url"] == world.url
        assert written["counts"]["received"] == 3
        assert written["counts"]["held"] == 3
        assert wall(world.clock, began_at) <= written["oldest_received_at"] <= wall(world.clock, taken_by)
        assert abs(written["renew_at"] - written["oldest_received_at"] - 60) <= 1, "both are rounded"
        # Less what the clocks of two machines may differ by.
        assert 114 <= written["deadline"] - written["oldest_received_at"] <= 121
        await running.cancel()

    world.run(scenario)


def test_it_follows_what_is_settled_and_extended(world: LeasedMessages) -> None:
    async def scenario() -> None:
        world.states.update(dict.fromkeys(("check_0", "check_1", "check_2"), "running"))
        running = await world.receive_and_keep(CHECK, policy=Fixed(visibility=120, every=60), on_failure=release())
        await asyncio.sleep(SOON)
        first = status(world)
        world.states["check_2"] = "failed"
        await asyncio.sleep(60 + NOTE_SECONDS)
        later = status(world)
        assert (later["counts"]["held"], later["counts"]["released"]) == (2, 1)
        assert later["counts"]["extensions"] >= 2
        assert later["deadline"] >= first["deadline"] + 50
        await running.cancel()

    world.run(scenario)


def test_it_has_no_message_id_no_receipt_handle_and_no_body(supervisor: ScriptedComms) -> None:
    world = LeasedMessages(supervisor, bodies=["first secret", "second secret"])

    async def scenario() -> None:
        running = await world.receive_and_keep()
        await asyncio.sleep(SOON)
        await running.cancel()

    world.run(scenario)
    written = json.dumps(status(world))
    assert "secret" not in written
    assert not [message_id for message_id in world.ids if message_id in written]
    assert "handle" not in written


def test_nothing_is_written_while_nothing_changes(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await world.receive_and_keep(policy=Growing(visibility=3600))
        await asyncio.sleep(1200)
        assert writes(world) == 1
        await running.cancel()

    world.run(scenario)


def test_settlements_are_written_soon_where_no_lease_is_extended(world: LeasedMessages) -> None:
    async def scenario() -> None:
        world.states.update(dict.fromkeys(("check_0", "check_1", "check_2"), "running"))
        running = await world.receive_and_keep(CHECK, policy=Growing(visibility=3600), on_failure=release())
        await asyncio.sleep(60)
        world.states["check_2"] = "failed"
        await asyncio.sleep(NOTE_SECONDS + LONGEST_POLL_SECONDS + 5)
        assert status(world)["counts"]["released"] == 1
        assert writes(world) <= 4, "one at first, one before the settlement, and one after it"
        await running.cancel()

    world.run(scenario)


def test_messages_are_kept_and_deleted_when_airflow_refuses_to_take_it(world: LeasedMessages) -> None:
    def refuse(request: Any) -> None:
        if isinstance(request, SetXCom) and request.key == PROGRESS_KEY:
            raise RuntimeError("no")

    world.supervisor.on_request = refuse

    async def scenario() -> None:
        running = await world.receive_and_keep(policy=Fixed(visibility=30, every=10))
        await asyncio.sleep(600)
        assert world.message_states() == ALL_HELD
        world.states["load"] = "success"
        await running.ended()
        assert world.message_states() == {}

    world.run(scenario)
    assert status(world) is None
    assert world.report()["deleted"] == 3


def test_a_large_batch_is_looked_through_a_slice_at_a_time(
    supervisor: ScriptedComms, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = LEASES_IN_A_ROUND + 500
    world = LeasedMessages(supervisor, bodies=[f"order {number}" for number in range(many)])
    looked_at: list[int] = []
    outlook = Ledger.outlook

    def counting(ledger: Ledger, receipts: Iterable[Receipt]) -> Outlook:
        some = list(receipts)
        looked_at.append(len(some))
        return outlook(ledger, some)

    monkeypatch.setattr(Ledger, "outlook", counting)

    async def scenario() -> None:
        triggerer = world.triggerer()
        # Longer than the test takes: extensions have notes of their own.
        await world.receive(triggerer, Growing(visibility=180), max_messages=many, linger_seconds=30.0)
        running = world.keep(triggerer)
        await asyncio.sleep(SOON)
        await running.cancel()

    world.run(scenario)
    assert looked_at == [LEASES_IN_A_ROUND, 500]
    assert status(world)["counts"]["held"] == many
