"""The page *SQS leases* in Chromium, with answers of Airflow's REST API that the tests make up.

Its files are those that the API server gives out; nothing listens anywhere. A real Airflow's answers are tested in
`test_airflow_page.py`.
"""

from __future__ import annotations

import json
import mimetypes
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from sqs_lease.airflow.page.site import FILES, HEADERS, URL_PREFIX

pytestmark = [pytest.mark.processes]

LIMIT_MILLISECONDS = 120_000
"""How long to wait for a page at most, as for what it is to show."""

NOTHING = "\N{EN DASH}"

AIRFLOW = "http://airflow.test/base"
"""Airflow below a path, as behind a proxy."""

PAGE = f"{AIRFLOW}{URL_PREFIX}/index.html"
MARKUP = "<img src=x onerror=document.title='broken'>"


def when(seconds_from_now: float) -> str:
    return datetime.fromtimestamp(time.time() + seconds_from_now, UTC).isoformat()


def keeper(number: int, state: str | None = "deferred", **more: Any) -> dict[str, Any]:
    """A task instance as the REST API gives it."""
    return {
        "id": f"instance-{number}",
        "dag_id": f"dag_{number}",
        "dag_run_id": f"manual__2026-01-01T00:00:0{number % 10}+00:00",
        "task_id": "orders_keeper",
        "try_number": 1,
        "state": state,
        "start_date": when(-100 + number),
        "end_date": when(-10) if state in {"success", "failed"} else None,
        "triggerer_job": {"hostname": "triggerer-a", "latest_heartbeat": when(-2)} if state == "deferred" else None,
        **more,
    }


def status(held: int = 3, **more: Any) -> dict[str, Any]:
    """Write a status as a keeper does."""
    counts = {"received": held, "held": held, "deleted": 0, "released": 0, "lost": 0, "dead_lettered": 0, "expired": 0}
    return {
        "queue_url": "https://sqs.us-east-1.amazonaws.com/123456789012/orders",
        "counts": {**counts, **more.pop("counts", {})},
        "oldest_received_at": time.time() - 60,
        "renew_at": time.time() + 100,
        "deadline": time.time() + 200,
        **more,
    }


@dataclass
class FakeAirflow:
    """Answers the page's requests.

    Attributes:
        keepers: The task instances.
        xcoms: Values by DAG and key.
        refusal: Status of every answer instead.
        xcom_refusal: Status of every answer about an XCom instead.
        away: Whether nothing answers.
        asked: The paths that were asked, with their parameters.
    """

    keepers: list[dict[str, Any]] = field(default_factory=list)
    xcoms: dict[tuple[str, str], Any] = field(default_factory=dict)
    refusal: int | None = None
    xcom_refusal: int | None = None
    away: bool = False
    asked: list[tuple[str, dict[str, list[str]]]] = field(default_factory=list)

    def add(self, task: dict[str, Any], **xcoms: Any) -> None:
        self.keepers.append(task)
        if (status := xcoms.pop("lease_status", None)) is not None:
            xcoms["keeps"] = {"receive_task_id": "orders", "status": status}
            xcoms["settled"] = {"settled": "", "status": status}
        self.xcoms.update({(task["dag_id"], key): value for key, value in xcoms.items()})

    def answer(self, route: Route) -> None:
        url = urlsplit(route.request.url)
        path = url.path.removeprefix("/base")
        if path.startswith(URL_PREFIX):
            file = FILES / path.rpartition("/")[2]
            kind = mimetypes.guess_type(file)[0] or ""
            route.fulfill(headers={**HEADERS, "content-type": kind}, body=file.read_bytes())
            return
        self.asked.append((path, parse_qs(url.query)))
        if self.away:
            route.abort("connectionrefused")
            return
        code, body = self._api(path, parse_qs(url.query))
        route.fulfill(status=code, content_type="application/json", body=json.dumps(body))

    def _api(self, path: str, parameters: dict[str, list[str]]) -> tuple[int, Any]:
        if self.refusal is not None:
            return self.refusal, {"detail": "no"}
        if found := re.fullmatch(r"/api/v2/dags/([^/]+)/dagRuns/[^/]+/taskInstances/([^/]+)/xcomEntries/(\w+)", path):
            if self.xcom_refusal is not None:
                return self.xcom_refusal, {"detail": "no"}
            assert (found[2] == "orders") == (found[3] == "settled")
            value = self.xcoms.get((found[1], found[3]))
            return (404, {"detail": "none"}) if value is None else (200, {"value": value, "timestamp": when(-5)})
        assert re.fullmatch(r"/api/v2/dags/[^/]+/dagRuns/[^/]+/taskInstances", path), path
        assert parameters["operator_name_pattern"] == ["SqsLeaseKeeperOperator"]
        wanted = parameters.get("state")
        tasks = [task for task in self.keepers if wanted is None or task["state"] in wanted]
        limit = int(parameters["limit"][0])
        return 200, {"task_instances": tasks[:limit], "total_entries": len(tasks)}


@pytest.fixture
def airflow() -> FakeAirflow:
    return FakeAirflow()


@pytest.fixture
def page(browser: Browser, airflow: FakeAirflow) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1400, "height": 800})
    context.set_default_timeout(LIMIT_MILLISECONDS)
    context.route("**/*", airflow.answer)
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    yield opened
    context.close()
    assert problems == []


def stop_the_clock(page: Page) -> None:
    """From now on time goes on in the page only when the test says so."""
    now = datetime.now(UTC)
    page.clock.install(time=now)
    page.clock.pause_at(now + timedelta(seconds=1))


def rows(page: Page, table: str = "kept") -> Locator:
    return page.locator(f"#{table} tbody tr")


def cell(page: Page, column: str, row: int = 0, table: str = "kept") -> Locator:
    """A cell by the heading of its column."""
    headings = page.locator(f"#{table} th").all_inner_texts()
    return rows(page, table).nth(row).locator("td").nth(headings.index(column))


def test_a_batch_is_shown_with_its_queue_its_run_its_figures_and_what_comes_next(
    page: Page, airflow: FakeAirflow
) -> None:
    airflow.add(keeper(1), lease_status=status(7, counts={"released": 2, "expired": 1, "deleted": 4, "lost": 1}))
    page.goto(PAGE)
    expect(cell(page, "Queue")).to_have_text("orders")
    expect(cell(page, "DAG, run and keeper")).to_contain_text("dag_1")
    expect(cell(page, "State")).to_have_text("Kept")
    shown = {name: cell(page, name).inner_text() for name in ("Held", "Deleted", "Given back", "Lost", "Triggerer")}
    assert shown == {"Held": "7", "Deleted": "4", "Given back": "3", "Lost": "1", "Triggerer": "triggerer-a"}
    expect(cell(page, "Oldest")).to_have_text(re.compile(r"1 min"))
    expect(cell(page, "Next renewal")).to_have_text(re.compile(r"in 1 min \d+ s"))
    expect(cell(page, "Deadline")).to_have_text(re.compile(r"in 3 min \d+ s"))
    bar = rows(page).first.get_by_role("img")
    assert bar.get_attribute("aria-label") == "Held 7, Deleted 4, Given back 3, Lost 1"


def test_it_refreshes_by_itself_and_counts_down_without_asking(page: Page, airflow: FakeAirflow) -> None:
    stop_the_clock(page)
    airflow.add(keeper(1), lease_status=status(3))
    page.goto(PAGE)
    expect(cell(page, "Held")).to_have_text("3")
    before, asked = cell(page, "Deadline").inner_text(), len(airflow.asked)
    page.clock.run_for(2_000)
    expect(cell(page, "Deadline")).not_to_have_text(before)
    assert len(airflow.asked) == asked
    airflow.xcoms["dag_1", "settled"] = {"status": status(1, counts={"deleted": 2})}
    page.clock.run_for(30_000)
    expect(cell(page, "Held")).to_have_text("1")
    expect(page.locator("#summary figure")).to_contain_text("at most 3")


def test_a_batch_about_which_nothing_was_noted_yet_is_shown_as_its_keeper_found_it(
    page: Page, airflow: FakeAirflow
) -> None:
    airflow.add(keeper(1), lease_status=status(3))
    del airflow.xcoms["dag_1", "settled"]
    page.goto(PAGE)
    expect(cell(page, "Held")).to_have_text("3")


def test_it_asks_for_nothing_while_it_is_paused(page: Page, airflow: FakeAirflow) -> None:
    stop_the_clock(page)
    airflow.add(keeper(1), lease_status=status())
    page.goto(PAGE)
    expect(rows(page)).to_have_count(1)
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status")).to_contain_text("Paused")
    asked = len(airflow.asked)
    page.clock.run_for(120_000)
    assert len(airflow.asked) == asked
    page.get_by_role("button", name="Refresh").click()
    expect(page.locator("#content")).not_to_have_attribute("aria-busy", "true")
    assert len(airflow.asked) > asked, "but when it is told to"
    asked = len(airflow.asked)
    page.clock.run_for(120_000)
    assert len(airflow.asked) == asked


def test_without_batches_it_says_when_one_appears(page: Page) -> None:
    page.goto(PAGE)
    expect(page.locator("#empty")).to_contain_text("No messages of an SQS queue are kept now")
    expect(page.locator("table:visible")).to_have_count(0)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (401, "Your session has ended"),
        (403, "Airflow does not let you read this"),
        (500, "Airflow answered 500"),
    ],
)
def test_an_answer_without_batches_is_explained(page: Page, airflow: FakeAirflow, code: int, said: str) -> None:
    airflow.refusal = code
    page.goto(PAGE)
    expect(page.get_by_role("alert")).to_contain_text(said)
    expect(page.locator("#empty")).to_be_hidden()


def test_a_user_without_the_right_to_read_xcoms_sees_the_batches_without_figures_and_what_to_ask_for(
    page: Page, airflow: FakeAirflow
) -> None:
    airflow.add(keeper(1), lease_status=status())
    airflow.xcom_refusal = 403
    page.goto(PAGE)
    expect(cell(page, "State")).to_have_text("Kept")
    expect(cell(page, "Held")).to_have_text(NOTHING)
    expect(page.locator("#notice")).to_contain_text("does not let you read XComs")


def test_shown_leases_stay_while_airflow_is_away_and_are_marked_as_older(page: Page, airflow: FakeAirflow) -> None:
    stop_the_clock(page)
    airflow.add(keeper(1), lease_status=status())
    page.goto(PAGE)
    expect(rows(page)).to_have_count(1)
    airflow.away = True
    page.clock.run_for(10_000)
    expect(page.get_by_role("alert")).to_contain_text("Airflow does not answer")
    expect(rows(page)).to_have_count(1)
    airflow.away = False
    page.clock.run_for(60_000)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_it_asks_less_often_while_airflow_is_away(page: Page, airflow: FakeAirflow) -> None:
    stop_the_clock(page)
    airflow.away = True
    page.goto(PAGE)
    expect(page.get_by_role("alert")).to_contain_text("Airflow does not answer")
    for _ in range(60):
        page.clock.run_for(10_000)
    assert 2 < len(airflow.asked) / 2 < 12, "each look at all batches makes two requests"


def test_names_are_shown_as_text(page: Page, airflow: FakeAirflow) -> None:
    hostile = keeper(1, triggerer_job={"hostname": MARKUP, "latest_heartbeat": when(-2)})
    airflow.add(
        {**hostile, "dag_id": "dag_1", "task_id": MARKUP}, lease_status=status(queue_url=f"https://sqs/{MARKUP}")
    )
    page.goto(PAGE)
    expect(cell(page, "Triggerer")).to_have_text(MARKUP)
    expect(cell(page, "DAG, run and keeper")).to_contain_text(MARKUP)
    assert page.locator("main img").count() == 0
    assert page.title() == "SQS leases"


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (keeper(1, triggerer_job=None), "Waits for a triggerer"),
        (keeper(1, triggerer_job={"hostname": "a", "latest_heartbeat": when(-3600)}), "Triggerer silent for 1 h"),
        (keeper(1, "running"), "Being handed over"),
        (keeper(1, "up_for_retry"), "Waits for its next try"),
    ],
    ids=["no triggerer", "silent triggerer", "running", "retry"],
)
def test_a_batch_without_a_keeper_says_why(page: Page, airflow: FakeAirflow, task: dict[str, Any], said: str) -> None:
    airflow.add(task, lease_status={"queue_url": "https://sqs/1/orders", "counts": {"received": 4}})
    page.goto(PAGE)
    expect(cell(page, "State")).to_contain_text(said)
    expect(cell(page, "Queue")).to_have_text("orders")
    expect(cell(page, "Held")).to_have_text(NOTHING)


def test_a_deadline_alarms_only_when_a_newer_status_must_have_come(page: Page, airflow: FakeAirflow) -> None:
    airflow.add(keeper(1), lease_status=status(deadline=time.time() - 10))
    airflow.add(keeper(2), lease_status=status(deadline=time.time() - 600))
    page.goto(PAGE)
    expect(cell(page, "Deadline", 0)).to_contain_text("passed 10 min")
    expect(cell(page, "Deadline", 0)).to_have_class(re.compile("bad"))
    expect(cell(page, "Deadline", 1)).to_have_text("being extended")
    expect(cell(page, "Deadline", 1)).not_to_have_class(re.compile("bad"))


def test_a_batch_that_ended_has_the_counts_of_its_report_and_is_read_once(page: Page, airflow: FakeAirflow) -> None:
    stop_the_clock(page)
    report = {"received": 5, "held": 0, "deleted": 4, "released": 1, "expired": 0, "lost": 0, "dead_lettered": 0}
    airflow.add(keeper(1, "success"), lease_status=status(5), lease_report={**report, "failed": 0})
    page.goto(PAGE)
    expect(cell(page, "State", table="ended")).to_have_text("Settled")
    expect(cell(page, "Deleted", table="ended")).to_have_text("4")
    expect(page.locator("#kept")).to_be_hidden()
    for _ in range(6):
        page.clock.run_for(10_000)
    values = [path for path, _ in airflow.asked if "xcomEntries" in path]
    assert len(values) == 3, "who received it, status and report, once each"


def test_a_keeper_that_was_ended_by_hand_claims_no_figures(page: Page, airflow: FakeAirflow) -> None:
    airflow.add(keeper(1, "success"), lease_status=status(5))
    page.goto(PAGE)
    expect(cell(page, "State", table="ended")).to_have_text("Ended by hand")
    expect(cell(page, "Held", table="ended")).to_have_text(NOTHING)


def test_the_batch_with_the_earliest_deadline_comes_first_and_more_than_a_hundred_are_counted(
    page: Page, airflow: FakeAirflow
) -> None:
    for number in range(105):
        airflow.add(keeper(number), lease_status=status(1, deadline=time.time() + 1000 - 5 * number))
    page.goto(PAGE)
    expect(rows(page)).to_have_count(100)
    expect(cell(page, "DAG, run and keeper")).to_contain_text("dag_99")
    expect(page.locator("#notice")).to_contain_text("5 more batches are at work")
    page.goto(PAGE + SHOWN_RUN)
    expect(rows(page)).to_have_count(100)
    expect(page.locator("#notice")).to_contain_text("This run has 5 more batches")


def test_it_is_used_by_keyboard_and_focus_stays_while_it_refreshes(page: Page, airflow: FakeAirflow) -> None:
    stop_the_clock(page)
    airflow.add(keeper(1), lease_status=status(3))
    page.goto(PAGE)
    expect(rows(page)).to_have_count(1)
    visited = []
    for _ in range(6):
        page.keyboard.press("Tab")
        visited.append(page.evaluate("document.activeElement.textContent.slice(0, 20)"))
    assert visited[:2] == ["Refresh", "Pause"]
    assert visited[3:] == ["dag_1", keeper(1)["dag_run_id"][:20], "orders_keeper"], "the third one scrolls the table"
    airflow.xcoms["dag_1", "settled"] = {"status": status(2)}
    page.clock.run_for(30_000)
    expect(cell(page, "Held")).to_have_text("2")
    assert page.evaluate("document.activeElement.textContent") == "orders_keeper"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none", "the focus can be seen"
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Pause")).to_have_attribute("aria-pressed", "true")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_in_dark(browser: Browser, airflow: FakeAirflow, scheme: Any) -> None:
    airflow.add(keeper(1), lease_status=status(3))
    airflow.add(keeper(2, triggerer_job=None), lease_status=status(3, counts={"lost": 1}))
    context = browser.new_context(color_scheme=scheme)
    context.set_default_timeout(LIMIT_MILLISECONDS)
    context.route("**/*", airflow.answer)
    page = context.new_page()
    page.goto(PAGE)
    expect(rows(page)).to_have_count(2)
    for place in ("body", "#state", "th", "td a", ".state.good", ".state.bad", "button", "dt", "td.bad"):
        assert contrast(page.locator(place).first) >= 4.5, f"{place} in {scheme}"
    context.close()


@pytest.mark.parametrize("width", [360, 820, 1090, 1380])
def test_every_value_is_in_sight_and_has_its_columns_name_on_a_phone_in_a_tab_and_on_a_desk(
    page: Page, airflow: FakeAirflow, width: int
) -> None:
    airflow.add(keeper(1), lease_status=status(7, counts={"released": 2, "deleted": 4, "lost": 1}))
    airflow.add(keeper(2, triggerer_job=None), lease_status=status(3))
    airflow.add(keeper(3, "success"), lease_status=status(5), lease_report={"received": 5, "held": 0, "deleted": 5})
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(PAGE)
    expect(rows(page)).to_have_count(2)
    expect(rows(page, "ended")).to_have_count(1)
    assert outside(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    names = page.evaluate(
        "[...document.querySelectorAll('#kept tbody tr:first-child td')]"
        ".map(cell => getComputedStyle(cell, '::before').content)"
    )
    # On a desk they are in the first line of the table.
    expected = {"none"} if width == 1380 else {f'"{name}"' for name in page.locator("#kept th").all_inner_texts()}
    assert set(names) == expected


def outside(page: Page) -> list[str]:
    """The cells that are not within the width of their table, which would have to be scrolled."""
    found: list[str] = page.evaluate(
        """[...document.querySelectorAll("tbody td")].filter(cell => {
            const [its, table] = [cell, cell.closest(".scrolled")].map(each => each.getBoundingClientRect());
            return its.left < table.left || its.right > table.right + 1;
        }).map(cell => cell.dataset.label ?? cell.textContent)"""
    )
    return found


def contrast(place: Locator) -> float:
    """The contrast of a text with what is behind it, as WCAG counts it."""
    colours: list[str] = place.evaluate(
        """element => {
            let behind = element;
            while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
            return [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor];
        }"""
    )
    one, other = sorted(map(luminance, colours))
    return (other + 0.05) / (one + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


SHOWN_RUN = "?dag_id=dag_1&run_id=manual__2026-01-01T00%3A00%3A01%2B00%3A00"


def test_the_tab_of_a_run_asks_about_that_run_alone(page: Page, airflow: FakeAirflow) -> None:
    airflow.add(keeper(1), lease_status=status(3))
    page.goto(PAGE + SHOWN_RUN)
    expect(cell(page, "Keeper")).to_have_text("orders_keeper")
    listed = [path for path, _ in airflow.asked if path.endswith("/taskInstances")]
    assert listed == ["/api/v2/dags/dag_1/dagRuns/manual__2026-01-01T00%3A00%3A01%2B00%3A00/taskInstances"]


def test_a_run_without_a_lease_says_so(page: Page) -> None:
    page.goto(PAGE + SHOWN_RUN)
    expect(page.locator("#empty")).to_have_text("No task of this run keeps messages of an SQS queue.")


def test_a_keeper_that_had_no_batch_is_shown_by_its_run_alone(page: Page, airflow: FakeAirflow) -> None:
    airflow.add(keeper(1, "skipped"))
    page.goto(PAGE + SHOWN_RUN)
    expect(cell(page, "State", table="ended")).to_have_text("No messages")
    page.goto(PAGE)
    expect(page.locator("#empty")).to_contain_text("No messages of an SQS queue are kept now")
    assert not [path for path, _ in airflow.asked if "xcomEntries" in path]


def test_a_run_that_was_deleted_is_explained(page: Page, airflow: FakeAirflow) -> None:
    airflow.refusal = 404
    page.goto(PAGE + SHOWN_RUN)
    expect(page.get_by_role("alert")).to_contain_text("does not know this run any more")


@pytest.mark.parametrize("value", ["not an object", 7, {}, {"counts": None}, {"counts": {"held": "many"}}])
def test_a_status_that_is_stored_elsewhere_or_is_not_one_costs_the_figures_only(
    page: Page, airflow: FakeAirflow, value: Any
) -> None:
    airflow.add(keeper(1), lease_status=value)
    page.goto(PAGE)
    expect(cell(page, "State")).to_have_text("Kept")
    expect(cell(page, "Held")).to_have_text(NOTHING)
