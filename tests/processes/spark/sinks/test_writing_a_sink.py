"""The example of docs/writing-a-sink.md keeps the contract of sinks."""

from __future__ import annotations

import re

import pytest

from demo.processes import ROOT

PAGE = ROOT / "docs" / "writing-a-sink.md"

pytestmark = pytest.mark.processes

# The page's two blocks, one after the other, are this test module.
for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
    exec(compile(block, PAGE.name, "exec"))


def test_the_page_has_the_tests_of_its_sink() -> None:
    assert "TestSqliteSink" in globals()
