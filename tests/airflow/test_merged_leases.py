"""Several handed leases of one queue as one batch: merged as values, and taken by one keeper wherever they are held."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sqs_lease.airflow.aws_connection import AwsConnection
from sqs_lease.airflow.transfer.lease import LEASE_KEY, HandedLease, merge
from sqs_lease.airflow.transfer.payload import merge_messages, read_leases
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import Fixed, Growing, RenewalPolicy
from sqs_lease.testing import AuditKind
from tests.airflow.leased_messages import ALL_HELD, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import RECEIVE, RUN_ID, VirtualTriggerer

QUEUE = "https://sqs/1/orders"


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


def handed(
    batch_id: str,
    *message_ids: str,
    queue_url: str = QUEUE,
    policy: RenewalPolicy | None = None,
    connection: AwsConnection | None = None,
) -> dict[str, Any]:
    leases = [Lease(Receipt(name, f"handle of {name}"), 0.0, 30.0) for name in message_ids]
    policy = Growing(visibility=30.0) if policy is None else policy
    return HandedLease(batch_id, queue_url, policy, connection or AwsConnection(), leases).encode()


def test_a_merged_lease_has_the_leases_of_its_parts_in_order() -> None:
    merged = HandedLease.decode(merge([handed("x", "a", "b"), handed("y", "c")]))
    assert [lease.receipt.message_id for lease in merged.leases] == ["a", "b", "c"]
    assert merged.part_ids == ("x", "y")
    assert merged.batch_id not in ("x", "y")


def test_the_number_of_messages_is_that_of_all_parts() -> None:
    assert merge([handed("x", "a", "b"), handed("y", "c")])["messages"] == 3


def test_a_single_part_stays_as_it_is() -> None:
    single = handed("x", "a")
    assert merge([single]) == single
    assert HandedLease.decode(single).part_ids == ()


def test_merged_leases_can_be_merged_again() -> None:
    merged = HandedLease.decode(merge([merge([handed("x", "a"), handed("y", "b")]), handed("z", "c")]))
    assert merged.part_ids == ("x", "y", "z")
    assert [lease.receipt.message_id for lease in merged.leases] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"queue_url": "https://sqs/1/refunds"}, "queue_url"),
        ({"policy": Fixed(visibility=30, every=10)}, "policy"),
        ({"connection": AwsConnection(aws_conn_id="other")}, "connection"),
    ],
)
def test_parts_that_cannot_be_kept_by_the_same_rules_are_refused(other: dict[str, Any], difference: str) -> None:
    with pytest.raises(ValueError, match=f"differ in {difference}"):
        merge([handed("x", "a"), handed("y", "b", **other)])


def test_nothing_cannot_be_merged() -> None:
    with pytest.raises(ValueError, match="no lease"):
        merge([])


def test_plain_leases_must_be_read_and_not_only_decoded() -> None:
    stored = HandedLease("x", QUEUE, Growing(visibility=30.0), AwsConnection(), []).encode_stored(
        manifest_uri="/x.parquet", leases_uri="/x.leases"
    )
    with pytest.raises(ValueError, match="stored elsewhere"):
        HandedLease.decode(stored)


async def receive_parts(
    world: LeasedMessages, *triggerers: VirtualTriggerer, policy: RenewalPolicy | None = None, **options: Any
) -> None:
    """Receive one message by each triggerer, and publish all of them as if one task had received them."""
    leases, values = [], []
    for number, triggerer in enumerate(triggerers):
        await world.receive(triggerer, policy, batch_id=f"part {number}", max_messages=1, **options)
        leases.append(world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY])
        values.append(world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, "return_value"])
    world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY] = merge(leases)
    world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, "return_value"] = merge_messages(values)


def test_a_keeper_takes_all_parts_that_this_process_holds_and_settles_them_together(world: LeasedMessages) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await receive_parts(world, triggerer, triggerer, triggerer)
        running = world.keep(triggerer)
        await asyncio.sleep(3600)
        assert world.message_states() == ALL_HELD
        assert list(triggerer.keepers.batches) == ["part 0+2"]
        world.states["load"] = "success"
        await running.ended()
        assert world.message_states() == {}

    world.run(scenario)
    assert (world.report()["received"], world.report()["deleted"], world.report()["late"]) == (3, 3, 0)


def test_parts_of_this_process_are_settled_without_the_wait_of_a_takeover(world: LeasedMessages) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await receive_parts(world, triggerer, triggerer, triggerer)
        world.states["load"] = "success"
        before = world.clock.now()
        await world.keep(triggerer).ended()
        assert world.clock.now() - before < 3

    world.run(scenario)


def test_parts_of_a_triggerer_that_died_are_taken_over_with_those_held_here(world: LeasedMessages) -> None:
    async def scenario() -> None:
        first, second = world.triggerer("first"), world.triggerer("second")
        await receive_parts(world, first, second, first)
        await first.kill()
        running = world.keep(second)
        await asyncio.sleep(3600)
        assert world.message_states() == ALL_HELD
        world.states["load"] = "success"
        await running.ended()
        assert world.message_states() == {}

    world.run(scenario)
    assert len(world.events(AuditKind.RECEIVED)) == 3


def test_what_ended_while_a_part_was_held_is_not_held_again(world: LeasedMessages) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await receive_parts(world, triggerer, triggerer, triggerer)
        await triggerer.keepers.batches["part 0"].batch.succeed()
        running = world.keep(triggerer)
        await asyncio.sleep(60)
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)
    assert not world.events(AuditKind.REFUSED)
    assert (world.report()["deleted"], world.report()["lost"]) == (2, 0)


def test_parts_with_files_are_read_and_removed_together(world: LeasedMessages, tmp_path: Path) -> None:
    async def scenario() -> None:
        first = world.triggerer("first")
        await receive_parts(world, first, first, first, payload=str(tmp_path))
        assert len(read_leases(world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY]).leases) == 3
        await first.kill()
        running = world.keep(world.triggerer("second"))
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)
    assert world.report()["deleted"] == 3
    assert list(tmp_path.iterdir()) == []
