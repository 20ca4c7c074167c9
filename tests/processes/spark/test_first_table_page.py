"""The two files of docs/first-table.md, put side by side, do what the page says, on a real Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_examples import ROOT, blocks

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

WORK, TRY_IT = blocks(ROOT / "docs" / "first-table.md")


def run(directory: Path) -> list[str]:
    """The last two lines that the page's script prints."""
    ended = subprocess.run(
        [sys.executable, "try_it.py"], cwd=directory, capture_output=True, text=True, check=True, timeout=400
    )
    return ended.stdout.splitlines()[-2:]


def test_the_bad_message_is_named_and_the_good_one_is_stored_once_also_when_both_come_again(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(WORK)
    (tmp_path / "try_it.py").write_text(TRY_IT)
    for _ in range(2):
        failed, stored = run(tmp_path)
        assert "'m2'" in failed
        assert "'m1'" not in failed
        assert stored == "[7]"
