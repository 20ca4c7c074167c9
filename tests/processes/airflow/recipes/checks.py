"""Checks of the recipes: `dag.test()` runs each on queues in memory. test_recipes.py runs this file beside them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import boto3
import pytest
from airflow.models.asset import AssetEvent, AssetModel
from airflow.utils.session import create_session
from sqlalchemy import select

from sqs_lease.airflow import SqsLeaseSensor
from sqs_lease.testing import LeasedQueues, MemorySqs


def tried_once(module: str, name: str) -> Any:
    """A DAG without retries, and without the waits for more messages: those that are there come at once."""
    # By name: the files are beside this one only where it is run.
    made = getattr(import_module(module), name)()
    for task in made.tasks:
        if isinstance(task, SqsLeaseSensor):
            task.timeout, task.linger_seconds = 2.0, 0.5
        elif task.is_mapped:
            task.partial_kwargs["retries"] = 0
        else:
            task.retries = 0
    return made


def states(run: Any) -> dict[str, str | None]:
    with create_session() as session:
        instances = run.get_task_instances(session=session)
        return {one.task_id if one.map_index < 0 else f"{one.task_id}[{one.map_index}]": one.state for one in instances}


def returned(run: Any, task_id: str) -> Any:
    with create_session() as session:
        (instance,) = [one for one in run.get_task_instances(session=session) if one.task_id == task_id]
        return instance.xcom_pull(task_ids=task_id, session=session)


class Client:
    """A client of SQS and of CloudWatch: the calls that recipes make themselves, to queues in memory."""

    def __init__(self, sqs: MemorySqs, oldest_seconds: float = 0.0) -> None:
        self._sqs = sqs
        self._oldest_seconds = oldest_seconds

    def get_queue_url(self, **request: Any) -> dict[str, Any]:
        return {"QueueUrl": self._sqs.queue_url(request["QueueName"])}

    def get_queue_attributes(self, **request: Any) -> dict[str, Any]:
        known = self._sqs.attributes(request["QueueUrl"])
        return {
            "Attributes": {
                "QueueArn": known.arn,
                "ApproximateNumberOfMessages": str(known.visible),
                "ApproximateNumberOfMessagesNotVisible": str(known.in_flight),
            }
        }

    def send_message(self, **request: Any) -> None:
        self._sqs.send(
            request["QueueUrl"], request["MessageBody"], message_attributes=request.get("MessageAttributes", {})
        )

    def start_message_move_task(self, **request: Any) -> None:
        self._sqs.start_message_move_task(
            self._url(request["SourceArn"]),
            destination_url=self._url(request["DestinationArn"]),
            max_per_second=request["MaxNumberOfMessagesPerSecond"],
        )

    def list_message_move_tasks(self, **request: Any) -> dict[str, Any]:
        return {"Results": [{"Status": one.status} for one in self._sqs.move_tasks(self._url(request["SourceArn"]))]}

    def get_metric_statistics(self, **_: Any) -> dict[str, Any]:
        return {"Datapoints": [{"Timestamp": datetime.now(UTC), "Maximum": self._oldest_seconds}]}

    def _url(self, arn: str) -> str:
        return self._sqs.queue_url(arn.rpartition(":")[2])


def poking(made: Any) -> Any:
    """Let the sensors of a DAG wait in this process, and not for long."""
    for task in made.tasks:
        if hasattr(task, "poke_interval"):
            task.mode, task.poke_interval, task.timeout = "poke", 0.2, 2.0
    return made


def order(total: float) -> str:
    return json.dumps({"total": total})


def test_each_queue_settles_its_own_messages_and_an_empty_one_is_skipped(leased_queues: LeasedQueues) -> None:
    good, bad = leased_queues.create("orders-eu", order(1), order(2)), leased_queues.create("orders-us", "{}")
    leased_queues.create("orders-asia")
    made = tried_once("fan_in", "orders_of_all_regions")
    failed = made.test()
    assert failed.state == "failed"
    assert states(failed)["load_asia"] == "skipped"
    assert (good.deleted, bad.deleted, bad.visible) == (2, 0, ["{}"])


def test_messages_of_all_queues_are_added_up(leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders-eu", order(1), order(2))
    leased_queues.create("orders-us", order(4))
    leased_queues.create("orders-asia")
    run = tried_once("fan_in", "orders_of_all_regions").test()
    assert run.state == "success"
    assert returned(run, "add_up") == 7


def test_each_kind_updates_its_asset_and_what_no_task_is_for_goes_back(
    leased_queues: LeasedQueues, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_EVENTS_DIRECTORY", f"file://{tmp_path}")
    queue = leased_queues.create("events-of-all-kinds")
    sent = (("order", "1"), ("order", "no order"), ("order", "2"), ("complaint", "not JSON"), ("invoice", "4"))
    for kind, body in sent:
        attributes = {"kind": {"DataType": "String", "StringValue": kind}}
        leased_queues.sqs.send(queue.url, body, message_attributes=attributes)
    run = tried_once("one_queue_to_many_assets", "events_to_assets").test()
    assert run.state == "failed"
    assert states(run) == {
        "events": "success",
        "store_order": "success",
        "store_refund": "skipped",
        "store_complaint": "failed",
        "refuse_others": "success",
        "events_keeper": "success",
    }
    (file,) = tmp_path.rglob("*.jsonl")
    assert (file.parent.name, file.read_text()) == ("order", "1\n2\n")
    assert (queue.deleted, sorted(queue.visible)) == (2, ["4", "no order", "not JSON"])
    with create_session() as session:
        updated = session.scalars(select(AssetModel.name).join(AssetEvent, AssetEvent.asset_id == AssetModel.id))
        assert list(updated) == ["orders"]


def test_work_from_the_own_store_goes_on_when_the_messages_are_deleted(
    leased_queues: LeasedQueues, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_MODELS_DIRECTORY", f"file://{tmp_path}")
    queue = leased_queues.create("models-to-train", '{"model": "a"}', '{"no": "model"}')
    run = tried_once("long_work_from_own_store", "train_models").test()
    assert run.state == "failed"
    assert sorted(str(state) for task, state in states(run).items() if task.startswith("train[")) == [
        "failed",
        "success",
    ]
    assert (queue.deleted, queue.visible) == (2, [])
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".finished", ".json", ".json"]


def test_work_that_stops_in_time_goes_on_at_its_checkpoint(
    leased_queues: LeasedQueues,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_SIMULATIONS_DIRECTORY", f"file://{tmp_path}")
    queue = leased_queues.create("simulations", '{"steps": 3}')
    simulations = tried_once("long_work_by_checkpoints", "simulations")
    assert simulations.test(run_conf={"hours": 0}).state == "success"
    assert (queue.deleted, queue.visible) == (0, ['{"steps": 3}'])
    assert json.loads(next(tmp_path.iterdir()).read_text()) == {"step": 1}
    assert simulations.test(run_conf={"hours": 11}).state == "success"
    assert queue.deleted == 1
    assert json.loads(next(tmp_path.iterdir()).read_text()) == {"step": 3}


def test_a_large_batch_is_taken_whole(
    leased_queues: LeasedQueues, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_PAYLOAD_DIRECTORY", str(tmp_path))
    queue = leased_queues.create("readings", *('{"value": 1}' for _ in range(2_500)))
    made = tried_once("large_batches", "many_readings")
    sensor = made.get_task("readings")
    # It ends when it is full: how long that takes is the machine's.
    sensor.max_messages, sensor.linger_seconds = 2_500, 60.0
    run = made.test()
    assert run.state == "success"
    assert returned(run, "load") == 2_500
    assert queue.deleted == 2_500
    assert list(tmp_path.iterdir()) == []


def test_a_deferrable_operator_settles_its_own_message(leased_queues: LeasedQueues) -> None:
    queue = leased_queues.create("jobs", "good", "bad")
    assert tried_once("jobs", "jobs_elsewhere").test().state == "failed"
    assert (queue.deleted, queue.visible) == (1, ["bad"])


def test_dead_letters_are_sorted_by_their_reason_and_the_others_go_back(
    leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boto3, "client", lambda name: Client(leased_queues.sqs))
    orders, aside = leased_queues.create("orders"), leased_queues.create("orders-to-look-at")
    for number, reason in enumerate(("JSONDecodeError: no", "TimeoutError: no", "JSONDecodeError: no")):
        attributes = {"sqs_lease_reason": {"DataType": "String", "StringValue": reason}}
        leased_queues.sqs.send(orders.dead_letter_url, f"order {number}", message_attributes=attributes)
    run = poking(tried_once("dead_letters", "orders_redriven")).test()
    assert run.state == "success"
    assert returned(run, "set_aside") == 2
    assert (sorted(aside.visible), orders.visible, orders.dead_letters) == (["order 0", "order 2"], ["order 1"], [])


@pytest.mark.parametrize(
    ("oldest_seconds", "messages", "state"), [(10, 3, "success"), (700, 3, "failed"), (10, 101, "failed")]
)
def test_a_queue_is_waited_for_by_its_counts_and_its_age(
    leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch, oldest_seconds: float, messages: int, state: str
) -> None:
    monkeypatch.setattr(boto3, "client", lambda name: Client(leased_queues.sqs, oldest_seconds))
    leased_queues.create("orders", *("an order" for _ in range(messages)))
    assert poking(tried_once("queue_depth", "orders_reported")).test().state == state
