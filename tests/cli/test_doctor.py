"""`sqs-lease doctor` against a real SQS server, with a wire before it that denies what IAM would."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.cli.commands import sqs_lease
from tests.cli.conftest import Ground
from tests.cli.wire import CALLER, Wire

pytestmark = pytest.mark.processes

TWO_WEEKS = "1209600"


@pytest.fixture
def orders(ground: Ground, wire: Wire) -> str:
    """A queue that nothing is wrong with."""
    dead = ground.queue("dead", MessageRetentionPeriod=TWO_WEEKS)
    return ground.queue("orders", VisibilityTimeout="120", RedrivePolicy=ground.redrive_to(dead))


def findings(*arguments: str) -> dict[str, dict[str, Any]]:
    """The findings, by check."""
    ran = sqs_lease("doctor", *arguments, "--json")
    assert ran.err == ""
    examined = json.loads(ran.out)
    found = {finding["check"]: finding for about in examined["examined"] for finding in about["findings"]}
    problems = [finding for finding in found.values() if finding["level"] == "problem"]
    assert (ran.exit_code, examined["problems"]) == (1 if problems else 0, len(problems))
    return found


def problems(*arguments: str) -> set[str]:
    return {check for check, finding in findings(*arguments).items() if finding["level"] == "problem"}


def test_a_good_queue_is_fine(orders: str) -> None:
    assert problems(orders) == set()
    ran = sqs_lease("doctor", orders)
    assert ran.exit_code == 0
    assert ran.out.endswith("\nNo problems found.\n")


@pytest.mark.parametrize(
    "action", ["GetQueueAttributes", "ReceiveMessage", "ChangeMessageVisibility", "DeleteMessage", "SendMessage"]
)
def test_a_permission_that_is_missing_is_a_finding(orders: str, wire: Wire, action: str) -> None:
    wire.denied = {f"sqs:{action}"}

    found = findings(orders)

    assert {check for check, finding in found.items() if finding["level"] == "problem"} == {f"permission:{action}"}
    # The denied caller, in the words of AWS.
    assert CALLER in found[f"permission:{action}"]["why"]


def test_a_queue_that_may_not_be_looked_up_is_a_finding(orders: str, wire: Wire) -> None:
    wire.denied = {"sqs:GetQueueUrl"}

    assert "Allow sqs:GetQueueUrl" in findings(orders)["access"]["what"]
    # By its URL it needs no look-up.
    assert "sqs:GetQueueUrl" not in json.dumps(findings(wire.url(orders))["permissions"])


def test_a_dead_letter_queue_is_found_without_a_look_up(orders: str, wire: Wire) -> None:
    wire.denied = {"sqs:GetQueueUrl"}

    assert "permission:GetQueueUrl" not in findings(wire.url(orders))


def test_a_probe_without_an_answer_is_a_note(orders: str, wire: Wire) -> None:
    wire.torn = {"sqs:DeleteMessage"}

    assert findings(orders)["permission:DeleteMessage"]["level"] == "note"


def test_without_the_permissions_of_a_redrive_leases_are_fine(orders: str, wire: Wire) -> None:
    wire.denied = {"sqs:StartMessageMoveTask", "sqs:ListMessageMoveTasks"}

    found = findings(orders)

    assert found["permission:redrive"]["level"] == "note"
    assert "ListMessageMoveTasks, StartMessageMoveTask denied" in found["permission:redrive"]["what"]


def test_it_changes_nothing(orders: str, ground: Ground) -> None:
    ground.sqs.send_message(QueueUrl=ground.url(orders), MessageBody="an order")
    before = ground.in_flight_and_counts(orders)

    problems(orders)

    assert ground.in_flight_and_counts(orders) == before
    (message,) = ground.sqs.receive_message(QueueUrl=ground.url(orders), AttributeNames=["ApproximateReceiveCount"])[
        "Messages"
    ]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_clock_that_differs_from_that_of_the_service_is_a_finding(orders: str, wire: Wire) -> None:
    wire.ahead = timedelta(minutes=10)

    assert problems(orders) == {"clock"}
    assert "10 min behind" in findings(orders)["clock"]["what"]


def test_a_queue_that_does_not_exist_is_a_finding_beside_those_of_the_others(orders: str) -> None:
    ran = sqs_lease("doctor", "nowhere", orders, "--json")

    nowhere, other, _installation = json.loads(ran.out)["examined"]
    assert ran.exit_code == 1
    assert "there is no such queue" in nowhere["findings"][-1]["what"]
    assert other["subject"] == orders
    assert len(other["findings"]) > 5


def test_a_dead_letter_queue_that_is_gone_is_a_finding(orders: str, ground: Ground) -> None:
    dead = ground.queue("dead", MessageRetentionPeriod=TWO_WEEKS)
    orders = ground.queue("orders", RedrivePolicy=ground.redrive_to(dead))
    ground.sqs.delete_queue(QueueUrl=ground.url(dead))

    assert problems(orders) == {"dead_letter_queue"}


def test_a_text_that_is_not_a_queue_is_bad_input(wire: Wire) -> None:
    ran = sqs_lease("doctor", "or ders")

    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err.startswith("Error: Invalid value for 'QUEUE': 'or ders' is not a queue name")
    assert ran.err.count("\n") == 1
    assert wire.calls == []


def test_without_credentials_it_says_so(monkeypatch: pytest.MonkeyPatch, orders: str) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")

    assert "no usable credentials" in findings(orders)["access"]["what"]


def test_credentials_that_nothing_renews_are_named(monkeypatch: pytest.MonkeyPatch, orders: str) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")

    assert findings(orders)["credentials"]["level"] == "note"


def test_an_endpoint_that_does_not_listen_is_a_finding(orders: str) -> None:
    ran = sqs_lease("doctor", orders, "--endpoint-url", "http://127.0.0.1:9", "--json")

    assert ran.exit_code == 1
    assert "the endpoint cannot be reached" in json.loads(ran.out)["examined"][0]["findings"][0]["what"]


@pytest.mark.parametrize("endpoint_url", ["http://127.0.0.1:99999", "http://127.0.0.1:x", "http://[::1", "ftp://host"])
def test_an_endpoint_that_cannot_be_called_is_a_finding(orders: str, endpoint_url: str) -> None:
    ran = sqs_lease("doctor", orders, "--endpoint-url", endpoint_url, "--json")

    assert ran.exit_code == 1
    assert "endpoint is misconfigured" in json.loads(ran.out)["examined"][0]["findings"][0]["what"]


def test_a_queue_of_another_region_is_not_looked_for_in_the_configured_one(orders: str, ground: Ground) -> None:
    elsewhere = ground.arn(orders).replace("us-east-1", "eu-west-1")
    (finding,) = (found for check, found in findings(elsewhere).items() if check != "versions")

    assert finding["level"] == "problem"
    assert "is in region eu-west-1, but the client calls us-east-1" in finding["what"]


def test_a_url_of_another_endpoint_is_not_looked_for_at_the_configured_one(orders: str) -> None:
    (finding,) = (
        found for check, found in findings(f"http://127.0.0.1:9/000000000000/{orders}").items() if check != "versions"
    )

    assert finding["level"] == "problem"
    assert finding["what"].startswith("its URL is at http://127.0.0.1:9, and calls go to http://127.0.0.1:")


def test_waiting_dead_letters_are_a_note_with_the_command_that_says_why(orders: str, ground: Ground) -> None:
    dead = ground.queue("dead", MessageRetentionPeriod=TWO_WEEKS)
    orders = ground.queue("orders", VisibilityTimeout="120", RedrivePolicy=ground.redrive_to(dead))
    ground.sqs.send_message(QueueUrl=ground.url(dead), MessageBody="one")
    change = findings(orders)["dead_letters"]["change"]

    assert f"`sqs-lease peek {dead}` shows why" in change


@pytest.mark.parametrize("columns", [80, 120])
def test_it_fits_the_terminal_but_for_commands_to_copy(ground: Ground, wire: Wire, columns: int) -> None:
    ran = sqs_lease("doctor", ground.queue("short", VisibilityTimeout="5"), columns=columns)

    lines = ran.out.splitlines()
    assert [line for line in lines if len(line) > columns and not line.startswith("    $ aws ")] == []
    assert [line for line in lines if line != line.rstrip()] == []
    assert any(line.startswith("    $ aws ") and "VisibilityTimeout=15" in line for line in lines)


ORDERS = "arn:aws:sqs:us-east-1:000000000000:orders"
GOOD = {"QueueArn": ORDERS, "VisibilityTimeout": "120"}


def redrive(dead_letter_arn: object, count: object) -> dict[str, str]:
    return {**GOOD, "RedrivePolicy": json.dumps({"deadLetterTargetArn": dead_letter_arn, "maxReceiveCount": count})}


@pytest.mark.parametrize(
    "answer",
    [
        {"Hello": "world"},
        {"Attributes": {}},
        {"Attributes": ["orders"]},
        {"Attributes": {"VisibilityTimeout": "120"}},
        {"Attributes": {**GOOD, "VisibilityTimeout": "long"}},
        {"Attributes": {**GOOD, "RedrivePolicy": "[]"}},
        {"Attributes": {**GOOD, "RedrivePolicy": "none"}},
        {"Attributes": redrive(5, 5)},
        {"Attributes": redrive(ORDERS, "many")},
        ["orders"],
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["doctor", "policy", "peek", "redrive"])
def test_attributes_that_cannot_be_read_are_an_error_and_no_traceback(
    orders: str, wire: Wire, command: str, answer: object
) -> None:
    wire.answers = {"sqs:GetQueueAttributes": lambda: answer}
    ran = sqs_lease(command, orders, columns=500)
    assert "the answer is not from SQS" in ran.out + ran.err
    assert ran.exit_code in (1, 2)


@pytest.mark.parametrize("answer", [{}, {"QueueUrl": 5}, {"QueueUrl": "orders"}], ids=str)
@pytest.mark.parametrize("command", ["doctor", "policy", "peek", "redrive"])
def test_a_url_that_cannot_be_read_is_an_error_and_no_traceback(
    orders: str, wire: Wire, command: str, answer: object
) -> None:
    wire.answers = {"sqs:GetQueueUrl": lambda: answer}
    ran = sqs_lease(command, orders, columns=500)
    assert "the answer is not from SQS" in ran.out + ran.err
    assert ran.exit_code in (1, 2)


@pytest.mark.parametrize("urls", [None, 5, [5], ["http://a/b/c d"]], ids=str)
def test_sources_that_cannot_be_read_are_not_known(ground: Ground, wire: Wire, urls: object) -> None:
    wire.answers = {"sqs:ListDeadLetterSourceQueues": lambda: {"queueUrls": urls}}
    assert "whether it is one itself is not known" in findings(ground.queue("orders"))["dead_letter_queue"]["what"]


@pytest.mark.parametrize("arn", ["orders", "yrn:yc:ymq:ru-central1:b1g:orders"])
def test_a_server_may_name_its_queues_in_another_way(orders: str, wire: Wire, arn: str) -> None:
    wire.answers = {"sqs:GetQueueAttributes": lambda: {"Attributes": {**redrive(arn, 5), "QueueArn": arn}}}
    assert "moves a message to orders" in findings(orders)["max_receive_count"]["what"]
    assert "not an ARN of AWS: IAM policies are for AWS" in sqs_lease("policy", orders).err
