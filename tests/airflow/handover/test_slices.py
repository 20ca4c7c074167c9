"""Large batches are looked through a slice at a time, when they are received and when they are taken over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sqs_lease.airflow import handover
from sqs_lease.airflow.handover import adopt
from sqs_lease.airflow.payload import read_lease, read_messages
from sqs_lease.core.messages import Lease, Message
from sqs_lease.core.policies import Growing
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.event_loop_rounds import LEASES_IN_A_ROUND, RoundLimiter
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.keeper.plain_leases import encode_leases
from sqs_lease.testing import MemorySqs, MemoryTransport, VirtualClock, run_virtual
from tests.airflow.leased_messages import LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import RECEIVE, RUN_ID

MANY = 2 * LEASES_IN_A_ROUND + 500
BODIES = [f"order {number}" for number in range(MANY)]


class Rounds:
    """Counts the leases that are adopted, or encoded, by each call: nothing else runs meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.adopted: list[int] = []
        self.encoded: list[int] = []
        self._adopt, self._encode = Batch.adopt, encode_leases
        rounds = self

        def counting(batch: Batch, leases: Iterable[Lease], messages: Iterable[Message] = ()) -> None:
            some = list(leases)
            rounds.adopted.append(len(some))
            rounds._adopt(batch, some, messages)

        def encoding(leases: Sequence[Lease]) -> str:
            rounds.encoded.append(len(leases))
            return rounds._encode(leases)

        monkeypatch.setattr(Batch, "adopt", counting)
        monkeypatch.setattr(handover, "encode_leases", encoding)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    return Rounds(monkeypatch)


def test_a_keeper_takes_a_large_batch_over_in_slices(supervisor: ScriptedComms, rounds: Rounds, tmp_path: Path) -> None:
    world = LeasedMessages(supervisor, bodies=BODIES)

    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first, max_messages=MANY, linger_seconds=30.0, payload=str(tmp_path))
        await first.kill()
        # The sensor's trigger holds these until it was published.
        received = sum(rounds.adopted)
        keeping = world.keep(world.triggerer("second"))
        await asyncio.sleep(60)
        assert sum(rounds.adopted) - received == MANY
        world.states["load"] = "success"
        await keeping.ended()

    world.run(scenario)
    assert max(rounds.adopted) <= LEASES_IN_A_ROUND
    assert max(rounds.encoded) <= LEASES_IN_A_ROUND
    assert world.message_states() == {}


def test_published_messages_and_leases_are_in_the_same_order(supervisor: ScriptedComms, tmp_path: Path) -> None:
    world = LeasedMessages(supervisor, bodies=BODIES)

    async def scenario() -> None:
        await world.receive(world.triggerer(), max_messages=MANY, linger_seconds=30.0, payload=str(tmp_path))

    world.run(scenario)
    published = {key: supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, key] for key in ("lease", "return_value")}
    leases = read_lease(published["lease"], RECEIVE).leases
    message_ids = [message["MessageId"] for message in read_messages(published["return_value"])]
    assert [lease.receipt.message_id for lease in leases] == message_ids
    assert len(message_ids) == MANY


class Held:
    """Messages that were received, and a keeper for them."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        sqs = MemorySqs(self.clock)
        self.url = sqs.create_queue("orders")
        for body in BODIES:
            sqs.send(self.url, body)
        self.received = [
            message
            for _ in range(0, MANY, 10)
            for message in sqs.receive(self.url, max_messages=10, visibility_seconds=600)
        ]
        self.keeper = Keeper(MemoryTransport(sqs), clock=self.clock)

    def batch(self) -> Batch:
        return self.keeper.open_batch(self.url, policy=Growing(visibility=600.0))

    def leases(self) -> list[Lease]:
        now = self.clock.now()
        return [Lease(message.receipt, now, now + 600) for message in self.received]


def test_a_takeover_that_is_cancelled_still_holds_the_whole_batch() -> None:
    held = Held()

    async def scenario() -> None:
        batch = held.batch()
        taking = asyncio.ensure_future(adopt(batch, held.leases(), RoundLimiter()))
        while not batch.count_held():  # noqa: ASYNC110 - round by round
            await asyncio.sleep(0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert batch.count_held() == MANY
        await held.keeper.close(Leaving.NOTHING)

    run_virtual(scenario, clock=held.clock)


def test_others_get_their_turn_while_a_batch_is_looked_through() -> None:
    held = Held()
    seen: list[Any] = []

    async def scenario() -> None:
        batch = held.batch()
        taking = asyncio.ensure_future(adopt(batch, held.leases(), RoundLimiter()))
        while not taking.done():
            seen.append(batch.count_held())
            await asyncio.sleep(0)
        assert batch.count_held() == MANY
        await held.keeper.close(Leaving.NOTHING)

    run_virtual(scenario, clock=held.clock)
    steps = [after - before for before, after in pairwise(seen)]
    assert max(steps) <= LEASES_IN_A_ROUND
    assert len([step for step in steps if step]) >= MANY // LEASES_IN_A_ROUND
