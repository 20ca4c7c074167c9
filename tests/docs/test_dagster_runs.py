"""The code of the page about batches over whole runs does what the page says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run_iterator

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.dagster import BATCH_TAG
from sqs_lease.dagster.run_batch.folder import BatchFolder
from sqs_lease.testing.leased_queues import LeasedQueues
from sqs_lease.testing.pytest_plugin import leased_queues
from tests.docs.test_examples import ROOT, blocks

__all__ = ["leased_queues"]

PAGE = ROOT / "docs" / "dagster-runs.md"


def code(containing: str) -> str:
    """The one block of the page that has some text in it."""
    (found,) = (block for block in blocks(PAGE) if containing in block)
    return found


def test_the_test_of_a_job_over_one_batch_passes(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "orders"}
    for block in (code("def check(context"), code("def test_empty_orders_fail")):
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    test: Callable[[Path], None] = names["test_empty_orders_fail"]
    test(tmp_path)


def test_the_job_with_steps_in_the_run_worker_leases(
    tmp_path: Path, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = leased_queues.create("orders", "an order", visibility_seconds=600)
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    names: dict[str, Any] = {"__name__": "orders"}
    page = code("around=").replace("/var/lib/orders", str(tmp_path))
    exec(compile(page, str(PAGE), "exec", dont_inherit=True), names)
    job: dg.JobDefinition = names["counted_orders"]
    with dg.instance_for_test() as instance:
        run = instance.create_run_for_job(job)
        events = list(execute_run_iterator(InMemoryJob(job), run, instance))
    assert any(event.is_job_success for event in events)
    assert queue.deleted == 1


def routed(tmp_path: Path) -> str:
    return code("build_sqs_router(").replace("/var/lib/orders", str(tmp_path)).replace("linger=5", "linger=0")


def test_the_router_asks_for_a_run_that_takes_its_batch_up(
    tmp_path: Path, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = leased_queues.create("orders", "an order", " ", visibility_seconds=600)
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    names: dict[str, Any] = {"__name__": "orders"}
    exec(compile(routed(tmp_path), str(PAGE), "exec", dont_inherit=True), names)
    sensor = names["defs"].resolve_sensor_def("orders_router")
    with dg.DagsterInstance.ephemeral() as instance:
        (request,) = sensor.evaluate_tick(dg.build_sensor_context(instance)).run_requests or []
        assert sorted(queue.invisible) == [" ", "an order"]
        assert names["routed_orders"].execute_in_process(instance=instance, tags=request.tags).success
    assert (queue.visible, queue.invisible, queue.dead_letters) == ([], [], [" "])


def test_the_test_of_the_router_passes(
    tmp_path: Path, leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"__name__": "orders"}
    for block in (routed(tmp_path), code("def test_a_message_is_deleted_when_its_run_succeeded")):
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    test: Callable[[LeasedQueues, pytest.MonkeyPatch], None] = names["test_a_message_is_deleted_when_its_run_succeeded"]
    test(leased_queues, monkeypatch)


@pytest.fixture
def definitions(monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    names: dict[str, Any] = {"__name__": "page"}
    # Compiled without this module's postponed annotations, as a module of the reader's is.
    exec(compile(code("def checked("), str(PAGE), "exec", dont_inherit=True), names)
    made: dg.Definitions = names["defs"]
    return made


def test_an_asset_that_is_materialized_alone_receives(leased_queues: LeasedQueues, definitions: dg.Definitions) -> None:
    queue = leased_queues.create("orders", "an order", " ")
    job = definitions.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(asset_selection=[dg.AssetKey("checked")]).success
    assert (queue.visible, queue.deleted) == ([" "], 1)


def test_in_a_run_with_a_batch_all_assets_work_on_that(
    leased_queues: LeasedQueues, definitions: dg.Definitions, tmp_path: Path
) -> None:
    leased_queues.create("orders", "not of the run")
    folder = BatchFolder(tmp_path / "batch")
    messages = [Message(Receipt("m1", ""), "an order"), Message(Receipt("m2", ""), " ")]
    folder.create(batch_id="test", queue_url="orders", messages=messages)
    result = definitions.resolve_job_def("orders").execute_in_process(tags={BATCH_TAG: str(folder)})
    (materialization,) = result.asset_materializations_for_node("stored")
    # The first asset has failed the other one.
    assert materialization.metadata["orders"].value == 1
    assert folder.pieces()["checked"].failed == {"m2": "it is empty"}
