"""The example DAGs do what they say, on real Airflow processes and a real SQS server, all in one stack."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import psycopg
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable

from demo.airflow_stack import AirflowStack, airflow_stack, migrated_postgres
from demo.flights import bodies
from demo.postgres import postgres_server
from demo.processes import ROOT, wait_until
from demo.sqs_server import REGION, SqsServer, sqs_server

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

RUN_SECONDS = 500.0
FLIGHTS = 60


def order(order_id: int, *, customer: str = "Ada", total: float = 9.5) -> str:
    return json.dumps({"order_id": order_id, "customer": customer, "total": total})


def booking(amount: float) -> str:
    return json.dumps({"amount": amount})


ORDERS: Mapping[str, Sequence[str]] = {
    "orders-in-one-batch": [order(number) for number in range(25)],
    "orders-one-by-one": [order(1), order(2, total=-1), order(3)],
    "orders-with-partial-failures": [order(1), "no order", order(2), "{}"],
    "orders-with-backoff": [order(1), "no order", order(2, customer="unreachable")],
    "orders-that-start-runs": [order(1), order(2, total=2)],
    "flights": [body.text for body in bodies(FLIGHTS)],
    "json-to-delta": [order(1), order(2), "no order"],
    "s3-notifications-to-iceberg": [],
    "queue-to-postgres": [order(1, total=1), order(2), "{}", order(1, total=2)],
}
BOOKINGS = [("a", 5.0), ("b", 1.0), ("a", -1.0), ("a", 7.0), ("b", 2.0)]
DAGS = {
    "orders_in_one_batch": "orders-in-one-batch",
    "orders_one_by_one": "orders-one-by-one",
    "orders_with_partial_failures": "orders-with-partial-failures",
    "orders_with_backoff": "orders-with-backoff",
    "bookings_in_order": "bookings-in-order.fifo",
    "flights_to_delta": "flights",
    "json_to_delta": "json-to-delta",
    "queue_to_postgres": "queue-to-postgres",
    "s3_notifications_to_iceberg": "s3-notifications-to-iceberg",
}
ICEBERG = "s3_notifications_to_iceberg"
"""It wants another Spark and a jar, 600 MB to fetch."""

SPARK_4_1 = ROOT / ".table-formats" / "bin" / "python"
"""The Python of an environment with the Spark that Iceberg's jar is made for."""


class Examples:
    """The stack with a run of each example under way, each on the queue that it names.

    The one that messages start is started by them.
    """

    def __init__(self, stack: AirflowStack, sqs: SQSClient, urls: Mapping[str, str], database: str) -> None:
        self.stack = stack
        self.sqs = sqs
        self.urls = urls
        self.database = database
        self.runs: dict[str, str] = {}

    def start(self) -> None:
        for dag_id in DAGS:
            self.stack.wait_for_dag(dag_id)
            self.runs[dag_id] = self.stack.api.trigger(dag_id)

    def ended(self, dag_id: str) -> str:
        return self.stack.wait_for_run(dag_id, self.runs[dag_id], RUN_SECONDS)

    def states(self, dag_id: str) -> dict[str, str | None]:
        tasks = self.stack.api.task_states(dag_id, self.runs[dag_id])
        return {
            task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]": task.state for task in tasks
        }

    def report(self, dag_id: str, keeper: str) -> dict[str, int]:
        report = self.stack.api.xcom(dag_id, self.runs[dag_id], keeper, "lease_report")
        assert isinstance(report, dict)
        assert (report["lost"], report["failed"], report["late"], report["held"]) == (0, 0, 0, 0)
        return {name: report[name] for name in ("received", "deleted", "released", "dead_lettered")}

    def visible(self, dag_id: str) -> list[dict[str, Any]]:
        """The messages that any consumer would be given now, in order."""
        return self.receive_all(self.urls[DAGS[dag_id]])

    def receive_all(self, url: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while answer := self._receive(url):
            found += answer
        return found

    def _receive(self, url: str) -> list[Any]:
        answer = self.sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            VisibilityTimeout=600,
            WaitTimeSeconds=1,
            MessageAttributeNames=["All"],
        )
        return list(answer.get("Messages", []))

    def counts(self, queue: str) -> tuple[int, int]:
        """How many messages of a queue are visible, and how many are not."""
        answer = self.sqs.get_queue_attributes(QueueUrl=self.urls[queue], AttributeNames=["All"])["Attributes"]
        return int(answer["ApproximateNumberOfMessages"]), int(answer["ApproximateNumberOfMessagesNotVisible"])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory, directory: Path) -> Iterator[Examples]:
    home = tmp_path_factory.mktemp("airflow")
    subprocess.run([ROOT / "requirements" / "environment.sh", "table-formats"], check=True, cwd=ROOT)
    with ExitStack() as exits:
        server = exits.enter_context(sqs_server(home))
        sqs = server.sqs_client()
        urls = _filled_queues(sqs)
        database = exits.enter_context(postgres_server()).url.replace("+psycopg2", "")
        environment = {
            "AIRFLOW_CONN_AWS_DEFAULT": server.airflow_connection,
            "AIRFLOW_CONN_ORDERS_DATABASE": database,
            "AIRFLOW_VAR_LAKE_DIRECTORY": str(directory / "lake"),
            "AIRFLOW_VAR_SPARK_4_1_PYTHON": str(SPARK_4_1),
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
            "PYTHONPATH": str(ROOT / "providers"),
            "SPARK_CONF_DIR": str(_spark_settings(home)),
            "AIRFLOW_VAR_ORDERS_DIRECTORY": f"file://{directory}/orders",
            "AIRFLOW_VAR_FLIGHTS_QUEUE_URL": urls["flights"],
            "AIRFLOW_VAR_FLIGHTS_TABLE": str(directory / "flights"),
        }
        # Not SQLite: so many runs at once keep one another from writing there for a minute and more.
        metadata = exits.enter_context(postgres_server(migrated_postgres()))
        stack = exits.enter_context(airflow_stack(home, ROOT / "dags", environment, database_url=metadata.url))
        _put_files(server, sqs, urls)
        (directory / "lake" / "warehouse" / "sales").mkdir(parents=True)
        under_way = Examples(stack, sqs, urls, database)
        under_way.start()
        yield under_way


def test_a_batch_is_stored_by_one_task_and_deleted(examples: Examples, directory: Path) -> None:
    assert examples.ended("orders_in_one_batch") == "success"
    (file,) = (directory / "orders").glob("*.jsonl")
    assert sorted(json.loads(line)["order_id"] for line in file.read_text().splitlines()) == list(range(25))
    assert examples.report("orders_in_one_batch", "orders_keeper") == {
        "received": 25,
        "deleted": 25,
        "released": 0,
        "dead_lettered": 0,
    }
    assert examples.counts("orders-in-one-batch") == (0, 0)


def test_a_message_goes_back_alone_when_its_chain_failed(examples: Examples, directory: Path) -> None:
    assert examples.ended("orders_one_by_one") == "failed"
    assert {path.name for path in (directory / "orders").glob("[0-9].json")} == {"1.json", "3.json"}
    assert examples.report("orders_one_by_one", "orders_keeper")["released"] == 1
    assert [message["Body"] for message in examples.visible("orders_one_by_one")] == [order(2, total=-1)]


def test_only_the_messages_that_a_task_names_go_back(examples: Examples) -> None:
    assert examples.ended("orders_with_partial_failures") == "failed"
    assert examples.report("orders_with_partial_failures", "orders_keeper")["deleted"] == 2
    bodies = [message["Body"] for message in examples.visible("orders_with_partial_failures")]
    assert sorted(bodies) == ["no order", "{}"]


def test_the_error_decides_what_becomes_of_a_message(examples: Examples) -> None:
    assert examples.ended("orders_with_backoff") == "failed"
    assert examples.report("orders_with_backoff", "orders_keeper") == {
        "received": 3,
        "deleted": 1,
        "released": 1,
        "dead_lettered": 1,
    }
    # Visible or not: its back-off of 30 s may be over before a busy machine looks.
    assert sum(examples.counts("orders-with-backoff")) == 1
    answer = examples.sqs.receive_message(
        QueueUrl=examples.urls["dead-letters"], MessageAttributeNames=["All"], WaitTimeSeconds=1
    )
    (message,) = answer["Messages"]
    assert message["Body"] == "no order"
    assert "sqs_lease_reason" in message["MessageAttributes"]


def test_bookings_behind_a_failed_one_come_again_in_order_and_other_accounts_are_done(examples: Examples) -> None:
    assert examples.ended("bookings_in_order") == "failed"
    assert examples.report("bookings_in_order", "bookings_keeper")["deleted"] == 3
    amounts = [json.loads(message["Body"])["amount"] for message in examples.visible("bookings_in_order")]
    assert amounts == [-1.0, 7.0]


def test_messages_start_a_run_that_works_on_them(examples: Examples) -> None:
    dag_id, api = "orders_that_start_runs", examples.stack.api
    wait_until(
        lambda: bool(api.run_states(dag_id)),
        processes=[examples.stack.processes["scheduler"]],
        what="starting a run by messages",
        deadline_seconds=RUN_SECONDS,
    )
    # The first of them: where that takes a minute to begin, Airflow is told again, and another run finds nothing to do.
    examples.runs[dag_id] = min(api.run_states(dag_id))
    assert examples.ended(dag_id) == "success"
    assert api.xcom(dag_id, examples.runs[dag_id], "total") == 11.5
    assert examples.report(dag_id, "orders_keeper")["deleted"] == 2
    assert examples.counts("orders-that-start-runs") == (0, 0)


def test_flights_are_in_the_table_and_other_messages_go_back(examples: Examples, directory: Path) -> None:
    assert examples.ended("flights_to_delta") == "success"
    malformed = sum(body.is_malformed for body in bodies(FLIGHTS))
    table = DeltaTable(directory / "flights" / "flights").to_pyarrow_table()
    assert table.num_rows == FLIGHTS - malformed
    assert examples.report("flights_to_delta", "flights_keeper")["released"] == malformed


def test_json_is_in_a_delta_table_and_other_texts_in_another(examples: Examples, directory: Path) -> None:
    assert examples.ended("json_to_delta") == "success"
    stored = DeltaTable(directory / "lake" / "orders").to_pyarrow_table()
    assert sorted(stored["order_id"].to_pylist()) == [1, 2]
    (rejected,) = DeltaTable(directory / "lake" / "rejected_orders").to_pyarrow_table().to_pylist()
    assert (rejected["body"], bool(rejected["reason"])) == ("no order", True)
    assert examples.report("json_to_delta", "orders_keeper")["deleted"] == 3
    assert examples.counts("json-to-delta") == (0, 0)
    result = examples.stack.api.xcom("json_to_delta", examples.runs["json_to_delta"], "store")
    assert isinstance(result, dict)
    assert (result["ingested"], result["rejected"], result["batchItemFailures"]) == (2, 1, [])


def test_orders_are_in_postgres_and_other_messages_in_the_dead_letter_queue_with_the_reason(examples: Examples) -> None:
    assert examples.ended("queue_to_postgres") == "success"
    with psycopg.connect(examples.database) as connection:
        rows = connection.execute("SELECT order_id, total FROM orders ORDER BY order_id").fetchall()
    assert rows == [(1, 2.0), (2, 9.5)]
    report = examples.report("queue_to_postgres", "orders_keeper")
    assert (report["deleted"], report["dead_lettered"]) == (3, 1)
    letters = {letter["Body"]: letter for letter in examples.receive_all(examples.urls["orders-that-are-none"])}
    reason = letters["{}"]["MessageAttributes"]["sqs_lease_reason"]["StringValue"]
    assert "order_id" in reason
    assert "task store returned it in batchItemFailures" in reason


def test_files_that_s3_told_of_are_in_an_iceberg_table(examples: Examples, directory: Path) -> None:
    assert examples.ended(ICEBERG) == "success"
    data = directory / "lake" / "warehouse" / "sales" / "orders" / "data"
    stored = [row for file in data.rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert sorted((row["order_id"], row["_s3_key"]) for row in stored) == [
        (1, "new orders.jsonl"),
        (2, "new orders.jsonl"),
    ]
    report = examples.report(ICEBERG, "notifications_keeper")
    assert (report["deleted"], report["released"]) == (2, 1)


def _spark_settings(home: Path) -> Path:
    """A directory with settings by which Spark keeps the jars that it fetches, for the next time."""
    settings = home / "spark-settings"
    settings.mkdir()
    (settings / "spark-defaults.conf").write_text(f"spark.jars.ivy {ROOT / '.jars'}\n")
    return settings


def _put_files(server: SqsServer, sqs: SQSClient, urls: Mapping[str, str]) -> None:
    """Put a file on S3, and into the queue what S3 says of it, of one that is gone, and when it is set up."""
    session = boto3.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name=REGION)
    s3: Any = session.client("s3", endpoint_url=server.endpoint_url)
    s3.create_bucket(Bucket="arrivals")
    s3.put_object(Bucket="arrivals", Key="new orders.jsonl", Body=f"{order(1)}\n{order(2)}\n".encode())
    for key in ("new+orders.jsonl", "gone.jsonl"):
        place = {"bucket": {"name": "arrivals"}, "object": {"key": key}}
        event = {"Records": [{"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": place}]}
        sqs.send_message(QueueUrl=urls["s3-notifications-to-iceberg"], MessageBody=json.dumps(event))
    test_event = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "arrivals"}
    sqs.send_message(QueueUrl=urls["s3-notifications-to-iceberg"], MessageBody=json.dumps(test_event))


def _filled_queues(sqs: SQSClient) -> dict[str, str]:
    urls: dict[str, str] = {}
    redrive = {}
    for queue in ("dead-letters", "orders-that-are-none"):
        urls[queue] = sqs.create_queue(QueueName=queue)["QueueUrl"]
        attributes = sqs.get_queue_attributes(QueueUrl=urls[queue], AttributeNames=["QueueArn"])["Attributes"]
        redrive[queue] = json.dumps({"deadLetterTargetArn": attributes["QueueArn"], "maxReceiveCount": 10})
    for queue, texts in ORDERS.items():
        policy = redrive["orders-that-are-none" if queue == "queue-to-postgres" else "dead-letters"]
        urls[queue] = sqs.create_queue(QueueName=queue, Attributes={"RedrivePolicy": policy})["QueueUrl"]
        for text in texts:
            sqs.send_message(QueueUrl=urls[queue], MessageBody=text)
    fifo = "bookings-in-order.fifo"
    urls[fifo] = sqs.create_queue(QueueName=fifo, Attributes={"FifoQueue": "true"})["QueueUrl"]
    for number, (account, amount) in enumerate(BOOKINGS):
        sqs.send_message(
            QueueUrl=urls[fifo],
            MessageBody=booking(amount),
            MessageGroupId=account,
            MessageDeduplicationId=str(number),
        )
    return urls
