"""The tools of compose.yaml beside the servers: secrets, queues, test messages, and a look at their outcome."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from asyncpg.connect_utils import _read_password_from_pgpass  # type: ignore[import-untyped]
from cryptography.fernet import Fernet
from deltalake import write_deltalake
from typer.testing import CliRunner as TyperRunner

from demo.compose import __main__ as demo_compose
from demo.compose.__main__ import MOST_MESSAGES, main
from demo.compose.queues import ACCOUNTS, FLIGHTS, MAX_RECEIVE_COUNT, QUEUES, VISIBILITY_SECONDS
from demo.compose.secrets import AIRFLOW_USER, DATABASE_HOST, DATABASE_USER, make_secrets
from demo.flights import bodies
from demo.processes import free_port
from demo.queues import BATCH_ENTRIES
from demo.sqs_server import SqsServer
from sqs_lease.cli.app import app
from sqs_lease.spark.columns import MESSAGE_ID

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient
    from types_boto3_sqs.type_defs import MessageTypeDef

SECRETS = {
    "airflow-api-secret-key",
    "airflow-fernet-key",
    "airflow-jwt-secret",
    "airflow-passwords.json",
    "pgpass",
    "postgres-password",
}


def dead_letters_of(name: str) -> str:
    plain, dot, suffix = name.partition(".")
    return f"{plain}-dead-letter{dot}{suffix}"


# Secrets


def secrets_in(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}


def password_of_pgpass(directory: Path) -> str | None:
    """The password for the database server, as a client reads it."""
    password: str | None = _read_password_from_pgpass(
        passfile=directory / "pgpass", hosts=[DATABASE_HOST], ports=[5432], database="airflow", user=DATABASE_USER
    )
    return password


def test_all_secrets_are_made_for_their_owner_only_and_named(tmp_path: Path) -> None:
    assert set(make_secrets(tmp_path)) == SECRETS
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == dict.fromkeys(
        SECRETS, 0o600
    )


def test_secrets_that_are_there_are_kept(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    first = secrets_in(tmp_path)

    assert make_secrets(tmp_path) == []
    assert secrets_in(tmp_path) == first


@pytest.mark.parametrize("lost", sorted(SECRETS))
def test_a_secret_that_is_lost_is_made_again_and_the_others_are_kept(tmp_path: Path, lost: str) -> None:
    make_secrets(tmp_path)
    first = secrets_in(tmp_path)
    (tmp_path / lost).unlink()

    assert make_secrets(tmp_path) == [lost]
    second = secrets_in(tmp_path)
    assert {name: second[name] for name in SECRETS - {lost}} == {name: first[name] for name in SECRETS - {lost}}
    assert password_of_pgpass(tmp_path) == second["postgres-password"], "the server and its clients have one password"


def test_an_unfinished_file_of_a_killed_start_is_not_a_secret(tmp_path: Path) -> None:
    (tmp_path / "postgres-password.unfinished").write_text("hal")
    make_secrets(tmp_path)

    assert secrets_in(tmp_path).keys() == SECRETS
    assert len(secrets_in(tmp_path)["postgres-password"]) > 24


def test_each_secret_has_the_form_that_its_reader_wants_and_no_two_stacks_share_one(tmp_path: Path) -> None:
    for stack in ("one", "another"):
        (tmp_path / stack).mkdir()
        make_secrets(tmp_path / stack)
    secrets, others = secrets_in(tmp_path / "one"), secrets_in(tmp_path / "another")

    assert password_of_pgpass(tmp_path / "one") == secrets["postgres-password"]
    fernet = Fernet(secrets["airflow-fernet-key"])
    assert fernet.decrypt(fernet.encrypt(b"a connection")) == b"a connection"
    assert json.loads(secrets["airflow-passwords.json"]).keys() == {AIRFLOW_USER}
    assert [name for name in SECRETS if secrets[name] == others[name] or len(secrets[name]) < 24] == []


def test_the_command_says_what_it_made_and_not_its_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["secrets", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert [name for name in SECRETS if name not in said] == []
    assert [name for name, content in secrets_in(tmp_path).items() if content.strip() in said] == []

    assert main(["secrets", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "all secrets are there\n"


# The bodies of test messages


def body_of(text: str) -> dict[str, Any] | None:
    """A body as the examples read it; `None` if it is not JSON."""
    try:
        read: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    return read


def no_object(text: str) -> bool:
    return body_of(text) is None


def nothing(_: str) -> bool:
    return False


def below_zero(field: str) -> Callable[[str], bool]:
    return lambda text: (body_of(text) or {})[field] < 0


def without(field: str) -> Callable[[str], bool]:
    return lambda text: field not in (body_of(text) or {})


FLAWED: dict[str, Callable[[str], bool]] = {
    "orders": nothing,
    "orders-in-one-batch": nothing,
    "orders-one-by-one": below_zero("total"),
    "orders-that-start-runs": nothing,
    "orders-with-backoff": no_object,
    "orders-with-partial-failures": without("total"),
    "bookings-in-order.fifo": below_zero("amount"),
    "json-to-delta": no_object,
    "queue-to-postgres": no_object,
    "dagster-bookings.fifo": below_zero("amount"),
    "dagster-customers": without("name"),
    "dagster-deliveries": nothing,
    "dagster-orders": without("total"),
}
"""By the queue, how its example tells a body that it cannot work on; the flights have tests of their own."""


@pytest.mark.parametrize("name", FLIGHTS)
def test_flights_are_published_with_the_malformed_ones_of_the_demo(name: str) -> None:
    assert list(QUEUES[name](50)) == [body.text for body in bodies(50)]


@pytest.mark.parametrize("name", sorted(QUEUES.keys() - set(FLIGHTS)))
def test_one_body_in_ten_is_flawed_where_the_example_shows_what_becomes_of_it(name: str) -> None:
    made = list(QUEUES[name](50))
    flawed = [number for number, text in enumerate(made, start=1) if FLAWED[name](text)]

    assert len(set(made)) == 50
    assert flawed == ([] if FLAWED[name] is nothing else [10, 20, 30, 40, 50])


def test_one_order_in_ten_meets_a_carrier_that_does_not_answer() -> None:
    made = [body_of(text) for text in QUEUES["orders-with-backoff"](50)]
    unreachable = [number for number, body in enumerate(made, start=1) if body and body["customer"] == "unreachable"]
    assert unreachable == [5, 15, 25, 35, 45]


# Commands


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["publish", "0"], f"is not a number from 1 to {MOST_MESSAGES}", id="no messages"),
        pytest.param(["publish", "-5"], f"is not a number from 1 to {MOST_MESSAGES}", id="fewer than none"),
        pytest.param(["publish", str(MOST_MESSAGES + 1)], f"is not a number from 1 to {MOST_MESSAGES}", id="too many"),
        pytest.param(["publish", "some"], "some", id="no number"),
        pytest.param(["publish"], "count", id="no count"),
        pytest.param(["publish", "3", "orders", "order"], "orders-in-one-batch", id="no such queue"),
        pytest.param(["look"], "lake", id="no directory"),
        pytest.param(["watch"], "watch", id="no such command"),
        pytest.param([], "command", id="no command"),
    ],
)
def test_a_command_line_that_is_wrong_is_refused_with_what_is_wrong(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.fixture(scope="module")
def made_queues(server: SqsServer) -> Iterator[list[str]]:
    """The URLs of all queues of the examples on a real server, which boto3 finds by the environment."""
    client = server.sqs_client()
    with pytest.MonkeyPatch.context() as patched:
        use(patched, server.environment)
        assert main(["queues"]) == 0
        names = (queue for name in QUEUES for queue in (name, dead_letters_of(name)))
        urls = [client.get_queue_url(QueueName=name)["QueueUrl"] for name in names]
        yield urls
    for url in urls:
        client.delete_queue(QueueUrl=url)


@pytest.fixture
def client(server: SqsServer, made_queues: list[str]) -> Iterator[SQSClient]:
    """A client of the server; the queues are empty for each test."""
    made = server.sqs_client()
    yield made
    for url in made_queues:
        made.purge_queue(QueueUrl=url)


def use(patched: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    # Sessions keep the credentials that they found first.
    patched.setattr(boto3, "DEFAULT_SESSION", None)
    for name, value in environment.items():
        patched.setenv(name, value)


def take_all(client: SQSClient, name: str) -> list[MessageTypeDef]:
    """The messages of a queue, which is empty then."""
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    taken: list[MessageTypeDef] = []
    while messages := client.receive_message(
        QueueUrl=url, MaxNumberOfMessages=BATCH_ENTRIES, MessageSystemAttributeNames=["MessageGroupId"]
    ).get("Messages"):
        taken += messages
        # While one of a group is in flight, SQS does not give out the next ones.
        client.delete_message_batch(
            QueueUrl=url,
            Entries=[{"Id": message["MessageId"], "ReceiptHandle": message["ReceiptHandle"]} for message in messages],
        )
    return taken


def attributes_of(client: SQSClient, name: str) -> dict[str, str]:
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    return {
        str(key): value
        for key, value in client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"].items()
    }


@pytest.mark.processes
def test_each_queue_has_a_dead_letter_queue_of_its_kind_and_making_them_twice_changes_nothing(
    client: SQSClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["queues"]) == 0
    assert f"{len(QUEUES)} queues are there" in capsys.readouterr().out

    for name in QUEUES:
        queue, dead_letters = attributes_of(client, name), attributes_of(client, dead_letters_of(name))
        policy = json.loads(queue["RedrivePolicy"])
        assert policy["deadLetterTargetArn"] == dead_letters["QueueArn"]
        assert int(policy["maxReceiveCount"]) == MAX_RECEIVE_COUNT
        assert int(queue["VisibilityTimeout"]) == VISIBILITY_SECONDS
        assert {queue.get("FifoQueue"), dead_letters.get("FifoQueue")} == {"true" if ".fifo" in name else None}


@pytest.mark.processes
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("name", QUEUES)
def test_the_doctor_finds_nothing_that_will_bite_in_a_queue(name: str) -> None:
    examined = TyperRunner().invoke(app, ["doctor", name, "--json"])
    found = [finding for subject in json.loads(examined.stdout)["examined"] for finding in subject["findings"]]
    assert [finding["what"] for finding in found if finding["level"] == "problem"] == []
    assert {"access", "max_receive_count"} <= {finding["check"] for finding in found}
    assert examined.exit_code == 0


@pytest.mark.processes
@pytest.mark.parametrize("name", ["orders-with-backoff", "dagster-customers"])
def test_published_messages_have_the_bodies_of_their_queue(client: SQSClient, name: str) -> None:
    assert main(["publish", "25", name]) == 0

    assert sorted(message["Body"] for message in take_all(client, name)) == sorted(QUEUES[name](25))


@pytest.mark.processes
def test_flights_are_published_where_no_queue_is_named_and_others_where_they_are(
    client: SQSClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["publish", "12"]) == 0
    assert main(["publish", "3", "orders", "queue-to-postgres"]) == 0

    published = {name: len(found) for name in QUEUES if (found := take_all(client, name))}
    assert published == {**dict.fromkeys(FLIGHTS, 12), "orders": 3, "queue-to-postgres": 3}
    expected = [f"published {count} messages to {name}" for name, count in published.items()]
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(expected)


@pytest.mark.processes
def test_bookings_that_are_published_twice_in_a_row_are_all_there_in_order_within_their_account(
    client: SQSClient,
) -> None:
    name = "bookings-in-order.fifo"
    for _ in range(2):
        assert main(["publish", "15", name]) == 0

    accounts: dict[str, list[int]] = {}
    for message in take_all(client, name):
        booking = json.loads(message["Body"])["booking_id"]
        accounts.setdefault(message["Attributes"]["MessageGroupId"], []).append(booking)
    expected = [[first, first + ACCOUNTS, first + 2 * ACCOUNTS] * 2 for first in range(1, ACCOUNTS + 1)]
    assert sorted(accounts.values()) == expected


# Looking


def looked_at(lake: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, list[int]]:
    """The numbers of all lines that the command prints, by the name before them."""
    capsys.readouterr()
    assert main(["look", str(lake)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    return {words[0]: [int(word) for word in words[1:]] for words in lines if words[0] not in {"queue", "table"}}


def append(table: Path, message_ids: list[str]) -> None:
    """Add a row for each message to a table."""
    rows = pa.table({MESSAGE_ID: message_ids, "order_id": list(range(len(message_ids)))})
    write_deltalake(str(table), rows, mode="append")


@pytest.mark.processes
def test_a_look_shows_the_queues_that_hold_messages_by_what_became_of_these(
    client: SQSClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["publish", "20", "orders"])
    main(["publish", "4", "dagster-bookings.fifo"])
    urls = {name: client.get_queue_url(QueueName=name)["QueueUrl"] for name in ("orders", "dagster-deliveries")}
    received = client.receive_message(QueueUrl=urls["orders"], MaxNumberOfMessages=7).get("Messages", [])
    client.send_message(QueueUrl=urls["orders"], MessageBody="later", DelaySeconds=900)
    dead = client.get_queue_url(QueueName=dead_letters_of("dagster-deliveries"))["QueueUrl"]
    client.send_message(QueueUrl=dead, MessageBody="dead")

    assert looked_at(tmp_path, capsys) == {
        "orders": [20 - len(received), len(received), 1, 0],
        "dagster-bookings.fifo": [4, 0, 0, 0],
        "dagster-deliveries": [0, 0, 0, 1],
    }


@pytest.mark.processes
@pytest.mark.usefixtures("client")
def test_a_look_counts_the_rows_of_each_table_and_the_messages_that_they_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(tmp_path / "airflow" / "orders", ["a", "b"])
    append(tmp_path / "airflow" / "orders", ["c"])
    append(tmp_path / "dagster" / "customers", ["a", "b", "b", "b", "a"])
    write_deltalake(str(tmp_path / "somebody" / "else"), pa.table({"order_id": [1]}))
    (tmp_path / "airflow" / "orders_files").mkdir()

    assert looked_at(tmp_path, capsys) == {"airflow/orders": [3, 3, 0], "dagster/customers": [5, 2, 3]}


@pytest.mark.processes
@pytest.mark.usefixtures("client")
def test_a_look_in_an_image_without_spark_is_at_the_queues_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_compose, "find_spec", lambda _: None)
    main(["publish", "2", "orders"])
    append(tmp_path / "airflow" / "orders", ["a"])

    assert looked_at(tmp_path, capsys) == {"orders": [2, 0, 0, 0]}


# Refusals of SQS


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command ends with when it fails."""
    assert main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{arguments[0]} failed: ")
    return line


@pytest.mark.processes
@pytest.mark.parametrize("arguments", [["publish", "1", "orders"], ["look", "nowhere"]], ids=" ".join)
def test_a_queue_that_is_missing_ends_a_command_with_one_line(
    arguments: list[str], server: SqsServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The server has queues by region.
    use(monkeypatch, {**server.environment, "AWS_DEFAULT_REGION": "eu-north-1"})

    assert "queue does not exist" in refused(arguments, capsys)


@pytest.mark.processes
@pytest.mark.usefixtures("client")
def test_messages_that_are_refused_end_the_command_with_how_many(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(QUEUES, "orders", lambda count: iter([""] * count))

    assert "/orders refused 3 messages: " in refused(["publish", "3", "orders"], capsys)


def test_a_server_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "eu-west-1"}
    use(monkeypatch, {**keys, "AWS_ENDPOINT_URL": endpoint, "AWS_MAX_ATTEMPTS": "1"})

    assert endpoint in refused(["queues"], capsys)
