"""Leases that are lost, lapse or near their end: a warning, a failed keeper, or a callback."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.bases.notifier import BaseNotifier
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from sqs_lease.airflow.handover import LEASE_KEY, HandedLease
from sqs_lease.airflow.settlement.lost_leases import CALLBACK_SECONDS, RAISE, WARN, encode_on_lost
from sqs_lease.airflow.settlement.settler import PROGRESS_KEY, Progress
from sqs_lease.core.events import Outcome
from sqs_lease.core.policies import Growing, Never
from tests.airflow.leased_messages import ALL_HELD, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import RECEIVE, RUN_ID, RunningTrigger

CALLS: list[dict[str, Any]] = []


@pytest.fixture(autouse=True)
def no_calls() -> Iterator[None]:
    CALLS.clear()
    yield
    CALLS.clear()


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


async def note(context: dict[str, Any], to: str) -> None:
    CALLS.append({**context, "to": to})


async def fail(context: dict[str, Any]) -> None:
    CALLS.append(context)
    raise ValueError("the message cannot be sent")


async def never_end(context: dict[str, Any]) -> None:
    CALLS.append(context)
    await asyncio.Event().wait()


class Pager(BaseNotifier):
    """A notifier as users write them."""

    template_fields = ("text",)

    def __init__(self, text: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.text = text

    async def async_notify(self, context: Any) -> None:
        CALLS.append({"text": self.text})


class SilentPager(BaseNotifier):
    """A notifier for Airflow's other callbacks only: the triggerer could not call it."""

    def notify(self, context: Any) -> None:
        CALLS.append({})


class BlockingPager(BaseNotifier):
    def async_notify(self, context: Any) -> None:  # type: ignore[override]
        CALLS.append({})


class ClosedPager(Pager):
    """A notifier that cannot be given a context."""

    def __init__(self, text: str) -> None:
        super().__init__(text)


async def lose(world: LeasedMessages) -> None:
    """Let another consumer get all of the messages after their leases lapsed."""
    await asyncio.sleep(31)
    world.sqs.receive(world.url, max_messages=10, visibility_seconds=3600, caller="other")


async def keep_and_lose(world: LeasedMessages, on_lost: Any) -> RunningTrigger:
    """Lose all leases while the work runs: SQS refuses to extend a lapsed lease that another consumer has."""
    triggerer = world.triggerer()
    await world.receive(triggerer, Never(visibility=30))
    running = world.keep(triggerer, on_lost=encode_on_lost(on_lost))
    await lose(world)
    await asyncio.sleep(1)
    return running


def delete_elsewhere(world: LeasedMessages, position: int) -> None:
    """Delete a message behind the keeper's back, so that its next extension is refused."""
    lease = world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY]
    receipt = HandedLease.decode(lease, RECEIVE).leases[position].receipt
    world.sqs.delete(world.url, [receipt], caller="other")


@pytest.mark.parametrize(("on_lost", "event"), [(WARN, TaskSuccessEvent), (RAISE, TriggerEvent)], ids=["warn", "raise"])
def test_lapsed_leases_fail_the_keeper_only_if_that_was_asked_for(
    world: LeasedMessages, on_lost: str, event: type, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        running = await keep_and_lose(world, on_lost)
        world.states["load"] = "success"
        assert [type(one) for one in await running.ended()] == [event]

    with caplog.at_level(logging.WARNING):
        world.run(scenario)
    assert "ran out" in caplog.text
    assert ("3 lapsed" in caplog.text) == (on_lost == RAISE)
    assert world.report()["late"] == 3


def test_the_keeper_fails_only_after_it_settled_the_rest(world: LeasedMessages) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        running = world.keep(triggerer, on_lost=RAISE)
        await asyncio.sleep(5)
        delete_elsewhere(world, 1)
        await asyncio.sleep(60)
        world.states["load"] = "success"
        assert [type(one) for one in await running.ended()] == [TriggerEvent]
        assert world.message_states() == {}

    world.run(scenario)


def test_nothing_fails_when_nothing_was_lost(world: LeasedMessages) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        running = world.keep(triggerer, on_lost=RAISE)
        world.states["load"] = "success"
        assert [type(one) for one in await running.ended()] == [TaskSuccessEvent]

    world.run(scenario)


def test_the_callback_is_called_at_once_and_once_for_all_leases_that_it_befell(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await keep_and_lose(world, AsyncCallback(note, {"to": "me"}))
        assert [
            {
                "dag_id": "dag",
                "run_id": "run",
                "task_id": "orders_keeper",
                "queue_url": world.url,
                "lease_event": "lapsed",
                "message_ids": world.ids,
                "to": "me",
            }
        ] == CALLS
        world.states["load"] = "success"
        assert [type(one) for one in await running.ended()] == [TaskSuccessEvent]

    world.run(scenario)


def test_leases_that_were_lost_before_the_keeper_came_are_told_when_it_comes(world: LeasedMessages) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer, Never(visibility=30))
        world.states["orders_keeper"] = "queued"
        await asyncio.sleep(40)
        running = world.keep(triggerer, on_lost=encode_on_lost(AsyncCallback(note, {"to": "me"})))
        await asyncio.sleep(1)
        assert [(call["lease_event"], call["message_ids"]) for call in CALLS] == [("lapsed", world.ids)]
        await running.cancel()

    world.run(scenario)


@pytest.mark.parametrize(
    "stored",
    [
        {"path": "os.mkdir", "kwargs": {"path": "{place}"}},
        {"path": "asyncio.create_subprocess_exec", "kwargs": {"program": "mkdir", "args": ["{place}"]}},
    ],
    ids=["function", "async function"],
)
def test_a_stored_name_that_was_not_written_as_a_callback_is_never_called(
    world: LeasedMessages, tmp_path: Path, stored: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "made"
    callback = json.loads(json.dumps(stored).replace("{place}", str(place)))

    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer, Never(visibility=30))
        running = world.keep(triggerer, on_lost=callback)
        await lose(world)
        world.states["load"] = "success"
        assert [type(one) for one in await running.ended()] == [TaskSuccessEvent]

    world.run(scenario)
    assert not place.exists()
    assert "neither a notifier nor an async function with a parameter 'context'" in caplog.text


def test_a_notifier_is_a_callback(world: LeasedMessages) -> None:
    async def scenario() -> None:
        callback = AsyncCallback(Pager, {"text": "{{ message_ids | length }} leases {{ lease_event }}"})
        await (await keep_and_lose(world, callback)).cancel()

    world.run(scenario)
    assert CALLS == [{"text": "3 leases lapsed"}]


@pytest.mark.parametrize(
    ("callback", "remedy"),
    [
        (AsyncCallback(SilentPager), "write async def async_notify"),
        (AsyncCallback(BlockingPager), "write async def async_notify"),
        (AsyncCallback(ClosedPager, {"text": "lost"}), "unexpected keyword argument 'context'"),
        (AsyncCallback(Pager), "missing a required argument: 'text'"),
        (AsyncCallback(note, {"too": "me"}), "missing a required argument: 'to'"),
        (AsyncCallback(fail, {"to": "me"}), "unexpected keyword argument 'to'"),
    ],
)
def test_a_callback_that_could_not_be_called_is_refused_before_a_lease_is_lost(
    callback: AsyncCallback, remedy: str
) -> None:
    with pytest.raises((TypeError, ValueError), match="the callback of on_lost") as refused:
        encode_on_lost(callback)
    assert remedy in str(refused.value)


def test_a_lease_that_nears_its_end_is_told_before_it_ends(world: LeasedMessages) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer, Growing(visibility=30, max_lease=120))
        running = world.keep(triggerer, on_lost=encode_on_lost(AsyncCallback(note, {"to": "me"})))
        await asyncio.sleep(110)
        assert {call["lease_event"] for call in CALLS} == {"ending"}
        assert sorted(one for call in CALLS for one in call["message_ids"]) == sorted(world.ids)
        assert world.message_states() == ALL_HELD
        world.states["load"] = "success"
        await running.ended()

    world.run(scenario)


def test_a_callback_that_fails_changes_nothing(world: LeasedMessages, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        running = await keep_and_lose(world, AsyncCallback(fail))
        world.states["load"] = "success"
        assert [type(one) for one in await running.ended()] == [TaskSuccessEvent]

    world.run(scenario)
    assert "callback tests.airflow.settlement.test_lost_leases.fail failed" in caplog.text


def test_a_callback_that_the_triggerer_cannot_import_is_told_when_the_keeper_begins(
    world: LeasedMessages, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        running = world.keep(triggerer, on_lost={"path": "beside_dag_files.notice", "kwargs": {}})
        await asyncio.sleep(5)
        assert world.message_states() == ALL_HELD
        assert "the callback of on_lost, beside_dag_files.notice, cannot be imported" in caplog.text
        assert "ModuleNotFoundError" in caplog.text
        world.states["load"] = "success"
        assert [type(one) for one in await running.ended()] == [TaskSuccessEvent]

    world.run(scenario)


def test_a_callback_that_can_be_imported_is_not_worth_a_word(
    world: LeasedMessages, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        running = world.keep(triggerer, on_lost=encode_on_lost(AsyncCallback(note, {"to": "me"})))
        await asyncio.sleep(5)
        world.states["load"] = "success"
        assert [type(one) for one in await running.ended()] == [TaskSuccessEvent]

    with caplog.at_level(logging.WARNING):
        world.run(scenario)
    assert "on_lost" not in caplog.text


def test_a_callback_that_does_not_end_is_ended(world: LeasedMessages) -> None:
    async def scenario() -> None:
        running = await keep_and_lose(world, AsyncCallback(never_end))
        world.states["load"] = "success"
        began = asyncio.get_running_loop().time()
        assert [type(one) for one in await running.ended()] == [TaskSuccessEvent]
        assert asyncio.get_running_loop().time() - began <= CALLBACK_SECONDS + 1

    world.run(scenario)
    assert len(CALLS) == 1


def test_lost_messages_are_noted_for_the_triggerer_that_resumes_the_keeper(world: LeasedMessages) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer, Growing(visibility=9))
        running = world.keep(triggerer)
        await asyncio.sleep(8)
        delete_elsewhere(world, 1)
        # The next extension finds out, sooner than the keeper leaves word of how long the leases last.
        await asyncio.sleep(7)
        noted = Progress.decode(world.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, PROGRESS_KEY])
        assert noted.settled == {1: Outcome.LOST}
        world.states["load"] = "success"
        await running.ended()
        assert world.message_states() == {}

    world.run(scenario)
    assert (world.report()["deleted"], world.report()["lost"]) == (2, 1)


def test_a_message_found_lost_only_when_it_is_settled_is_told_as_well(world: LeasedMessages) -> None:
    async def scenario() -> None:
        triggerer = world.triggerer()
        await world.receive(triggerer)
        running = world.keep(triggerer, on_lost=encode_on_lost(AsyncCallback(note, {"to": "me"})))
        await asyncio.sleep(5)
        delete_elsewhere(world, 1)
        world.states["load"] = "failed"
        await running.ended()

    world.run(scenario)
    assert [(call["lease_event"], call["message_ids"]) for call in CALLS] == [("lost", [world.ids[1]])]
