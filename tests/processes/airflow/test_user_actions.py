"""The outcome of messages when a user acts on their tasks, runs and DAGs, or their processes are killed.

The DAGs of `dags_actions/actions.py` run at the same time, each on a queue of its own that a second consumer polls.
Each is acted on as soon as its keeper holds its messages; the tests then look at what became of them, and how fast.
`docs/user-actions.md` has the outcomes for users.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import nan
from pathlib import Path
from time import time

import pytest

from demo.airflow_api import AirflowApi
from demo.airflow_stack import migrated_postgres
from demo.postgres import postgres_server
from demo.processes import pause_seconds
from demo.sessions import send_signal
from tests.processes.airflow.failover.dags_actions.actions import (
    CLOSED,
    DEFERRAL_SECONDS,
    GATE,
    HANDOFF_SECONDS,
    RUN_TIMEOUT_SECONDS,
    SHORT_VISIBILITY_SECONDS,
)
from tests.processes.airflow.failover.stage import Stage, stage

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1500)]

logger = logging.getLogger(__name__)

DAGS_FOLDER = Path(__file__).parent / "failover" / "dags_actions"
MESSAGES = 2
KEEPER = "orders_keeper"
HEARTBEAT_SECONDS = 30
HELD_SECONDS = 2 * SHORT_VISIBILITY_SECONDS + 5
DEADLINE_SECONDS = 360.0


class When(Enum):
    """When a run is acted on."""

    RECEIVED = "its sensor has messages, and waits for more"
    HANDED = "its sensor succeeded, and its keeper is not started yet"
    KEPT = "its keeper holds the messages"
    WORKING = "its keeper holds the messages, and its work runs"
    BETWEEN = "its keeper holds the messages, its first stage has succeeded, and its second one has not begun"


class Outcome(Enum):
    """The outcome of all messages of a queue."""

    RETURNED = "the second consumer was given them"
    DELETED = "they were deleted, and the second consumer was given none"
    SHARED = "some were given to the second consumer, and the cleared run received the others itself"


Act = Callable[["Scene", str, str], None]
"""An action on a run, given the scene, and the ids of its DAG and its own."""


@dataclass(frozen=True, slots=True)
class Case:
    """One DAG, what is done to its run, and what is to become of its messages.

    Attributes:
        dag_id: The DAG, named after what is done.
        when: When that is done.
        act: The action.
        outcome: The outcome that the messages must have.
        within_seconds: How long that may take.
        not_before_seconds: How long it takes at least; for those whose keeper never arrives, from when their sensor
            had received them: it is seen later that it did.
        later: How many of the messages are sent by what is done.
    """

    dag_id: str
    when: When
    act: Act
    outcome: Outcome
    within_seconds: float
    not_before_seconds: float = 0.0
    later: int = 0

    def __str__(self) -> str:
        return self.dag_id


def marked(task_id: str, state: str) -> Act:
    """Mark a task."""
    return lambda scene, dag_id, run_id: scene.api.mark_task(dag_id, run_id, task_id, state)


def cleared(task_id: str) -> Act:
    """Clear a task."""
    return lambda scene, dag_id, run_id: scene.api.clear_task(dag_id, run_id, task_id)


def run_cleared(scene: Scene, dag_id: str, run_id: str) -> None:
    """Clear the whole run."""
    scene.api.clear_run(dag_id, run_id)


def run_marked(state: str) -> Act:
    """Mark the run."""
    return lambda scene, dag_id, run_id: scene.api.mark_run(dag_id, run_id, state)


def killed(processes: int) -> Act:
    """Kill the work's process, or before it its supervisor's, which could tell Airflow of it."""
    return lambda scene, dag_id, run_id: send_signal(scene.process_ids(dag_id)[-processes:], signal.SIGKILL)


def paused(scene: Scene, dag_id: str, run_id: str) -> None:
    """Pause the DAG, and only then send what its sensor waits for: no keeper can have been started before."""
    scene.api.pause(dag_id)
    scene.stage.send(dag_id, 1)


def deleted(scene: Scene, dag_id: str, run_id: str) -> None:
    """Delete the DAG."""
    scene.api.delete_dag(dag_id)


def nothing(scene: Scene, dag_id: str, run_id: str) -> None:
    """Airflow itself acts."""


DELETED = ("dag_deleted", "kept_dag_deleted")
"""They come last: Airflow's scheduler dies when a DAG is deleted whose run it is at work on, and is started again."""

HURRIED = ("run_timeout", "sensor_deferral", "keeper_deferral")
"""The DAGs for which Airflow's own clocks run from the start: they come as far as they must before the others begin."""

KILLED = ("task_killed", "supervisor_killed")
"""The DAGs whose work's processes are killed."""

LOADED_SECONDS = 60.0
"""How much longer than it takes anything may take on a loaded machine."""

CASES = [
    Case("keeper_failed", When.KEPT, marked(KEEPER, "failed"), Outcome.RETURNED, LOADED_SECONDS),
    Case("keeper_success", When.KEPT, marked(KEEPER, "success"), Outcome.RETURNED, LOADED_SECONDS),
    Case("keeper_cleared", When.KEPT, cleared(KEEPER), Outcome.DELETED, DEADLINE_SECONDS, HELD_SECONDS),
    Case("work_cleared", When.WORKING, cleared("run"), Outcome.DELETED, 60 + LOADED_SECONDS),
    Case("work_failed", When.WORKING, marked("run", "failed"), Outcome.RETURNED, LOADED_SECONDS),
    Case("work_success", When.WORKING, marked("run", "success"), Outcome.DELETED, LOADED_SECONDS),
    Case("run_failed", When.WORKING, run_marked("failed"), Outcome.RETURNED, LOADED_SECONDS),
    Case("run_success", When.WORKING, run_marked("success"), Outcome.DELETED, LOADED_SECONDS),
    # Its sensor receives again as the second consumer does, and its second try works on what it got.
    Case("run_cleared", When.WORKING, run_cleared, Outcome.SHARED, 60 + LOADED_SECONDS),
    Case("pending_run_success", When.KEPT, run_marked("success"), Outcome.RETURNED, LOADED_SECONDS),
    Case("stages_run_failed", When.BETWEEN, run_marked("failed"), Outcome.RETURNED, LOADED_SECONDS),
    Case("stages_run_success", When.BETWEEN, run_marked("success"), Outcome.RETURNED, LOADED_SECONDS),
    Case("run_timeout", When.KEPT, nothing, Outcome.RETURNED, RUN_TIMEOUT_SECONDS + LOADED_SECONDS),
    Case("kept_dag_deleted", When.KEPT, deleted, Outcome.RETURNED, LOADED_SECONDS),
    Case("sensor_deferral", When.RECEIVED, nothing, Outcome.RETURNED, DEFERRAL_SECONDS + 35 + LOADED_SECONDS),
    Case("keeper_deferral", When.KEPT, nothing, Outcome.RETURNED, DEFERRAL_SECONDS + 60 + LOADED_SECONDS),
    Case("pool_full", When.HANDED, nothing, Outcome.RETURNED, HANDOFF_SECONDS + LOADED_SECONDS, HANDOFF_SECONDS - 1),
    Case(
        "dag_paused",
        When.RECEIVED,
        paused,
        Outcome.RETURNED,
        HANDOFF_SECONDS + LOADED_SECONDS,
        HANDOFF_SECONDS - 1,
        1,
    ),
    Case("dag_deleted", When.HANDED, deleted, Outcome.RETURNED, HANDOFF_SECONDS + LOADED_SECONDS),
    Case("task_killed", When.WORKING, killed(1), Outcome.RETURNED, LOADED_SECONDS),
    Case(
        "supervisor_killed",
        When.WORKING,
        killed(2),
        Outcome.RETURNED,
        HEARTBEAT_SECONDS + LOADED_SECONDS,
        HEARTBEAT_SECONDS / 2,
    ),
]


@dataclass(slots=True)
class Scene:
    """The runs, and what happened to them.

    Attributes:
        stage: Where.
        processes: The directory where running work tells its processes.
        runs: The runs by DAG.
        acted_at: When each was acted on, in seconds since the epoch.
        ended_at: When the fate of all of its messages was seen; for those that came back, when they did.
    """

    stage: Stage
    processes: Path
    runs: dict[str, str] = field(default_factory=dict)
    acted_at: dict[str, float] = field(default_factory=dict)
    ended_at: dict[str, float] = field(default_factory=dict)

    @property
    def api(self) -> AirflowApi:
        """Airflow's API."""
        return self.stage.stack.api

    def process_ids(self, dag_id: str) -> list[int]:
        """The running work's supervisor and its own process."""
        process, supervisor = (int(pid) for pid in (self.processes / dag_id).read_text().split())
        return [supervisor, process]

    def outcome(self, dag_id: str) -> Outcome | None:
        """The outcome of all messages of a queue; None while that is open."""
        with_others, left = len(self.stage.received_by_others(dag_id)), self.stage.left(dag_id)
        if dag_id == "run_cleared":
            return Outcome.SHARED if with_others == left else None
        if with_others == MESSAGES:
            return Outcome.RETURNED
        return Outcome.DELETED if left == 0 else None

    def seconds_after_failure(self, dag_id: str) -> float:
        """How long after Airflow set the work to failed the messages came back."""
        (failed_at,) = (t.ended_at for t in self.api.task_states(dag_id, self.runs[dag_id]) if t.task_id == "run")
        return nan if failed_at is None else self.ended_at.get(dag_id, nan) - failed_at

    def seconds_held(self, case: Case) -> float:
        """How long the messages of a DAG were held at least."""
        since = self.acted_at[case.dag_id]
        if case.when in (When.RECEIVED, When.HANDED):
            (since,) = (
                line.at for line in self.stage.log_lines("orders", "Received", dag_id=case.dag_id, of_workers=True)
            )
        return self.ended_at[case.dag_id] - since

    def play(self) -> None:
        """Start all runs, act on each in its time, and look on until all messages met their fate, or it is too late."""
        for name in (GATE, CLOSED):
            self.api.set_pool(name, 0)
        # The first of all waits for the first answers of Airflow's processes: half a minute each on a busy machine.
        first, *others = CASES
        hurried = [case for case in others if case.dag_id in HURRIED]
        for cases in ([first], hurried):
            self._begin(cases)
            ends_at = time() + DEADLINE_SECONDS
            while not {case.dag_id for case in cases} <= self.acted_at.keys() and time() < ends_at:
                self._look_at_all()
        deleted = [case for case in others if case.dag_id in DELETED]
        self._begin([case for case in others if case not in hurried and case not in deleted])
        ends_at = time() + DEADLINE_SECONDS
        while len(self.ended_at) < len(CASES) and time() < ends_at:
            if deleted and len(self.ended_at) == len(self.runs):
                self._begin([deleted.pop(0)])
            self._look_at_all()
            if time() > self.acted_at.get("keeper_cleared", ends_at) + HELD_SECONDS:
                self.api.set_pool(GATE, 1)

    def _begin(self, cases: Sequence[Case]) -> None:
        for case in cases:
            self.stage.fill(case.dag_id, MESSAGES - case.later, later=case.later)
            self.stage.stack.wait_for_dag(case.dag_id)
            self.runs[case.dag_id] = self.api.trigger(case.dag_id)

    def _look_at_all(self) -> None:
        looked_at = time()
        for case in CASES:
            if case.dag_id in self.runs:
                self._look_at(case)
        if self.runs.keys() & set(DELETED) and not self.stage.stack.processes["scheduler"].is_running:
            self.stage.stack.start("scheduler")
        self.stage.pause(pause_seconds(time() - looked_at))

    def _look_at(self, case: Case) -> None:
        dag_id = case.dag_id
        if dag_id not in self.acted_at:
            # Before it polls, it would wait for what is about to come back.
            is_watched = case.later > 0 or self.stage.consumers[dag_id].is_polling
            if is_watched and self._is_time_for(case):
                case.act(self, dag_id, self.runs[dag_id])
                self.acted_at[dag_id] = time()
        elif dag_id not in self.ended_at and (outcome := self.outcome(dag_id)) is not None:
            came_back = outcome is Outcome.RETURNED
            self.ended_at[dag_id] = max(self.stage.received_by_others(dag_id)) if came_back else time()

    def _is_time_for(self, case: Case) -> bool:
        match case.when:
            case When.RECEIVED:
                return self.stage.in_flight(case.dag_id) == MESSAGES - case.later
            case When.HANDED:
                # Not by its log, which is ahead: a triggerer of Airflow's dies of a DAG that is deleted in between.
                states = self.api.task_states(case.dag_id, self.runs[case.dag_id])
                return any(task.task_id == "orders" and task.state == "success" for task in states)
            case When.KEPT:
                return bool(self.stage.log_lines(KEEPER, "Keeping", dag_id=case.dag_id))
            case When.WORKING:
                kept = bool(self.stage.log_lines(KEEPER, "Keeping", dag_id=case.dag_id))
                return kept and (self.processes / case.dag_id).exists()
            case When.BETWEEN:
                kept = bool(self.stage.log_lines(KEEPER, "Keeping", dag_id=case.dag_id))
                return kept and self.stage.state(case.dag_id, self.runs[case.dag_id], "extract") == "success"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    home = tmp_path_factory.mktemp("airflow")
    processes = tmp_path_factory.mktemp("processes")
    environment = {
        "PROCESSES": str(processes),
        "AIRFLOW__CORE__PARALLELISM": "14",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(HEARTBEAT_SECONDS),
    }
    with (
        postgres_server(migrated_postgres()) as database,
        stage(home, DAGS_FOLDER, environment, database_url=database.url) as here,
    ):
        played = Scene(here, processes)
        played.play()
        for case in CASES:
            seconds = played.ended_at.get(case.dag_id, nan) - played.acted_at.get(case.dag_id, nan)
            logger.info("%s: after %.1f s", case, seconds)
        for dag_id in KILLED:
            logger.info("%s: %.1f s after Airflow knew of it", dag_id, played.seconds_after_failure(dag_id))
        yield played


@pytest.mark.parametrize("case", CASES, ids=str)
def test_messages_meet_the_fate_that_the_docs_tell(scene: Scene, case: Case) -> None:
    assert case.dag_id in scene.acted_at, f"not reached in {DEADLINE_SECONDS:g} s: {case.when.value}"
    assert scene.outcome(case.dag_id) is case.outcome
    assert scene.ended_at[case.dag_id] - scene.acted_at[case.dag_id] <= case.within_seconds
    if case.not_before_seconds:
        assert scene.seconds_held(case) >= case.not_before_seconds


def test_a_cleared_keeper_or_work_holds_its_messages_all_the_time(scene: Scene) -> None:
    assert scene.stage.received_by_others("keeper_cleared") == []
    assert scene.stage.received_by_others("work_cleared") == []


@pytest.mark.parametrize("dag_id", KILLED)
def test_messages_come_back_within_seconds_of_airflow_knowing_that_their_work_was_killed(
    scene: Scene, dag_id: str
) -> None:
    # It takes 1 to 3 s; the rest is for a loaded machine, and for the second consumer's own polling.
    assert -1 <= scene.seconds_after_failure(dag_id) <= LOADED_SECONDS
