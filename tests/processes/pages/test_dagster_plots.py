"""Dagster's own interface shows what leases leave with an asset: plots of its metadata, and checks.

The screenshots are in `.test-runs/pages`; those of docs/screenshots are copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dagster as dg
import pytest
from playwright.sync_api import Browser, Page, expect

from demo.dagster_stack import DagsterStack, dagster_stack
from demo.processes import ROOT
from demo.sqs_server import SqsServer
from tests.processes.pages.definitions_plots import CHECKS, ORDERS_QUEUE, orders

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1800)]

PICTURES = ROOT / ".test-runs" / "pages"
BATCHES = ((12, 0), (31, 2), (24, 1), (58, 6), (40, 0), (47, 3))
"""By run: how many orders there are, and how many more that fail."""

PLOTTED = ("sqs/received", "sqs/deleted", "sqs/released")


def work(stack: DagsterStack, server: SqsServer) -> None:
    """Materialize the asset and run its checks once for each batch, on the instance of the stack."""
    sqs = server.sqs_client()
    url = sqs.create_queue(QueueName="dagster-orders")["QueueUrl"]
    with pytest.MonkeyPatch.context() as patched, dg.DagsterInstance.from_config(str(stack.home)) as instance:
        for name, value in server.environment.items():
            patched.setenv(name, value)
        for good, bad in BATCHES:
            for number in range(good + bad):
                body = f"{'bad' if number < bad else 'good'} order {number}"
                sqs.send_message(QueueUrl=url, MessageBody=body)
            done = dg.materialize([orders, *CHECKS], instance=instance, resources={"orders_queue": ORDERS_QUEUE})
            assert done.success
            # Messages that were given back would be in the next batch.
            sqs.purge_queue(QueueUrl=url)


@pytest.fixture(scope="module")
def stack(server: SqsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterStack]:
    """Dagster after all batches."""
    definitions = Path(__file__).parent / "definitions_plots.py"
    with dagster_stack(tmp_path_factory.mktemp("dagster"), definitions, server.environment) as running:
        # Playwright has an event loop in this thread, in which Dagster's would not start.
        with ThreadPoolExecutor(1) as another:
            another.submit(work, running, server).result()
        yield running


@pytest.fixture(params=["light", "dark"])
def window(request: pytest.FixtureRequest, browser: Browser, stack: DagsterStack) -> Iterator[Page]:
    """A window with the colours of the system, which is high enough for all plots."""
    context = browser.new_context(
        viewport={"width": 1300, "height": 1400}, base_url=stack.url, color_scheme=request.param
    )
    yield context.new_page()
    context.close()


def picture(window: Page, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    dark = window.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    window.screenshot(path=PICTURES / f"{name}{'-dark' if dark else ''}.png")


def test_the_plots_of_a_leased_asset_show_what_its_runs_received_deleted_and_gave_back(
    window: Page, stack: DagsterStack
) -> None:
    materializations = stack.api.materializations("orders")
    assert sorted(materialization.metadata["sqs/received"] for materialization in materializations) == sorted(
        good + bad for good, bad in BATCHES
    )
    window.goto("/assets/orders")
    window.get_by_role("button", name="Plots").click()
    for name in PLOTTED:
        expect(window.get_by_text(name, exact=True).first).to_be_in_viewport(ratio=1)
    expect(window.locator("canvas").last).to_be_in_viewport(ratio=1)
    picture(window, "dagster-plots")


def test_the_checks_of_a_leased_asset_say_which_limit_its_newest_run_broke(window: Page, stack: DagsterStack) -> None:
    del stack
    window.set_viewport_size({"width": 1300, "height": 960})
    window.goto("/assets/orders?view=checks")
    window.get_by_text("sqs_lease", exact=True).first.click()
    expect(window.get_by_text("3 messages failed").first).to_be_in_viewport(ratio=1)
    expect(window.get_by_text("sqs/failed", exact=True).first).to_be_in_viewport(ratio=1)
    expect(window.locator("canvas").last).to_be_in_viewport(ratio=1)
    picture(window, "dagster-checks")
