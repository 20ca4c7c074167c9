"""How the demo lets runs work until the queue is drained, and what it reads from Dagster of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dagster_defs.defs.flights import BATCH_SIZE as BATCH_SIZE_OF_THE_ASSET
from demo import runs as module
from demo.airflow_runs import DAG_ID, SHOW_SECONDS, AirflowRuns
from demo.airflow_stack import AirflowStack
from demo.dagster_answers import Event, Materialization, Run
from demo.dagster_runs import DagsterRuns
from demo.dagster_stack import DagsterStack
from demo.processes import ProcessFailedError, ServerProcess, start_process
from demo.queues import Counts, Queues
from demo.runs import BATCH_SIZE, STALLED_SECONDS, NotDrainedError, RunCounts, drain
from demo.summary import BatchOutcome
from sqs_lease.airflow.page.site import NAVIGATION_VIEW

WAIT = [sys.executable, "-c", "import signal; signal.pause()"]


@dataclass
class ScriptedRuns:
    """Runs and a queue that go through given states, one a look; the last one stays."""

    process: ServerProcess
    at_work: list[int]
    visible: list[int]
    started: list[int] = field(default_factory=list)
    url: str = "http://127.0.0.1:1"
    logs: Path = Path("logs")

    @property
    def processes(self) -> Sequence[ServerProcess]:
        return [self.process]

    def look(self) -> RunCounts:
        return RunCounts(at_work=_next(self.at_work), over=1)

    def start(self, visible: int) -> None:
        self.started.append(visible)

    def outcomes(self) -> list[BatchOutcome]:
        return []

    def failed(self) -> list[str]:
        return []

    def hold_for_show(self, publish: Callable[[], object]) -> str | None:
        return None

    def counts(self) -> Counts:
        return Counts(visible=_next(self.visible), in_flight=0, delayed=0)

    def dead_letters(self) -> int:
        return 0


def _next(states: list[int]) -> int:
    return states.pop(0) if len(states) > 1 else states[0]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    running = start_process("It", WAIT, log_path=tmp_path / "log", environment={}, directory=tmp_path)
    yield running
    running.kill()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)


def drained(runs: ScriptedRuns) -> list[str]:
    """Drain the queue, and return the lines that were shown."""
    lines: list[str] = []
    drain(runs, cast("Queues", runs), runs.process, rows=lambda: 7, show=lines.append)
    return lines


def test_runs_are_started_for_what_is_visible_while_no_run_is_at_work(process: ServerProcess) -> None:
    runs = ScriptedRuns(process, at_work=[0, 1, 1, 0, 0], visible=[30, 10, 5, 5, 0])

    lines = drained(runs)

    assert runs.started == [30, 5]
    assert lines[0] == ("runs: 0 at work, 1 over | queue: 30 visible, 0 in flight | dead letters: 0 | table: 7 rows")


def test_an_empty_queue_is_not_drained_before_the_last_run_is_over(process: ServerProcess) -> None:
    runs = ScriptedRuns(process, at_work=[1, 1, 0], visible=[0])

    assert [line.partition(" |")[0] for line in drained(runs)] == [
        "runs: 1 at work, 1 over",
        "runs: 0 at work, 1 over",
    ]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which each look takes nearly as long as nothing may be done."""
    looks = count(0, step=int(STALLED_SECONDS) - 1)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: float(next(looks))))


@pytest.mark.usefixtures("slow")
def test_a_queue_of_which_nothing_is_done_for_long_is_given_up(process: ServerProcess) -> None:
    with pytest.raises(NotDrainedError, match="still holds 3 messages, and none was done for 600 s: runs: 1 at work"):
        drained(ScriptedRuns(process, at_work=[1], visible=[4, 3]))


@pytest.mark.usefixtures("slow")
def test_a_slow_machine_has_all_the_time_that_it_needs_while_something_is_done(process: ServerProcess) -> None:
    lines = drained(ScriptedRuns(process, at_work=[1, 1, 1, 1, 1, 0], visible=[5, 4, 3, 2, 1, 0]))
    assert len(lines) == 6


def test_it_ends_when_one_of_its_processes_does(process: ServerProcess) -> None:
    process.kill()

    with pytest.raises(ProcessFailedError, match=r"It .* ended"):
        drained(ScriptedRuns(process, at_work=[1], visible=[3]))


@dataclass
class ScriptedDagster:
    """The part of Dagster's API that is read, with itself in the place of the stack."""

    materialized: list[Materialization]
    states: dict[str, str]
    log: dict[str, list[str]]

    @property
    def api(self) -> ScriptedDagster:
        return self

    def runs(self) -> list[Run]:
        return [Run(run_id, "__ASSET_JOB", state, {}, "", None, None, None) for run_id, state in self.states.items()]

    def materializations(self, asset: str) -> list[Materialization]:
        assert asset == "flights"
        return self.materialized

    def events(self, run_id: str) -> list[Event]:
        logged = [Event(kind, "flights", 0.0, "INFO", "", None, {}) for kind in self.log[run_id]]
        observed = {each.run_id: each.metadata for each in self.materialized}
        return [*logged, Event("ASSET_OBSERVATION", "flights", 0.0, "INFO", "", None, observed[run_id])]


def of_dagster(*, states: dict[str, str], **metadata: dict[str, Any]) -> DagsterRuns:
    log = {"first": ["STEP_START", "STEP_UP_FOR_RETRY", "STEP_RESTARTED"], "second": ["STEP_START"]}
    materialized = [Materialization(run_id, 0.0, None, values) for run_id, values in metadata.items()]
    return DagsterRuns(cast("DagsterStack", ScriptedDagster(materialized, states, log)))


def numbers(received: int) -> dict[str, Any]:
    return {
        "sqs/received": received,
        "sqs/extensions": 6,
        "sqs/queue": "http://127.0.0.1:4566/000000000000/flights; 2 calls that extended leases",
        **({"sqs/lost": 1} if received else {}),
    }


def test_batches_of_dagster_are_its_materializations_that_received_something() -> None:
    runs = of_dagster(states={}, first=numbers(3), second=numbers(0))

    assert runs.outcomes() == [
        BatchOutcome("first", received=3, extensions=6, extension_calls=2, lost=1, retried=1),
    ]


def test_a_run_of_dagster_that_was_tried_again_counts_although_others_received_its_messages() -> None:
    (outcome,) = of_dagster(states={}, first=numbers(0)).outcomes()

    assert outcome.retried == 1


def test_runs_of_dagster_are_counted_and_those_that_did_not_succeed_are_named() -> None:
    states = {"a": "QUEUED", "b": "STARTED", "c": "SUCCESS", "d": "FAILURE", "e": "CANCELED"}
    runs = of_dagster(states=states)

    assert runs.look() == RunCounts(at_work=2, over=3)
    assert runs.failed() == ["d", "e"]


def test_a_run_of_dagster_takes_as_many_messages_as_one_of_airflow() -> None:
    assert BATCH_SIZE_OF_THE_ASSET == BATCH_SIZE


class AirflowStandIn:
    """Notes what it is asked to trigger, and answers as if it ran."""

    url = "http://127.0.0.1:2"

    def __init__(self, notes: list[object]) -> None:
        self.api = self
        self.notes = notes

    def trigger(self, dag_id: str, conf: object) -> str:
        self.notes.append((dag_id, conf))
        return "run"


def test_a_demo_that_stays_up_on_airflow_holds_messages_for_the_page_of_leases() -> None:
    notes: list[object] = []
    runs = AirflowRuns(cast("AirflowStack", AirflowStandIn(notes)))
    page = runs.hold_for_show(lambda: notes.append("published"))
    assert notes == ["published", (DAG_ID, {"run_seconds": SHOW_SECONDS})], "the sensor does not wait for messages"
    assert page == f"http://127.0.0.1:2/plugin/{NAVIGATION_VIEW['url_route']}"


def test_a_demo_that_stays_up_on_dagster_publishes_nothing_more() -> None:
    notes: list[object] = []
    assert DagsterRuns(cast("DagsterStack", None)).hold_for_show(lambda: notes.append("published")) is None
    assert notes == []
