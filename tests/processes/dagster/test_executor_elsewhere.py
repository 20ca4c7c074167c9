"""One batch over a run whose steps run elsewhere: in processes that share nothing with the run worker but a directory.

This process is the run worker, with queues in memory, but where the run worker is killed: that is a process of its own
on a real SQS server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import dagster as dg
import pytest
from dagster._utils.interrupts import capture_interrupts

from demo.sqs_server import SqsServer
from sqs_lease.dagster.run_batch.parent_watch import INTERRUPTED_SECONDS
from sqs_lease.testing.leased_queues import LeasedQueue, LeasedQueues
from tests.dagster.evidence import DIRECTORY_VARIABLE, Note, notes
from tests.dagster.executor_runs import Runs, numbers, runs_in
from tests.processes.dagster import far_jobs
from tests.processes.dagster.far_jobs import VISIBILITY_SECONDS, is_at_work
from tests.second_consumer import SecondConsumer

pytestmark = pytest.mark.processes

DEADLINE_SECONDS = 150.0


@pytest.fixture(autouse=True)
def evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    yield tmp_path
    # Where a test failed, they may be at work still.
    for step in ("obedient", "stubborn"):
        for pid in {each.pid for each in notes(tmp_path, step)}:
            if is_at_work(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with runs_in(tmp_path_factory.mktemp("workspace")) as runs:
        yield runs


@pytest.fixture
def runs(made: Runs) -> Iterator[Runs]:
    yield made
    assert list(made.workspace.iterdir()) == []


@pytest.fixture
def queue(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> LeasedQueue:
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    return leased_queues.create("orders", visibility_seconds=600)


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def told(evidence: Path, step: str, what: str) -> list[Note]:
    return [each for each in notes(evidence, step) if each.what == what]


def test_a_batch_is_held_while_steps_elsewhere_work_longer_than_it_is_invisible(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a", "bad")
    work = {"seconds": VISIBILITY_SECONDS * 0.75}
    result = runs.execute(
        far_jobs.orders, {"check": work, "load": work, "report": {**work, "fails": ["bad"]}}, executor={}
    )
    assert result.success
    assert (queue.visible, queue.invisible, queue.deleted) == (["bad"], [], 1)
    assert numbers(result)["sqs/extensions"] >= 2
    assert numbers(result)["sqs/lost"] == 0


def test_a_step_elsewhere_that_is_retried_has_the_same_messages_and_its_last_try_counts(
    runs: Runs, queue: LeasedQueue
) -> None:
    queue.send("a", "b")
    wrong = {"raises": True, "fails": ["a"], "wrong_tries": 1, "fails_at_last": ["b"]}
    assert runs.execute(far_jobs.orders, {"load": wrong}, executor={}).success
    assert (queue.visible, queue.dead_letters, queue.deleted) == (["b"], [], 1)


def test_a_step_elsewhere_that_fails_for_good_fails_all_by_the_rule_of_its_exception(
    runs: Runs, queue: LeasedQueue
) -> None:
    queue.send("a", "b")
    assert not runs.execute(far_jobs.orders, {"report": {"raises": True}}, executor={}).success
    assert (queue.visible, queue.dead_letters) == ([], ["a", "b"])


def test_messages_of_a_step_elsewhere_that_was_killed_come_back(runs: Runs, queue: LeasedQueue) -> None:
    queue.send("a", "b")
    assert not runs.execute(far_jobs.orders, {"report": {"is_killed": True}}, executor={}).success
    assert (sorted(queue.visible), queue.deleted) == (["a", "b"], 0)


def test_steps_that_do_not_reach_the_messages_fail_at_once_and_say_what_is_needed(
    runs: Runs, queue: LeasedQueue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    queue.send("a")
    result = runs.execute(far_jobs.unreached, executor={})
    assert not result.success
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    assert "BatchFolderError" in str(failed.step_failure_data.error)
    assert "shared volume at the same path" in str(failed.step_failure_data.error)
    assert (queue.visible, queue.dead_letters) == (["a"], [])


def test_steps_elsewhere_end_before_the_messages_of_a_terminated_run_are_given_back(
    runs: Runs, queue: LeasedQueue, evidence: Path
) -> None:
    queue.send("a")

    def terminate() -> None:
        wait_until(lambda: bool(told(evidence, "obedient", "received") and told(evidence, "stubborn", "received")))
        os.kill(os.getpid(), signal.SIGINT)

    thread = Thread(target=terminate)
    thread.start()
    with capture_interrupts():
        result = runs.execute(far_jobs.endless, executor={})
    thread.join()
    given_back_at = time.time()
    assert not result.success
    assert queue.visible == ["a"]
    (interrupted,) = told(evidence, "obedient", "interrupted")
    assert interrupted.at < given_back_at
    # It went on, and its process was ended.
    assert told(evidence, "stubborn", "goes on") != []
    assert not is_at_work(told(evidence, "stubborn", "received")[0].pid)


def test_steps_elsewhere_end_before_messages_are_given_back_because_their_executor_failed(
    runs: Runs, queue: LeasedQueue, evidence: Path
) -> None:
    queue.send("a")
    result = runs.execute(far_jobs.broken, executor={})
    given_back_at = time.time()
    (failed,) = (event for event in result.all_events if event.is_job_failure)
    assert "the cluster is away" in str(failed.job_failure_data.error)
    assert (queue.visible, queue.dead_letters) == (["a"], [])
    (interrupted,) = told(evidence, "obedient", "interrupted")
    assert interrupted.at < given_back_at


def test_when_the_run_worker_is_killed_its_steps_elsewhere_end_before_others_receive_its_messages(
    server: SqsServer, evidence: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sqs = server.sqs_client()
    url = sqs.create_queue(QueueName="far", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="a")
    consumer = SecondConsumer(server.sqs_client(), url, 1)
    with dg.instance_for_test() as instance:
        environment = {
            **os.environ,
            **server.environment,
            "DAGSTER_HOME": instance.root_directory,
            "ORDERS_QUEUE": url,
            "ORDERS_WORKSPACE": str(tmp_path_factory.mktemp("workspace")),
            "PYTHONPATH": str(far_jobs.ROOT),
        }
        worker = subprocess.Popen([sys.executable, "-m", "tests.processes.dagster.far_worker"], env=environment)
        try:
            wait_until(lambda: bool(told(evidence, "obedient", "received") and told(evidence, "stubborn", "received")))
            with consumer.polling():
                wait_until(lambda: consumer.polls > 0)
                killed_at = time.time()
                worker.send_signal(signal.SIGKILL)
                pids = [told(evidence, step, "received")[0].pid for step in ("obedient", "stubborn")]
                wait_until(lambda: not any(map(is_at_work, pids)))
                ended_at = time.time()
                (reception,) = consumer.received(1, DEADLINE_SECONDS)
        finally:
            worker.kill()
            worker.wait()
    (interrupted,) = told(evidence, "obedient", "interrupted")
    assert killed_at < interrupted.at < ended_at < reception.at
    assert told(evidence, "stubborn", "goes on") != []
    assert reception.at - interrupted.at < VISIBILITY_SECONDS
    assert ended_at - interrupted.at < INTERRUPTED_SECONDS + 10
