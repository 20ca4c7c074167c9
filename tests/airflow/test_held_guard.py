"""A work task can find out which of its messages are still held."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, task, task_group
from airflow.sdk.exceptions import AirflowFailException

from sqs_lease import airflow as public
from sqs_lease.airflow import held_guard, require_held, sqs_lease, still_held
from sqs_lease.airflow.settlement.settler import PROGRESS_KEY, Progress
from sqs_lease.core.events import Outcome

IDS = ["m0", "m1", "m2"]


class WorkInstance:
    """The task instance of a work task, as far as the functions use it."""

    dag_id = "shop"
    run_id = "run"

    def __init__(self, dag: DAG) -> None:
        self.task = dag.task_dict["load"]
        self.xcoms: dict[tuple[str, str], Any] = {("orders", "return_value"): [{"MessageId": one} for one in IDS]}
        self.states: dict[str, str | None] = {"orders_keeper": "deferred"}

    def get_task_states(self, dag_id: str, run_ids: list[str], task_ids: list[str]) -> dict[str, Any]:
        assert (dag_id, run_ids) == ("shop", ["run"])
        return {"run": {one: self.states[one] for one in task_ids if one in self.states}}

    def xcom_pull(self, task_ids: str, key: str) -> Any:
        return self.xcoms.get((task_ids, key))

    def note(self, settled: dict[int, Outcome]) -> None:
        self.xcoms["orders", PROGRESS_KEY] = Progress(settled).encode()


@pytest.fixture
def dag() -> DAG:
    @task
    def load(messages: Any) -> None: ...

    @task_group
    def shop() -> None:
        with sqs_lease("returns", queue_url="returns") as returns:
            load(returns)

    with DAG("shop", schedule=None) as opened:
        with sqs_lease("orders", queue_url="orders") as orders:
            load(orders)
        shop()
    return opened


@pytest.fixture
def instance(dag: DAG, monkeypatch: pytest.MonkeyPatch) -> WorkInstance:
    made = WorkInstance(dag)
    monkeypatch.setattr(held_guard, "get_current_context", lambda: {"ti": made})
    return made


@pytest.mark.parametrize("state", [None, "scheduled", "queued", "running", "deferred", "up_for_retry"])
def test_all_messages_are_held_until_the_keeper_settles_one(instance: WorkInstance, state: str | None) -> None:
    instance.states["orders_keeper"] = state
    assert still_held("orders") == set(IDS)
    instance.note({})
    assert still_held("orders") == set(IDS)


def test_settled_and_lost_messages_are_held_no_longer(instance: WorkInstance) -> None:
    instance.note({0: Outcome.DELETED, 2: Outcome.LOST})
    assert still_held("orders") == {"m1"}


@pytest.mark.parametrize("state", ["success", "failed", "skipped", "upstream_failed", "removed"])
def test_nothing_is_held_once_the_keeper_ended(instance: WorkInstance, state: str) -> None:
    instance.states["orders_keeper"] = state
    assert still_held("orders") == frozenset()


def test_a_keeper_that_is_not_there_any_more_holds_nothing(instance: WorkInstance) -> None:
    instance.states.clear()
    assert still_held("orders") == frozenset()


def test_work_may_go_on_while_its_messages_are_held(instance: WorkInstance) -> None:
    instance.note({0: Outcome.DELETED})
    require_held("orders", "m1")
    require_held("orders", ["m1", "m2"])


@pytest.mark.parametrize("wanted", ["m0", ["m0", "m1"]], ids=str)
def test_work_on_messages_that_were_settled_is_stopped_without_a_retry(instance: WorkInstance, wanted: Any) -> None:
    instance.note({0: Outcome.DELETED})
    with pytest.raises(
        AirflowFailException, match=r"1 of \d messages of the lease 'orders' .*\(m0\).*Clear the sensor"
    ):
        require_held("orders", wanted)


def test_a_lease_in_a_task_group_is_found_with_or_without_its_prefix(instance: WorkInstance) -> None:
    instance.states["shop.returns_keeper"] = "deferred"
    instance.xcoms["shop.returns", "return_value"] = [{"MessageId": "r0"}]
    assert still_held("returns") == still_held("shop.returns") == {"r0"}


def test_another_name_is_an_error_that_lists_the_leases(instance: WorkInstance) -> None:
    with pytest.raises(ValueError, match=r"'shop' has 0 leases named 'other'; its leases: orders, shop.returns"):
        still_held("other")


def test_public_names_are_what_they_name_and_never_modules() -> None:
    assert {name: callable(getattr(public, name)) for name in public.__all__} == dict.fromkeys(public.__all__, True)
