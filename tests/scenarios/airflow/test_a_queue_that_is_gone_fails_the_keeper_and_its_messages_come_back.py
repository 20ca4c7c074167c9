"""While messages are held: their queue is removed or purged, its dead-letter queue is removed, a permission revoked."""

from __future__ import annotations

import asyncio
import re

import pytest
from airflow.triggers.base import TaskSuccessEvent

from sqs_lease.airflow.handover import LEASE_KEY, HandedLease
from sqs_lease.core.failure_rules import FailureRule, dead_letter, release
from sqs_lease.core.policies import Growing
from sqs_lease.testing import NO_FAULT, Fault, Operation, TransportCall
from sqs_lease.testing.service_errors import ACCESS_DENIED, NO_SUCH_QUEUE, ServiceError
from tests.airflow.leased_messages import ALL_VISIBLE, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import RECEIVE, RUN_ID

ALL = frozenset(Operation)
SOON_SECONDS = 10.0


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


@pytest.mark.parametrize(
    ("refused", "error", "work", "on_failure", "said"),
    [
        (ALL, NO_SUCH_QUEUE, "success", release(), "DeleteMessageBatch on queue .*: there is no such queue"),
        (ALL, ACCESS_DENIED, "success", release(), "Allow sqs:DeleteMessage"),
        ({Operation.DELETE}, ACCESS_DENIED, "success", release(), "Allow sqs:DeleteMessage"),
        (ALL, NO_SUCH_QUEUE, "failed", dead_letter(), "on queue .*/orders: there is no such queue"),
        ({Operation.SEND}, NO_SUCH_QUEUE, "failed", dead_letter(), "SendMessage on queue .*/dead: there is no such"),
        ({Operation.SEND}, ACCESS_DENIED, "failed", dead_letter(), "Allow sqs:SendMessage"),
        ({Operation.QUEUE_ATTRIBUTES}, ACCESS_DENIED, "failed", dead_letter(), "Allow sqs:GetQueueAttributes"),
    ],
)
def test_the_keeper_fails_soon_after_the_work_with_what_sqs_said_and_the_messages_come_back(
    world: LeasedMessages,
    refused: frozenset[Operation],
    error: ServiceError,
    work: str,
    on_failure: FailureRule,
    said: str,
) -> None:
    def fault(call: TransportCall) -> Fault:
        return Fault(error=error) if call.operation in refused else NO_FAULT

    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer, Growing(visibility=60))
        keeping = world.keep(triggerer, on_failure=on_failure)
        await asyncio.sleep(300)
        triggerer.faults = fault
        await asyncio.sleep(30)
        ended_at = world.clock.now()
        world.states["load"] = work
        (event,) = await keeping.ended()
        assert world.clock.now() - ended_at < SOON_SECONDS
        assert "3 of 3 messages" in event.payload["error"]
        await asyncio.sleep(3600)

    world.run(scenario)
    assert world.message_states() == ALL_VISIBLE
    assert not world.sqs.contents(world.dead_letter_url)
    assert world.report()["failed"] == 3
    (text,) = world.report()["refusals"]
    assert re.search(said, text)


@pytest.mark.parametrize("on_lost", ["warn", "raise"])
def test_messages_of_a_purged_queue_are_lost_and_end_the_keeper_as_on_lost_says(
    world: LeasedMessages, on_lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        keeping = await world.receive_and_keep(on_lost=on_lost)
        await asyncio.sleep(60)
        handed = HandedLease.decode(world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY], RECEIVE)
        world.sqs.delete(world.url, [lease.receipt for lease in handed.leases])
        (event,) = await keeping.ended()
        assert isinstance(event, TaskSuccessEvent) == (on_lost == "warn")

    world.run(scenario)
    assert world.report()["lost"] == 3
    assert "Lost the lease of each of 3 messages" in caplog.text
