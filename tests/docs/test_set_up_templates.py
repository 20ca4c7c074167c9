"""The templates of docs/set-up give each host the permissions that were recorded from the code, and no more."""

from __future__ import annotations

import re
from typing import Final

import pytest
import yaml  # type: ignore[import-untyped]

from demo.processes import ROOT
from sqs_lease.cli.permissions import RECORDED, Place

CLOUDFORMATION: Final = (ROOT / "docs/set-up/queue.cloudformation.yaml").read_text()
TERRAFORM: Final = (ROOT / "docs/set-up/queue.tf").read_text()
NAME: Final = "^[A-Za-z0-9_-]{1,67}$"
"""SQS allows 80 characters, of which -dead-letters takes 13; a FIFO queue's name has a dot."""
HOSTS: Final = ("airflow", "dagster", "lease")


def cloudformation_actions(mapping: str, host: str) -> list[str]:
    # The short forms of CloudFormation's functions are tags; they do not matter here.
    plain = yaml.safe_load(re.sub(r"!(Ref|Sub|GetAtt|Not|Equals|FindInMap) ", "", CLOUDFORMATION))
    actions: list[str] = plain["Mappings"][mapping][host]["Allowed"]
    return actions


def terraform_actions(name: str) -> list[str]:
    found = re.search(rf"^ +{name} += \[(.*)\]$", TERRAFORM, re.MULTILINE)
    assert found is not None
    return [action.strip('"') for action in found[1].split(", ")]


@pytest.mark.parametrize("host", HOSTS)
def test_cloudformation_allows_what_the_host_does(host: str) -> None:
    assert cloudformation_actions("QueueActions", host) == sorted(RECORDED[host][Place.QUEUE])
    assert cloudformation_actions("DeadLetterActions", host) == sorted(RECORDED[host][Place.DEAD_LETTERS])


@pytest.mark.parametrize("host", HOSTS)
def test_terraform_allows_what_the_host_does(host: str) -> None:
    assert terraform_actions("queue_actions") == sorted(RECORDED[host][Place.QUEUE])
    assert terraform_actions(host) == sorted(RECORDED[host][Place.DEAD_LETTERS])


@pytest.mark.parametrize(
    ("value", "cloudformation", "terraform"),
    [
        ("name", f'AllowedPattern: "{NAME}"', f'can(regex("{NAME}", var.name))'),
        ("visibility timeout", "    Default: 60\n    MinValue: 30", "  default     = 60\n"),
        ("receives", "    Default: 5\n    MinValue: 1\n", "  default     = 5\n"),
        ("retention of dead letters", "MessageRetentionPeriod: 1209600", "message_retention_seconds = 1209600"),
    ],
)
def test_both_templates_make_the_same_queue(value: str, cloudformation: str, terraform: str) -> None:
    assert cloudformation in CLOUDFORMATION, value
    assert terraform in TERRAFORM, value
