"""The task that ingests: its DAG, its job's process, and what it makes of the end of either; without Spark."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import psutil
import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from sqs_lease.airflow import SqsLeaseKeeperOperator, SqsToSparkOperator, spark_operator, sqs_lease
from sqs_lease.airflow.settlement.rules import work_tasks
from sqs_lease.airflow.settlement.settler import PROGRESS_KEY, Progress
from sqs_lease.batch_files.manifest import read_manifest, write_manifest
from sqs_lease.core.events import Outcome
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.ingestion import lost_watch
from sqs_lease.ingestion.job import JobProcess
from sqs_lease.ingestion.spec import SpecError
from tests.airflow.contexts import context_of
from tests.ingestion.job_program import LEAVE_RESULT, RESULT, WAITS_FOR_ITS_END, JobProgram

SPEC: dict[str, Any] = {
    "version": 1,
    "source": {"kind": "json", "schema": "id BIGINT"},
    "sink": {"kind": "delta", "path": "/data/{{ ds }}"},
    "workspace": "/data/batches",
}
MESSAGES = [Message(Receipt(f"m{number}", ""), f"body {number}").as_dict() for number in range(3)]


class TaskInstance:
    """A task instance, as far as the operator uses it."""

    dag_id = "shop"
    run_id = "run"

    def __init__(self, messages: Any) -> None:
        self.xcoms: dict[tuple[str, str], Any] = {("orders", "return_value"): messages}
        self.keeper_state = "deferred"
        self.asked = 0

    def get_relevant_upstream_map_indexes(self, **_: Any) -> None: ...

    def xcom_pull(self, task_ids: str, key: str, **_: Any) -> Any:
        return self.xcoms.get((task_ids, key))

    def get_task_states(self, **_: Any) -> dict[str, Any]:
        self.asked += 1
        return {"run": {"orders_keeper": self.keeper_state}}

    def settle(self, number: int) -> None:
        self.xcoms["orders", PROGRESS_KEY] = Progress(dict.fromkeys(range(number), Outcome.DELETED)).encode()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, a job that ends in order has the time to."""
    monkeypatch.setattr(spark_operator, "END_SECONDS", 60.0)


@pytest.fixture
def program(tmp_path: Path) -> JobProgram:
    return JobProgram(tmp_path)


@pytest.fixture
def instance() -> TaskInstance:
    return TaskInstance(MESSAGES)


def load_task(program: JobProgram, **options: Any) -> SqsToSparkOperator:
    with DAG("shop", schedule=None), sqs_lease("orders", queue_url="orders") as orders:
        return SqsToSparkOperator(
            **{"task_id": "load", "messages": orders, "spec": SPEC, "python": str(program.path), **options}
        )


@pytest.fixture
def load(program: JobProgram) -> SqsToSparkOperator:
    return load_task(program)


def run(load: SqsToSparkOperator, instance: TaskInstance) -> Any:
    return load.execute(context_of(instance))


def test_it_stands_behind_the_sensor_and_its_keeper_reads_what_it_returns(load: SqsToSparkOperator) -> None:
    assert load.upstream_task_ids == {"orders"}
    keeper = load.dag.task_dict["orders_keeper"]
    assert isinstance(keeper, SqsLeaseKeeperOperator)
    (work,) = work_tasks(load.dag, keeper.work_task_ids, "orders", keeper.task_id)
    assert (work.task_id, work.returns, work.per_message) == ("load", True, False)


def test_it_stands_behind_the_sensor_also_outside_of_the_context(program: JobProgram) -> None:
    with DAG("shop", schedule=None):
        with sqs_lease("orders", queue_url="orders") as orders:

            @task
            def work(messages: Any) -> None: ...

            work(orders)
        load = SqsToSparkOperator(task_id="load", messages=orders, spec=SPEC)
    assert load.upstream_task_ids == {"orders"}


def test_a_bad_spec_fails_while_the_dag_is_parsed(program: JobProgram) -> None:
    with pytest.raises(SpecError, match="did you mean 'delta'"):
        load_task(program, spec={**SPEC, "sink": {"kind": "delt", "path": "/data"}})


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"messages": MESSAGES}, TypeError, "must be what sqs_lease"),
        ({"submit_options": {"conf": {}}}, ValueError, "needs submit_conn_id"),
        (
            {"submit_conn_id": "spark", "submit_options": {"yarn_track_via_rm_api": True}},
            ValueError,
            "submit_options of 'load' has yarn_track_via_rm_api",
        ),
        ({"submit_conn_id": "spark", "connections": {"A": "b"}}, ValueError, "would be arguments of a command"),
        ({"submit_conn_id": "spark", "aws_conn_id": "aws_default"}, ValueError, "would be arguments of a command"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(
    program: JobProgram, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        load_task(program, **options)


def test_bodies_are_not_among_the_rendered_fields(load: SqsToSparkOperator) -> None:
    assert "messages" not in load.template_fields


def test_the_job_gets_messages_and_spec_and_its_result_is_returned(
    load: SqsToSparkOperator, instance: TaskInstance, program: JobProgram
) -> None:
    returned = run(load, instance)
    assert returned["batchItemFailures"] == [{"itemIdentifier": "m2", "reason": "no JSON"}]
    assert (returned["ingested"], returned["rows"], returned["table_version"]) == (2, 2, 1)
    argv = program.noted()["argv"]
    assert argv[:2] == ["-m", "sqs_lease.spark.job"]
    assert argv[-3:] == ["--master", "local[2]", "--end-with-stdin"]
    assert program.spec() == SPEC
    assert program.bodies() == [["body 0", "body 1", "body 2"]]


def test_nothing_is_left_on_the_worker(load: SqsToSparkOperator, instance: TaskInstance, program: JobProgram) -> None:
    run(load, instance)
    argv = program.noted()["argv"]
    assert not Path(argv[argv.index("--result") + 1]).parent.exists()


def test_a_batch_in_files_is_handed_on_as_files(program: JobProgram, tmp_path: Path) -> None:
    stored = []
    for number in range(2):
        stored.append(tmp_path / f"{number}.parquet")
        messages = [Message.from_api(MESSAGES[number])]
        write_manifest(stored[-1], batch_id=f"b{number}", queue_url="orders", messages=messages)
    value = {"sqs_lease_manifests": [f"file://{path}" for path in stored], "messages": 2}
    run(load_task(program), TaskInstance(value))
    assert program.bodies() == [["body 0"], ["body 1"]]


def test_a_connect_server_is_reached_as_such(program: JobProgram, instance: TaskInstance) -> None:
    run(load_task(program, spark="sc://spark:15002"), instance)
    assert program.noted()["argv"][-3:-1] == ["--remote", "sc://spark:15002"]


def test_the_log_has_the_jobs_lines_by_their_level(
    load: SqsToSparkOperator, instance: TaskInstance, program: JobProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["INFO batch b: stage 2: 37 of 200 tasks", "WARNING a table is slow", "what Java says"]
    program.does(f"print({chr(10).join(lines)!r}); {LEAVE_RESULT}")
    run(load, instance)
    said = capsys.readouterr().out
    assert re.search(r"info +\] batch b: stage 2: 37 of 200 tasks", said)
    assert re.search(r"warning +\] a table is slow", said)
    assert re.search(r"info +\] what Java says", said)


def test_a_failed_job_fails_the_task_with_its_error(
    load: SqsToSparkOperator, instance: TaskInstance, program: JobProgram
) -> None:
    program.does("print('error: table /data/orders is a file'); print('the end'); sys.exit(1)")
    with pytest.raises(AirflowException, match=r"^table /data/orders is a file$"):
        run(load, instance)


def test_a_job_that_says_nothing_fails_the_task_with_its_exit_code(
    load: SqsToSparkOperator, instance: TaskInstance, program: JobProgram
) -> None:
    program.does("os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(AirflowException, match="ended with exit code -9"):
        run(load, instance)


@pytest.mark.parametrize("script", ["pass", "pathlib.Path(named('--result')[0]).write_text('{}')"])
def test_a_job_without_a_result_fails_the_task(
    load: SqsToSparkOperator, instance: TaskInstance, program: JobProgram, script: str
) -> None:
    program.does(script)
    with pytest.raises(AirflowException, match="its result cannot be read"):
        run(load, instance)


def in_the_background(call: Callable[[], Any]) -> tuple[Thread, list[AirflowException]]:
    errors: list[AirflowException] = []

    def guarded() -> None:
        try:
            call()
        except AirflowException as error:
            errors.append(error)

    thread = Thread(target=guarded)
    thread.start()
    return thread, errors


def wait_for(path: Path, thread: Thread) -> int:
    # Read once: another process may be writing the file again.
    while not (path.exists() and (written := path.read_text())):
        assert thread.is_alive()
        thread.join(0.02)
    return int(written)


def test_a_task_that_is_ended_ends_its_job_in_order(
    load: SqsToSparkOperator, instance: TaskInstance, program: JobProgram
) -> None:
    program.does(WAITS_FOR_ITS_END)
    thread, errors = in_the_background(lambda: run(load, instance))
    pid = wait_for(program.started, thread)
    load.on_kill()
    thread.join(60)
    assert program.ended.read_text() == "in order"
    assert not psutil.pid_exists(pid)
    assert len(errors) == 1


def test_a_task_that_is_ended_while_its_job_starts_ends_it_all_the_same(
    load: SqsToSparkOperator, instance: TaskInstance, program: JobProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.does(WAITS_FOR_ITS_END)
    start = JobProcess.__init__

    def started_and_ended(self: JobProcess, *arguments: Any, **options: Any) -> None:
        start(self, *arguments, **options)
        load.on_kill()  # before the operator has the process

    monkeypatch.setattr(JobProcess, "__init__", started_and_ended)
    with pytest.raises(AirflowException):
        run(load, instance)  # which waits for the job


def test_a_job_that_does_not_end_is_killed_with_what_it_started(
    load: SqsToSparkOperator, instance: TaskInstance, program: JobProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_operator, "END_SECONDS", 0.2)
    program.does("signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork(); STARTED.write_text('1'); signal.pause()")
    thread, errors = in_the_background(lambda: run(load, instance))
    wait_for(program.started, thread)
    load.on_kill()
    thread.join(60)
    assert not thread.is_alive()  # Both held the other end of the pipe that it reads.
    assert "exit code -9" in str(errors[0])


def test_an_interrupted_task_ends_its_job(
    load: SqsToSparkOperator, instance: TaskInstance, program: JobProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    class TimedOutError(BaseException):
        """As Airflow's for execution_timeout."""

    def interrupt(self: SqsToSparkOperator, line: str) -> None:
        raise TimedOutError

    monkeypatch.setattr(SqsToSparkOperator, "_hand_on", interrupt)
    program.does(f"print('a line', flush=True){WAITS_FOR_ITS_END}")
    with pytest.raises(TimedOutError):
        run(load, instance)
    assert not psutil.pid_exists(program.noted()["pid"])


def test_a_job_is_ended_and_not_retried_when_its_messages_are_all_lost(
    load: SqsToSparkOperator, instance: TaskInstance, program: JobProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_watch, "LOOK_SECONDS", 0.05)
    program.does(WAITS_FOR_ITS_END)
    thread, errors = in_the_background(lambda: run(load, instance))
    wait_for(program.started, thread)
    instance.settle(2)
    asked = instance.asked
    while instance.asked < asked + 3:
        assert thread.is_alive()  # One is still held.
        thread.join(0.02)
    instance.settle(3)
    thread.join(60)
    assert program.ended.read_text() == "in order"
    assert isinstance(errors[0], AirflowFailException)
    assert "the messages of 'load' are no longer held" in str(errors[0])


@pytest.mark.parametrize("state", ["success", "failed"])
def test_no_job_is_started_for_messages_that_are_held_no_longer(
    load: SqsToSparkOperator, instance: TaskInstance, program: JobProgram, state: str
) -> None:
    instance.keeper_state = state
    with pytest.raises(AirflowFailException, match="Clear the sensor to receive again"):
        run(load, instance)
    assert not program.notes.exists()


def test_an_answer_that_cannot_be_had_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_watch, "LOOK_SECONDS", 0.01)
    ended: list[bool] = []
    asked: list[bool] = []

    def fail() -> bool:
        asked.append(True)
        raise RuntimeError("Airflow does not answer")

    with lost_watch.ending_when_lost(fail, lambda: ended.append(True)) as lost:
        while len(asked) < 3:
            lost.wait(0.01)
    assert not ended
    assert not lost.is_set()


def test_the_job_gets_the_connections_asked_for_and_nothing_of_airflows_own(
    program: JobProgram, instance: TaskInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DATABASE", "postgres://me:secret@host:5432/shop")
    monkeypatch.setenv(
        "AIRFLOW_CONN_LAKE",
        json.dumps(
            {
                "conn_type": "aws",
                "login": "key",
                "password": "secret",
                "extra": {"endpoint_url": "http://127.0.0.1:1", "region_name": "eu-west-1"},
            }
        ),
    )
    run(load_task(program, connections={"DATABASE": "database"}, aws_conn_id="lake"), instance)
    environment = program.noted()["environment"]
    assert environment["DATABASE"] == "postgres://me:secret@host:5432/shop"
    assert environment["AWS_ACCESS_KEY_ID"] == "key"
    assert environment["AWS_DEFAULT_REGION"] == "eu-west-1"
    assert environment["AWS_ENDPOINT_URL"] == "http://127.0.0.1:1"
    assert environment["PATH"] == os.environ["PATH"]
    assert not [name for name in environment if name.startswith("AIRFLOW")]


class Hook:
    """In place of the Spark provider's hook: what it is given, and a job that leaves a result."""

    made: Hook
    fails = ""

    def __init__(self, **arguments: Any) -> None:
        Hook.made = self
        self.arguments = arguments
        self.killed = False
        self.submitted = False
        self.messages: list[str] = []

    def submit(self, application: str) -> None:
        self.submitted = True
        self.application = application
        given = self.arguments["application_args"]
        self.manifest = Path(given[given.index("--manifest") + 1].removeprefix("file://"))
        self.messages = [message.body for message in read_manifest(self.manifest).messages]
        if self.fails:
            raise AirflowException(self.fails)
        self.result = Path(given[given.index("--result") + 1])
        self.result.write_text(RESULT.encode())

    def on_kill(self) -> None:
        self.killed = True


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> type[Hook]:
    name = "airflow.providers.apache.spark.hooks.spark_submit"
    module: Any = ModuleType(name)
    module.SparkSubmitHook = Hook
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(Hook, "fails", "")
    return Hook


def submitting(program: JobProgram, tmp_path: Path) -> SqsToSparkOperator:
    spec = {**SPEC, "workspace": str(tmp_path / "shared")}
    return load_task(program, spec=spec, submit_conn_id="cluster", submit_options={"conf": {"a": "b"}})


def test_a_job_is_submitted_with_its_files_in_the_workspace(
    hook: type[Hook], program: JobProgram, instance: TaskInstance, tmp_path: Path
) -> None:
    load = submitting(program, tmp_path)
    assert run(load, instance)["ingested"] == 2
    made = hook.made
    assert (made.arguments["conn_id"], made.arguments["conf"]) == ("cluster", {"a": "b"})
    assert Path(made.application).parts[-4:] == ("sqs_lease", "spark", "job", "__main__.py")
    assert Path(made.application).is_file()
    assert made.messages == ["body 0", "body 1", "body 2"]
    assert not made.manifest.exists()
    assert not made.result.exists()


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("Cannot execute: spark-submit", "^Cannot execute: spark-submit$"),
        (
            "Cannot execute: spark-submit\nINFO error: none\nerror: table /data is a file\nINFO Shutdown hook called",
            "^table /data is a file$",
        ),
    ],
    ids=["by the hook's error", "by its own error"],
)
def test_a_submitted_job_that_fails_fails_the_task_and_leaves_no_files(
    hook: type[Hook],
    program: JobProgram,
    instance: TaskInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    error: str,
) -> None:
    monkeypatch.setattr(hook, "fails", said)
    with pytest.raises(AirflowException, match=error):
        run(submitting(program, tmp_path), instance)
    assert [path for path in (tmp_path / "shared").rglob("*") if path.is_file()] == []


def test_a_job_is_not_submitted_after_its_task_was_ended(
    hook: type[Hook], program: JobProgram, instance: TaskInstance, tmp_path: Path
) -> None:
    load = submitting(program, tmp_path)
    load.on_kill()
    with pytest.raises(AirflowException, match="ended before its job was submitted"):
        run(load, instance)
    assert not hook.made.submitted


def test_a_submitted_job_is_ended_by_the_providers_hook(
    hook: type[Hook], program: JobProgram, instance: TaskInstance, tmp_path: Path
) -> None:
    load = submitting(program, tmp_path)
    run(load, instance)
    load.on_kill()
    assert hook.made.killed


def test_a_missing_provider_is_said(
    program: JobProgram, instance: TaskInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "airflow.providers.apache.spark.hooks.spark_submit", None)
    with pytest.raises(AirflowFailException, match="pip install --no-deps apache-airflow-providers-apache-spark"):
        run(submitting(program, tmp_path), instance)
