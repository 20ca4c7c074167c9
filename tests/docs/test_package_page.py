"""The page that a package index shows is the README, without what leads nowhere there."""

from __future__ import annotations

import re

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from tests.docs.test_examples import ROOT

LINK = re.compile(r"\]\((?![a-z]+:)")


@pytest.fixture(scope="module")
def page() -> str:
    return str(ProjectMetadata(str(ROOT), PluginManager()).core.readme)


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
