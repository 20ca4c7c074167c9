"""A worker without the triggerer's Fernet key: a clear error, and its messages come back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.crypto import get_fernet
from airflow.sdk.exceptions import AirflowFailException
from cryptography.fernet import Fernet

from sqs_lease.airflow import SqsLeaseKeeperOperator, SqsLeaseSensor, sqs_lease
from sqs_lease.airflow.airflow_api import requests as sdk
from sqs_lease.airflow.handover import LEASE_KEY, HandedLease, PayloadError
from sqs_lease.airflow.payload import load_lease
from sqs_lease.airflow.worker import give_back_handed
from sqs_lease.testing import LeasedQueue, LeasedQueues, VirtualClock, run_virtual
from tests.airflow.contexts import context_of
from tests.airflow.leased_messages import ALL_VISIBLE, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.test_worker import RECEIVING, TaskInstance, execute
from tests.airflow.virtual_triggerer import KEEP, RECEIVE, RUN_ID, USER_ACTION, receive_trigger

KEYS = ["another key", "no key in the worker", "no key in the triggerer"]


class _NoKey:
    """Airflow's stand-in for encryption where no key is configured."""

    @staticmethod
    def encrypt(message: bytes) -> bytes:
        return message

    @staticmethod
    def decrypt(message: bytes) -> bytes:
        return message


class Keys:
    """Lets this process be a worker or a triggerer, by its Fernet key."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
        self._monkeypatch = monkeypatch
        self._worker: Any = _NoKey() if case == "no key in the worker" else Fernet(Fernet.generate_key())
        self._triggerer: Any = _NoKey() if case == "no key in the triggerer" else get_fernet()

    def worker(self) -> None:
        self._monkeypatch.setattr(sdk, "get_fernet", lambda: self._worker)

    def triggerer(self) -> None:
        self._monkeypatch.setattr(sdk, "get_fernet", lambda: self._triggerer)


@pytest.fixture(params=KEYS)
def keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Keys:
    return Keys(monkeypatch, request.param)


@pytest.fixture
def queue(leased_queues: LeasedQueues, supervisor: ScriptedComms) -> LeasedQueue:
    return leased_queues.create("orders")


@task
def load(messages: Any) -> None: ...


def received(queue: LeasedQueue) -> tuple[SqsLeaseKeeperOperator, dict[str, Any]]:
    """The keeper, and the lease that a sensor's worker left for it."""
    options = {"visibility": 300, "timeout": 3600, "linger": 0, "deferrable": False}
    with DAG("shop", schedule=None) as dag, sqs_lease("orders", queue_url=queue.url, **options) as orders:  # type: ignore[arg-type]
        load(orders)
    made, keeper = dag.task_dict["orders"], dag.task_dict["orders_keeper"]
    assert isinstance(made, SqsLeaseSensor)
    assert isinstance(keeper, SqsLeaseKeeperOperator)
    task_instance = TaskInstance()
    execute(made, task_instance)
    return keeper, task_instance.pushed[LEASE_KEY]


def test_the_triggerer_says_what_is_wrong_and_a_worker_gives_the_messages_back_once(
    queue: LeasedQueue, leased_queues: LeasedQueues, supervisor: ScriptedComms, keys: Keys
) -> None:
    queue.send("a", "b")
    keys.worker()
    keeper, lease = received(queue)
    assert queue.visible == []
    keys.triggerer()
    with pytest.raises(PayloadError, match=r"same.*fernet_key") as raised:
        run_virtual(lambda: load_lease(lease, RECEIVING), clock=VirtualClock())
    assert "task 'orders' of DAG 'shop'" in str(raised.value)
    assert lease["sealed"][:20] not in str(raised.value)
    keys.worker()
    place = ("run", "orders", -1, LEASE_KEY)
    supervisor.xcoms[place] = lease
    instance = SimpleNamespace(
        xcom_pull=lambda **_: supervisor.xcoms[place], dag_id="shop", run_id="run", task_id="orders_keeper"
    )
    event = {"error": str(raised.value), "give_back": True}
    with pytest.raises(AirflowFailException, match=r"fernet_key.*2 of 2 messages were given back"):
        keeper.execute_complete(context_of(instance), event)
    assert queue.visible == ["a", "b"]
    # A user clears the keeper, when another consumer has them.
    assert len(leased_queues.sqs.receive(queue.url, max_messages=10, visibility_seconds=600)) == 2
    with pytest.raises(AirflowFailException):
        keeper.execute_complete(context_of(instance), event)
    assert queue.visible == []


def test_the_keepers_trigger_resumes_a_worker_at_once(supervisor: ScriptedComms, keys: Keys) -> None:
    world = LeasedMessages(supervisor)

    async def scenario() -> None:
        keys.worker()
        triggerer = world.triggerer()
        await world.receive(triggerer)
        keys.triggerer()
        began_at = world.clock.now()
        (event,) = await world.keep(world.triggerer("second")).ended()
        assert world.clock.now() - began_at < 10
        assert event.payload["give_back"] is True
        assert "fernet_key" in event.payload["error"]

    world.run(scenario)


def test_a_worker_that_cannot_read_the_leases_either_says_when_the_messages_come_back(
    queue: LeasedQueue, keys: Keys
) -> None:
    queue.send("a")
    keys.worker()
    _, lease = received(queue)
    keys.triggerer()
    assert "come back when their visibility timeout ends" in give_back_handed(lease, RECEIVING, RECEIVING, LEASE_KEY)
    assert queue.visible == []


def test_a_keeper_that_is_cleared_when_the_key_was_changed_holds_nothing_for_hours(
    supervisor: ScriptedComms, keys: Keys
) -> None:
    world = LeasedMessages(supervisor)

    async def scenario() -> None:
        keys.triggerer()
        triggerer = world.triggerer()
        # Another task of this triggerer, which keeps the shared client open.
        other = triggerer.start(
            receive_trigger("dead", world.clock, timeout_seconds=90_000.0), replace(RECEIVE, run_id="2")
        )
        await world.receive(triggerer)
        keeping = world.keep(triggerer)
        await asyncio.sleep(60)
        # The run is cleared, and its sensor receives another batch, in a worker that has the new key already.
        lease = HandedLease.decode(supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY], RECEIVE)
        keys.worker()
        supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY] = lease.encode(RECEIVE)
        keys.triggerer()
        world.states.update({KEEP.task_id: "queued"})
        await keeping.cancel(USER_ACTION)
        await asyncio.sleep(60)
        assert world.message_states() == ALL_VISIBLE
        await other.cancel()

    world.run(scenario)
