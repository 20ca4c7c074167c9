"""The arithmetic of docs/capacity.md runs as it stands, and its table has what it gives."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.docs.test_examples import ROOT, blocks

PAGE: Final = ROOT / "docs" / "capacity.md"
ROWS: Final = re.findall(r"^\| ([\d,]+) \| ([\d,]+ \|.*) \|$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the page's block defines, where the command is found as in a shell."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    (code,) = (block for block in blocks(PAGE) if "def size(" in block)
    found: dict[str, Any] = {}
    exec(compile(code, "capacity.md", "exec", dont_inherit=True), found)
    return found


def test_the_table_has_what_the_arithmetic_gives(names: dict[str, Any]) -> None:
    assert [runs for runs, _ in ROWS] == ["1", "10", "100", "1,000"]
    for runs, row in ROWS:
        found = names["size"](int(runs.replace(",", "")), 1_000, "1h", "180s")
        assert row.split(" | ") == [
            f"{found['leases']:,}",
            f"{found['queues']:,}",
            f"{found['calls a second']:.1f}",
            f"{found['dollars a month']:.0f}",
            f"{found['questions to Airflow a second']:.1f}",
            f"{found['triggerers']}",
            f"{found['megabytes a triggerer']:.0f}",
            f"{found['seconds of a takeover']:.0f}",
        ]


def test_a_takeover_ends_before_leases_do_at_the_default_visibility_timeout(names: dict[str, Any]) -> None:
    found = names["size"](1_000, 1_000, "1h", "180s")
    assert found["seconds of a takeover"] < found["seconds that are left for it"] == 60
