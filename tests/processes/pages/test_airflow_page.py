"""The page *SQS leases* in Chromium, within the interface of a real Airflow with two batches at work.

One story is recorded, from before the first run to after the last: each test looks at its part. The screenshots are in
`.test-runs/pages`; those of docs/screenshots are copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, FrameLocator, Page, ViewportSize, expect

from demo.airflow_api import log_in
from demo.airflow_stack import AirflowStack, airflow_stack, migrated_postgres
from demo.postgres import postgres_server
from demo.processes import ROOT
from demo.sqs_server import SqsServer
from sqs_lease.airflow.page.site import NAVIGATION_VIEW, URL_PREFIX

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1800)]

DAGS_FOLDER = Path(__file__).parent / "dags"
PICTURES = ROOT / ".test-runs" / "pages"

ORDERS = ["one", "two", "bad"]
TASKS = {"orders", "check", "orders_keeper"}
"""The tasks of the DAG `orders`."""
INVOICES = [str(number) for number in range(40)]

LIMIT_MILLISECONDS = 600_000
"""How long to wait for one thing at most: the page shows it with its next refresh."""

VIEWER, GUEST = "viewer", "guest"
RIGHTS = {
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
    # A user without a role may read nothing.
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{VIEWER}:viewer,{GUEST}:",
}


@dataclass
class Story:
    """Observations of the page.

    Attributes:
        empty: The page's text before there was a run.
        at_work: The rows of the batches at work, by queue, each by the headings of the columns.
        dark: Colour of the page's background while Airflow is dark.
        graph: The tasks of a DAG with a lease, in Airflow's graph of a run.
        tab: The rows of the tab of a run.
        plain_tab: The text of the tab of a run without a lease.
        followed: The address of Airflow's interface after a click on a run.
        seen_by_viewer: The rows that a user with read access sees.
        seen_by_guest: The text for a user without any right.
        guest_rows: How many batches that user sees.
        ended: The rows of the batches that ended.
        away: The page's text once the API server has ended.
        console: Errors in the browser's console but for those answers that are refused on purpose.
        asked: The paths of all requests that the page made.
    """

    empty: str = ""
    at_work: dict[str, dict[str, str]] = field(default_factory=dict)
    dark: str = ""
    graph: set[str] = field(default_factory=set)
    tab: dict[str, dict[str, str]] = field(default_factory=dict)
    plain_tab: str = ""
    followed: str = ""
    seen_by_viewer: dict[str, dict[str, str]] = field(default_factory=dict)
    seen_by_guest: str = ""
    guest_rows: int = -1
    ended: dict[str, dict[str, str]] = field(default_factory=dict)
    away: str = ""
    console: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)


def rows(frame: FrameLocator, table: str) -> dict[str, dict[str, str]]:
    """The rows of a table by the queue."""
    headings = frame.locator(f"#{table} th").all_inner_texts()
    lines = [line.locator("td").all_inner_texts() for line in frame.locator(f"#{table} tbody tr").all()]
    return {line[0]: dict(zip(headings, line, strict=True)) for line in lines}


def row_of(frame: FrameLocator, table: str, queue: str) -> Any:
    return frame.locator(f"#{table} tbody tr").filter(
        has=frame.locator("td:first-child").get_by_text(queue, exact=True)
    )


class Watcher:
    """Opens Airflow in the browser, and writes the story down.

    Args:
        browser: The browser.
        stack: Airflow, where everybody is an administrator.
        restricted_url: Another API server of the same Airflow, where users have rights.
        passwords: Of its users.
        gate: The file that lets all work end.
    """

    def __init__(
        self, browser: Browser, stack: AirflowStack, restricted_url: str, passwords: dict[str, str], gate: Path
    ) -> None:
        self.browser = browser
        self.stack = stack
        self.restricted_url = restricted_url
        self.passwords = passwords
        self.gate = gate
        self.story = Story()

    def watch(self) -> Story:
        """Watch from before the first run to after the end of the API server."""
        story, api = self.story, self.stack.api
        with self.window() as window:
            frame = self.open_page(window)
            expect(frame.locator("#empty")).to_be_visible(timeout=LIMIT_MILLISECONDS)
            story.empty = frame.locator("#empty").inner_text()
            runs = {dag_id: api.trigger(dag_id) for dag_id in ("orders", "invoices", "plain")}
            # No reload: it refreshes by itself.
            given_back = row_of(frame, "kept", "orders").locator("td").nth(self.column(frame, "Given back"))
            expect(given_back).to_have_text("1", timeout=LIMIT_MILLISECONDS)
            held = row_of(frame, "kept", "invoices").locator("td").nth(self.column(frame, "Held"))
            expect(held).to_have_text("40", timeout=LIMIT_MILLISECONDS)
            story.at_work = rows(frame, "kept")
            expect(frame.locator("#summary figure")).to_be_visible()
            self.picture(window, "page")
            self.look_in_the_dark()
            self.look_on_a_phone()
            self.look_at_the_graph(runs["orders"])
            self.look_at_tabs(window, runs)
            self.look_with_rights()
            frame = self.open_page(window)
            self.gate.touch()
            expect(row_of(frame, "ended", "orders")).to_be_visible(timeout=LIMIT_MILLISECONDS)
            expect(row_of(frame, "ended", "invoices")).to_be_visible(timeout=LIMIT_MILLISECONDS)
            story.ended = rows(frame, "ended")
            self.picture(window, "page-ended")
            self.stack.processes["api-server"].stop()
            expect(frame.get_by_role("alert")).to_be_visible(timeout=LIMIT_MILLISECONDS)
            story.away = frame.get_by_role("alert").inner_text()
            self.picture(window, "page-away")
        return story

    @contextmanager
    def window(
        self, *, dark: bool = False, phone: bool = False, url: str = "", user: str | None = None
    ) -> Iterator[Page]:
        """Airflow's interface in a window of its own."""
        size: ViewportSize = {"width": 430, "height": 932} if phone else {"width": 1500, "height": 640}
        context = self.browser.new_context(viewport=size, base_url=url or self.stack.url)
        context.set_default_timeout(LIMIT_MILLISECONDS)
        # Airflow remembers a user's choice in its menu like this.
        context.add_init_script(f"localStorage.setItem('theme', '{'dark' if dark else 'light'}')")
        if user is not None:
            self.log_in(context, url, user)
        page = context.new_page()
        page.on("pageerror", lambda error: self.story.console.append(str(error)))
        page.on("console", lambda message: self.note_console(message.type, message.text))
        page.on("request", lambda request: self.note_request(request.frame.url, request.url))
        yield page
        context.close()

    def log_in(self, context: BrowserContext, url: str, user: str) -> None:
        token = log_in(url, user, self.passwords[user])
        context.add_cookies([{"name": "_token", "value": token, "url": url}])

    def note_console(self, kind: str, text: str) -> None:
        """Violations of the page's policy are errors there, too."""
        if kind == "error" and "Failed to load resource" not in text and "net::ERR" not in text:
            self.story.console.append(text)

    def note_request(self, frame_url: str, url: str) -> None:
        # Of the page's own frame: Airflow's interface has the page's path in its address, too.
        if urlsplit(frame_url).path.startswith(f"{URL_PREFIX}/"):
            self.story.asked.add(url)

    def open_page(self, window: Page) -> FrameLocator:
        """Go to the page as a user does: by the menu."""
        window.goto("./")
        window.get_by_role("button", name="Browse").click()
        window.get_by_role("menuitem", name="SQS leases").click()
        return window.frame_locator("iframe[title='SQS leases']")

    def column(self, frame: FrameLocator, heading: str) -> int:
        expect(frame.locator("#kept")).to_be_visible(timeout=LIMIT_MILLISECONDS)
        return frame.locator("#kept th").all_inner_texts().index(heading)

    def look_in_the_dark(self) -> None:
        with self.window(dark=True) as window:
            frame = self.open_page(window)
            expect(row_of(frame, "kept", "invoices")).to_be_visible(timeout=LIMIT_MILLISECONDS)
            self.story.dark = frame.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
            self.picture(window, "page-dark")

    def look_on_a_phone(self) -> None:
        for dark in (False, True):
            with self.window(dark=dark, phone=True) as window:
                window.goto(f"./plugin/{NAVIGATION_VIEW['url_route']}")
                frame = window.frame_locator("iframe[title='SQS leases']")
                expect(row_of(frame, "kept", "invoices")).to_be_visible(timeout=LIMIT_MILLISECONDS)
                self.picture(window, "page-phone-dark" if dark else "page-phone")

    def look_at_the_graph(self, run_id: str) -> None:
        with self.window() as window:
            window.goto(f"./dags/orders/runs/{run_id}")
            window.get_by_title("Show Graph").first.click()
            nodes = window.locator(".react-flow__node")
            expect(nodes.filter(has_text="orders_keeper")).to_be_visible(timeout=LIMIT_MILLISECONDS)
            expect(nodes).to_have_count(len(TASKS), timeout=LIMIT_MILLISECONDS)
            self.story.graph = {task for task in TASKS if nodes.filter(has_text=task).count()}
            self.picture(window, "graph")

    def look_at_tabs(self, window: Page, runs: dict[str, str]) -> None:
        for dag_id in ("plain", "orders"):
            window.goto(f"./dags/{dag_id}/runs/{runs[dag_id]}")
            window.get_by_role("link", name="SQS leases").click()
            frame = window.frame_locator("iframe[title='SQS leases']")
            if dag_id == "plain":
                expect(frame.locator("#empty")).to_be_visible(timeout=LIMIT_MILLISECONDS)
                self.story.plain_tab = frame.locator("#empty").inner_text()
                continue
            expect(row_of(frame, "kept", "orders")).to_be_visible(timeout=LIMIT_MILLISECONDS)
            self.story.tab = rows(frame, "kept")
            self.picture(window, "tab")
            frame.get_by_role("link", name="orders_keeper").press("Enter")
            window.wait_for_url("**/tasks/orders_keeper**")
            self.story.followed = window.url

    def look_with_rights(self) -> None:
        with self.window(url=self.restricted_url, user=VIEWER) as window:
            frame = self.open_page(window)
            expect(row_of(frame, "kept", "invoices")).to_be_visible(timeout=LIMIT_MILLISECONDS)
            self.story.seen_by_viewer = rows(frame, "kept")
        with self.window(url=self.restricted_url, user=GUEST) as window:
            # A user without rights is not told of plugins either, so the menu does not have it; the files are there.
            window.goto("./sqs-lease/index.html")
            expect(window.get_by_role("alert")).to_be_visible(timeout=LIMIT_MILLISECONDS)
            self.story.seen_by_guest = window.get_by_role("alert").inner_text()
            self.story.guest_rows = window.locator("tbody tr").count()
            self.picture(window, "page-denied")

    def picture(self, window: Page, name: str) -> None:
        window.screenshot(path=PICTURES / f"{name}.png")


@pytest.fixture(scope="module")
def story(server: SqsServer, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Story:
    home = tmp_path_factory.mktemp("airflow")
    sqs = server.sqs_client()
    for queue, bodies in {"orders": ORDERS, "invoices": INVOICES}.items():
        url = sqs.create_queue(QueueName=queue)["QueueUrl"]
        for body in bodies:
            sqs.send_message(QueueUrl=url, MessageBody=body)
    passwords = {VIEWER: "seen", GUEST: "unseen"}
    passwords_file = home / "passwords.json"
    passwords_file.write_text('{"viewer": "seen", "guest": "unseen"}')
    environment = {"AIRFLOW_CONN_AWS_DEFAULT": server.airflow_connection, "PAGES_GATE": str(home / "gate")}
    rights = {**RIGHTS, "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords_file)}
    with ExitStack() as exits:
        database = exits.enter_context(postgres_server(migrated_postgres()))
        stack = exits.enter_context(airflow_stack(home / "admins", DAGS_FOLDER, environment, database_url=database.url))
        restricted = exits.enter_context(
            airflow_stack(home / "users", DAGS_FOLDER, rights, database_url=database.url, components=("api-server",))
        )
        for dag_id in ("orders", "invoices", "plain"):
            stack.wait_for_dag(dag_id)
        return Watcher(browser, stack, restricted.url, passwords, home / "gate").watch()


def test_it_is_in_the_menu_and_says_that_nothing_is_kept_before_there_is_a_run(story: Story) -> None:
    assert "No messages of an SQS queue are kept now" in story.empty


def test_batches_appear_without_a_reload_with_what_is_held_settled_and_due(story: Story) -> None:
    orders, invoices = story.at_work["orders"], story.at_work["invoices"]
    assert [orders[name] for name in ("State", "Held", "Given back", "Deleted", "Lost")] == ["Kept", "2", "1", "0", "0"]
    assert [invoices[name] for name in ("State", "Held", "Given back")] == ["Kept", "40", "0"]
    assert orders["DAG, run and keeper"].splitlines()[0] == "orders"
    for row in (orders, invoices):
        assert row["Deadline"].startswith("in ")
        assert row["Next renewal"].startswith(("in ", "due"))
        assert row["Oldest"].endswith("s")
        assert row["Triggerer"]


def test_it_is_dark_when_airflow_is(story: Story) -> None:
    assert story.dark == "rgb(9, 9, 11)"


def test_the_graph_of_a_run_has_the_receiving_task_the_work_and_the_keeper(story: Story) -> None:
    assert story.graph == TASKS


def test_the_tab_of_a_run_has_the_batch_of_that_run_alone(story: Story) -> None:
    assert story.tab.keys() == {"orders"}
    assert "No task of this run keeps messages" in story.plain_tab


def test_a_link_leads_to_the_keeper_in_airflows_own_interface(story: Story) -> None:
    assert "/dags/orders/runs/" in story.followed
    assert "/tasks/orders_keeper" in story.followed


def test_everybody_sees_what_airflow_lets_them_read(story: Story) -> None:
    assert story.seen_by_viewer.keys() == {"orders", "invoices"}
    assert "Airflow does not let you read this" in story.seen_by_guest
    assert story.guest_rows == 0


def test_batches_that_ended_have_the_counts_of_their_reports(story: Story) -> None:
    assert [story.ended["invoices"][name] for name in ("State", "Held", "Deleted")] == ["Settled", "0", "40"]
    assert [story.ended["orders"][name] for name in ("Deleted", "Given back")] == ["2", "1"]


def test_it_says_that_airflow_does_not_answer(story: Story) -> None:
    assert "Airflow does not answer" in story.away


def test_it_reads_the_public_api_alone_and_no_lease(story: Story) -> None:
    paths = {urlsplit(url).path for url in story.asked}
    api = {path for path in paths if not path.startswith(f"{URL_PREFIX}/")}
    assert {path for path in api if not path.startswith("/api/v2/dags/")} == set()
    read = {path.rpartition("/")[2] for path in api if "xcomEntries" in path}
    assert read == {"keeps", "settled", "lease_report"}


def test_the_browser_has_no_error_and_no_breach_of_the_pages_policy(story: Story) -> None:
    assert story.console == []
