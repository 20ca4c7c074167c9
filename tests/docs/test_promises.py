"""docs/how-it-works.md and SECURITY.md name a test for each promise: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
_TEXT: Final = (ROOT / "docs/how-it-works.md").read_text()
_PROMISES: Final = _TEXT.partition("\n## Promises, and the test that shows each\n")[2]
_ROW: Final = re.compile(r"^\| ([^|]+) \| `(tests/[\w/]+\.py)::(test_\w+)` \|$", re.MULTILINE)
_ROWS: Final[list[tuple[str, str, str]]] = _ROW.findall(_PROMISES)
_CLAIMS: Final = (ROOT / "SECURITY.md").read_text()
_PROTECTED: Final[list[tuple[str, str, str]]] = _ROW.findall(_CLAIMS)


def test_every_row_of_the_tables_names_a_test() -> None:
    rows = [line for line in _PROMISES.splitlines() if line.startswith("| ")]
    headings = [line for line in rows if line.startswith(("| promise |", "| --- |"))]

    assert len(_ROWS) == len(rows) - len(headings) > 40


def test_every_claim_about_security_names_a_test() -> None:
    rows = [line for line in _CLAIMS.splitlines() if line.startswith("| ")]

    assert len(_PROTECTED) == len(rows) - 2 > 10


@pytest.mark.parametrize(
    ("promise", "path", "name"), [*_ROWS, *_PROTECTED], ids=[row[0] for row in [*_ROWS, *_PROTECTED]]
)
def test_the_test_of_a_promise_exists(promise: str, path: str, name: str) -> None:
    file = ROOT / path

    assert file.is_file(), promise
    assert re.search(rf"^ *(?:async )?def {name}\(", file.read_text(), re.MULTILINE), promise
