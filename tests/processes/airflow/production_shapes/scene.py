"""One Airflow of a production shape: runs under way, gates for their work, and what became of their messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from demo.airflow_api import FINAL_RUN_STATES, AirflowApi
from demo.airflow_stack import COMPONENTS, migrated_postgres
from demo.postgres import postgres_server
from demo.processes import ROOT, pause, wait_until
from tests.processes.airflow.failover.stage import Stage, stage
from tests.processes.airflow.production_shapes.gated_work import PLACE
from tests.second_consumer import SecondConsumer

logger = logging.getLogger(__name__)

KEEPER: Final = "orders_keeper"

HELD: Final = ("Keeping",)
"""Text in the log of a keeper's trigger that holds the messages."""

LOADED_SECONDS: Final = 60.0
"""How much longer than it takes anything may take on a loaded machine."""

DEADLINE_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a message's work.

    Attributes:
        pid: Its process.
        session: The session of that process, which is the process id of the component that it belongs to.
        at: When, in seconds since the epoch.
    """

    pid: int
    session: int
    at: float


@dataclass(slots=True)
class Scene:
    """Airflow, an SQS server, and work that waits at gates.

    Attributes:
        stage: Airflow and the queues.
        place: The directory of gates and starts.
        bodies: The bodies that were sent, by queue.
        runs: The last run by DAG.
    """

    stage: Stage
    place: Path
    bodies: dict[str, list[str]] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)

    @property
    def api(self) -> AirflowApi:
        """Airflow's API."""
        return self.stage.stack.api

    def begin(self, dag_id: str, bodies: Sequence[str]) -> None:
        """Start a run of a DAG on a queue of its own, named like it, with another consumer beside it."""
        self.fill(dag_id, bodies)
        self.stage.stack.wait_for_dag(dag_id)
        self.runs[dag_id] = self.api.trigger(dag_id)

    def fill(self, queue: str, bodies: Sequence[str], *, later: int = 0) -> None:
        """Make a queue with messages, and another consumer that polls when they and those sent later are in flight."""
        self.bodies[queue] = list(bodies)
        self.stage.send_bodies(queue, bodies)
        consumer = SecondConsumer(self.stage.sqs, self.stage.queue_urls[queue], len(bodies) + later)
        self.stage.consumers[queue] = consumer
        self.stage.exits.enter_context(consumer.polling())

    def wait_until(self, is_so: Callable[[], bool], what: str, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        """Wait until something is the case; the DAG processor is what no test ends."""
        dag_processor = self.stage.stack.processes["dag-processor"]
        wait_until(is_so, processes=[dag_processor], what=what, deadline_seconds=deadline_seconds)

    def pause(self, seconds: float) -> None:
        """Let time pass."""
        pause(self.stage.stack.processes["dag-processor"], seconds)

    def hold(self, dag_id: str, seconds: float) -> None:
        """Let time pass; a second consumer polls meanwhile, and SQS must not give it a message."""
        consumer = self.stage.consumers[dag_id]
        polls = consumer.polls
        self.pause(seconds)
        assert consumer.polls > polls, "the second consumer did not poll"

    def wait_for_keeper(self, dag_id: str, *, since: float = 0.0) -> float:
        """Wait until the keeper's trigger holds the messages, from the triggerer that received them or taken over.

        Args:
            dag_id: The DAG.
            since: How long ago is too long, in seconds since the epoch.

        Returns:
            When it began to hold them.
        """
        self.wait_until(lambda: bool(self._kept_at(dag_id, since)), f"holding the messages of {dag_id}")
        return min(self._kept_at(dag_id, since))

    def _kept_at(self, dag_id: str, since: float) -> list[float]:
        lines = [line for how in HELD for line in self.stage.log_lines(KEEPER, how, dag_id=dag_id)]
        return [line.at for line in lines if line.at > since]

    def wait_for_starts(self, bodies: Sequence[str], times: int = 1) -> None:
        """Wait until the work of these messages began so often."""
        self.wait_until(lambda: all(len(self.starts(body)) >= times for body in bodies), f"at work on {bodies}")

    def starts(self, body: str) -> list[Start]:
        """When and where the work of a message began, the first time first."""
        path = self.place / "started" / body
        lines = path.read_text().splitlines() if path.exists() else []
        return [Start(int(pid), int(session), float(at)) for pid, session, at in map(str.split, lines)]

    def open_gate(self, gate: str) -> None:
        """Let work go on: `fail` or `finish`."""
        (self.place / gate).touch()

    def wait_for_end(self, dag_id: str) -> str:
        """Wait until a run and its keepers are over, and return the run's state."""
        self.wait_until(
            lambda: self.api.run_state(dag_id, self.runs[dag_id]) in FINAL_RUN_STATES, f"done with the run of {dag_id}"
        )
        return self.api.run_state(dag_id, self.runs[dag_id])

    def received_by_others(self, queue: str) -> list[str]:
        """The bodies that another consumer was given, sorted."""
        return sorted(reception.body for reception in self.stage.consumers[queue].receptions)

    def wait_for_failed(self, queue: str) -> list[float]:
        """Wait until another consumer was given all messages that fail.

        Returns:
            How long after its task failed each of them was received, in seconds, sorted.
        """
        failing = sorted(body for body in self.bodies[queue] if body.startswith("bad"))
        receptions = self.stage.consumers[queue].received(len(failing), 2 * LOADED_SECONDS)
        assert sorted(reception.body for reception in receptions) == failing
        return sorted(one.at - float((self.place / "failed" / one.body).read_text()) for one in receptions)

    def outcomes(self, dag_id: str) -> dict[str, str]:
        """How the messages of a run ended, by body, as its keeper reports it."""
        run_id = self.runs[dag_id]
        bodies = {message["MessageId"]: message["Body"] for message in self.api.xcom(dag_id, run_id, "orders")}
        self.wait_until(lambda: bool(self.stage.report(dag_id, run_id)), f"reported by the keeper of {dag_id}", 60)
        report = self.stage.report(dag_id, run_id)
        assert report["late"] == report["lost"] == 0
        return {bodies[one]: outcome for outcome, ids in report["messages"].items() for one in ids}

    def expected_outcomes(self, queue: str) -> dict[str, str]:
        """How the messages of a queue are to end."""
        return {body: "released" if body.startswith("bad") else "deleted" for body in self.bodies[queue]}


@contextmanager
def scene(
    home: Path,
    dags_folder: Path,
    settings: Mapping[str, str],
    *,
    components: Sequence[str] = tuple(COMPONENTS),
) -> Iterator[Scene]:
    """Run Airflow on PostgreSQL beside an SQS server, with gates for the work of its DAGs, until the block ends."""
    place = home / "work"
    for name in ("started", "failed"):
        (place / name).mkdir(parents=True)
    environment = {PLACE: str(place), "PYTHONPATH": str(ROOT), **settings}
    with (
        postgres_server(migrated_postgres()) as database,
        stage(home, dags_folder, environment, database_url=database.url, components=components) as here,
    ):
        yield Scene(here, place)
