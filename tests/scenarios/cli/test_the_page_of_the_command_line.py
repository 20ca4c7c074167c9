"""The examples of docs/command-line.md are what the command prints, but for what differs from machine to machine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from sqs_lease.cli.app import app
from sqs_lease.cli.permissions import RECORDED
from tests.cli.commands import sqs_lease
from tests.cli.conftest import Ground
from tests.cli.wire import Wire

pytestmark = pytest.mark.processes

PAGE = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text()
SHOWN = re.findall(r"^```console\n\$ sqs-lease (.*)\n((?:.*\n)*?)^```$", PAGE, re.MULTILINE)

DIFFERS = (
    (re.compile(r"http://127\.0\.0\.1:\d+"), "https://sqs.us-east-1.amazonaws.com"),
    (re.compile(r"\b000000000000\b"), "123456789012"),
    (re.compile(r"answered in \d+ ms"), "answered in 52 ms"),
    (re.compile(r"(Python|sqs-lease|boto3|botocore) \d+\.\d+\.\d+\S*?(,|$)", re.MULTILINE), r"\1 1.2.3\2"),
)


def comparable(text: str) -> list[str]:
    """The words: what differs in length moves where lines end."""
    for pattern, instead in DIFFERS:
        text = pattern.sub(instead, text)
    return text.split()


@pytest.fixture
def returns(ground: Ground, wire: Wire) -> Iterator[None]:
    """The queues that the page has, with what is wrong with them there."""
    names = ("returns-dead-letters", "returns")
    ground.sqs.create_queue(QueueName=names[0])
    attributes = {"VisibilityTimeout": "12", "RedrivePolicy": ground.redrive_to(names[0], 2)}
    ground.sqs.create_queue(QueueName=names[1], Attributes=attributes)  # type: ignore[arg-type]
    yield
    for name in names:
        ground.sqs.delete_queue(QueueUrl=ground.url(name))


@pytest.mark.parametrize(("arguments", "output"), [shown for shown in SHOWN if shown[0].endswith(" returns")])
def test_the_output_on_the_page_is_printed(arguments: str, output: str, returns: None) -> None:
    assert comparable(sqs_lease(*shlex.split(arguments)).out) == comparable(output)


def test_the_page_shows_both_commands() -> None:
    assert {"doctor returns", "policy returns"} <= {arguments for arguments, _ in SHOWN}


def test_every_command_has_a_section() -> None:
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}

    assert commands == set(re.findall(r"^## `(\w+)`", PAGE, re.MULTILINE))


def test_every_use_of_a_policy_is_in_its_table() -> None:
    assert {use for use in RECORDED if f"| `--{use}` |" in PAGE} == set(RECORDED) - {"lease"}
