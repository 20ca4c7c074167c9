"""Dagster's own interface plots what leases leave with the materializations of an asset.

The screenshot is in `.test-runs/pages`; that of docs/screenshots is a copy.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from demo.dagster_stack import DagsterStack, dagster_stack
from demo.processes import ROOT
from demo.sqs_server import SqsServer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1800)]

PICTURES = ROOT / ".test-runs" / "pages"
LIMIT_SECONDS = 600.0

BATCHES = ((12, 0), (31, 2), (24, 1), (58, 6), (40, 0), (47, 3))
"""By run: how many orders there are, and how many more that fail."""

PLOTTED = ("sqs/received", "sqs/deleted", "sqs/released")


def work(stack: DagsterStack, server: SqsServer) -> None:
    """Materialize the asset once for each batch."""
    sqs = server.sqs_client()
    url = sqs.create_queue(QueueName="dagster-orders", Attributes={"VisibilityTimeout": "30"})["QueueUrl"]
    for good, bad in BATCHES:
        bodies = [*(f"order {number}" for number in range(good)), *(f"bad {number}" for number in range(bad))]
        for body in bodies:
            sqs.send_message(QueueUrl=url, MessageBody=body)
        run = stack.wait_for_run(stack.api.materialize("orders"), LIMIT_SECONDS)
        assert run.state == "SUCCESS"
        # What was given back would be in the next batch.
        sqs.purge_queue(QueueUrl=url)


def test_the_plots_of_a_leased_asset_show_what_its_runs_received_deleted_and_gave_back(
    server: SqsServer, browser: Browser, tmp_path: Path
) -> None:
    definitions = Path(__file__).parent / "definitions_plots.py"
    with dagster_stack(tmp_path, definitions, server.environment) as stack:
        work(stack, server)
        for name, wanted in zip(
            PLOTTED, ([12, 33, 25, 64, 40, 50], [12, 31, 24, 58, 40, 47], [0, 2, 1, 6, 0, 3]), strict=True
        ):
            found = [materialization.metadata[name] for materialization in stack.api.materializations("orders")]
            assert sorted(found) == sorted(wanted)
        context = browser.new_context(viewport={"width": 1500, "height": 900}, base_url=stack.url)
        window = context.new_page()
        window.goto("/assets/orders?view=plots")
        for name in PLOTTED:
            plot = window.get_by_text(name, exact=True).first
            expect(plot).to_be_visible()
        expect(window.locator("canvas").first).to_be_visible()
        PICTURES.mkdir(parents=True, exist_ok=True)
        window.screenshot(path=PICTURES / "dagster-plots.png")
        context.close()
