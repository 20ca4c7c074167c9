"""The requests to the asset state store, and pins of what they rely on inside Airflow."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from airflow.jobs.triggerer_job_runner import ToTriggerRunner, ToTriggerSupervisor
from airflow.sdk import Asset
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time.comms import (
    AssetStateStoreResult,
    DeleteAssetStateStoreByName,
    ErrorResponse,
    GetAssetStateStoreByName,
    OKResponse,
    SetAssetStateStoreByName,
    ToSupervisor,
    ToTask,
)
from airflow.sdk.execution_time.context import AssetStateStoreAccessors
from airflow.triggers.base import BaseEventTrigger

from sqs_lease.airflow.comms.assets import AssetState, TaskAssetState, watched_assets
from sqs_lease.airflow.comms.supervisor import CommsError
from sqs_lease.airflow.events.trigger import SqsLeaseTrigger
from sqs_lease.testing import run_virtual
from tests.airflow.scripted_assets import ScriptedAssets
from tests.airflow.scripted_comms import supervised_by

REQUESTS = (GetAssetStateStoreByName, SetAssetStateStoreByName, DeleteAssetStateStoreByName)


@pytest.fixture
def supervisor() -> Any:
    with supervised_by(ScriptedAssets()) as scripted:
        yield scripted


@pytest.mark.parametrize("request_class", REQUESTS, ids=lambda request: request.__name__)
def test_both_supervisors_take_the_requests(request_class: Any) -> None:
    assert request_class in get_args(get_args(ToTriggerSupervisor)[0])
    assert request_class in get_args(get_args(ToSupervisor)[0])
    assert {"name", "key"} <= set(request_class.model_fields)


@pytest.mark.parametrize("answer_class", [AssetStateStoreResult, ErrorResponse, OKResponse])
def test_triggers_and_tasks_take_the_answers(answer_class: Any) -> None:
    assert answer_class in get_args(get_args(ToTriggerRunner)[0])
    assert answer_class in get_args(get_args(ToTask)[0])


def test_a_missing_value_has_an_error_of_its_own() -> None:
    assert ErrorType.ASSET_STORE_NOT_FOUND.value == "ASSET_STORE_NOT_FOUND"


def test_an_event_trigger_learns_which_assets_it_watches() -> None:
    assert issubclass(SqsLeaseTrigger, BaseEventTrigger)
    assert SqsLeaseTrigger("orders").asset_state_store is None
    accessors = AssetStateStoreAccessors(inlets=[Asset("b", uri="x://b"), Asset("a", uri="x://a")])
    assert watched_assets(accessors) == ["a", "b"]


def test_a_trigger_that_watches_nothing_says_where_it_belongs() -> None:
    with pytest.raises(RuntimeError, match="use it in an AssetWatcher"):
        watched_assets(None)


def test_what_a_trigger_stored_a_task_reads_and_the_other_way_round(supervisor: ScriptedAssets) -> None:
    async def scenario() -> None:
        await AssetState("orders").put("key", {"a": 1})
        assert TaskAssetState("orders").get("key") == {"a": 1}
        TaskAssetState("orders").put("key", {"b": 2})
        assert await AssetState("orders").get("key") == {"b": 2}
        await AssetState("orders").delete("key")
        assert await AssetState("orders").get("key") is None
        assert TaskAssetState("orders").get("key") is None

    run_virtual(scenario)


def test_a_value_is_stored_again_while_no_answer_comes_and_then_given_up(supervisor: ScriptedAssets) -> None:
    supervisor.silent = True

    async def scenario() -> None:
        with pytest.raises(CommsError, match="no answer to SetAssetStateStoreByName"):
            await AssetState("orders").put("key", 1, patience_seconds=25)

    run_virtual(scenario)
    assert supervisor.count(SetAssetStateStoreByName) == 3
