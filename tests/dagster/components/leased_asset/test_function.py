"""The work of an asset, declared in YAML: a function, or a subclass; what is made of it, and what is wrong."""

import sys
from typing import Any

import dagster as dg
import pytest

from sqs_lease.dagster import LeasedAssetComponent, LeasedBatch
from sqs_lease.testing import LeasedQueues
from tests.dagster.components.shop import FUNCTION, Shop, refused


def test_a_function_works_on_batches_of_a_queue_that_is_declared_once(leased_queues: LeasedQueues, shop: Shop) -> None:
    queue = leased_queues.create("orders", "body 0", "body 1", "body 2")
    shop.write("orders/defs.yaml", FUNCTION)
    result = shop.run()
    assert sys.modules["shop_of_tests.work"].worked == [["body 0", "body 1"]]
    assert queue.visible == ["body 2"]
    (materialization,) = result.asset_materializations_for_node("orders")
    assert materialization.metadata["sqs/received"].value == 2
    assert queue.deleted == 2


def test_the_function_is_not_called_without_messages(leased_queues: LeasedQueues, shop: Shop) -> None:
    leased_queues.create("orders")
    shop.write("orders/defs.yaml", FUNCTION.replace("work.load", "work.fail"))
    assert shop.run().success


def test_the_value_of_the_function_is_on_the_materialization(leased_queues: LeasedQueues, shop: Shop) -> None:
    leased_queues.create("orders", "body 0")
    shop.write("orders/defs.yaml", FUNCTION.replace("work.load", "work.load_with_context"))
    result = shop.run()
    (materialization,) = result.asset_materializations_for_node("orders")
    assert materialization.metadata["bodies"].value == ["body 0"]
    assert materialization.metadata["run"].value == result.run_id


@pytest.mark.parametrize("function", ["fail", "value", "checked", "of_another"])
def test_messages_are_given_back_where_the_work_is_not_done_or_its_result_does_not_fit_the_asset(
    leased_queues: LeasedQueues, shop: Shop, function: str
) -> None:
    queue = leased_queues.create("orders", "body 0")
    shop.write("orders/defs.yaml", FUNCTION.replace("work.load", f"work.{function}"))
    assert not shop.run(raise_on_error=False).success
    assert queue.visible == ["body 0"]


def test_the_work_of_a_failed_attempt_is_tried_again_before_messages_are_dead_lettered(
    leased_queues: LeasedQueues, shop: Shop
) -> None:
    queue = leased_queues.create("orders", "body 0")
    retried = FUNCTION.replace("work.load", "work.fail").replace("wait_seconds: 0", "wait_seconds: 5")
    retried = retried.replace("linger_seconds: 0", "linger_seconds: 0, on_failure: dead_letter")
    shop.write("orders/defs.yaml", f"{retried}  retries: {{max_retries: 1}}\n")
    result = shop.run(raise_on_error=False)
    assert [event for event in result.all_events if event.is_step_restarted]
    assert queue.dead_letters == ["body 0"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FUNCTION.replace("queues/orders", "queues/other"), "there is no component at 'queues/other'"),
        (FUNCTION.replace("work.load", "work.lod"), "'shop_of_tests.work.lod' cannot be imported"),
        (FUNCTION.replace("work.load", "work.generator"), "is a generator or asynchronous"),
        (FUNCTION.replace("work.load", "work.asynchronous"), "is a generator or asynchronous"),
        (FUNCTION.replace("work.load", "work.without"), "cannot be called with the messages of a batch"),
        (FUNCTION.replace("work.load", "work.Work"), "is not a function"),
        (FUNCTION.replace("{component: ", "{name: orders, component: "), "remove name"),
        (FUNCTION.replace("{component: queues/orders}", "{}"), "queue needs name"),
    ],
)
def test_a_wrong_setting_is_named_by_its_key_when_the_folder_is_loaded(shop: Shop, text: str, said: str) -> None:
    shop.write("orders/defs.yaml", text)
    assert said in refused(shop)


class Counting(LeasedAssetComponent):
    """An asset with work and a specification of its own."""

    def get_asset_spec(self) -> dg.AssetSpec:
        return super().get_asset_spec().merge_attributes(owners=["team:shop"])

    def execute(self, context: dg.AssetExecutionContext, batch: LeasedBatch) -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(metadata={"bodies": len(batch)})


def test_a_subclass_says_what_the_work_and_the_asset_are(leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders", "body 0")
    made = Counting.resolve_from_dict(
        {"queue": {"name": "orders"}, "lease": {"wait_seconds": 0, "linger_seconds": 0}, "asset": {"key": "orders"}}
    )
    definitions = made.build_defs(dg.ComponentTree.for_test().load_context)
    result = definitions.resolve_implicit_global_asset_job_def().execute_in_process()
    (materialization,) = result.asset_materializations_for_node("orders")
    assert materialization.metadata["bodies"].value == 1
    (spec,) = (
        spec for asset in definitions.assets or [] if isinstance(asset, dg.AssetsDefinition) for spec in asset.specs
    )
    assert spec.owners == ["team:shop"]
