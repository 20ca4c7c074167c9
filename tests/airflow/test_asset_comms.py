"""The asset state store, as triggers and their runs use it."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.comms import SetAssetStateStoreByName
from airflow.sdk.execution_time.context import AssetStateStoreAccessors
from airflow.triggers.base import BaseEventTrigger

from sqs_lease.airflow.airflow_api.assets import AssetState, TaskAssetState
from sqs_lease.airflow.airflow_api.requests import CommsError, watched_assets
from sqs_lease.airflow.triggers.watch import SqsLeaseTrigger
from sqs_lease.testing import run_virtual
from tests.airflow.scripted_assets import ScriptedAssets
from tests.airflow.scripted_comms import supervised_by


@pytest.fixture
def supervisor() -> Any:
    with supervised_by(ScriptedAssets()) as scripted:
        yield scripted


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
        with pytest.raises(CommsError, match="no answer about the state store of asset 'orders'"):
            await AssetState("orders").put("key", 1, patience_seconds=25)

    run_virtual(scenario)
    assert supervisor.count(SetAssetStateStoreByName) == 3


def test_a_refusal_names_the_asset(supervisor: ScriptedAssets) -> None:
    supervisor.refusing = True

    async def scenario() -> None:
        with pytest.raises(CommsError, match="refused a request about the state store of asset 'orders'"):
            await AssetState("orders").get("key")

    run_virtual(scenario)
