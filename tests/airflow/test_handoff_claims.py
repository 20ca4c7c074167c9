"""A keeper's trigger that claims a batch while an answer about its task is on its way."""

from __future__ import annotations

import asyncio

from airflow.sdk.execution_time.comms import GetTaskStates

from sqs_lease.airflow.transfer.handoff import ADOPTION_SECONDS, HandOff
from sqs_lease.testing import MessageState
from tests.airflow.leased_messages import LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import KEEP


def test_a_batch_that_its_keeper_claims_late_stays_the_keepers(supervisor: ScriptedComms) -> None:
    leased = LeasedMessages(supervisor)
    owners: list[object] = []

    async def scenario() -> None:
        triggerer = leased.triggerer()
        await leased.receive(triggerer)
        (shared,) = triggerer.keepers.batches.values()
        await triggerer.keepers.acquire(shared.shared_keeper.connection)
        leased.states[KEEP.task_id] = "deferred"
        await asyncio.sleep(ADOPTION_SECONDS - 0.5)

        def claimed_meanwhile(request: object) -> None:
            if isinstance(request, GetTaskStates) and isinstance(shared.owner, HandOff):
                triggerer.keepers.claim("batch", "the keeper", lambda event: None)

        supervisor.on_request = claimed_meanwhile
        await asyncio.sleep(10)
        owners.append(shared.owner)
        assert len(shared.batch.leases()) == 3
        assert set(leased.message_states().values()) == {MessageState.IN_FLIGHT}

    leased.run(scenario)
    assert owners == ["the keeper"]
