"""Dagster's own interface plots what leases leave with the materializations of an asset.

The screenshot is in `.test-runs/pages`; that of docs/screenshots is a copy.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dagster as dg
import pytest
from playwright.sync_api import Browser, expect

from demo.dagster_stack import DagsterStack, dagster_stack
from demo.processes import ROOT
from demo.sqs_server import SqsServer
from sqs_lease.dagster import SqsQueueResource
from tests.processes.pages.definitions_plots import orders

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1800)]

PICTURES = ROOT / ".test-runs" / "pages"
BATCHES = ((12, 0), (31, 2), (24, 1), (58, 6), (40, 0), (47, 3))
"""By run: how many orders there are, and how many more that fail."""

PLOTTED = ("sqs/received", "sqs/deleted", "sqs/released")


def work(stack: DagsterStack, server: SqsServer) -> None:
    """Materialize the asset once for each batch, on the instance of the stack."""
    sqs = server.sqs_client()
    url = sqs.create_queue(QueueName="dagster-orders")["QueueUrl"]
    with pytest.MonkeyPatch.context() as patched, dg.DagsterInstance.from_config(str(stack.home)) as instance:
        for name, value in server.environment.items():
            patched.setenv(name, value)
        for good, bad in BATCHES:
            for number in range(good + bad):
                body = f"{'bad' if number < bad else 'good'} order {number}"
                sqs.send_message(QueueUrl=url, MessageBody=body)
            resources = {"orders_queue": SqsQueueResource(queue="dagster-orders")}
            assert dg.materialize([orders], instance=instance, resources=resources).success
            # What was given back would be in the next batch.
            sqs.purge_queue(QueueUrl=url)


def test_the_plots_of_a_leased_asset_show_what_its_runs_received_deleted_and_gave_back(
    server: SqsServer, browser: Browser, tmp_path: Path
) -> None:
    definitions = Path(__file__).parent / "definitions_plots.py"
    with dagster_stack(tmp_path, definitions, server.environment) as stack:
        # Playwright has an event loop in this thread, in which Dagster's would not start.
        with ThreadPoolExecutor(1) as another:
            another.submit(work, stack, server).result()
        materializations = stack.api.materializations("orders")
        assert sorted(materialization.metadata["sqs/received"] for materialization in materializations) == sorted(
            good + bad for good, bad in BATCHES
        )
        context = browser.new_context(viewport={"width": 1500, "height": 900}, base_url=stack.url)
        window = context.new_page()
        window.goto("/assets/orders")
        window.get_by_role("button", name="Plots").click()
        for name in PLOTTED:
            expect(window.get_by_text(name, exact=True).first).to_be_visible()
        expect(window.locator("canvas").first).to_be_visible()
        window.get_by_text(PLOTTED[0], exact=True).first.scroll_into_view_if_needed()
        PICTURES.mkdir(parents=True, exist_ok=True)
        window.screenshot(path=PICTURES / "dagster-plots.png")
        context.close()
