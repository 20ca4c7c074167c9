"""The code of the page about the ways to take messages does what the page says, with and without a batch of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.dagster import BATCH_TAG
from sqs_lease.dagster.run_batch.folder import BatchFolder
from sqs_lease.testing.leased_queues import LeasedQueues
from sqs_lease.testing.pytest_plugin import leased_queues
from tests.docs.test_examples import ROOT, blocks

__all__ = ["leased_queues"]

(CODE,) = blocks(ROOT / "docs" / "dagster-ways.md")


@pytest.fixture
def definitions(monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    names: dict[str, Any] = {"__name__": "page"}
    # Compiled without this module's postponed annotations, as a module of the reader's is.
    exec(compile(CODE, "dagster-ways.md", "exec", dont_inherit=True), names)
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
