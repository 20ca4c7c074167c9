"""Triggerers that serve queues: two for one queue, of which one is killed, one for another queue, which comes late.

One more, without `--queues`, runs what belongs to no queue: the triggers of asset watchers. It comes late, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Final

import pytest

from demo.airflow_stack import SECOND_TRIGGERER
from tests.processes.airflow.production_shapes.scene import KEEPER, LOADED_SECONDS, Scene, scene

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1500)]

logger = logging.getLogger(__name__)

DAGS_FOLDER: Final = Path(__file__).parent / "dags_queues"
VISIBILITY_SECONDS: Final = 180
"""So long that a third of it, the least that is left of a lease that grew, outlasts a takeover."""
LATE_VISIBILITY_SECONDS: Final = 12
THRESHOLD_SECONDS: Final = 20

FIRST: Final = "triggerer"
OF_LATE_QUEUE: Final = "triggerer-3"
OF_NO_QUEUE: Final = "triggerer-4"

BODIES: Final = {
    queue: [f"{kind} {queue}" for kind in ("good", "bad", "long")]
    for queue in ("queued", "late_keeper", "late", "watched")
}
QUEUES: Final = {"queued": "queued", "late_keeper": "late_keeper", "late": "late", "by_event": "watched"}
"""The queue of each DAG."""


@dataclass(slots=True)
class Story:
    """The events and measurements of the DAGs' runs.

    Attributes:
        scene: Where.
        late_keeper_state: The state of the keeper without a triggerer, when it had none for long.
        held_late: How many of its messages were in flight then.
        taken_late: How many messages were in flight then whose watcher had no triggerer.
        begun_after: How long after their triggerer's start the late keepers held their messages, in seconds, by DAG.
        takeover_seconds: How long after the first triggerer was killed the other one of its queue held the messages.
        seen_before_failing: The messages of other consumers before work failed, by queue.
        failed_latencies: How long after its task failed a message was received by another consumer, in seconds.
        states: The states of the runs at their end, by DAG.
    """

    scene: Scene
    late_keeper_state: str | None = None
    held_late: int = 0
    taken_late: int = -1
    begun_after: dict[str, float] = field(default_factory=dict)
    takeover_seconds: float = 0.0
    seen_before_failing: dict[str, list[str]] = field(default_factory=dict)
    failed_latencies: list[float] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)

    def play(self) -> None:
        """Start triggerers one after the other, kill the first of them, and let everything end."""
        here = self.scene
        stack = here.stage.stack
        first = stack.start(FIRST, "--queues", "leases")
        here.stage.wait_for_triggerers(1)
        here.fill("watched", BODIES["watched"])
        for dag_id in ("queued", "late_keeper", "late"):
            here.begin(dag_id, BODIES[dag_id])
        here.wait_for_keeper("queued")
        late = len(BODIES["late_keeper"])
        here.wait_until(lambda: here.stage.in_flight("late_keeper") == late, "in flight for a late keeper")
        here.wait_until(lambda: self._state_of_late_keeper() == "deferred", "beside a deferred keeper")
        here.hold("late_keeper", 2.5 * LATE_VISIBILITY_SECONDS)
        self.late_keeper_state = self._state_of_late_keeper()
        self.held_late = here.stage.in_flight("late_keeper")
        self.taken_late = here.stage.in_flight("watched")
        came_at = time()
        stack.start(OF_LATE_QUEUE, "--queues", "late")
        stack.start(OF_NO_QUEUE)
        stack.start(SECOND_TRIGGERER, "--queues", "leases")
        self.begun_after = {dag_id: here.wait_for_keeper(dag_id) - came_at for dag_id in QUEUES if dag_id != "queued"}
        here.stage.wait_for_triggerers(4)
        here.runs["by_event"] = min(here.api.run_states("by_event"))
        killed_at = time()
        first.kill()
        self.takeover_seconds = here.wait_for_keeper("queued", since=killed_at) - killed_at
        received_at = min(
            line.at for line in here.stage.log_lines("orders", "Received", dag_id="queued", of_workers=True)
        )
        here.hold("queued", max(received_at + VISIBILITY_SECONDS + 10 - time(), 1.0))
        here.wait_for_starts([body for bodies in BODIES.values() for body in bodies])
        self.seen_before_failing = {queue: here.received_by_others(queue) for queue in BODIES}
        here.open_gate("fail")
        self.failed_latencies = sorted(one for queue in BODIES for one in here.wait_for_failed(queue))
        here.open_gate("finish")
        self.states = {dag_id: here.wait_for_end(dag_id) for dag_id in QUEUES}

    def _state_of_late_keeper(self) -> str | None:
        return self.scene.stage.state("late_keeper", self.scene.runs["late_keeper"], KEEPER)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    settings = {
        "AIRFLOW__CORE__PARALLELISM": "16",
        "AIRFLOW__TRIGGERER__QUEUES_ENABLED": "True",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": str(THRESHOLD_SECONDS),
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "VISIBILITY_SECONDS": str(VISIBILITY_SECONDS),
        "LATE_VISIBILITY_SECONDS": str(LATE_VISIBILITY_SECONDS),
    }
    components = ("api-server", "scheduler", "dag-processor")
    with scene(tmp_path_factory.mktemp("airflow"), DAGS_FOLDER, settings, components=components) as here:
        told = Story(here)
        told.play()
        for dag_id, seconds in told.begun_after.items():
            logger.info("triggerers of its queues started -> messages of %s held: %.1f s", dag_id, seconds)
        logger.info("triggerer killed -> another one of its queue holds the messages: %.1f s", told.takeover_seconds)
        logger.info("task failed -> message received by another consumer: %s s", told.failed_latencies)
        yield told


def test_messages_are_held_while_no_triggerer_serves_the_queue_of_their_keeper(story: Story) -> None:
    assert story.late_keeper_state == "deferred"
    assert story.held_late == len(BODIES["late_keeper"])


def test_nothing_is_received_for_a_run_that_messages_start_while_no_triggerer_runs_their_watcher(story: Story) -> None:
    assert story.taken_late == 0


def test_another_triggerer_of_the_queue_takes_over_from_one_that_was_killed(story: Story) -> None:
    # How soon depends on the machine; that it is before a message is visible is what is promised.
    assert THRESHOLD_SECONDS / 2 < story.takeover_seconds < VISIBILITY_SECONDS


def test_no_other_consumer_is_given_a_message_before_its_work_failed(story: Story) -> None:
    assert story.seen_before_failing == {queue: [] for queue in BODIES}


@pytest.mark.parametrize("dag_id", QUEUES)
def test_messages_of_successful_work_are_deleted_and_those_of_failed_work_come_back_once(
    story: Story, dag_id: str
) -> None:
    here, queue = story.scene, QUEUES[dag_id]
    assert here.outcomes(dag_id) == here.expected_outcomes(queue)
    assert here.received_by_others(queue) == [f"bad {queue}"]
    assert here.stage.left(queue) == 1
    good, bad, long = (len(here.starts(body)) for body in BODIES[queue])
    assert (good, long) == (1, 1)
    # Another run of the DAG receives as well, and may be faster than the other consumer.
    assert bad >= 1 if dag_id == "by_event" else bad == 1
    assert story.states[dag_id] == "failed"


def test_messages_of_failed_work_are_visible_within_seconds(story: Story) -> None:
    # It takes about one; the rest is for a loaded machine.
    assert story.failed_latencies[0] > 0
    assert story.failed_latencies[-1] < LOADED_SECONDS
