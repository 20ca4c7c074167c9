"""The objects that the triggers of one process share, and their lifetime."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from contextvars import ContextVar
from dataclasses import asdict
from itertools import pairwise

import pytest
from airflow.providers.amazon.aws.hooks import base_aws
from botocore.loaders import JSONFileLoader

from sqs_lease.airflow.connection import AwsConnection, open_transport
from sqs_lease.airflow.triggers import shared
from sqs_lease.airflow.triggers.shared import TriggererKeepers, install, triggerer_keepers
from sqs_lease.core.policies import Growing
from sqs_lease.sqs.errors import EndpointUnreachableError
from sqs_lease.testing import Fault, MemorySqs, MemoryTransport, TransportCall, VirtualClock, no_faults, run_virtual
from tests.airflow.virtual_triggerer import VirtualTriggerer

FIRST = AwsConnection("first")
SECOND = AwsConnection("second")
NOBODY = "http://127.0.0.1:1"
"""No server listens there."""


def test_triggers_with_one_connection_share_a_keeper_even_when_they_start_together() -> None:
    async def scenario() -> None:
        triggerer = _triggerer()
        shared = await asyncio.gather(*(triggerer.keepers.acquire(FIRST) for _ in range(20)))
        assert len(set(map(id, shared))) == 1
        assert triggerer.open_transports == 1

    run_virtual(scenario)


def test_its_calls_and_their_log_lines_belong_to_no_single_trigger() -> None:
    in_a_trigger = ContextVar("in_a_trigger", default=False)
    calls: list[bool] = []

    def note(call: TransportCall) -> Fault:
        calls.append(in_a_trigger.get())
        return no_faults(call)

    async def scenario() -> None:
        clock = VirtualClock()
        sqs = MemorySqs(clock)
        url = sqs.create_queue("orders")
        sqs.send(url, "a")
        triggerer = VirtualTriggerer(sqs, clock)
        triggerer.faults = note
        in_a_trigger.set(True)
        shared = await triggerer.keepers.acquire(FIRST)
        batch = shared.keeper.open_batch(url, policy=Growing(visibility=30))
        batch.add(sqs.receive(url), received_at=clock.now())
        await batch.extend_now()
        assert calls == [False]

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
    assert AwsConnection(**asdict(connection)) == connection
    assert hash(AwsConnection(**asdict(connection))) == hash(connection)


def test_a_botocore_configuration_with_more_than_plain_values_is_refused() -> None:
    with pytest.raises(TypeError, match="botocore_config must hold plain values"):
        AwsConnection.of("aws", None, None, {"signature_version": object()})


def _triggerer() -> VirtualTriggerer:
    clock = VirtualClock()
    return VirtualTriggerer(MemorySqs(clock), clock)


def test_the_garbage_collector_of_the_triggerer_which_others_use_too_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        await triggerer_keepers().ready()

    monkeypatch.setattr(shared, "load_client_code", lambda: None)
    monkeypatch.setattr(shared, "_keepers", None)
    before = gc.get_freeze_count()
    asyncio.run(scenario())
    assert gc.get_freeze_count() <= before


def test_triggers_begin_one_after_the_other_once_the_process_is_ready() -> None:
    began: list[int] = []
    turns_of_the_loop: list[int] = []

    async def scenario() -> None:
        done = asyncio.Event()

        async def get_ready() -> None:
            began.append(-1)
            await asyncio.sleep(1)

        async def begin(number: int) -> None:
            await keepers.ready()
            began.append(number)
            done.set()

        keepers = TriggererKeepers(get_ready=get_ready, clock=VirtualClock())
        beginning = [asyncio.create_task(begin(number)) for number in range(10)]
        await done.wait()
        while not all(task.done() for task in beginning):
            turns_of_the_loop.append(len(began))
            await asyncio.sleep(0)

    run_virtual(scenario)
    assert began == [-1, *range(10)]
    assert all(later - earlier <= 1 for earlier, later in pairwise(turns_of_the_loop))


def test_a_step_that_failed_in_a_process_is_tried_again_by_the_next_trigger() -> None:
    answers: list[Exception | None] = [OSError("no more files can be opened"), None]

    async def get_ready() -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    async def scenario() -> None:
        keepers = TriggererKeepers(get_ready=get_ready, clock=VirtualClock())
        with pytest.raises(OSError, match="no more files"):
            await keepers.ready()
        await keepers.ready()
        await keepers.ready()
        assert not answers

    run_virtual(scenario)


def test_airflow_imports_triggers_without_what_takes_long_to_import() -> None:
    # It does so in the event loop. A process of its own, because others here have imported it all.
    program = """
import sys
import sqs_lease.airflow.triggers.watch
import sqs_lease.airflow.triggers.keep
import sqs_lease.airflow.triggers.receive
print(sorted({"boto3", "aiobotocore", "aiohttp", "airflow.providers.amazon.aws.hooks.base_aws"} & sys.modules.keys()))
"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "[]"


@pytest.mark.parametrize("retries", ["standard", "legacy"])
def test_a_client_is_entered_in_the_event_loop_without_reading_files_there(
    retries: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A user may configure botocore's legacy retries, which have a file of their own.
    connection = AwsConnection.of(None, "eu-west-1", None, {"retries": {"mode": retries, "total_max_attempts": 1}})
    read: list[tuple[str, threading.Thread]] = []
    load_file = JSONFileLoader.load_file

    def watched(self: JSONFileLoader, file_path: str) -> object:
        read.append((file_path, threading.current_thread()))
        return load_file(self, file_path)

    async def scenario() -> None:
        transport = await open_transport(connection)
        with pytest.raises(EndpointUnreachableError):
            await transport.queue_attributes(f"{NOBODY}/000000000000/orders")
        await transport.aclose()

    monkeypatch.setattr(JSONFileLoader, "load_file", watched)
    monkeypatch.setattr(base_aws._loader, "_cache", {})
    monkeypatch.setenv("AWS_ENDPOINT_URL", NOBODY)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    asyncio.run(scenario())
    assert any("sqs" in file_path for file_path, _ in read)
    assert [file_path for file_path, thread in read if thread is threading.main_thread()] == []
