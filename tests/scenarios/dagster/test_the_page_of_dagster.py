"""The code of docs/dagster.md, and the asset of docs/first-asset.md, do what the text around them says."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from demo.processes import ROOT
from sqs_lease.dagster import SqsQueueResource
from sqs_lease.testing import LeasedQueues
from tests.docs.test_examples import blocks

FAILURES, RETURNED, DRAINED, SENSORS, AUTOMATION, DISPATCH, CHECKS, CHECKED = blocks(ROOT / "docs" / "dagster.md")
FIRST, *_ = blocks(ROOT / "docs" / "first-asset.md")
QUEUE = {"orders_queue": SqsQueueResource(queue="orders")}


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    monkeypatch.setenv("ORDERS_STORE", str(tmp_path / "orders.jsonl"))


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def names(block: str) -> dict[str, Any]:
    defined: dict[str, Any] = {"__name__": "page"}
    # Compiled without this module's postponed annotations, as a module of the reader's is.
    exec(compile(block, "dagster.md", "exec", dont_inherit=True), defined)
    return defined


def evaluate(block: str, sensor: str, instance: dg.DagsterInstance) -> Any:
    definitions: dg.Definitions = names(block)["defs"]
    made = definitions.get_sensor_def(sensor)
    with dg.build_sensor_context(instance, definitions=definitions) as context:
        # The daemon's context has it; a test's context knows no instance to look for partitions in.
        context.__dict__["caching_dynamic_partitions_loader"] = instance
        return made.evaluate_tick(context)


def test_the_asset_stores_orders_and_deletes_their_messages(leased_queues: LeasedQueues, tmp_path: Path) -> None:
    queue = leased_queues.create("orders", '{"order_id": 1}', '{"order_id": 2}')
    definitions: dg.Definitions = names(FIRST)["defs"]
    definitions.get_implicit_global_asset_job_def().execute_in_process()
    assert (tmp_path / "orders.jsonl").read_text() == '{"order_id": 1}\n{"order_id": 2}\n'
    assert queue.deleted == 2


def test_messages_that_failed_are_dead_letters_and_the_others_are_deleted(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", '{"order_id": 1}', "no order")
    assert dg.materialize([names(FAILURES)["checked_orders"]], resources=QUEUE).success
    assert (queue.dead_letters, queue.visible, queue.invisible) == (["no order"], [], [])


class FullDisk(dg.IOManager):
    full = True
    stored: list[str]

    def handle_output(self, context: dg.OutputContext, obj: list[str]) -> None:
        if self.full:
            raise OSError("no space is left")
        self.stored = obj

    def load_input(self, context: dg.InputContext) -> None: ...


def test_a_value_is_stored_before_its_messages_are_deleted(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", "an order")
    disk = FullDisk()
    asset, resources = names(RETURNED)["order_bodies"], {**QUEUE, "io_manager": disk}
    assert not dg.materialize([asset], resources=resources, raise_on_error=False).success
    assert queue.visible == ["an order"]
    disk.full = False
    assert dg.materialize([asset], resources=resources).success
    assert (queue.deleted, disk.stored) == (1, ["an order"])


def test_a_step_works_on_batch_after_batch(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("orders", *["an order"] * 3)
    drain = names(DRAINED.replace("max_messages=500", "max_messages=1"))["drain"]
    job = dg.GraphDefinition(name="draining", node_defs=[drain]).to_job(resource_defs=QUEUE)
    assert job.execute_in_process().success
    assert queue.deleted == 3


def test_a_hundred_messages_start_a_run(leased_queues: LeasedQueues, instance: dg.DagsterInstance) -> None:
    queue = leased_queues.create("orders", *["an order"] * 99)
    assert not evaluate(SENSORS, "orders_backlog", instance).run_requests
    queue.send("one more")
    assert len(evaluate(SENSORS, "orders_backlog", instance).run_requests) == 1


def test_the_run_of_a_partition_is_of_the_day_and_has_its_tag(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance
) -> None:
    leased_queues.create("orders", "an order")
    before = datetime.now(UTC)
    (request,) = evaluate(SENSORS, "orders_by_day_backlog", instance).run_requests
    assert request.partition_key in {f"{day:%Y-%m-%d}" for day in (before, datetime.now(UTC))}
    assert request.tags["backlog"] == "1"


def test_an_asset_behind_the_queue_runs_by_its_condition(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance
) -> None:
    leased_queues.create("orders", *["an order"] * 100)
    definitions = names(AUTOMATION)["defs"]
    cursor = dg.evaluate_automation_conditions(definitions, instance).cursor
    for event in evaluate(AUTOMATION, "orders_backlog", instance).asset_events:
        instance.report_runless_asset_event(event)
    result = dg.evaluate_automation_conditions(definitions, instance, cursor=cursor)
    assert result.get_num_requested(dg.AssetKey("orders")) == 1


def test_messages_go_to_the_job_and_partition_that_they_name_and_others_are_dead_letters(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    order, other = '{"kind": "orders", "customer": "ann"}', '{"kind": "invoices"}'
    queue = leased_queues.create("orders", order, '{"kind": "returns"}', order, other)
    page = DISPATCH.replace("/var/lib", str(tmp_path))
    requests = evaluate(page.replace("max_messages=100", "max_messages=100, linger=0"), "shop", instance)
    assert {request.job_name: request.tags.get("dagster/partition") for request in requests.run_requests} == {
        "orders": "ann",
        "returns": None,
    }
    assert [each.partition_keys for each in requests.dynamic_partitions_requests] == [["ann"]]
    assert queue.dead_letters == [other]


def test_the_checks_pass_where_nothing_failed(leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders", "an order")
    result = names(CHECKS)["defs"].get_implicit_global_asset_job_def().execute_in_process()
    passed = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert passed == {"sqs_lease": True, "sqs_backlog": True}


def test_the_check_in_the_step_of_its_asset_passes_where_nothing_failed(leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders", "an order")
    result = dg.materialize([names(CHECKED)["checked_at_once"]], resources=QUEUE)
    assert [each.passed for each in result.get_asset_check_evaluations()] == [True]


def test_only_the_annotation_of_the_context_must_not_be_postponed() -> None:
    postponed = f"from __future__ import annotations\n{FAILURES}"
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="context"):
        names(postponed)
    names(postponed.replace("context: dg.AssetExecutionContext", "context"))
