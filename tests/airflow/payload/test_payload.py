"""Large batches: files instead of XComs, from the receive to the end of the keeper, and what work tasks are given."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from airflow.models.trigger import Trigger
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.io import store
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from sqs_lease.airflow import SqsLeaseKeeperOperator, SqsLeaseSensor, read_messages, sqs_lease
from sqs_lease.airflow.airflow_api.requests import CommsError
from sqs_lease.airflow.handover import LEASE_KEY, PayloadError
from sqs_lease.airflow.triggers.receive import FAILED
from sqs_lease.core.failure_rules import dead_letter
from sqs_lease.testing import AuditKind, MemorySqs, MessageState, VirtualClock, run_virtual
from tests.airflow.leased_messages import ALL_HELD, ALL_VISIBLE, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import (
    KEEP,
    LOAD,
    RECEIVE,
    RUN_ID,
    USER_ACTION,
    VirtualTriggerer,
    keeper_trigger,
    receive_trigger,
)

MANY = 10_000
INSTANCE = SimpleNamespace(map_index=-1)


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


def files_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())


def published(supervisor: ScriptedComms, key: str) -> Any:
    return supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, key]


def test_ten_thousand_messages_are_kept_and_settled_with_a_few_hundred_bytes_in_airflow(
    supervisor: ScriptedComms, tmp_path: Path
) -> None:
    clock = VirtualClock()
    sqs = MemorySqs(clock)
    url = sqs.create_queue("orders")
    for number in range(MANY):
        sqs.send(url, f"order {number}")
    supervisor.states[RUN_ID] = {RECEIVE.task_id: "deferred", KEEP.task_id: None, LOAD.task_id: None}
    states = supervisor.states[RUN_ID]

    async def scenario() -> None:
        triggerer = VirtualTriggerer(sqs, clock)
        receiving = receive_trigger("orders", clock, max_messages=MANY, linger_seconds=30.0, payload=str(tmp_path))
        await triggerer.start(receiving, RECEIVE).ended()
        states.update({RECEIVE.task_id: "success", KEEP.task_id: "deferred", LOAD.task_id: "running"})
        keeping = triggerer.start(keeper_trigger(supervisor, [LOAD]), KEEP)
        await asyncio.sleep(120)
        assert len(files_in(tmp_path)) == 2
        messages = read_messages(published(supervisor, "return_value"))
        assert len({message["MessageId"] for message in messages}) == MANY
        states[LOAD.task_id] = "success"
        supervisor.xcoms[RUN_ID, LOAD.task_id, -1, "return_value"] = {
            "batchItemFailures": [{"itemIdentifier": messages[7]["MessageId"]}]
        }
        await keeping.ended()
        assert sqs.contents(url) == {messages[7]["MessageId"]: MessageState.VISIBLE}

    run_virtual(scenario, clock=clock)
    report = supervisor.xcoms[RUN_ID, KEEP.task_id, -1, "lease_report"]
    assert (report["received"], report["deleted"], report["released"], report["late"]) == (MANY, MANY - 1, 1, 0)
    assert list(tmp_path.iterdir()) == []
    sizes = {key: len(json.dumps(published(supervisor, key))) for key in (LEASE_KEY, "return_value")}
    _, kwargs = keeper_trigger(supervisor, [LOAD]).serialize()
    sizes["trigger"] = len(Trigger.encrypt_kwargs(kwargs))
    assert sizes[LEASE_KEY] < 1000
    assert sizes["return_value"] < 300
    assert sizes["trigger"] < 3000


def test_no_receipt_handle_is_in_airflow_nor_readable_in_the_files(world: LeasedMessages, tmp_path: Path) -> None:
    async def scenario() -> None:
        await world.receive(world.triggerer(), payload=str(tmp_path))

    world.run(scenario)
    handles = [entry.handle for entry in world.events(AuditKind.RECEIVED)]
    assert len(handles) == 3
    (leases,), (manifest,) = tmp_path.glob("*.leases"), tmp_path.glob("*.parquet")
    table = pq.read_table(manifest)
    trigger = keeper_trigger(world.supervisor, [LOAD]).serialize()
    everywhere = f"{world.supervisor.xcoms} {trigger} {leases.read_text()} {table.to_pylist()} {table.schema.metadata}"
    assert not any(handle in everywhere for handle in handles)
    assert published(world.supervisor, LEASE_KEY).keys() == {"messages", "sealed"}


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_the_directory_is_made_where_it_is_missing(world: LeasedMessages, tmp_path: Path, scheme: str) -> None:
    async def scenario() -> None:
        await world.receive(world.triggerer(), payload=f"{scheme}{tmp_path}/deep/down/")

    world.run(scenario)
    assert {path.suffix for path in (tmp_path / "deep" / "down").iterdir()} == {".parquet", ".leases"}
    assert len(read_messages(published(world.supervisor, "return_value"))) == 3


def test_another_triggerer_takes_the_leases_over_from_the_files(world: LeasedMessages, tmp_path: Path) -> None:
    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first, payload=str(tmp_path))
        await first.kill()
        running = world.keep(world.triggerer("second"))
        await asyncio.sleep(200)
        assert world.message_states() == ALL_HELD
        world.states["load"] = "success"
        await running.ended()
        assert world.message_states() == {}

    world.run(scenario)
    assert len(world.events(AuditKind.RECEIVED)) == 3
    assert list(tmp_path.iterdir()) == []


def test_leases_that_cannot_be_read_for_a_moment_are_asked_for_again(world: LeasedMessages, tmp_path: Path) -> None:
    hidden, away = tmp_path / "payload", tmp_path / "away"

    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first, payload=str(hidden))
        await first.kill()
        hidden.rename(away)
        running = world.keep(world.triggerer("second"))
        await asyncio.sleep(5)
        away.rename(hidden)
        await asyncio.sleep(100)
        assert world.message_states() == ALL_HELD
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)
    assert world.report()["deleted"] == 3


def test_leases_that_are_gone_fail_the_keeper_with_the_remedy(world: LeasedMessages, tmp_path: Path) -> None:
    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first, payload=str(tmp_path))
        await first.kill()
        for path in files_in(tmp_path):
            path.unlink()
        with pytest.raises(PayloadError, match=r"is not there\. .* clear the receiving task"):
            await world.keep(world.triggerer("second")).ended()

    world.run(scenario)


def test_failed_messages_are_dead_lettered_with_their_bodies_from_the_manifest(
    world: LeasedMessages, tmp_path: Path
) -> None:
    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first, payload=str(tmp_path))
        await first.kill()
        running = world.keep(world.triggerer("second"), on_failure=dead_letter())
        world.states["load"] = "failed"
        await running.ended()

    world.run(scenario)
    (message,) = world.sqs.receive(world.dead_letter_url, max_messages=1)
    assert len(world.sqs.contents(world.dead_letter_url)) == 3
    assert message.body in ("a", "b", "c")


def test_stored_messages_are_not_kept_in_the_triggerers_memory_but_are_there_to_be_dead_lettered(
    world: LeasedMessages, tmp_path: Path
) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer, payload=str(tmp_path))
        running = world.keep(triggerer, on_failure=dead_letter())
        world.states["load"] = "failed"
        await running.ended()

    world.run(scenario)
    (message,) = world.sqs.receive(world.dead_letter_url, max_messages=1)
    assert message.body in ("a", "b", "c")


def test_messages_that_cannot_be_stored_are_released_and_the_error_has_the_remedy(
    world: LeasedMessages, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")

    async def scenario() -> None:
        running = await world.receive(world.triggerer(), payload=str(tmp_path / "file"))
        (event,) = running.events
        assert event.payload["status"] == FAILED
        assert "3 messages of" in event.payload["error"]
        assert "Check that the path exists" in event.payload["error"]
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)
    assert not world.supervisor.xcoms


def test_the_files_of_messages_that_airflow_does_not_take_are_removed(world: LeasedMessages, tmp_path: Path) -> None:
    world.supervisor.refusing = True

    async def scenario() -> None:
        with pytest.raises(CommsError):
            await world.receive(world.triggerer(), payload=str(tmp_path))
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("state", ["failed", "success"])
def test_the_files_are_removed_when_a_user_ends_the_keeper(world: LeasedMessages, tmp_path: Path, state: str) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer, payload=str(tmp_path))
        running = world.keep(triggerer)
        await asyncio.sleep(5)
        world.states[KEEP.task_id] = state
        await running.cancel(USER_ACTION)
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)
    assert files_in(tmp_path) == []


@pytest.fixture
def bucket() -> Iterator[MemoryFileSystem]:
    """An object store in memory, in place of the S3 of the connection `lake`."""
    memory = MemoryFileSystem()
    store.attach("s3", "lake", fs=memory)
    yield memory
    del store._STORE_CACHE["s3-lake"]
    memory.store.clear()


def test_an_object_store_is_reached_by_the_connection_in_the_path(
    world: LeasedMessages, bucket: MemoryFileSystem
) -> None:
    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first, payload="s3://lake@bucket/leases")
        await first.kill()
        assert len(bucket.find("/bucket/leases")) == 2
        assert len(read_messages(published(world.supervisor, "return_value"))) == 3
        running = world.keep(world.triggerer("second"))
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)
    assert world.report()["deleted"] == 3
    assert bucket.find("/bucket") == []


class HangingFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A file system whose server does not answer until the test ends."""

    gate = threading.Event()
    on_asked: Callable[[], Any]
    answered = False

    def _open(self, *arguments: Any, **options: Any) -> Any:
        self.on_asked()
        self.gate.wait(2)
        self.answered = True
        return super()._open(*arguments, **options)


def test_a_file_system_that_hangs_holds_up_no_client(world: LeasedMessages) -> None:
    file_system = HangingFileSystem()
    store.attach("s3", "lake", fs=file_system)

    async def scenario() -> None:
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        file_system.on_asked = lambda: loop.call_soon_threadsafe(asked.set)
        running = world.triggerer().start(
            receive_trigger("orders", world.clock, payload="s3://lake@bucket/leases"), RECEIVE
        )
        await asked.wait()
        # As a client does that looks up an address.
        assert not await asyncio.to_thread(lambda: file_system.answered)
        file_system.gate.set()
        await running.ended()

    try:
        world.run(scenario)
    finally:
        file_system.gate.set()
        del store._STORE_CACHE["s3-lake"]
        file_system.store.clear()


# The messages of work tasks


def test_messages_from_xcom_are_read_as_they_are() -> None:
    messages = [{"MessageId": "m", "Body": "b", "Attributes": {}, "MessageAttributes": {}}]
    assert read_messages(messages) == messages


def test_a_manifest_that_was_removed_is_said_to_be_settled(tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match="the keeper removes it after it has settled every message"):
        read_messages({"sqs_lease_manifests": [str(tmp_path / "gone.parquet")], "messages": 1})


def test_a_broken_manifest_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_text("")
    with pytest.raises(PayloadError, match=r"broken\.parquet is not a manifest"):
        read_messages({"sqs_lease_manifests": [str(tmp_path / "broken.parquet")], "messages": 1})


@pytest.mark.parametrize("value", ["text", 3, {"other": "mapping"}], ids=repr)
def test_something_else_than_the_value_of_a_lease_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError, match="takes the value of a lease"):
        read_messages(value)


# While the DAG is parsed


@task
def load(messages: Any) -> None: ...


@pytest.fixture
def dag() -> Iterator[DAG]:
    with DAG("shop", schedule=None) as opened:
        yield opened


def test_more_messages_than_go_through_xcom_need_a_payload(dag: DAG) -> None:
    with (
        pytest.raises(ValueError, match=r"is 2001, but more than 2000 messages .* payload="),
        sqs_lease("orders", queue_url="orders", max_messages=2001) as orders,
    ):
        load(orders)


def test_with_a_payload_as_many_messages_are_allowed_as_can_be_in_flight(dag: DAG) -> None:
    with sqs_lease("orders", queue_url="orders", max_messages=120_000, payload="/shared/leases") as orders:
        load(orders)
    assert "payload" in dag.task_dict["orders"].template_fields


def mapped(orders: Any) -> Any:
    return load.expand(messages=orders)


def mapped_over_parts(orders: Any) -> Any:
    return load.expand(messages=orders.map(lambda message: message["Body"]))


def mapped_with_more(orders: Any) -> Any:
    return load.override(task_id="both").expand_kwargs(orders)


@pytest.mark.parametrize("expand", [mapped, mapped_over_parts, mapped_with_more])
def test_mapping_over_a_lease_with_a_payload_is_refused_with_the_remedy(dag: DAG, expand: Callable[[Any], Any]) -> None:
    with (
        pytest.raises(ValueError, match=r"is mapped over 'orders': .* read_messages\(\)"),
        sqs_lease("orders", queue_url="orders", payload="/shared/leases") as orders,
    ):
        expand(orders)


def test_mapping_over_one_without_the_context_is_refused_before_it_receives(
    dag: DAG, supervisor: ScriptedComms
) -> None:
    sensor = SqsLeaseSensor(task_id="orders", queue_url="orders", payload="/shared/leases")
    load.expand(messages=sensor.output)
    keep = SqsLeaseKeeperOperator(task_id="keep", receive_task_id="orders", work_task_ids=["load"])
    keep.as_teardown(setups=sensor)
    with pytest.raises(AirflowFailException, match="is mapped over 'orders'"):
        SqsLeaseSensor.execute.__wrapped__(sensor, {"ti": INSTANCE})  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("payload", "error", "text"),
    [("leases", ValueError, "must be a URI"), ("", ValueError, "must be a URI"), (Path("/x"), TypeError, "a string")],
)
def test_a_payload_that_is_not_a_place_is_an_error(dag: DAG, payload: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        SqsLeaseSensor(task_id="orders", queue_url="orders", payload=payload)


def test_a_templated_payload_is_looked_at_when_it_is_known(dag: DAG, supervisor: ScriptedComms) -> None:
    sensor = SqsLeaseSensor(task_id="orders", queue_url="orders", payload="{{ var.value.leases }}")
    sensor.payload = "leases"
    with pytest.raises(ValueError, match="must be a URI"):
        SqsLeaseSensor.execute.__wrapped__(sensor, {"ti": INSTANCE})  # type: ignore[attr-defined]
