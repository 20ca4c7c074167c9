"""The policies allow exactly the calls of the code: each use runs here, with a recorder before its servers.

Two recorders. Where real clients are used, it is a proxy before a real server, which sees every client alike. Airflow's
triggers run in virtual time over queues in memory, whose calls have the names of the API.
"""

# Without postponed annotations: Dagster reads those of its functions.

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import dagster as dg
import dagster_pipes
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

import sqs_lease
from sqs_lease import MessageFailed, async_lease, dead_letter, lease
from sqs_lease.airflow import read_messages
from sqs_lease.airflow.airflow_api.requests import RunOfTask
from sqs_lease.airflow.connection import AwsConnection
from sqs_lease.airflow.handover import HandedLease
from sqs_lease.airflow.payload import load_lease, publishable, remove_files
from sqs_lease.cli.contract.running import CHECKS, PREFIX
from sqs_lease.cli.permissions import (
    CLEAN_SOURCE,
    IMPLIED,
    RECORDED,
    VERIFY,
    VERIFY_ANYWHERE,
    Place,
    needs_of,
)
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.core.policies import Growing, Threshold
from sqs_lease.dagster import SqsQueueResource, build_sqs_backlog_check, build_sqs_backlog_sensor, stored_batch
from sqs_lease.keeper.plain_leases import WrittenBatch
from sqs_lease.spark.job import main as job
from sqs_lease.spark.job import reporting
from sqs_lease.spark.sources.s3_events import S3Read
from sqs_lease.spark.sources.s3_events.allowance import Spool, SpooledFile
from sqs_lease.spark.sources.s3_events.clean_up import ObjectCleaner
from sqs_lease.spark.sources.s3_events.notification import S3Object
from sqs_lease.spark.sources.s3_events.object_store import ObjectStore
from sqs_lease.testing import Fault, Operation, TransportCall, VirtualClock, no_faults, run_virtual
from tests.airflow.leased_messages import LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms, supervised_by
from tests.cli.commands import sqs_lease as sqs_lease_command
from tests.cli.conftest import Ground
from tests.cli.wire import Wire

pytestmark = pytest.mark.processes

PACKAGE = Path(sqs_lease.__file__).parent


@pytest.fixture
def supervisor() -> Iterator[ScriptedComms]:
    with supervised_by(ScriptedComms()) as scripted:
        yield scripted


@pytest.fixture
def airflow_connection(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's connection is over the wire, too."""
    # By the environment's credentials and endpoint.
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", '{"conn_type": "aws"}')


@pytest.fixture
def bucket(wire: Wire) -> str:
    name = f"leases-{uuid4().hex[:8]}"
    boto3.client("s3").create_bucket(Bucket=name)
    wire.calls.clear()
    return name


class Queues:
    """A queue with three messages, and its dead-letter queue."""

    def __init__(self, ground: Ground) -> None:
        self.dead = ground.queue("dead")
        self.orders = ground.queue("orders", VisibilityTimeout="300", RedrivePolicy=ground.redrive_to(self.dead))
        for number in range(3):
            ground.sqs.send_message(QueueUrl=ground.url(self.orders), MessageBody=f"order {number}")


@pytest.fixture
def queues(ground: Ground) -> Queues:
    return Queues(ground)


def recorded(wire: Wire, queues: Queues) -> dict[Place, set[str]]:
    return {Place.QUEUE: wire.actions(queues.orders), Place.DEAD_LETTERS: wire.actions(queues.dead)}


def of_queues(use: str) -> dict[Place, frozenset[str]]:
    return {place: RECORDED[use][place] for place in (Place.QUEUE, Place.DEAD_LETTERS)}


def test_a_lease(wire: Wire, queues: Queues) -> None:
    with lease(queues.orders, max_messages=3, linger=0, on_failure=dead_letter()) as batch:
        done, failed, other = batch
        batch.succeed(done)
        batch.fail(failed, "it cannot be read")
        batch.release(other)

    assert recorded(wire, queues) == of_queues("lease")


def test_an_asynchronous_lease(wire: Wire, queues: Queues) -> None:
    async def work() -> None:
        async with async_lease(queues.orders, max_messages=3, linger=0, on_failure=dead_letter()) as batch:
            done, failed, other = batch
            await batch.succeed(done)
            await batch.fail(failed, "it cannot be read")
            await batch.release(other)

    asyncio.run(work())

    assert recorded(wire, queues) == of_queues("lease")


def test_the_triggers_of_airflow(supervisor: ScriptedComms) -> None:
    calls: list[TransportCall] = []

    def write_down(call: TransportCall) -> Fault:
        calls.append(call)
        return no_faults(call)

    world = LeasedMessages(supervisor)

    async def scenario() -> None:
        triggerer = world.triggerer()
        triggerer.faults = write_down
        await world.receive(triggerer, Threshold(visibility=30.0))
        keeping = world.keep(triggerer, on_failure=dead_letter())
        await asyncio.sleep(60)
        world.states["load"] = "failed"
        await keeping.ended()
        # Another run, which succeeds.
        world.supervisor.xcoms.clear()
        world.sqs.send(world.url, "d")
        await world.receive(triggerer)
        keeping = world.keep(triggerer)
        world.states["load"] = "success"
        await keeping.ended()

    world.run(scenario)
    found: dict[Place, set[str]] = {Place.QUEUE: set(), Place.DEAD_LETTERS: set()}
    for call in calls:
        place = Place.DEAD_LETTERS if "dead" in call.queue_url else Place.QUEUE
        found[place].add(action_of(call.operation))
    assert found == of_queues("airflow")


def action_of(operation: Operation) -> str:
    return f"sqs:{operation.value.removesuffix('Batch')}"


def test_batches_of_airflow_on_s3(wire: Wire, bucket: str, airflow_connection: None) -> None:
    messages = [Message(Receipt("m", "handle"), "body")]
    leases = WrittenBatch("batch", 1.0, (Lease(messages[0].receipt, 1, 31),))
    handed = HandedLease("https://queue/orders", Growing(visibility=30.0), AwsConnection(), leases, 1)
    receiving = RunOfTask("dag", "run", "orders")

    async def scenario() -> None:
        stored, place, value = await publishable(f"s3://aws_default@{bucket}/a/b", handed, messages, receiving)
        assert [message["Body"] for message in read_messages(value)] == ["body"]
        assert (await load_lease(place, receiving)).leases == handed.leases
        await remove_files(stored)

    run_virtual(scenario, clock=VirtualClock())

    assert wire.actions(bucket) == RECORDED["airflow"][Place.FILES]
    assert_listed_below("a/b", wire, bucket)


def assert_listed_below(prefix: str, wire: Wire, bucket: str) -> None:
    """The policy allows lists of what is below the place only."""
    listed = {call.about.removeprefix(f"{bucket}/") for call in wire.calls if "s3:ListBucket" in call.actions}
    assert {about for about in listed if about != prefix and not about.startswith(f"{prefix}/")} == set()


def test_dagster(wire: Wire, queues: Queues) -> None:
    resource = SqsQueueResource(queue=queues.orders)

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, max_messages=3, linger=0, on_failure=dead_letter()) as batch:
            given_back, failed, _done = batch
            batch.release(given_back)
            raise MessageFailed(failed.message_id)

    check = build_sqs_backlog_check(orders, resource)
    sensor = build_sqs_backlog_sensor("backlog", resource, target=[orders])
    defs = dg.Definitions(assets=[orders], asset_checks=[check], sensors=[sensor], resources={"queue": resource})
    with dg.instance_for_test() as instance:
        context = dg.build_sensor_context(instance, definitions=defs)
        assert defs.get_sensor_def("backlog").evaluate_tick(context).run_requests
        job = defs.resolve_implicit_global_asset_job_def()
        job.execute_in_process(instance=instance, raise_on_error=False)
        dg.materialize([check], instance=instance, selection=dg.AssetSelection.checks(check))

    assert recorded(wire, queues) == of_queues("dagster")


def test_batches_of_dagster_for_jobs_elsewhere_on_s3(wire: Wire, bucket: str, queues: Queues) -> None:
    with lease(queues.orders) as batch, stored_batch(batch, f"s3://{bucket}/orders"):
        pass

    assert wire.actions(bucket) == RECORDED["dagster"][Place.FILES]


def test_the_files_of_a_spark_job(wire: Wire, bucket: str, tmp_path: Path) -> None:
    job.write_text(f"s3://{bucket}/job/context", '{"run_id": "run", "extras": {}}')
    assert job.local_copy(f"s3://{bucket}/job/context", tmp_path).read_text()
    parameters = {
        reporting.CONTEXT: dagster_pipes.encode_param({"bucket": bucket, "key": "job/context"}),
        reporting.MESSAGES: dagster_pipes.encode_param({"bucket": bucket, "key_prefix": "job/messages"}),
    }
    with pytest.raises(ValueError, match="it failed"), reporting.reporting(parameters, str):
        raise ValueError("it failed")

    assert wire.actions(bucket) == RECORDED["spark"][Place.FILES]


def test_objects_that_messages_name(wire: Wire, bucket: str) -> None:
    s3 = boto3.client("s3")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    version = s3.put_object(Bucket=bucket, Key="object", Body=b"content").get("VersionId", "null")
    wire.calls.clear()
    for wanted in (S3Object(bucket, "object"), S3Object(bucket, "object", version)):
        allowance = S3Read().allowance(Spool(len(b"content")))
        with SpooledFile(allowance) as file:
            assert ObjectStore(2).fetch(wanted, file, allowance) == len(b"content")

    assert wire.actions(bucket) == RECORDED["spark"][Place.OBJECTS]


@pytest.mark.parametrize(("clean_source", "tags"), [("delete", None), ("tag", {"stored": "yes"})])
def test_the_permissions_to_clean_up_objects(
    wire: Wire, bucket: str, clean_source: str, tags: dict[str, str] | None
) -> None:
    s3 = boto3.client("s3")
    tag = s3.put_object(Bucket=bucket, Key="plain", Body=b"content")["ETag"].strip('"')
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    version = s3.put_object(Bucket=bucket, Key="object", Body=b"content")["VersionId"]
    told = [{"key": "plain", "version_id": None, "tag": tag}, {"key": "object", "version_id": version, "tag": None}]
    wire.calls.clear()
    (cleaned,) = ObjectCleaner(ObjectStore(2), tags)(
        iter([pa.RecordBatch.from_pylist([{"bucket": bucket, **its} for its in told])])
    )

    assert cleaned.to_pylist() == [{"cleaned": 2, "left": 0, "failed": 0, "error": None}]
    # Reading the object is allowed already: a condition asks for it.
    assert wire.actions(bucket) - RECORDED["spark"][Place.OBJECTS] == CLEAN_SOURCE[clean_source]


def test_a_redrive(wire: Wire, queues: Queues, ground: Ground) -> None:
    ground.sqs.send_message(QueueUrl=ground.url(queues.dead), MessageBody="an order")
    listed = {"ApproximateNumberOfMessagesMoved": 0, "ApproximateNumberOfMessagesToMove": 1, "StartedTimestamp": 1000}
    running = {**listed, "Status": "RUNNING", "TaskHandle": "handle"}
    tasks: list[dict[str, Any]] = []

    def cancelled() -> Any:
        tasks[:] = [{**listed, "Status": "CANCELLED"}]
        return {"ApproximateNumberOfMessagesMoved": 0}

    def started() -> Any:
        tasks[:] = [{**listed, "Status": "COMPLETED", "StartedTimestamp": 2000}, *tasks]
        return {"TaskHandle": "handle"}

    # The server has no move tasks.
    wire.answers = {
        "sqs:ListDeadLetterSourceQueues": lambda: {"queueUrls": [ground.url(queues.orders)]},
        "sqs:StartMessageMoveTask": started,
        "sqs:ListMessageMoveTasks": lambda: {"Results": tasks},
        "sqs:CancelMessageMoveTask": cancelled,
    }

    tasks[:] = [running]
    assert sqs_lease_command("redrive", queues.dead, "--cancel").exit_code == 0
    assert sqs_lease_command("redrive", queues.dead, "--to", queues.orders).exit_code == 0

    called = {action for call in wire.calls for action in call.actions}
    by_place = recorded(wire, queues)
    # Cancelling names a task only, and the others name a queue.
    by_place[Place.DEAD_LETTERS] |= called & {"sqs:CancelMessageMoveTask"}
    assert by_place == of_queues("redrive")


def test_verify(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    # This check makes every call that any of the others makes; tests/cli/test_verify.py runs them all.
    monkeypatch.setattr("sqs_lease.cli.verify.CHECKS", [check for check in CHECKS if check.name == "permissions"])

    assert sqs_lease_command("verify", "--yes").exit_code == 0

    called = {action for call in wire.calls for action in call.actions}
    # Cancelling names a task only.
    assert wire.actions(PREFIX) | {"sqs:CancelMessageMoveTask"} == VERIFY
    assert called - VERIFY == VERIFY_ANYWHERE


def test_every_use_was_recorded_here() -> None:
    """A use that is added to the table needs a test above."""
    assert set(RECORDED) == {"lease", "airflow", "dagster", "spark", "redrive"}


def test_every_call_of_a_transport_is_in_a_use() -> None:
    allowed = {action for needs in RECORDED.values() for actions in needs.values() for action in actions}

    assert {action_of(operation) for operation in Operation} == {a for a in allowed if a.startswith("sqs:")}


def test_permissions_that_a_move_task_needs_of_its_caller_are_added() -> None:
    needs = needs_of(frozenset({"redrive"}))

    for place, actions in IMPLIED["sqs:StartMessageMoveTask"].items():
        assert actions <= needs[place]


def test_no_other_service_is_called() -> None:
    """A client of another service needs a use in the table, and a test above."""
    sources = (path.read_text() for path in PACKAGE.rglob("*.py"))
    named = {name for source in sources for name in re.findall(r"client(?:_type=|\(\s*)\"(\w+)\"", source)}

    assert named == {"sqs", "s3"}
