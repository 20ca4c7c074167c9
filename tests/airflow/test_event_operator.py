"""The first task of a run that messages started, its trigger's arguments, and the scheme of MessageQueueTrigger."""

from __future__ import annotations

import json
import runpy
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher, task
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowOptionalProviderFeatureException,
    AirflowSkipException,
)
from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor
from airflow.serialization.encoders import encode_trigger
from airflow.triggers.base import BaseEventTrigger

from demo.processes import ROOT
from sqs_lease.airflow import SqsLeaseFromEventOperator, SqsLeaseKeeperOperator, SqsLeaseTrigger, sqs_lease
from sqs_lease.airflow.airflow_api.assets import TaskAssetState
from sqs_lease.airflow.aws_connection import AwsConnection
from sqs_lease.airflow.batches import claim as claiming_module
from sqs_lease.airflow.batches.protocol import BatchEvent, BatchRegistry, Claimant, Place, RegisteredBatch, Stage
from sqs_lease.airflow.operators import queue_triggers
from sqs_lease.airflow.transfer.lease import LEASE_KEY, HandedLease
from sqs_lease.core.failure_rules import dead_letter, expire, release
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import Growing
from tests.airflow.contexts import context_of
from tests.airflow.scripted_assets import ScriptedAssets
from tests.airflow.scripted_comms import supervised_by

QUEUE_URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"
PLACE = Place.of_queue("orders asset", "orders")
RUN = Claimant("shop", "run", "orders_keeper")


def watched(**arguments: Any) -> Asset:
    trigger = SqsLeaseTrigger("orders", **arguments)
    return Asset("orders asset", watchers=[AssetWatcher("orders watcher", trigger=trigger)])


@task
def check(message: Any) -> None: ...


def dag_of(asset: Asset, *, mapped: bool = False) -> DAG:
    with DAG("shop", schedule=asset) as dag, sqs_lease("orders", event=asset) as orders:
        check.expand(message=orders) if mapped else check(orders)
    return dag


class Run:
    """A run that events started, as its first task sees it."""

    def __init__(self, *batches: str, extra: Any = None) -> None:
        self.pushed: dict[str, Any] = {}
        extras = [{"payload": BatchEvent(batch, QUEUE_URL, 1, PLACE).encode()} for batch in batches]
        asset = SimpleNamespace(name="orders asset", uri="orders asset")
        events = [
            SimpleNamespace(asset=asset, source_aliases=[], extra=given)
            for given in (*extras, *([] if extra is None else [extra]))
        ]
        self.context = context_of(
            SimpleNamespace(xcom_push=self._push),
            run_id="run",
            triggering_asset_events=TriggeringAssetEventsAccessor.build(cast("Any", events)),
        )

    def _push(self, *, key: str, value: Any) -> None:
        self.pushed[key] = value

    def execute(self, dag: DAG) -> Any:
        body = SqsLeaseFromEventOperator.execute
        return getattr(body, "__wrapped__", body)(cast("Any", dag.task_dict["orders"]), self.context)


def register(batches: dict[str, Claimant | None], policies: dict[str, Growing] | None = None) -> None:
    store = TaskAssetState(PLACE.asset)
    entries = {
        name: RegisteredBatch(name, 1, 0.0, Stage.WAITING if claimant is None else Stage.CLAIMED, claimant)
        for name, claimant in batches.items()
    }
    store.put(PLACE.registry, BatchRegistry("owner", QUEUE_URL, entries).encode())
    for name in batches:
        policy = (policies or {}).get(name, Growing(visibility=60))
        lease = Lease(Receipt(f"message {name}", "AQEB" + "x" * 300), 0.0, 60.0)
        handed = HandedLease(name, QUEUE_URL, policy, AwsConnection(), [lease])
        store.put(PLACE.messages(name), [{"MessageId": f"message {name}", "Body": name}])
        store.put(PLACE.lease(name), handed.encode())


@pytest.fixture
def store() -> Any:
    with supervised_by(ScriptedAssets()) as supervisor:
        yield supervisor


def test_the_context_makes_the_operator_and_its_keeper() -> None:
    dag = dag_of(watched())
    first, keeper = dag.task_dict["orders"], dag.task_dict["orders_keeper"]
    assert isinstance(first, SqsLeaseFromEventOperator)
    assert isinstance(keeper, SqsLeaseKeeperOperator)
    assert keeper.receive_task_id == "orders"
    assert keeper.is_teardown
    assert first.downstream_task_ids == {"check", "orders_keeper"}


def test_the_messages_of_all_batches_are_published_in_order_with_one_lease(store: ScriptedAssets) -> None:
    register({"a": RUN, "b": RUN})
    run = Run("a", "b")
    assert [message["Body"] for message in run.execute(dag_of(watched()))] == ["a", "b"]
    handed = HandedLease.decode(run.pushed[LEASE_KEY])
    assert [lease.receipt.message_id for lease in handed.leases] == ["message a", "message b"]
    assert tuple(handed.part_ids) == ("a", "b")
    assert "AQEB" not in json.dumps(run.pushed)


def test_batches_from_before_and_after_a_change_of_the_policy_are_kept_by_the_newer_one(store: ScriptedAssets) -> None:
    register({"a": RUN, "b": RUN}, {"b": Growing(visibility=90)})
    run = Run("a", "b")
    run.execute(dag_of(watched()))
    assert HandedLease.decode(run.pushed[LEASE_KEY]).policy.visibility_seconds == 90


def test_a_run_without_events_of_the_queue_is_skipped(store: ScriptedAssets) -> None:
    for run in (Run(), Run(extra={"from_rest_api": True})):
        with pytest.raises(AirflowSkipException, match="no event of asset 'orders asset' started this run"):
            run.execute(dag_of(watched()))


def test_a_run_whose_batches_belong_to_another_one_is_skipped(store: ScriptedAssets) -> None:
    register({"a": Claimant("other", "run", "keeper")})
    with pytest.raises(AirflowSkipException, match="no message of the events is left"):
        Run("a").execute(dag_of(watched()))


def test_a_trigger_that_does_not_answer_fails_the_task_so_that_it_is_tried_again(
    store: ScriptedAssets, monkeypatch: pytest.MonkeyPatch
) -> None:
    register({"a": None})
    monkeypatch.setattr(claiming_module, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(AirflowException, match="check that a triggerer runs") as raised:
        Run("a").execute(dag_of(watched()))
    assert not isinstance(raised.value, AirflowFailException)


def test_an_operator_without_a_keeper_says_what_to_do(store: ScriptedAssets) -> None:
    register({"a": RUN})
    with DAG("shop", schedule=None) as dag:
        SqsLeaseFromEventOperator(task_id="orders", event=watched())
    with pytest.raises(AirflowFailException, match=r"use sqs_lease\(\.\.\., event=\.\.\.\)"):
        Run("a").execute(dag)


def test_an_asset_that_two_queues_share_is_refused() -> None:
    watchers = [AssetWatcher(name, trigger=SqsLeaseTrigger(name)) for name in ("orders", "returns")]
    with pytest.raises(ValueError, match="watched by several queues"):
        SqsLeaseFromEventOperator(task_id="orders", event=Asset("both", watchers=watchers))


def test_something_else_than_an_asset_is_refused() -> None:
    with pytest.raises(TypeError, match="must be the Asset"):
        SqsLeaseFromEventOperator(task_id="orders", event="orders")  # type: ignore[arg-type]


def test_more_messages_than_airflow_can_map_over_are_refused() -> None:
    dag_of(watched(max_messages=256), mapped=True)
    with pytest.raises(ValueError, match="lower max_messages of 'orders'"):
        dag_of(watched(max_messages=257), mapped=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_messages": 0}, "max_messages must be an integer"),
        ({"max_unsettled_batches": True}, "max_unsettled_batches must be an integer"),
        ({"max_messages": 1000, "max_unsettled_batches": 3}, "more than 2000 do not go through XCom"),
        ({"handoff_timeout": 0}, "handoff_timeout"),
        ({"linger": -1}, "linger"),
        ({"policy": "slow"}, "policy must be one of"),
        ({"queue_url": "http://"}, "http://"),
        ({"message_filtering": "regex"}, "message_filtering must be one of"),
        ({"unmatched": expire()}, "messages that message_filtering keeps out"),
        (
            {"message_filtering": "jsonpath", "message_filtering_config": "$.a", "unmatched": release()},
            "give it a delay",
        ),
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused_while_the_dag_is_parsed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SqsLeaseTrigger(**{"queue_url": "orders", **arguments})


def test_a_trigger_made_from_its_stored_arguments_is_the_same() -> None:
    trigger = SqsLeaseTrigger(
        "orders",
        policy="growing",
        visibility=300,
        payload="s3://bucket/leases",
        message_filtering="literal",
        message_filtering_match_values={"b", "a"},
        unmatched=dead_letter(),
        botocore_config={"read_timeout": 5},
    )
    classpath, arguments = trigger.serialize()
    assert json.loads(json.dumps(arguments)) == arguments
    again = SqsLeaseTrigger(**arguments)
    assert again.serialize() == (classpath, arguments)
    # Airflow tells by this whether a watcher's trigger was changed.
    assert BaseEventTrigger.hash(classpath, arguments) == BaseEventTrigger.hash(*again.serialize())


def test_with_payload_more_messages_are_allowed_but_no_task_is_mapped_over_them() -> None:
    asset = watched(max_messages=10_000, payload="s3://bucket/leases")
    dag_of(asset)
    with pytest.raises(ValueError, match="read_messages"):
        dag_of(asset, mapped=True)
    with pytest.raises(ValueError, match="payload of"):
        watched(payload="relative/path")


def test_batches_from_before_and_after_payload_was_set_are_not_mixed(store: ScriptedAssets) -> None:
    register({"a": RUN, "b": RUN})
    reference = {"sqs_lease_manifests": ["file:///b.parquet"], "messages": 1}
    TaskAssetState(PLACE.asset).put(PLACE.messages("b"), reference)
    run = Run("a", "b")
    assert run.execute(dag_of(watched())) == reference
    assert run.pushed[LEASE_KEY]["messages"] == 1


def test_a_visibility_timeout_that_does_not_survive_a_takeover_gives_a_warning() -> None:
    with pytest.warns(UserWarning, match="the trigger of 'orders'"):
        SqsLeaseTrigger("orders", visibility=30)


def test_message_queue_trigger_knows_the_scheme() -> None:
    trigger = MessageQueueTrigger(scheme="sqs+lease", queue_url="orders", max_messages=5)
    assert encode_trigger(trigger) == encode_trigger(SqsLeaseTrigger("orders", max_messages=5))
    asset = Asset("orders asset", watchers=[AssetWatcher("orders watcher", trigger=trigger)])
    assert SqsLeaseFromEventOperator(task_id="orders", event=asset).max_messages == 20


def test_without_the_messaging_provider_only_the_scheme_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sqs_lease.airflow.triggers.message_queue", raising=False)
    monkeypatch.setitem(sys.modules, "airflow.providers.common.messaging.providers.base_provider", None)
    with pytest.raises(AirflowOptionalProviderFeatureException, match="common-messaging"):
        __import__("sqs_lease.airflow.triggers.message_queue")


def test_the_example_is_a_dag_that_messages_start() -> None:
    names = runpy.run_path(str(ROOT / "dags" / "event_driven.py"))
    asset = names["arriving_orders"]
    dag = names["orders_that_start_runs"]()
    assert set(dag.task_dict) == {"orders", "total", "orders_keeper"}
    (trigger,) = queue_triggers(asset)
    assert trigger.queue_url == "orders-that-start-runs"
