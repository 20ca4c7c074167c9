"""docs/decisions.md gives each dependency the bounds that pyproject.toml has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "decisions.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = sorted(
    {*PROJECT["dependencies"], *(one for each in PROJECT["optional-dependencies"].values() for one in each)}
)


@pytest.mark.parametrize("requirement", NEEDED)
def test_the_page_has_the_bounds_of_each_dependency(requirement: str) -> None:
    parts = re.fullmatch(r"([\w-]+)(\[\w+\])?(.*)", requirement)
    assert parts is not None
    name, extra, bounds = parts.groups()
    if name == "pyspark":
        extra = ""  # [connect] has the bounds of [spark]
    assert f"{name}{f'`{extra}`' if extra else ''} `{bounds}`" in PAGE


def test_the_page_has_the_bound_of_python() -> None:
    assert f"Python `{PROJECT['requires-python']}`" in PAGE
