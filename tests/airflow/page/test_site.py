"""The files of the page *SQS leases*: where Airflow shows them, and how its API server gives them out."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from html.parser import HTMLParser

import httpx
import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from sqs_lease.airflow import SqsLeaseKeeperOperator
from sqs_lease.airflow.page.site import FILES, NAVIGATION_VIEW, RUN_VIEW, URL_PREFIX, LeasesSite
from sqs_lease.airflow.plugin import SqsLeasePlugin
from sqs_lease.airflow.settlement.settler import KEEPS_KEY, PROGRESS_KEY
from sqs_lease.airflow.triggers.keep import REPORT_KEY

NAMES = sorted(path.name for path in FILES.iterdir())


def get(path: str, method: str = "GET") -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(LeasesSite())
        async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
            return await client.request(method, path)

    return asyncio.run(ask())


class Markup(HTMLParser):
    """The addresses that a page loads, and its own scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.inline: list[str] = []
        self._within: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._within = tag
        for name, value in attrs:
            if name in {"src", "href"}:
                self.loaded.append(value or "")
            if name == "style" or name.startswith("on"):
                self.inline.append(name)

    def handle_data(self, data: str) -> None:
        if self._within in {"script", "style"} and data.strip():
            self.inline.append(data)


def test_airflow_takes_the_page_and_the_tab() -> None:
    from airflow import plugins_manager

    shown = {view["url_route"]: view for view in plugins_manager._get_ui_plugins()[0]}
    assert shown["sqs-leases"]["destination"] == "nav"
    assert shown["sqs-leases-of-run"]["destination"] == "dag_run"
    mounted = {app["url_prefix"]: app["app"] for app in plugins_manager.get_fastapi_plugins()[0]}
    assert isinstance(mounted[URL_PREFIX], LeasesSite)


@pytest.mark.parametrize("view", [NAVIGATION_VIEW, RUN_VIEW])
def test_files_that_a_view_names_exist_and_are_found_below_any_path_that_airflow_is_served_at(
    view: dict[str, str],
) -> None:
    for name in ("href", "icon", "icon_dark_mode"):
        address = view[name].partition("?")[0]
        assert f"/{address}".startswith(f"{URL_PREFIX}/"), "an absolute address would miss a base_url with a path"
        assert get(f"/{address}".removeprefix(URL_PREFIX)).status_code == 200


def test_the_tab_is_told_which_run_it_is_of() -> None:
    assert RUN_VIEW["href"].endswith("?dag_id={DAG_ID}&run_id={RUN_ID}")
    assert RUN_VIEW["url_route"] != NAVIGATION_VIEW["url_route"], "Airflow drops the second view of a route"


@pytest.mark.parametrize("name", NAMES)
def test_each_file_is_served_and_may_load_nothing_from_elsewhere(name: str) -> None:
    answer = get(f"/{name}")
    assert answer.status_code == 200
    assert answer.content == (FILES / name).read_bytes()
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "frame-ancestors 'self'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_modules_have_the_type_that_browsers_ask_for() -> None:
    assert "javascript" in get("/page.js").headers["content-type"]
    assert get("/page.css").headers["content-type"].startswith("text/css")


@pytest.mark.parametrize("path", ["/", "/nothing.js", "/../site.py", "/%2e%2e/site.py", "/static/page.js"])
def test_nothing_else_is_served(path: str) -> None:
    answer = get(path)
    assert answer.status_code == 404
    assert "content-security-policy" in answer.headers


def test_nothing_can_be_sent_to_it() -> None:
    assert get("/index.html", "POST").status_code == 405


def test_the_page_has_nothing_inline_and_loads_only_its_own_files() -> None:
    markup = Markup((FILES / "index.html").read_text())
    assert markup.inline == []
    assert set(markup.loaded) <= set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".js")])
def test_modules_import_one_another_and_make_no_markup_of_text(name: str) -> None:
    text = (FILES / name).read_text()
    imported = re.findall(r'from "\./([^"]+)"', text)
    assert set(imported) <= set(NAMES)
    assert len(imported) == len(re.findall(r"^(?:import|export) .* from |^import ", text, re.MULTILINE))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text)


def test_the_page_reads_what_the_keeper_writes() -> None:
    text = (FILES / "airflow.js").read_text()
    assert f'const KEEPS = "{KEEPS_KEY}";' in text
    assert f'const NOTE = "{PROGRESS_KEY}";' in text
    assert f'const REPORT = "{REPORT_KEY}";' in text
    assert 'const KEEPER = "SqsLeaseKeeperOperator";' in text
    assert "/lease/" not in text, "the XCom `lease` has the sealed receipt handles"


class OwnKeeper(SqsLeaseKeeperOperator):
    """A keeper of a class of the user's own."""


def test_keepers_of_classes_that_users_derive_are_among_those_that_the_page_asks_for() -> None:
    with DAG("shop", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        for keeper in (SqsLeaseKeeperOperator, OwnKeeper):
            keeper(task_id=keeper.__name__, receive_task_id="orders", work_task_ids=["load"])
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    # The scheduler writes this name to the column in which `operator_name_pattern` looks.
    assert {task.operator_name for task in stored.tasks} == {"SqsLeaseKeeperOperator"}
    assert "operator_name_pattern: KEEPER" in (FILES / "airflow.js").read_text()


def test_the_plugin_goes_on_reporting_failures() -> None:
    assert len(SqsLeasePlugin.listeners) == 1
