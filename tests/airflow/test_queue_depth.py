"""Waiting until a queue is deep, or shallow, enough."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from airflow.sdk import DAG, PokeReturnValue
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from botocore.exceptions import ClientError
from botocore.session import get_session

from sqs_lease.airflow import SqsQueueDepthSensor
from sqs_lease.airflow.airflow_api.requests import RunOfTask
from sqs_lease.airflow.aws_connection import AwsConnection
from sqs_lease.airflow.queues import depth
from sqs_lease.airflow.queues.depth import SqsQueueDepthTrigger, cloudwatch_client
from sqs_lease.airflow.queues.queue_task import DONE
from sqs_lease.sqs.errors import AccessDeniedError
from sqs_lease.testing import (
    Fault,
    LeasedQueues,
    MemorySqs,
    Operation,
    ScriptedFaults,
    TransportCall,
    VirtualClock,
    run_virtual,
)
from sqs_lease.testing.service_errors import ACCESS_DENIED, UNAVAILABLE
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import DAG_ID, RUN_ID, VirtualTriggerer
from tests.sqs.scripted_server import Answer, ScriptedServer, refused, scripted_server

_T = TypeVar("_T")

WAIT = RunOfTask(DAG_ID, RUN_ID, "wait")
ARN = "arn:aws:sqs:us-east-1:123456789012:orders"
METRIC = "GraniteServiceVersion20100801.GetMetricStatistics"


class Ground:
    """A queue on virtual time, and a triggerer that waits for it."""

    def __init__(self) -> None:
        self.clock = VirtualClock(start=1000)
        self.sqs = MemorySqs(self.clock)
        self.orders = self.sqs.create_queue("orders")

    def run(self, scenario: Callable[[VirtualTriggerer], Awaitable[_T]]) -> _T:
        async def main() -> _T:
            return await scenario(VirtualTriggerer(self.sqs, self.clock))

        return run_virtual(main, clock=self.clock)

    def trigger(
        self, *, timeout: float = 600.0, queue: str = "orders", poke_seconds: float = 60.0, **bounds: Any
    ) -> SqsQueueDepthTrigger:
        none = dict.fromkeys(("at_least", "at_most", "oldest_at_least_seconds", "oldest_at_most_seconds"))
        return SqsQueueDepthTrigger(
            queue=queue,
            **AwsConnection().encode(),
            **{**none, "counts": ["visible"], **bounds},
            poke_seconds=poke_seconds,
            deferred_at=self.clock.wall(),
            ends_at=self.clock.wall() + timeout,
        )

    def payload(self, **options: Any) -> dict[str, Any]:
        """Let a trigger wait, and return the payload of its only event."""

        async def scenario(triggerer: VirtualTriggerer) -> dict[str, Any]:
            (event,) = await triggerer.start(self.trigger(**options), WAIT).ended()
            assert triggerer.open_transports == 0
            payload: dict[str, Any] = event.payload
            return payload

        return self.run(scenario)

    def send(self, count: int) -> None:
        for number in range(count):
            self.sqs.send(self.orders, f"order {number}")


@pytest.fixture
def ground(supervisor: ScriptedComms) -> Ground:
    return Ground()


def test_it_waits_until_there_are_enough_messages(ground: Ground) -> None:
    ground.send(999)

    async def scenario(triggerer: VirtualTriggerer) -> None:
        running = triggerer.start(ground.trigger(at_least=1000), WAIT)
        await asyncio.sleep(200)
        assert not running.events
        ground.send(1)
        (event,) = await running.ended()
        assert event.payload["report"] == {"visible": 1000, "in_flight": 0, "delayed": 0, "oldest_seconds": None}
        assert ground.clock.now() == 1000 + 240

    ground.run(scenario)


def test_the_chosen_counts_are_added_up(ground: Ground) -> None:
    ground.send(2)
    ground.sqs.send(ground.orders, "later", delay_seconds=900)
    ground.sqs.receive(ground.orders, visibility_seconds=10_000)
    bounds = {"at_least": 3, "at_most": 3, "counts": ["visible", "in_flight", "delayed"]}
    assert ground.payload(**bounds)["status"] == DONE
    assert ground.payload(at_most=1)["status"] == DONE
    assert ground.payload(at_least=1, counts=["delayed"])["status"] == DONE
    assert ground.payload(at_least=2)["status"] == "timed out"
    assert ground.payload(at_most=0, counts=["visible", "in_flight"])["status"] == "timed out"


def test_the_time_out_tells_how_deep_the_queue_is(ground: Ground) -> None:
    ground.send(2)
    payload = ground.payload(at_most=0, timeout=90)
    assert payload["status"] == "timed out"
    assert "queue orders has 2 messages visible, 0 in flight, 0 delayed" in payload["error"]
    assert ground.clock.now() == 1000 + 90


def test_failures_that_may_pass_are_waited_out_and_others_end_the_wait(ground: Ground) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        triggerer.faults = ScriptedFaults(Fault(error=UNAVAILABLE), operation=Operation.QUEUE_ATTRIBUTES)
        (event,) = await triggerer.start(ground.trigger(at_most=0), WAIT).ended()
        assert event.payload["status"] == DONE
        triggerer.faults = ScriptedFaults(Fault(error=ACCESS_DENIED), operation=Operation.QUEUE_ATTRIBUTES)
        (event,) = await triggerer.start(ground.trigger(at_most=0), WAIT).ended()
        assert event.payload["status"] == "failed for good"
        assert "Allow sqs:GetQueueAttributes" in event.payload["error"]
        (event,) = await triggerer.start(ground.trigger(at_most=0, queue="nowhere"), WAIT).ended()
        assert event.payload["status"] == "failed for good"
        triggerer.faults = lambda _: Fault(error=UNAVAILABLE)
        (event,) = await triggerer.start(ground.trigger(at_most=0, timeout=100), WAIT).ended()
        assert event.payload["status"] == "failed"

    ground.run(scenario)


class CloudWatch:
    """A client that gives the values of a metric, the newest one first."""

    def __init__(self, *ages: float, error: str | None = None) -> None:
        self._ages = list(ages)
        self._error = error
        self.closed = 0

    async def __aenter__(self) -> CloudWatch:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed += 1

    async def get_metric_statistics(self, **parameters: Any) -> dict[str, Any]:
        if self._error is not None:
            raise ClientError({"Error": {"Code": self._error, "Message": "no"}}, "GetMetricStatistics")
        now = parameters["EndTime"]
        return {
            "Datapoints": [
                {"Timestamp": now - timedelta(minutes=place), "Maximum": age} for place, age in enumerate(self._ages)
            ]
        }


@pytest.mark.parametrize(
    ("client", "status"),
    [(CloudWatch(500.0, 10.0), DONE), (CloudWatch(10.0, 500.0), "timed out"), (CloudWatch(), "timed out")],
)
def test_the_newest_age_of_the_oldest_message_counts(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, client: CloudWatch, status: str
) -> None:
    monkeypatch.setattr(depth, "cloudwatch_client", lambda connection, arn: client)
    payload = ground.payload(oldest_at_least_seconds=300.0)
    assert payload["status"] == status
    if status == DONE:
        assert payload["report"]["oldest_seconds"] == 500.0


def test_without_a_bound_for_the_age_cloudwatch_is_not_asked(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(depth, "cloudwatch_client")
    assert ground.payload(at_most=0)["status"] == DONE


def test_the_time_out_tells_that_the_metric_has_no_value(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "cloudwatch_client", lambda connection, arn: CloudWatch())
    payload = ground.payload(oldest_at_most_seconds=300.0)
    assert "CloudWatch has no value for the age of the oldest message" in payload["error"]


def test_one_client_of_cloudwatch_serves_all_looks(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[CloudWatch] = []

    def make(*_: Any) -> CloudWatch:
        made.append(CloudWatch(10.0))
        return made[-1]

    monkeypatch.setattr(depth, "cloudwatch_client", make)
    assert ground.payload(oldest_at_least_seconds=300.0, timeout=600)["status"] == "timed out"
    assert [client.closed for client in made] == [1]


def test_a_queue_is_never_looked_at_more_than_once_a_second(ground: Ground) -> None:
    async def scenario(triggerer: VirtualTriggerer) -> None:
        looks: list[TransportCall] = []
        triggerer.faults = lambda call: looks.append(call) or Fault()  # type: ignore[func-returns-value]
        trigger = ground.trigger(at_least=1, timeout=10, poke_seconds=0.0)
        await asyncio.wait_for(triggerer.start(trigger, WAIT).ended(), 60)
        assert sum(look.operation is Operation.QUEUE_ATTRIBUTES for look in looks) < 15

    ground.run(scenario)


def test_a_missing_permission_for_the_metric_is_named(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    denied = CloudWatch(error="AccessDeniedException")
    monkeypatch.setattr(depth, "cloudwatch_client", lambda connection, arn: denied)
    payload = ground.payload(oldest_at_most_seconds=300.0)
    assert payload["status"] == "failed for good"
    assert f"oldest message of {ARN}" in payload["error"]
    assert "Allow cloudwatch:GetMetricStatistics in" in payload["error"]
    assert "sqs:GetMetric" not in payload["error"]


def test_a_throttled_metric_is_waited_out(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [CloudWatch(error="Throttling"), CloudWatch(10.0)]
    monkeypatch.setattr(depth, "cloudwatch_client", lambda connection, arn: clients.pop(0))
    assert ground.payload(oldest_at_most_seconds=300.0)["status"] == DONE


@pytest.fixture
def cloudwatch(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        extra = {"endpoint_url": server.endpoint_url}
        connection = {"conn_type": "aws", "login": "test", "password": "test", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(connection))
        yield server


def oldest_age_over_http() -> float | None:
    clock = VirtualClock(wall_start=datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    making = cloudwatch_client(AwsConnection(), ARN)
    return asyncio.run(depth._oldest_age(making, ARN, clock))


speaks_json = pytest.mark.skipif(
    "json" not in get_session().get_service_model("cloudwatch").metadata["protocols"],
    reason="an older botocore asks CloudWatch in a protocol that the scripted server does not know",
)


@speaks_json
def test_the_client_of_the_connection_asks_for_the_metric_of_the_queue(cloudwatch: ScriptedServer) -> None:
    point = {"Timestamp": 1_767_225_540, "Maximum": 42.0, "Unit": "Seconds"}
    cloudwatch.script(METRIC, Answer({"Label": "age", "Datapoints": [point]}))
    assert oldest_age_over_http() == 42.0
    asked = cloudwatch.sent(METRIC)
    assert (asked["Namespace"], asked["MetricName"]) == ("AWS/SQS", "ApproximateAgeOfOldestMessage")
    assert asked["Dimensions"] == [{"Name": "QueueName", "Value": "orders"}]
    assert asked["EndTime"] - asked["StartTime"] == 900


@speaks_json
def test_the_refusal_of_the_service_is_told_clearly(cloudwatch: ScriptedServer) -> None:
    cloudwatch.script(METRIC, refused("AccessDenied", "User is not authorized", status=403))
    with pytest.raises(AccessDeniedError, match="Allow cloudwatch:GetMetricStatistics"):
        oldest_age_over_http()


# The sensor


def sensor(**options: Any) -> SqsQueueDepthSensor:
    with DAG("shop", schedule=None):
        return SqsQueueDepthSensor(task_id="wait", **{"queue_url": "orders", **options})


def context() -> dict[str, Any]:
    return {"ti": SimpleNamespace(map_index=-1, try_number=1)}


def execute(made: SqsQueueDepthSensor) -> Any:
    body = SqsQueueDepthSensor.execute
    return getattr(body, "__wrapped__", body)(made, context())


def test_the_sensor_defers_with_plain_values(supervisor: ScriptedComms) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        execute(sensor(at_most=0, counts={"in_flight"}, oldest_at_most=timedelta(minutes=5), timeout=600))
    assert isinstance(deferred.value.trigger, SqsQueueDepthTrigger)
    _, arguments = deferred.value.trigger.serialize()
    assert json.loads(json.dumps(arguments)) == arguments
    assert arguments["ends_at"] - arguments["deferred_at"] == 600
    assert arguments["oldest_at_most_seconds"] == 300
    assert deferred.value.timeout == timedelta(minutes=11)


def test_a_sensor_that_does_not_defer_looks_itself(
    leased_queues: LeasedQueues, supervisor: ScriptedComms, monkeypatch: pytest.MonkeyPatch
) -> None:
    leased_queues.create("orders", "an order")
    assert sensor(at_most=0, deferrable=False).poke(context()) is False
    found = sensor(at_least=1, deferrable=False).poke(context())
    assert isinstance(found, PokeReturnValue)
    assert found.xcom_value == {"visible": 1, "in_flight": 0, "delayed": 0, "oldest_seconds": None}
    monkeypatch.setattr(depth, "cloudwatch_client", lambda connection, arn: CloudWatch(7.0))
    aged = sensor(oldest_at_most=10, deferrable=False).poke(context())
    assert isinstance(aged, PokeReturnValue)
    assert aged.xcom_value == {"visible": 1, "in_flight": 0, "delayed": 0, "oldest_seconds": 7.0}


def test_only_the_time_out_skips_softly(leased_queues: LeasedQueues, supervisor: ScriptedComms) -> None:
    made = sensor(queue_url="nowhere", at_most=0, deferrable=False, soft_fail=True)
    with pytest.raises(AirflowFailException, match=r"task 'wait' of DAG 'shop'.*there is no such queue"):
        execute(made)
    made = sensor(at_most=0, soft_fail=True)
    with pytest.raises(AirflowSkipException):
        made.resume_execution(
            "execute_complete", {"event": {"status": "timed out", "error": "why", "report": {}}}, context()
        )
    with pytest.raises(AirflowFailException):
        made.resume_execution(
            "execute_complete", {"event": {"status": "failed for good", "error": "why", "report": {}}}, context()
        )


def test_a_queue_that_a_template_spelt_wrong_is_not_skipped_softly(supervisor: ScriptedComms) -> None:
    for deferrable in (True, False):
        made = sensor(queue_url="{{ params.queue }}", at_most=0, deferrable=deferrable, soft_fail=True)
        made.queue_url = "no queue"
        with pytest.raises(AirflowFailException, match="'no queue' is not a queue name"):
            execute(made)


def test_a_sensor_that_does_not_defer_waits_failures_out_that_may_pass(
    leased_queues: LeasedQueues, supervisor: ScriptedComms, monkeypatch: pytest.MonkeyPatch
) -> None:
    leased_queues.create("orders", "an order")
    monkeypatch.setattr(depth, "cloudwatch_client", lambda connection, arn: CloudWatch(error="Throttling"))
    assert sensor(oldest_at_most=10, deferrable=False).poke(context()) is False


@pytest.mark.parametrize(
    ("status", "error"),
    [("timed out", AirflowSensorTimeout), ("failed", AirflowException), ("failed for good", AirflowFailException)],
)
def test_the_resumed_sensor_ends_as_the_trigger_says(status: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="task 'wait' of DAG 'shop': why") as raised:
        sensor(at_most=0).execute_complete(context(), {"status": status, "error": "why", "report": {}})
    assert type(raised.value) is error
    depth = {"visible": 0, "in_flight": 0, "delayed": 0, "oldest_seconds": None}
    assert sensor(at_most=0).execute_complete(context(), {"status": DONE, "report": depth}) == depth


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "waits for nothing: set at_least"),
        ({"at_most": -1}, "at_most of 'wait' must be an integer of at least 0, not -1"),
        ({"at_least": 2, "at_most": 1}, "can never succeed"),
        ({"at_most": 0, "counts": ("seen",)}, "one or more of visible, in_flight, delayed"),
        ({"at_most": 0, "counts": ()}, "one or more of visible, in_flight, delayed"),
        ({"at_most": 0, "queue_url": "no queue"}, "'no queue' is not a queue name"),
        ({"oldest_at_most": -1}, "oldest_at_most"),
    ],
)
def test_mistakes_are_found_when_the_dag_is_parsed(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        sensor(**options)


def test_a_queue_that_is_known_when_the_task_runs_is_looked_at_then() -> None:
    made = sensor(queue_url="{% if params.large %}large{% else %}small{% endif %}", at_most=0)
    made.render_template_fields({"params": {"large": True}})
    assert made.queue_url == "large"
