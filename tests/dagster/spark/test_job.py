"""Ingestion by a job from an asset: what the job is given, and what is made of the end of either; without Spark."""

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import dagster as dg
import psutil
import pytest
from dagster._core.errors import DagsterExecutionInterruptedError

from sqs_lease.batch_files.manifest import read_manifest
from sqs_lease.dagster import SqsQueueResource, ingest_with_spark, reported_result, spark, stored_batch
from sqs_lease.dagster.run_batch.batch_of_run import BATCH_TAG
from sqs_lease.dagster.run_batch.folder import BatchFolder
from sqs_lease.ingestion import lost_watch
from sqs_lease.ingestion.job import JobError
from sqs_lease.ingestion.result import StoredResult
from sqs_lease.ingestion.spec import SpecError
from sqs_lease.testing import LeasedQueue, LeasedQueues
from tests.ingestion.job_program import LEAVE_RESULT, RESULT, WAITS_FOR_ITS_END, JobProgram

SPEC: Mapping[str, Any] = {
    "version": 1,
    "source": {"kind": "json", "schema": "id BIGINT"},
    "sink": {"kind": "delta", "path": "/data/orders"},
    "workspace": "/data/batches",
}
QUEUE = SqsQueueResource(queue="orders")
OBJECTS = {"cleaned": 3, "left": 2, "failed": 1, "error": "s3://data/a: AccessDenied"}
BY_PIPES = (
    "import dagster_pipes; pipes = dagster_pipes.open_dagster_pipes(); "
    "pipes.report_custom_message(RESULT); pipes.close()"
)
REJECTED = RESULT.batchItemFailures[0]["itemIdentifier"]


def reporting(
    queue: LeasedQueue, program: JobProgram, script: str = "pass", *, rejected: str = "", leaves: str = LEAVE_RESULT
) -> None:
    """Have the program leave a result that rejects one of the queue's messages: the last, or that with a body."""
    ids = {body: message_id for message_id, body in queue._sqs.bodies(queue.url).items()}
    message_id = ids[rejected or list(ids)[-1]]
    program.does("\n".join([script, f"RESULT = RESULT.replace({REJECTED!r}, {message_id!r})", leaves]))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, a job that ends in order has the time to."""
    monkeypatch.setattr(spark, "END_SECONDS", 60.0)


@pytest.fixture
def orders(leased_queues: LeasedQueues) -> LeasedQueue:
    return leased_queues.create("orders", "body 0", "body 1", "body 2", visibility_seconds=600)


@pytest.fixture
def program(tmp_path: Path) -> JobProgram:
    return JobProgram(tmp_path)


def materialize(
    program: JobProgram, check: Callable[[StoredResult], None] = lambda result: None, **options: Any
) -> dg.ExecuteInProcessResult:
    @dg.asset
    def orders(context: dg.AssetExecutionContext) -> None:
        with QUEUE.lease(context, wait=0) as batch:
            check(ingest_with_spark(context, batch, **{"spec": SPEC, "python": str(program.path), **options}))

    return dg.materialize([orders], raise_on_error=True)


def test_messages_that_the_job_rejects_come_back_and_the_rest_is_deleted(
    orders: LeasedQueue, program: JobProgram
) -> None:
    reporting(orders, program)
    results: list[StoredResult] = []
    result = materialize(program, results.append)
    assert orders.visible == ["body 2"]
    assert orders.deleted == 2
    (materialization,) = result.asset_materializations_for_node("orders")
    numbers = {name: value.value for name, value in materialization.metadata.items()}
    expected = {
        "received": 3,
        "ingested": 2,
        "empty": 0,
        "duplicates": 0,
        "rejected": 1,
        "rows": 2,
        "table_version": 1,
    }
    assert {name: numbers[f"ingestion/{name}"] for name in expected} == expected
    assert (numbers["sqs/received"], numbers["sqs/failed"]) == (3, 1)
    assert [one.ingested for one in results] == [2]


def test_the_numbers_of_objects_are_told_where_the_source_cleans_up() -> None:
    cleaned = StoredResult.decode(json.dumps({**json.loads(RESULT.encode()), "objects": OBJECTS}))
    numbers = {name: value.value for name, value in spark.ingestion_metadata(cleaned).items()}
    told = {name.removeprefix("ingestion/objects_"): value for name, value in numbers.items() if "objects" in name}
    assert told == {name: value for name, value in OBJECTS.items() if name != "error"}
    assert not any("objects" in name for name in spark.ingestion_metadata(RESULT))


def test_the_job_gets_messages_and_spec_and_no_file_is_left(orders: LeasedQueue, program: JobProgram) -> None:
    reporting(orders, program)
    materialize(program)
    argv = program.noted()["argv"]
    assert argv[:2] == ["-m", "sqs_lease.spark.job"]
    assert argv[-3:] == ["--master", "local[2]", "--end-with-stdin"]
    assert program.spec() == SPEC
    assert program.bodies() == [["body 0", "body 1", "body 2"]]
    assert not Path(argv[argv.index("--manifest") + 1]).parent.exists()


def test_the_job_gets_what_it_is_given_and_nothing_of_dagsters_own(
    orders: LeasedQueue, program: JobProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporting(orders, program)
    monkeypatch.setenv("DAGSTER_PG_PASSWORD", "secret")
    materialize(program, environment={"ORDERS": "postgresql://host/shop"}, spark="sc://spark:15002")
    environment = program.noted()["environment"]
    assert environment["ORDERS"] == "postgresql://host/shop"
    assert environment["PATH"] == os.environ["PATH"]
    assert not [name for name in environment if name.startswith("DAGSTER")]
    assert program.noted()["argv"][-3:-1] == ["--remote", "sc://spark:15002"]


def test_the_report_of_the_job_is_in_the_runs_log(
    orders: LeasedQueue, program: JobProgram, capfd: pytest.CaptureFixture[str]
) -> None:
    reporting(orders, program, "print('INFO batch b: stage 2: 37 of 200 tasks'); print('what Java says')")
    materialize(program)
    output = capfd.readouterr()
    assert "batch b: stage 2: 37 of 200 tasks" in output.err
    assert "what Java says\n" in output.out
    assert "body 0" not in output.err


def test_a_log_that_cannot_be_written_ends_no_job(
    orders: LeasedQueue, program: JobProgram, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = dg.DagsterLogManager.log

    def away(log: Any, *arguments: Any, **options: Any) -> None:
        if "batch b: it is slow" in arguments:
            raise ConnectionError("the database of events is away")
        write(log, *arguments, **options)

    monkeypatch.setattr(dg.DagsterLogManager, "log", away)
    reporting(orders, program, "print('WARNING batch b: it is slow')")
    materialize(program)
    assert "WARNING batch b: it is slow\n" in capfd.readouterr().out
    assert orders.deleted == 2


def test_a_failed_job_fails_the_asset_with_its_last_error_and_gives_all_back(
    orders: LeasedQueue, program: JobProgram
) -> None:
    program.does("print('error: table /data/orders is a file'); print('the end'); sys.exit(1)")
    with pytest.raises(JobError, match=r"^table /data/orders is a file$"):
        materialize(program)
    assert orders.visible == ["body 0", "body 1", "body 2"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended with exit code -9"),
        ("pass", "its result cannot be read"),
    ],
    ids=["killed", "silent"],
)
def test_a_job_without_a_result_gives_all_back(
    orders: LeasedQueue, program: JobProgram, script: str, said: str
) -> None:
    program.does(script)
    with pytest.raises(JobError, match=said):
        materialize(program)
    assert orders.visible == ["body 0", "body 1", "body 2"]


def test_an_empty_batch_starts_no_job(leased_queues: LeasedQueues, program: JobProgram) -> None:
    leased_queues.create("orders")
    result = materialize(program)
    assert not program.notes.exists()
    (materialization,) = result.asset_materializations_for_node("orders")
    assert materialization.metadata["ingestion/received"].value == 0
    assert "ingestion/table_version" not in materialization.metadata


def test_a_bad_spec_is_refused_before_a_job_is_started(orders: LeasedQueue, program: JobProgram) -> None:
    with pytest.raises(SpecError, match="did you mean 'delta'"):
        materialize(program, spec={**SPEC, "sink": {"kind": "delt", "path": "/data"}})
    assert not program.notes.exists()


def until_started(program: JobProgram, still_expected: Callable[[], bool]) -> int:
    """Wait for the program to begin its work; return its process id."""
    pause = Event()
    while not (program.started.exists() and program.started.read_text()):
        assert still_expected()
        pause.wait(0.02)
    return int(program.started.read_text())


def test_an_interrupted_asset_ends_its_job_in_order_and_then_gives_all_back(
    orders: LeasedQueue, program: JobProgram
) -> None:
    program.does(WAITS_FOR_ITS_END)
    held: list[str] = []
    over = Event()

    def interrupt() -> None:
        until_started(program, lambda: not over.is_set())
        held.extend(orders.invisible)
        # As Dagster does for a run that is terminated.
        os.kill(os.getpid(), signal.SIGINT)

    thread = Thread(target=interrupt)
    thread.start()
    with pytest.raises((KeyboardInterrupt, DagsterExecutionInterruptedError)):
        materialize(program)
    over.set()
    thread.join()
    assert len(held) == 3
    assert program.ended.read_text() == "in order"
    assert not psutil.pid_exists(int(program.started.read_text()))
    assert orders.visible == ["body 0", "body 1", "body 2"]


def test_an_asset_that_is_interrupted_before_it_reads_what_its_job_says_ends_the_job_too(
    orders: LeasedQueue, program: JobProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.does(WAITS_FOR_ITS_END)

    def interrupted(any_held: object, end: object) -> None:
        until_started(program, lambda: True)
        raise KeyboardInterrupt

    monkeypatch.setattr(spark, "ending_when_lost", interrupted)
    with pytest.raises((KeyboardInterrupt, DagsterExecutionInterruptedError)):
        materialize(program)
    assert program.ended.read_text() == "in order"
    assert orders.visible == ["body 0", "body 1", "body 2"]


def test_a_job_is_ended_when_its_messages_are_all_lost(
    orders: LeasedQueue, program: JobProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_watch, "LOOK_SECONDS", 0.05)
    program.does(WAITS_FOR_ITS_END)
    over = Event()

    @dg.asset
    def ingested(context: dg.AssetExecutionContext) -> None:
        with QUEUE.lease(context, wait=0) as batch:

            def settle() -> None:
                until_started(program, lambda: not over.is_set())
                batch.release(batch)  # as if others had them

            thread = Thread(target=settle)
            thread.start()
            try:
                ingest_with_spark(context, batch, spec=SPEC, python=str(program.path))
            finally:
                over.set()
                thread.join()

    with pytest.raises(JobError, match=r"the messages of .*orders are no longer held"):
        dg.materialize([ingested])
    assert program.ended.read_text() == "in order"


def test_a_batch_that_an_executor_or_a_sensor_holds_can_be_ingested_too(
    leased_queues: LeasedQueues, program: JobProgram, tmp_path: Path
) -> None:
    queue = leased_queues.create("orders", "body 0")
    reporting(queue, program)
    folder = BatchFolder(tmp_path / "batch")
    with QUEUE.lease(dg.build_op_context(), wait=0) as batch:
        messages = list(batch)
    folder.create(batch_id="b", queue_url=queue.url, messages=messages)

    @dg.op
    def load(context: dg.OpExecutionContext) -> None:
        with QUEUE.lease(context) as batch:
            ingest_with_spark(context, batch, spec=SPEC, python=str(program.path))

    load(dg.build_op_context(run_tags={BATCH_TAG: str(folder)}))
    (work,) = folder.pieces().values()
    assert work.failed == {messages[0].message_id: "no JSON"}


# A Pipes client that starts the job elsewhere


def test_a_batch_is_stored_for_a_job_elsewhere_as_long_as_it_runs(orders: LeasedQueue, tmp_path: Path) -> None:
    with QUEUE.lease(dg.build_op_context(), wait=0) as batch, stored_batch(batch, str(tmp_path / "shared")) as uri:
        manifest = read_manifest(Path(uri))
        assert [message.body for message in manifest.messages] == ["body 0", "body 1", "body 2"]
        assert manifest.queue_url == orders.url
    assert not Path(uri).exists()


def test_the_result_is_found_among_what_was_reported() -> None:
    invocation: Any = SimpleNamespace(get_custom_messages=lambda: ["hello", {"a": 1}, RESULT.encode()])
    assert reported_result(invocation) == RESULT


def test_a_job_elsewhere_that_reported_no_result_is_not_taken_for_done() -> None:
    invocation: Any = SimpleNamespace(get_custom_messages=lambda: ["hello"])
    with pytest.raises(JobError, match="reported no result"):
        reported_result(invocation)
