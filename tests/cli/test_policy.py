"""`sqs-lease policy`: the document, by the queues as they are and without a look at them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sqs_lease.cli.permissions import Place, needs_of
from sqs_lease.cli.policy import EncryptedQueue, QueueAndDeadLetters, S3Place, policy_statements
from tests.cli.commands import Ran, sqs_lease
from tests.cli.conftest import Ground
from tests.cli.wire import Wire

ARN = "arn:aws:sqs:eu-west-1:123456789012"
KEYS = "arn:aws:kms:eu-west-1:123456789012"
LEASE_ACTIONS = [
    "sqs:ChangeMessageVisibility",
    "sqs:DeleteMessage",
    "sqs:GetQueueAttributes",
    "sqs:GetQueueUrl",
    "sqs:ReceiveMessage",
]
NOBODY = ("--endpoint-url", "http://127.0.0.1:9", "--region", "eu-west-1")


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


def statements(ran: Ran) -> dict[str, dict[str, Any]]:
    assert ran.exit_code == 0, ran.err
    document = json.loads(ran.out)
    assert document["Version"] == "2012-10-17"
    return {statement["Sid"]: statement for statement in document["Statement"]}


@pytest.mark.processes
def test_the_queue_and_its_dead_letter_queue_are_named(wire: Wire, ground: Ground) -> None:
    dead = ground.queue("dead")
    orders = ground.queue("orders", RedrivePolicy=ground.redrive_to(dead))

    found = statements(sqs_lease("policy", orders))

    assert found == {
        "Queues": {"Sid": "Queues", "Effect": "Allow", "Action": LEASE_ACTIONS, "Resource": [ground.arn(orders)]},
        "DeadLetterQueues": {
            "Sid": "DeadLetterQueues",
            "Effect": "Allow",
            "Action": ["sqs:SendMessage"],
            "Resource": [ground.arn(dead)],
        },
    }


@pytest.mark.processes
def test_several_queues_share_statements(wire: Wire, ground: Ground) -> None:
    names = [ground.queue("orders"), ground.queue("returns")]

    ran = sqs_lease("policy", *names, names[0])

    assert statements(ran)["Queues"]["Resource"] == [ground.arn(name) for name in names]
    assert ran.err.count("has no dead-letter queue") == 2


@pytest.mark.processes
def test_a_dead_letter_queue_that_may_not_be_looked_up_is_named_all_the_same(wire: Wire, ground: Ground) -> None:
    dead = ground.queue("dead")
    orders = ground.queue("orders", RedrivePolicy=ground.redrive_to(dead))
    ran = sqs_lease("policy", wire.url(orders))
    wire.denied = {"sqs:GetQueueUrl"}

    without = sqs_lease("policy", wire.url(orders))

    assert without.out == ran.out
    assert f"{dead} was not looked up, so its KMS key is not in this policy" in without.err


@pytest.mark.processes
def test_a_dead_letter_queue_is_enough_for_a_redrive(wire: Wire, ground: Ground) -> None:
    dead = ground.queue("dead")
    orders = ground.queue("orders", RedrivePolicy=ground.redrive_to(dead))
    # The server does not know this call.
    wire.answers = {"sqs:ListDeadLetterSourceQueues": lambda: {"queueUrls": [ground.url(orders)]}}

    assert sqs_lease("policy", dead, "--redrive") == sqs_lease("policy", orders, "--redrive")


@pytest.mark.processes
def test_a_queue_without_a_dead_letter_queue_is_taken_for_one_in_a_redrive(wire: Wire, ground: Ground) -> None:
    dead = ground.queue("dead")

    ran = sqs_lease("policy", dead, "--redrive")

    assert list(statements(ran)) == ["DeadLetterQueues"]
    assert "Name its source queue instead" in ran.err


@pytest.mark.parametrize("queue", [f"{ARN}:orders", "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"])
def test_a_queue_that_cannot_be_looked_up_is_enough_by_its_arn(queue: str, credentials: None) -> None:
    ran = sqs_lease("policy", queue, *NOBODY)

    assert statements(ran)["Queues"]["Resource"] == [f"{ARN}:orders"]
    assert ran.err.startswith(f"Note: {queue} was not looked up")
    assert ran.err.count("\n") == 1


def test_a_queue_of_another_region_is_not_looked_for_in_the_configured_one(wire: Wire, ground: Ground) -> None:
    arn = ground.arn(ground.queue("orders")).replace("us-east-1", "eu-west-1")
    ran = sqs_lease("policy", arn)

    assert statements(ran)["Queues"]["Resource"] == [arn]
    assert "is in region eu-west-1, but the client calls us-east-1" in ran.err


def test_a_url_of_another_endpoint_is_not_looked_for_at_the_configured_one(wire: Wire, ground: Ground) -> None:
    ran = sqs_lease("policy", f"http://127.0.0.1:9/000000000000/{ground.queue('orders')}")

    assert (ran.exit_code, ran.out) == (2, "")
    assert "is not at http://127.0.0.1:" in ran.err


def test_a_url_off_aws_is_called_where_it_says(wire: Wire, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = ground.queue("orders")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    ran = sqs_lease("policy", wire.url(orders))

    assert statements(ran)["Queues"]["Resource"] == [ground.arn(orders)]


def test_a_name_alone_is_not(credentials: None) -> None:
    ran = sqs_lease("policy", "orders", *NOBODY)

    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err.endswith("Or give the queue by its ARN, which needs no look-up.\n")


def test_as_json_the_notes_are_in_the_document(credentials: None) -> None:
    plain = sqs_lease("policy", f"{ARN}:orders", *NOBODY)
    ran = sqs_lease("policy", f"{ARN}:orders", "--json", *NOBODY)

    document = json.loads(ran.out)
    assert document["policy"] == json.loads(plain.out)
    assert [f"Note: {note}" for note in document["notes"]] == plain.err.splitlines()
    assert ran.err == ""


def test_a_spark_job_needs_no_queue() -> None:
    ran = sqs_lease("policy", "orders", "--spark", "--files", "s3://batches/orders", "--objects", "s3://landing")

    assert statements(ran) == {
        "Files": {
            "Sid": "Files",
            "Effect": "Allow",
            "Action": ["s3:GetObject", "s3:PutObject"],
            "Resource": ["arn:aws:s3:::batches/orders/*"],
        },
        "Objects": {
            "Sid": "Objects",
            "Effect": "Allow",
            "Action": ["s3:GetObject", "s3:GetObjectVersion"],
            "Resource": ["arn:aws:s3:::landing/*"],
        },
    }


@pytest.mark.parametrize(
    ("clean_source", "more"),
    [
        ("delete", {"s3:DeleteObject", "s3:DeleteObjectVersion"}),
        (
            "tag",
            {
                *("s3:GetObjectTagging", "s3:GetObjectVersionTagging"),
                *("s3:PutObjectTagging", "s3:PutObjectVersionTagging"),
            },
        ),
    ],
)
def test_a_spark_job_that_cleans_up_may_do_so_with_the_objects_alone(clean_source: str, more: set[str]) -> None:
    places = ["--files", "s3://batches/orders", "--objects", "s3://landing"]
    ran = sqs_lease("policy", "orders", "--spark", *places, "--clean-source", clean_source)

    allowed = statements(ran)
    assert set(allowed["Objects"]["Action"]) == {"s3:GetObject", "s3:GetObjectVersion"} | more
    assert allowed["Objects"]["Resource"] == ["arn:aws:s3:::landing/*"]
    assert allowed["Files"]["Action"] == ["s3:GetObject", "s3:PutObject"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["orders", "--spark"], "Error: There is nothing to allow. The policy allows nothing on S3 for files"),
        (["orders", "--spark", "--files", "/data"], "Error: --files: '/data' is not an address on S3"),
        (["orders", "--spark", "--files", "s3://[x"], "Error: --files: 's3://[x' is not an address on S3"),
        (["orders", "--spark", "--files", "s3://batch*/x"], "Error: --files: 's3://batch*/x' is not an address on S3"),
        (["orders", "--objects", "s3://landing"], "Error: --objects is for --spark"),
        (["orders", "--clean-source", "tag"], "Error: --clean-source is for --spark with --objects"),
        (["orders", "--spark", "--clean-source", "tag"], "Error: --clean-source is for --spark with --objects"),
        (["orders", "--redrive", "--files", "s3://b"], "Error: --files is for --airflow or --dagster or --spark"),
    ],
)
def test_arguments_that_make_no_policy_are_bad_input(arguments: list[str], says: str, credentials: None) -> None:
    if arguments[0] == "orders":
        arguments = [f"{ARN}:orders", *arguments[1:]]
    ran = sqs_lease("policy", *arguments, *NOBODY)

    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err.startswith(says)
    assert ran.err.count("\n") == 1


def by_name(*uses: str, key: str | None = None, dead_key: str | None = None) -> dict[str, dict[str, Any]]:
    pair = QueueAndDeadLetters(EncryptedQueue(f"{ARN}:orders", key), EncryptedQueue(f"{ARN}:dead", dead_key))
    return {statement["Sid"]: statement for statement in policy_statements(frozenset(uses), [pair], {})}


def test_receiving_needs_decryption_and_sending_needs_data_keys() -> None:
    found = by_name("lease", key="1234", dead_key=f"{KEYS}:key/5678")
    via = {"StringEquals": {"kms:ViaService": "sqs.eu-west-1.amazonaws.com"}}

    assert (found["KeysOfQueues"]["Action"], found["KeysOfQueues"]["Resource"]) == (
        ["kms:Decrypt"],
        [f"{KEYS}:key/1234"],
    )
    assert (found["KeysOfDeadLetterQueues"]["Action"], found["KeysOfDeadLetterQueues"]["Resource"]) == (
        ["kms:Decrypt", "kms:GenerateDataKey"],
        [f"{KEYS}:key/5678"],
    )
    assert found["KeysOfQueues"]["Condition"] == found["KeysOfDeadLetterQueues"]["Condition"] == via


@pytest.mark.parametrize("key", ["alias/orders", f"{KEYS}:alias/orders"])
def test_an_alias_is_a_condition_because_it_is_not_a_resource(key: str) -> None:
    statement = by_name("lease", key=key)["KeysOfQueues"]

    assert statement["Resource"] == [f"{KEYS}:key/*"]
    assert statement["Condition"]["ForAnyValue:StringEquals"] == {"kms:ResourceAliases": "alias/orders"}


def test_uses_can_be_combined() -> None:
    found = by_name("airflow", "redrive")

    assert found["Queues"]["Action"] == sorted([*LEASE_ACTIONS, "sqs:SendMessage"])
    assert "sqs:StartMessageMoveTask" in found["DeadLetterQueues"]["Action"]


def test_files_are_those_of_the_place_alone() -> None:
    places = {Place.FILES: [S3Place.of("s3://aws_default@leases/a/b", "--files"), S3Place("other", "")]}

    made = {statement["Sid"]: statement for statement in policy_statements(frozenset({"dagster"}), [], places)}

    assert made["Files"]["Resource"] == ["arn:aws:s3:::leases/a/b/*", "arn:aws:s3:::other/*"]


def test_a_key_of_odd_characters_is_meant_as_it_is_written() -> None:
    place = S3Place.of("s3://leases/a#b/c?d*/${aws:username}/", "--files")

    made = {
        statement["Sid"]: statement
        for statement in policy_statements(frozenset({"dagster"}), [], {Place.FILES: [place]})
    }

    # By IAM's way to write the characters that mean something in a policy.
    prefix = "a#b/c${?}d${*}/${$}{aws:username}"
    assert made["Files"]["Resource"] == [f"arn:aws:s3:::leases/{prefix}/*"]


def test_every_statement_has_a_name_of_its_own_as_iam_asks() -> None:
    pairs = [
        QueueAndDeadLetters(EncryptedQueue(f"arn:aws:sqs:{region}:123456789012:orders", key), None)
        for region in ("eu-west-1", "us-east-1")
        for key in ("1234", "alias/a", "alias/b", None)
    ]
    names = [statement["Sid"] for statement in policy_statements(frozenset({"lease"}), pairs, {})]

    assert len(names) == len(set(names)) == 7
    assert all(name.isalnum() for name in names)


def test_in_china_sqs_and_s3_have_other_names() -> None:
    pair = QueueAndDeadLetters(EncryptedQueue("arn:aws-cn:sqs:cn-north-1:123456789012:orders", "1234"), None)
    places = {Place.FILES: [S3Place("leases", "")]}
    made = {statement["Sid"]: statement for statement in policy_statements(frozenset({"airflow"}), [pair], places)}

    via = {"StringEquals": {"kms:ViaService": "sqs.cn-north-1.amazonaws.com.cn"}}
    assert made["KeysOfQueues"]["Condition"] == via
    assert made["Files"]["Resource"] == ["arn:aws-cn:s3:::leases/*"]


PAGE = (Path(__file__).parents[2] / "docs" / "permissions.md").read_text()


def test_the_example_of_the_page_on_permissions_is_what_the_command_makes() -> None:
    key = f"{KEYS}:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    pair = QueueAndDeadLetters(EncryptedQueue(f"{ARN}:orders", key), EncryptedQueue(f"{ARN}:orders-dead-letters", key))
    places = {Place.FILES: [S3Place.of("s3://example-batches/airflow", "--files")]}
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert json.loads(shown)["Statement"] == list(policy_statements(frozenset({"airflow"}), [pair], places))


@pytest.mark.parametrize(
    ("row", "use"), [("`lease`", "lease"), ("Airflow", "airflow"), ("Dagster", "dagster"), ("moving", "redrive")]
)
def test_the_table_of_the_page_on_permissions_has_the_actions_of_each_use(row: str, use: str) -> None:
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| [{row}"))
    queue, dead_letters, files = (
        {f"sqs:{name}" for name in re.findall(r"`(\w+)`", cell)} | (set(LEASE_ACTIONS) if "the five" in cell else set())
        for cell in line.split("|")[2:5]
    )
    needs = needs_of(frozenset({use}))
    assert queue == set(needs[Place.QUEUE])
    assert dead_letters == set(needs[Place.DEAD_LETTERS])
    assert {name.replace("sqs:", "s3:") for name in files} == needs.get(Place.FILES, frozenset())
