"""How `sqs-lease doctor` looks in a real terminal."""

from __future__ import annotations

import re

import pexpect
import pytest

from tests.cli.conftest import Ground
from tests.cli.terminal import in_terminal
from tests.cli.wire import Wire

pytestmark = pytest.mark.processes

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("columns", [80, 120])
def test_it_has_colors_fits_the_width_and_exits_with_1(ground: Ground, wire: Wire, columns: int) -> None:
    name = ground.queue("short", VisibilityTimeout="5")
    with in_terminal("-m", "sqs_lease.cli", "doctor", name, columns=columns) as child:
        child.expect(pexpect.EOF)
        text = child.before or ""

    assert child.exitstatus == 1
    assert ESCAPE.search(text)
    lines = ESCAPE.sub("", text).splitlines()
    assert [line for line in lines if len(line) > columns and not line.startswith("    $ aws ")] == []
    assert any(line.startswith("  ✗ its visibility timeout is 5 s") for line in lines)
