"""What an evaluation of a lease sensor does, and what is refused when one is built."""

import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sqs_lease.core.failure_rules import dead_letter
from sqs_lease.dagster import SqsQueueResource, build_sqs_lease_sensor
from sqs_lease.dagster.lease_sensor import sensor as lease_sensor
from sqs_lease.dagster.run_batch.leased_batch import BATCH_TAG
from sqs_lease.dagster.run_batch.ownership import Ownership
from sqs_lease.sqs.errors import QueueNotFoundError, ThrottledError, TransientError
from sqs_lease.testing import LeasedQueues, MemoryTransport
from tests.dagster.lease_ground import eventually

WORKSPACE = "/var/lib/orders"


@dg.op
def load(context: dg.OpExecutionContext) -> None:
    with SqsQueueResource(queue="orders").lease(context):
        pass


@dg.job
def loading() -> None:
    load()


def sensor(workspace: Any, **options: Any) -> dg.SensorDefinition:
    queue = options.pop("queue", "orders")
    return build_sqs_lease_sensor(
        "orders_sensor", SqsQueueResource(queue=queue), loading, workspace=str(workspace), wait=0, **options
    )


def evaluated(
    made: dg.SensorDefinition, instance: dg.DagsterInstance, log_key: list[str] | None
) -> tuple[list[dg.RunRequest], str | None]:
    """Evaluate a sensor as the code server does, which names the evaluation's log."""
    with dg.SensorEvaluationContext(
        instance.get_ref(), sensor_name=made.name, repository_name="__repository__", log_key=log_key
    ) as context:
        data = made.evaluate_tick(context)
    return list(data.run_requests or ()), data.skip_message


TICK = ["__repository__", "orders_sensor", "17"]


def test_a_tick_of_the_daemon_receives_and_asks_for_a_run_that_has_the_batch_as_a_tag(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "a", "b")
    made = sensor(tmp_path, run_tags={"team": "orders"}, run_config={"ops": {}}, max_messages=10, policy="growing")
    ((request,), _) = evaluated(made, instance, TICK)
    uri = Path(request.tags[BATCH_TAG])
    assert (uri.parent, uri.name) == (tmp_path / "orders_sensor", request.run_key)
    assert (request.tags["team"], request.run_config) == ("orders", {"ops": {}})
    assert queue.invisible == ["a", "b"]


def test_nothing_is_asked_for_where_no_message_came(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    leased_queues.create("orders")
    assert evaluated(sensor(tmp_path), instance, TICK) == ([], "No message came from orders")


def test_whoever_builds_one_is_told_that_it_is_a_preview(tmp_path: Path) -> None:
    with pytest.warns(dg.PreviewWarning, match="build_sqs_lease_sensor.*The code server holds the messages"):
        sensor(tmp_path)


UNKNOWN = ["__repository__", "orders_sensor", "20261123_070354"]
"""How Dagster names the log of an evaluation that the daemon did not ask for."""


@pytest.fixture
def real_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the queues in memory pass for those of a service."""
    monkeypatch.setattr(MemoryTransport, "is_in_memory", False)


@pytest.mark.usefixtures("real_queues")
@pytest.mark.parametrize("log_key", [None, [], UNKNOWN], ids=["no key", "an empty key", "of the web server"])
def test_whoever_tries_the_sensor_out_takes_nothing_and_starts_no_thread(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path, log_key: list[str] | None
) -> None:
    queue = leased_queues.create("orders", "a", "b")
    requests, said = evaluated(sensor(tmp_path), instance, log_key)
    assert requests == []
    assert said is not None
    assert "up to 10 of about 2 messages of orders" in said
    assert (queue.visible, list(tmp_path.iterdir())) == (["a", "b"], [])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sqs-lease sensor")]


@pytest.mark.usefixtures("real_queues")
def test_a_context_made_by_a_test_is_no_tick(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "a")
    result = sensor(tmp_path)(dg.build_sensor_context(instance=instance, sensor_name="orders_sensor"))
    assert isinstance(result, dg.SensorResult)
    assert "This is a test" in str(result.skip_reason)
    assert queue.visible == ["a"]


@pytest.mark.parametrize("stored", [True, False], ids=["in files", "ephemeral"])
def test_a_test_with_queues_in_memory_evaluates_the_sensor_and_executes_the_run_that_it_asks_for(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path, stored: bool
) -> None:
    queue = leased_queues.create("orders", "a", "b")
    made = sensor(tmp_path)
    with dg.DagsterInstance.ephemeral() as ephemeral:
        used = instance if stored else ephemeral
        data = made.evaluate_tick(dg.build_sensor_context(used))
        (request,) = data.run_requests or ()
        assert queue.invisible == ["a", "b"]
        assert request.run_key is not None
        tags = {**request.tags, "dagster/run_key": request.run_key}
        assert loading.execute_in_process(instance=used, tags=tags).success
        eventually(lambda: queue.deleted == 2, "the messages are deleted")


def test_a_queue_that_cannot_be_used_fails_the_tick_with_what_to_do(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    with pytest.raises(QueueNotFoundError, match="missing"):
        evaluated(sensor(tmp_path, queue="missing"), instance, TICK)


def test_an_evaluation_that_overlaps_another_one_does_nothing(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    leased_queues.create("orders")
    made = sensor(tmp_path)
    evaluated(made, instance, TICK)
    (host,) = lease_sensor._hosts.values()
    with host._gate:
        assert evaluated(made, instance, TICK) == ([], "The evaluation before this one is under way still")


def test_an_evaluation_during_which_another_process_took_over_gives_way_to_it(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = leased_queues.create("orders")
    made = sensor(tmp_path)
    evaluated(made, instance, TICK)
    (host,) = lease_sensor._hosts.values()
    # It has no time to look by itself before.
    monkeypatch.setattr(host, "_give_up", lambda why: None)
    other = Ownership(tmp_path / "orders_sensor", host._settings.deployment)
    other.take()
    queue.send("a")
    assert evaluated(made, instance, TICK) == ([], "The keeper of this process has just ended")
    assert queue.visible == ["a"]
    assert other.is_ours()


@pytest.mark.parametrize(
    ("error", "said"),
    [(ThrottledError("too many requests"), "too many requests"), (TransientError("no answer"), "no answer")],
)
def test_what_passes_by_itself_is_a_reason_to_skip_a_tick(
    leased_queues: LeasedQueues,
    instance: dg.DagsterInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    said: str,
) -> None:
    async def fail(*arguments: Any, **options: Any) -> None:
        raise error

    leased_queues.create("orders", "a")
    monkeypatch.setattr(MemoryTransport, "queue_url", fail)
    requests, reason = evaluated(sensor(tmp_path), instance, TICK)
    assert requests == []
    assert reason == f"Nothing was received: {said}"


def test_what_the_keeper_did_is_in_the_log_of_the_next_evaluation(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leased_queues.create("orders", "a")
    evaluated(sensor(tmp_path), instance, TICK)
    assert "The keeper of sensor orders_sensor began" in capsys.readouterr().err


def test_the_visibility_timeout_outlives_a_restart_of_the_code_server_or_is_the_queues(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    leased_queues.create("orders", "a", visibility_seconds=30)
    leased_queues.create("long", "a", visibility_seconds=900)
    for queue, seconds in (("orders", 180), ("long", 900)):
        evaluated(sensor(tmp_path / queue, queue=queue), instance, TICK)
        (path,) = (tmp_path / queue / "orders_sensor").glob("*/leases.json")
        ((_, _, received_at, deadline, *_),) = json.loads(json.loads(path.read_bytes())["leases"])
        assert deadline - received_at == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"workspace": "orders"}, ValueError, "absolute path"),
        ({"max_messages": 0}, ValueError, "max_messages"),
        ({"max_batches": 0}, ValueError, "max_batches"),
        ({"linger": 31}, ValueError, "gives up an evaluation after 60 s"),
        ({"run_deadline": timedelta(hours=13)}, ValueError, "run_deadline"),
        ({"policy": "sometimes"}, ValueError, "policy"),
        ({"on_failure": "dead_lettr"}, ValueError, "on_failure must be one of .*dead_letter.*, not 'dead_lettr'"),
        ({"on_failure": {"kind": "backoff", "inital": 30}}, TypeError, "inital"),
        ({"on_failure": 30}, TypeError, "on_failure must be a failure rule such as"),
        ({"visibility": 0}, ValueError, "visibility"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_arguments_that_cannot_work_are_refused_when_the_sensor_is_built(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        sensor(options.pop("workspace", WORKSPACE), **options)


def test_a_sensor_is_stopped_until_somebody_starts_it_and_has_the_target() -> None:
    made = sensor(WORKSPACE, on_failure=dead_letter())
    assert made.default_status is dg.DefaultSensorStatus.STOPPED
    assert made.job_name == "loading"
    assert made.minimum_interval_seconds == 10
