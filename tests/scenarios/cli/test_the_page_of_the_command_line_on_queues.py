"""The examples of docs/command-line.md about queues are what the commands print on queues in memory."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sqs_lease.testing.leased_queues import LeasedQueues
from sqs_lease.testing.pytest_plugin import leased_queues
from tests.cli.commands import sqs_lease
from tests.cli.memory_command import dead_letter

__all__ = ["leased_queues"]

PAGE = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text()
SHOWN = re.findall(r"^```console\n\$ sqs-lease ((?:plan|peek|redrive)\b.*)\n((?:.*\n)*?)^```$", PAGE, re.MULTILINE)

DIFFERS = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "an-id"),
    (re.compile(r"\b\d+ s\b"), "some s"),
    (re.compile("─+"), "─"),
)


def comparable(text: str) -> list[str]:
    """The words, without what differs from run to run."""
    for pattern, instead in DIFFERS:
        text = pattern.sub(instead, text)
    return text.split()


@pytest.fixture
def queues(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queues of the page: three orders, and four dead letters for two reasons in turn."""
    monkeypatch.setattr("sqs_lease.cli.peek.WAIT_SECONDS", 0.1)
    monkeypatch.setattr("sqs_lease.cli.peek.LINGER_SECONDS", 0.1)
    orders = leased_queues.create("orders", max_receive_count=5)
    orders.send("a", "b", "c", message_attributes={"kind": {"DataType": "String", "StringValue": "new"}})
    dead_letter(leased_queues, orders, 4)


@pytest.mark.parametrize(("arguments", "output"), SHOWN, ids=[shown[0].split()[0] for shown in SHOWN])
def test_the_output_on_the_page_is_printed(arguments: str, output: str, queues: None) -> None:
    ran = sqs_lease(*shlex.split(arguments))

    assert ran.exit_code == 0
    assert comparable(ran.err + ran.out) == comparable(output)


def test_the_page_shows_each_command() -> None:
    assert [arguments.split()[0] for arguments, _ in SHOWN] == ["plan", "peek", "redrive"]
