"""Two schedulers and two API servers: of each, one is killed in the middle of the work.

The executor is the LocalExecutor, so the tasks of the killed scheduler die with it, and the other scheduler starts them
again. Workers reach the API servers through a load balancer, which one needs for more than one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Final

import pytest

from demo.airflow_api import AirflowApi
from demo.processes import LOOPBACK, ServerProcess, free_port
from tests.processes.airflow.production_shapes.balancer import Balancer, balancing
from tests.processes.airflow.production_shapes.scene import LOADED_SECONDS, Scene, scene

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1200)]

logger = logging.getLogger(__name__)

DAGS_FOLDER: Final = Path(__file__).parent / "dags"
VISIBILITY_SECONDS: Final = 30
HEARTBEAT_SECONDS: Final = 30
SECOND_API_SERVER: Final = "api-server-2"
SECOND_SCHEDULER: Final = "scheduler-2"

BODIES: Final = ["good 1", "good 2", "good 3", "bad 1", "bad 2", "bad 3", "long 1", "long 2", "long 3", "long 4"]


@dataclass(slots=True)
class Story:
    """The events and measurements of the DAG's run.

    Attributes:
        scene: Where.
        balancer: The load balancer before the API servers.
        lost: The messages whose work died with its scheduler.
        again_after: How long after that the last of their tasks had begun again, in seconds.
        seen_before_failing: The messages of another consumer before work failed by itself.
        failed_latencies: How long after its task failed a message was received by another consumer, in seconds.
        state: The state of the run at its end.
    """

    scene: Scene
    balancer: Balancer
    lost: list[str] = field(default_factory=list)
    again_after: float = 0.0
    seen_before_failing: list[str] = field(default_factory=list)
    failed_latencies: list[float] = field(default_factory=list)
    state: str = ""

    def play(self) -> None:
        """Kill a scheduler, then an API server as messages are about to fail, and let everything end."""
        here = self.scene
        stack = here.stage.stack
        port = free_port()
        second = stack.start(SECOND_SCHEDULER)
        stack.start(SECOND_API_SERVER, "--port", str(port))
        self.balancer.server_ports = [int(stack.url.rpartition(":")[2]), port]
        with AirflowApi(f"http://{LOOPBACK}:{port}") as api:
            here.wait_until(lambda: bool(api.health()), "beside two API servers")
        here.wait_until(
            lambda: "Starting the scheduler" in second.log_path.read_text(errors="replace"), "beside two schedulers"
        )
        here.begin("kept", BODIES)
        here.wait_for_keeper("kept")
        waiting = [body for body in BODIES if not body.startswith("good")]
        here.wait_for_starts(BODIES)
        killed = self._scheduler_of(waiting[-1])
        self.lost = [body for body in waiting if here.starts(body)[0].session == killed.pid]
        killed.kill()
        killed_at = time()
        here.wait_for_starts(self.lost, times=2)
        self.again_after = max(here.starts(body)[1].at for body in self.lost) - killed_at
        here.hold("kept", max(killed_at + 2.5 * VISIBILITY_SECONDS - time(), 0.0))
        self.seen_before_failing = here.received_by_others("kept")
        stack.processes[SECOND_API_SERVER].kill()
        here.open_gate("fail")
        self.failed_latencies = here.wait_for_failed("kept")
        here.open_gate("finish")
        self.state = here.wait_for_end("kept")

    def _scheduler_of(self, body: str) -> ServerProcess:
        """The scheduler whose LocalExecutor runs the work of a message."""
        processes = self.scene.stage.stack.processes
        (start,) = self.scene.starts(body)
        (scheduler,) = (one for name, one in processes.items() if "scheduler" in name and one.pid == start.session)
        return scheduler


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    home = tmp_path_factory.mktemp("airflow")
    settings = {
        "AIRFLOW__CORE__PARALLELISM": "10",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": str(HEARTBEAT_SECONDS),
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(HEARTBEAT_SECONDS),
        "VISIBILITY_SECONDS": str(VISIBILITY_SECONDS),
    }
    with balancing() as balancer:
        settings["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] = f"http://{LOOPBACK}:{balancer.port}/execution/"
        with scene(home, DAGS_FOLDER, settings) as here:
            told = Story(here, balancer)
            told.play()
            logger.info("scheduler killed -> its tasks began again: %.1f s", told.again_after)
            logger.info("task failed -> message received by another consumer: %s s", told.failed_latencies)
            yield told


def test_work_of_a_killed_scheduler_is_done_again_by_the_other_one(story: Story) -> None:
    assert story.lost != []
    for body in story.lost:
        first, second = story.scene.starts(body)
        assert first.session != second.session
    assert all(len(story.scene.starts(body)) == 1 for body in BODIES if body not in story.lost)


def test_both_api_servers_are_at_work(story: Story) -> None:
    assert min(story.balancer.connections[port] for port in story.balancer.server_ports) >= 3


def test_no_other_consumer_is_given_a_message_before_its_work_failed(story: Story) -> None:
    assert story.seen_before_failing == []


def test_messages_of_successful_work_are_deleted_and_those_of_failed_work_come_back_once(story: Story) -> None:
    here = story.scene
    assert here.outcomes("kept") == here.expected_outcomes("kept")
    assert here.received_by_others("kept") == ["bad 1", "bad 2", "bad 3"]
    assert here.stage.left("kept") == 3
    assert story.state == "failed"


def test_messages_are_visible_within_seconds_although_an_api_server_was_killed_as_their_work_failed(
    story: Story,
) -> None:
    # It takes about one; the rest is for a loaded machine.
    assert story.failed_latencies[0] > 0
    assert story.failed_latencies[-1] < LOADED_SECONDS
