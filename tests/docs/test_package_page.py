"""The page that a package index shows is the README, without what leads nowhere there."""

from __future__ import annotations

import re

import pytest
from hatchling.metadata.core import CoreMetadata, ProjectMetadata
from hatchling.plugin.manager import PluginManager

from tests.docs.test_examples import ROOT

LINK = re.compile(r"\]\((?![a-z]+:)")


def metadata() -> CoreMetadata:
    return ProjectMetadata(str(ROOT), PluginManager()).core


@pytest.fixture(scope="module")
def page() -> str:
    return str(metadata().readme)


def test_no_link_and_no_picture_of_it_leads_into_the_checkout(page: str) -> None:
    assert LINK.search((ROOT / "README.md").read_text())
    assert LINK.findall(page) == []
    assert "![" not in page


def test_links_into_the_checkout_are_paths_by_which_the_files_are_found(page: str) -> None:
    assert "How a lease\nworks (`docs/how-it-works.md`)" in page
    assert "`CONTRIBUTING.md` describes" in page
    assert "`dagster_defs` is a code location" in page


def test_all_else_is_as_in_the_readme(page: str) -> None:
    readme = (ROOT / "README.md").read_text()
    code = re.compile(r"^```python\n.*?^```$", re.MULTILINE | re.DOTALL)
    assert code.findall(page) == code.findall(readme) != []
    headings = re.compile(r"^#.*$", re.MULTILINE)
    assert headings.findall(page) == headings.findall(readme)


def test_a_release_names_the_repository_of_the_job_that_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://git.example")
    monkeypatch.setenv("GITHUB_REPOSITORY", "orders/sqs-lease")

    urls = metadata().urls

    source = "https://git.example/orders/sqs-lease"
    assert (urls["Source"], urls["Issues"]) == (source, f"{source}/issues")
    files = f"{source}/blob/v{metadata().version}/"
    for name in ("Documentation", "Changelog"):
        assert urls[name].startswith(files)
        assert (ROOT / urls[name].removeprefix(files)).is_file()


def test_a_build_elsewhere_names_no_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    assert metadata().urls == {}
