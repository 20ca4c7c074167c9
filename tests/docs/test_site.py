"""The site of docs/ is complete: what is public is in the API reference, pages are in the navigation, links lead on.

`make docs` builds the site, and fails on more than this. These tests need nothing that it installs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.docs.test_examples import ROOT

PACKAGE = ROOT / "providers" / "sqs_lease"
DOCS = ROOT / "docs"

PAGES = sorted(DOCS.rglob("*.md"))
LINKING = [*PAGES, *sorted(ROOT.glob("*.md")), ROOT / "docker" / "README.md"]

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def public_packages() -> Iterator[tuple[str, Path]]:
    """The package and those directly in it that list public names."""
    for path in (PACKAGE / "__init__.py", *sorted(PACKAGE.glob("*/__init__.py"))):
        if "__all__" in path.read_text():
            yield ".".join(path.parent.relative_to(PACKAGE.parent).parts), path


def listed_names(path: Path) -> list[str]:
    """The value of `__all__`, without importing the module: it may need Airflow, Dagster or Spark."""
    for statement in ast.parse(path.read_text()).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                names: list[str] = ast.literal_eval(value)
                return names
    raise AssertionError(f"{path} has no __all__")


def public_names() -> set[str]:
    names = {f"{package}.{name}" for package, path in public_packages() for name in listed_names(path)}
    errors = ast.parse((PACKAGE / "sqs" / "errors.py").read_text()).body
    names |= {f"sqs_lease.sqs.errors.{error.name}" for error in errors if isinstance(error, ast.ClassDef)}
    # The base package exports it, too.
    return names - {"sqs_lease.sqs.errors.SqsError"}


def names_in_reference() -> list[str]:
    pages = (DOCS / "reference").glob("*.md")
    names = [name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]
    # Where a module is called like its function, the path that goes through it is the function's.
    return [re.sub(r"\.(\w+)\.\1$", r".\1", name) for name in names]


def test_every_public_name_is_in_the_api_reference_once() -> None:
    names = names_in_reference()
    assert sorted(public_names() - set(names)) == []
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_each_public_package_has_a_page_of_the_reference() -> None:
    packages = [package for package, _ in public_packages()]
    assert len(packages) > 1
    titles = [page.read_text().splitlines()[0] for page in (DOCS / "reference").glob("*.md")]
    assert {f"# `{package}`" for package in packages} <= set(titles)


def pages_of(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for target in entry.values():
            if isinstance(target, str):
                yield target
            else:
                yield from pages_of(target)


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = list(pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(navigation) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


@cache
def anchors(page: Path) -> set[str]:
    """The names on a page that links can use, by the rule that both the site and code hosts follow."""
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def dead_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    assert list(dead_links(page)) == []
