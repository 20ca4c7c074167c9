"""The example code location does what it says, on real Dagster processes and a real SQS server, all in one stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from deltalake import DeltaTable

from dagster_defs.defs.flights import flights_backlog
from demo.dagster_answers import Run
from demo.dagster_stack import DAEMON, DagsterStack, dagster_stack
from demo.flights import bodies
from demo.processes import ROOT, wait_until
from demo.sqs_server import SqsServer, sqs_server

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

RUN_SECONDS = 480.0
FLIGHTS = 60


def order(order_id: int, *, total: float = 9.5) -> str:
    return json.dumps({"order_id": order_id, "customer": "Ada", "total": total})


BOOKINGS = [("a", 5.0), ("b", 1.0), ("a", -1.0), ("a", 7.0), ("b", 2.0)]
QUEUES: Mapping[str, Sequence[str]] = {
    "flights": [body.text for body in bodies(FLIGHTS)],
    "orders": [order(1), "no order", order(2), order(3, total=-1)],
    "customers": [
        json.dumps({"customer_id": 1, "name": "Ada"}),
        "nobody",
        json.dumps({"customer_id": 2, "name": "Bo"}),
    ],
    "deliveries": [json.dumps({"item": item}) for item in ("a chair", "a table")],
}

LOAD = """
import json, sys
import dagster_defs
definitions = dagster_defs.examples()
repository = definitions.get_repository_def()
print("FACTS" + json.dumps({
    "running": [sensor.name for sensor in repository.sensor_defs if sensor.default_status.value == "RUNNING"],
    "sensors": sorted(sensor.name for sensor in repository.sensor_defs),
    "jobs": sorted(name for name in repository.job_names if not name.startswith("__")),
    "assets": sorted(key.to_user_string() for key in definitions.resolve_asset_graph().materializable_asset_keys),
    "imported": [name for name in ("deltalake", "pyspark", "py4j") if name in sys.modules],
}))
"""


class Examples:
    """The stack with a run of each example under way, each on a queue of its own."""

    def __init__(self, stack: DagsterStack, sqs: SQSClient, urls: Mapping[str, str], lake: Path) -> None:
        self.stack = stack
        self.sqs = sqs
        self.urls = urls
        self.lake = lake
        self.runs: dict[str, str] = {}

    def ended(self, example: str) -> Run:
        return self.stack.wait_for_run(self.runs[example], RUN_SECONDS)

    def visible(self, queue: str) -> list[str]:
        """The bodies of what anybody would be given now, in order."""
        found: list[str] = []
        while answer := self._receive(self.urls[queue]):
            found += [message["Body"] for message in answer]
        return found

    def _receive(self, url: str) -> list[Any]:
        answer = self.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=600, WaitTimeSeconds=1
        )
        return list(answer.get("Messages", []))

    def in_flight(self, queue: str) -> int:
        answer = self.sqs.get_queue_attributes(QueueUrl=self.urls[queue], AttributeNames=["All"])
        return int(answer["Attributes"]["ApproximateNumberOfMessagesNotVisible"])

    def first_run(self, **tags: str) -> str:
        """Wait for a run that something started by itself."""
        wanted = {f"dagster/{name}": value for name, value in tags.items()}
        wait_until(
            lambda: bool(self.stack.api.runs(tags=wanted)),
            processes=[self.stack.processes[DAEMON]],
            what=f"starting a run with {wanted}",
            deadline_seconds=RUN_SECONDS,
        )
        return self.stack.api.runs(tags=wanted)[-1].run_id

    def stop(self, sensor: str) -> None:
        """Stop a sensor, and again when the evaluation under way has written back the state that it read before."""
        seen_stopped = 0

        def stays_stopped() -> bool:
            nonlocal seen_stopped
            if self.stack.api.is_sensor_running(sensor):
                self.stack.api.stop_sensor(sensor)
                seen_stopped = 0
                return False
            seen_stopped += all(tick.status != "STARTED" for tick in self.stack.api.ticks(sensor))
            return seen_stopped > 5

        wait_until(
            stays_stopped,
            processes=[self.stack.processes[DAEMON]],
            what=f"leaving {sensor} stopped",
            deadline_seconds=RUN_SECONDS,
        )

    def repeated(self, run_id: str) -> list[Run]:
        """The runs that Dagster started to repeat one."""
        return self.stack.api.runs(tags={"dagster/root_run_id": run_id})

    def steps(self, run_id: str) -> list[str]:
        """The steps that a run executed."""
        return [str(event.step) for event in self.stack.api.events(run_id) if event.event_type == "STEP_START"]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    home, lake = tmp_path_factory.mktemp("dagster"), tmp_path_factory.mktemp("lake")
    with ExitStack() as exits:
        server = exits.enter_context(sqs_server(home))
        urls = _filled_queues(server.sqs_client())
        environment = _environment(server, urls, lake)
        settings = {"run_retries": {"enabled": True}}
        stack = exits.enter_context(dagster_stack(home, "dagster_defs", environment, settings=settings))
        under_way = Examples(stack, server.sqs_client(), urls, lake)
        for job in ("bookings_in_order", "orders_in_steps"):
            under_way.runs[job] = stack.api.launch(job)
        under_way.runs["customers"] = stack.api.materialize("customers")
        under_way.runs["flights"] = under_way.first_run(sensor_name="flights_backlog")
        # Messages that come back when that run ends would start the next one.
        under_way.stop("flights_backlog")
        yield under_way


def test_it_loads_without_aws_and_without_spark_and_only_the_sensor_of_the_flights_starts_by_itself() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "FLIGHTS_"))}
    result = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.partition("FACTS")[2]) == {
        "running": ["flights_backlog"],
        "sensors": ["bookings_backlog", "customers_backlog", "deliveries_router", "flights_backlog"],
        "jobs": ["bookings_in_order", "deliveries", "orders_in_steps"],
        "assets": ["customers", "flights"],
        "imported": [],
    }


def test_without_the_queue_of_the_flights_it_says_which_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLIGHTS_QUEUE", raising=False)
    with (
        dg.instance_for_test() as instance,
        dg.build_sensor_context(instance=instance) as context,
        pytest.raises(dg.DagsterInvalidConfigError, match='"FLIGHTS_QUEUE" which is not set'),
    ):
        flights_backlog(context)


def test_deliveries_of_a_failed_run_are_finished_by_the_run_that_repeats_it(examples: Examples) -> None:
    examples.stack.api.start_sensor("deliveries_router")
    first = examples.runs["first deliveries"] = examples.first_run(sensor_name="deliveries_router")
    assert examples.ended("first deliveries").state == "FAILURE"
    assert (examples.visible("deliveries"), examples.in_flight("deliveries")) == ([], 2)

    (examples.lake / "carrier").mkdir()
    wait_until(
        lambda: any(run.state == "SUCCESS" for run in examples.repeated(first)),
        processes=[examples.stack.processes[DAEMON]],
        what="done with a run that repeats the first",
        deadline_seconds=RUN_SECONDS,
    )

    assert examples.steps(first) == ["shipped"]
    assert {step for run in examples.repeated(first) for step in examples.steps(run.run_id)} == {"shipped"}
    shipped = [json.loads(file.read_text())["item"] for file in (examples.lake / "carrier").iterdir()]
    assert sorted(shipped) == ["a chair", "a table"]
    wait_until(
        lambda: examples.in_flight("deliveries") == 0,
        processes=[examples.stack.processes[DAEMON]],
        what="done with the deliveries",
        deadline_seconds=RUN_SECONDS,
    )
    assert examples.visible("deliveries") == []


def test_the_backlog_starts_a_run_that_brings_flights_into_the_table_and_gives_back_other_messages(
    examples: Examples,
) -> None:
    api = examples.stack.api
    assert examples.ended("flights").state == "SUCCESS"

    malformed = sorted(body.text for body in bodies(FLIGHTS) if body.is_malformed)
    assert DeltaTable(examples.lake / "flights").to_pyarrow_table().num_rows == FLIGHTS - len(malformed)
    assert sorted(examples.visible("flights")) == malformed
    (materialization,) = api.materializations("flights")
    assert materialization.metadata["rows"] == FLIGHTS - len(malformed)
    assert materialization.metadata["sqs/received"] == FLIGHTS
    assert materialization.metadata["sqs/failed"] == len(malformed)
    (check,) = api.check_results("flights", "sqs_lease")
    assert (check.run_id, check.status, check.severity) == (examples.runs["flights"], "FAILED", "WARN")


def test_bookings_behind_a_failed_one_come_again_in_order_and_other_accounts_are_done(examples: Examples) -> None:
    assert examples.ended("bookings_in_order").state == "SUCCESS"
    assert [json.loads(body)["amount"] for body in examples.visible("bookings.fifo")] == [-1.0, 7.0]


def test_orders_that_all_steps_worked_on_are_deleted_and_those_that_one_failed_go_back(examples: Examples) -> None:
    assert examples.ended("orders_in_steps").state == "SUCCESS"
    (file,) = (examples.lake / "orders").glob("*.jsonl")
    assert [json.loads(line)["order_id"] for line in file.read_text().splitlines()] == [1, 2, 3]
    assert sorted(examples.visible("orders")) == ["no order", order(3, total=-1)]
    assert list((examples.lake / "leases" / "orders").iterdir()) == []


def test_customers_are_in_the_table_of_the_component_and_other_messages_in_another(examples: Examples) -> None:
    assert examples.ended("customers").state == "SUCCESS"
    stored = DeltaTable(examples.lake / "customers").to_pyarrow_table()
    assert sorted(stored["customer_id"].to_pylist()) == [1, 2]
    (rejected,) = DeltaTable(examples.lake / "rejected_customers").to_pyarrow_table().to_pylist()
    assert (rejected["body"], bool(rejected["reason"])) == ("nobody", True)
    assert (examples.visible("customers"), examples.in_flight("customers")) == ([], 0)


def _environment(server: SqsServer, urls: Mapping[str, str], lake: Path) -> dict[str, str]:
    return {
        **server.environment,
        "FLIGHTS_QUEUE": urls["flights"],
        "BOOKINGS_QUEUE": urls["bookings.fifo"],
        "ORDERS_QUEUE": urls["orders"],
        "DELIVERIES_QUEUE": urls["deliveries"],
        "CUSTOMERS_QUEUE": urls["customers"],
        "LAKE_DIRECTORY": str(lake),
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
    }


def _filled_queues(sqs: SQSClient) -> dict[str, str]:
    urls: dict[str, str] = {}
    for queue, texts in QUEUES.items():
        urls[queue] = sqs.create_queue(QueueName=queue)["QueueUrl"]
        for text in texts:
            sqs.send_message(QueueUrl=urls[queue], MessageBody=text)
    fifo = "bookings.fifo"
    urls[fifo] = sqs.create_queue(QueueName=fifo, Attributes={"FifoQueue": "true"})["QueueUrl"]
    for number, (account, amount) in enumerate(BOOKINGS):
        sqs.send_message(
            QueueUrl=urls[fifo],
            MessageBody=json.dumps({"amount": amount}),
            MessageGroupId=account,
            MessageDeduplicationId=str(number),
        )
    return urls
