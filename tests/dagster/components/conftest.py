"""Shared by the tests of components: a code location with a folder of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dagster.components.shop import Shop


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "shop_of_tests"\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop_of_tests" / "defs").mkdir(parents=True)
    yield Shop(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop_of_tests"]:
        del sys.modules[name]
