"""The changes that the site of docs/ makes in its pages: links that leave docs/, and the roles of docstrings."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from docs.site.pages import on_page_content, on_page_markdown, on_post_page


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        pytest.param("[dags/fan_in.py](../dags/fan_in.py)", "`dags/fan_in.py`", id="a path"),
        pytest.param("[dags/](../dags)", "`dags`", id="a directory"),
        pytest.param("[the demo](../demo)", "the demo (`demo` in the repository)", id="a text"),
        pytest.param("[recipes](recipes.md#fan-in)", "[recipes](recipes.md#fan-in)", id="a page"),
    ],
)
def test_links_that_leave_the_pages_become_paths(written: str, shown: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="airflow.md"))
    assert on_page_markdown(written, page) == shown


def test_pages_of_the_reference_keep_their_links_to_the_guides() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="reference/base.md"))
    assert on_page_markdown("[the guide](../airflow.md)", page) == "[the guide](../airflow.md)"


@pytest.mark.parametrize(
    ("role", "identifier", "shown"),
    [
        pytest.param(":func:<code>lease</code>", "sqs_lease.lease", "lease", id="a name of the page"),
        pytest.param(
            ":meth:<code>LeasedBatch.fail</code>", "sqs_lease.LeasedBatch.fail", "LeasedBatch.fail", id="a method"
        ),
        pytest.param(
            ":class:<code>rule &lt;sqs_lease.core.failure_rules.FailureRule&gt;</code>",
            "sqs_lease.FailureRule",
            "rule",
            id="with a text",
        ),
        pytest.param(":class:<code>.messages.Message</code>", "sqs_lease.Message", "messages.Message", id="relative"),
        pytest.param(":mod:<code>elsewhere</code>", "elsewhere", "elsewhere", id="not on the page"),
    ],
)
def test_roles_of_docstrings_become_references(role: str, identifier: str, shown: str) -> None:
    headings = "".join(
        f'<h3 id="sqs_lease.{name}">' for name in ("lease", "LeasedBatch.fail", "FailureRule", "Message")
    )
    assert on_page_content(headings + role) == (
        f'{headings}<autoref identifier="{identifier}" optional><code>{shown}</code></autoref>'
    )


@pytest.mark.parametrize(
    ("written", "shown"), [("<p>Like this::</p>\n<pre>", "<p>Like this:</p>\n<pre>"), ("<p>::</p>\n<pre>", "\n<pre>")]
)
def test_literal_blocks_lose_their_colons(written: str, shown: str) -> None:
    assert on_page_content(written) == shown


@pytest.mark.parametrize(
    "loading",
    [
        '<script src="https://example.org/a.js">',
        '<img alt="a" src="//example.org/a.png">',
        '<link rel="stylesheet" href="https://example.org/a.css">',
    ],
)
def test_a_page_that_loads_something_from_elsewhere_fails_the_build(loading: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="airflow.md"))
    with pytest.raises(ValueError, match=r"airflow\.md loads something from elsewhere"):
        on_post_page(loading, page)


def test_pages_may_link_to_elsewhere() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="airflow.md"))
    html = '<a href="https://example.org/">there</a><script src="assets/a.js"></script>'
    assert on_post_page(html, page) == html
