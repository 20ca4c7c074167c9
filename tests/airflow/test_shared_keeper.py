"""What the triggers of one process share, and how long."""

from __future__ import annotations

import asyncio
import gc

import pytest

from sqs_lease.airflow import shared_keeper
from sqs_lease.airflow.aws_connection import AwsConnection
from sqs_lease.airflow.shared_keeper import TriggererKeepers, install, triggerer_keepers
from sqs_lease.testing import MemorySqs, MemoryTransport, VirtualClock, run_virtual
from tests.airflow.virtual_triggerer import ClosableTransport, VirtualTriggerer

FIRST = AwsConnection("first")
SECOND = AwsConnection("second")


def test_triggers_with_one_connection_share_a_keeper_even_when_they_start_together() -> None:
    async def scenario() -> None:
        triggerer = _triggerer()
        shared = await asyncio.gather(*(triggerer.keepers.acquire(FIRST) for _ in range(20)))
        assert len(set(map(id, shared))) == 1
        assert triggerer.open_transports == 1

    run_virtual(scenario)


def test_each_connection_has_a_keeper_of_its_own() -> None:
    async def scenario() -> None:
        keepers = _triggerer().keepers
        assert await keepers.acquire(FIRST) is not await keepers.acquire(SECOND)

    run_virtual(scenario)


def test_the_last_user_closes_the_client_and_the_next_one_opens_another() -> None:
    async def scenario() -> None:
        triggerer = _triggerer()
        first = await triggerer.keepers.acquire(FIRST)
        assert await triggerer.keepers.acquire(FIRST) is first
        await triggerer.keepers.release(first)
        assert triggerer.open_transports == 1
        await triggerer.keepers.release(first)
        assert triggerer.open_transports == 0
        assert await triggerer.keepers.acquire(FIRST) is not first
        assert triggerer.open_transports == 1

    run_virtual(scenario)


def test_a_connection_that_could_not_be_opened_is_tried_again_by_the_next_user() -> None:
    clock = VirtualClock()
    sqs = MemorySqs(clock)
    answers: list[OSError | MemoryTransport] = [OSError("no such connection"), MemoryTransport(sqs)]

    async def open_transport(connection: AwsConnection) -> MemoryTransport:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    async def scenario() -> None:
        keepers = TriggererKeepers(open_transport=open_transport, clock=clock)
        with pytest.raises(OSError, match="no such connection"):
            await keepers.acquire(FIRST)
        assert (await keepers.acquire(FIRST)).users == 1

    run_virtual(scenario, clock=clock)


def test_a_second_event_loop_beside_the_triggerers_is_an_error() -> None:
    other = asyncio.new_event_loop()
    try:

        async def begin() -> None:
            install(_triggerer().keepers)

        other.run_until_complete(begin())

        async def scenario() -> None:
            with pytest.raises(RuntimeError, match="another event loop"):
                triggerer_keepers()

        run_virtual(scenario)
    finally:
        other.close()


def test_a_loop_that_was_closed_makes_room_for_the_next() -> None:
    async def scenario() -> TriggererKeepers:
        return triggerer_keepers()

    assert run_virtual(scenario) is not run_virtual(scenario)


def test_a_connection_is_the_same_value_after_its_way_through_a_trigger() -> None:
    connection = AwsConnection.of("aws", "eu-west-1", False, {"retries": {"mode": "standard"}})
    assert AwsConnection.decode(connection.encode()) == connection
    assert hash(AwsConnection.decode(connection.encode())) == hash(connection)


def test_a_botocore_configuration_with_more_than_plain_values_is_refused() -> None:
    with pytest.raises(TypeError, match="botocore_config must hold plain values"):
        AwsConnection.of("aws", None, None, {"signature_version": object()})


def _triggerer() -> VirtualTriggerer:
    clock = VirtualClock()
    return VirtualTriggerer(MemorySqs(clock), clock)


def test_what_a_triggerer_has_loaded_is_looked_through_by_no_further_garbage_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def opened(connection: AwsConnection) -> ClosableTransport:
        return ClosableTransport(MemorySqs(VirtualClock()))

    async def scenario() -> None:
        keepers = shared_keeper.triggerer_keepers()
        shared = await keepers.acquire(AwsConnection())
        assert gc.get_freeze_count() > frozen_before
        await keepers.release(shared)

    monkeypatch.setattr(shared_keeper, "open_transport", opened)
    monkeypatch.setattr(shared_keeper, "_keepers", None)
    frozen_before = gc.get_freeze_count()
    try:
        asyncio.run(scenario())
    finally:
        gc.unfreeze()
