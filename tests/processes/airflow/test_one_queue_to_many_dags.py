"""Messages start runs of other DAGs, a run a message, and each is settled by what became of its run.

`dags_routes/routes.py` has the DAGs. The messages of the queue *routed* start a hundred runs that succeed, fail, retry,
are cleared, marked and deleted, while a second consumer polls. Those of *cleared* and *redelivered* come again while
their runs still work, have failed or have succeeded. The recipe works on a queue of its own.
"""

from __future__ import annotations

import json
import logging
import shutil
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from time import time
from typing import Any

import pytest

from demo.airflow_api import AirflowApi, TaskState
from demo.airflow_stack import migrated_postgres
from demo.postgres import postgres_server
from demo.processes import ROOT
from tests.processes.airflow.dags_routes.routes import CLOSED, DAG_OF_KIND, POKE_SECONDS, QUEUES
from tests.processes.airflow.failover.stage import Stage, stage

pytestmark = [pytest.mark.processes, pytest.mark.timeout(3000)]

logger = logging.getLogger(__name__)

HERE = Path(__file__).parent
RECIPE = ROOT / "dags" / "recipes" / "one_queue_to_many_dags.py"

DEADLINE_SECONDS = 1200.0
"""For each of the scenes; on an idle machine each takes a minute or two."""

LATE_DOCUMENTS = 3
"""How many documents arrive when all others are settled."""

TEMPLATE = "{{ 6 * 7 }} {{ var.value.secret }} {% for one in (1, 2) %}"
LARGE = "x" * 200_000

Order = Mapping[str, Any]
"""The contents of a message: its name, the kind of its run, and the work of that run."""


class Outcome(Enum):
    """The outcome that a message must have."""

    DELETED = "deleted, and not given to the second consumer"
    RETURNED = "given to the second consumer"


def order(name: str, kind: str, does: str, outcome: Outcome, text: str = "") -> tuple[Order, Outcome]:
    """An order, and what is to become of its message."""
    return {"name": name, "kind": kind, "does": does, "text": text}, outcome


def orders(number: int, kind: str, does: str, outcome: Outcome) -> list[tuple[Order, Outcome]]:
    """Several orders of one kind, named after what they do."""
    return [order(f"{does} {index}", kind, does, outcome) for index in range(number)]


ROUTED = [
    *orders(72, "empty", "succeed", Outcome.DELETED),
    *orders(6, "work", "fail", Outcome.RETURNED),
    *orders(4, "work", "retry", Outcome.DELETED),
    *orders(2, "work", "wait", Outcome.DELETED),  # its run is cleared while it works
    order("template", "work", "keep text", Outcome.DELETED, TEMPLATE),
    order("large", "work", "keep text", Outcome.DELETED, LARGE),
    *orders(2, "of no DAG", "fail to start", Outcome.RETURNED),
    *orders(2, "held", "be marked failed", Outcome.RETURNED),
    *orders(2, "held", "be marked success", Outcome.DELETED),
    *orders(2, "held", "lose its task", Outcome.RETURNED),  # what waits for its run is marked failed
    *orders(2, "paused", "be deleted", Outcome.RETURNED),  # and then what waits for it is marked failed
    *orders(2, "paused", "be deleted and made again", Outcome.DELETED),  # what waits for it is cleared
    *orders(2, "paused", "begin late", Outcome.DELETED),
]
OUTCOMES = {one["name"]: outcome for one, outcome in ROUTED}
NAMES_BY = {what: [one["name"] for one, _ in ROUTED if one["does"] == what] for what in {o["does"] for o, _ in ROUTED}}

AGAIN = [
    {"name": "{queue} done", "kind": "empty", "does": "succeed", "text": ""},
    {"name": "{queue} failed", "kind": "work", "does": "fail before it may go", "text": ""},
    {"name": "{queue} works 0", "kind": "work", "does": "wait", "text": ""},
    {"name": "{queue} works 1", "kind": "work", "does": "wait", "text": ""},
]
"""The orders of the queues whose messages come again, while two of their runs still work."""


@dataclass(slots=True)
class Run:
    """A run that received messages, and what they are."""

    dag_id: str
    run_id: str
    indexes: dict[str, int] = field(default_factory=dict)
    """The map index of each message by the name of its order."""
    child_ids: dict[str, str] = field(default_factory=dict)
    """The id of the run that each starts."""


@dataclass(slots=True)
class Scene:
    """The runs, and what happened to them."""

    stage: Stage
    work: Path
    sent_at: dict[str, float] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    held_states: Counter[str | None] = field(default_factory=Counter)
    """The states of what waited for runs, when only held and paused ones were left."""
    still_in_flight: int = 0
    """How many messages were held then."""

    @property
    def api(self) -> AirflowApi:
        """Airflow's API."""
        return self.stage.stack.api

    def wait_until(self, is_so: Any, what: str) -> None:
        """Wait until something is the case."""
        self.stage.wait_until(is_so, what, DEADLINE_SECONDS)

    def send(self, queue: str, sent: Sequence[Order]) -> None:
        """Send orders to a queue."""
        for one in sent:
            self.stage.send_bodies(queue, [json.dumps(one)])
            self.sent_at[one["name"]] = time()

    def receive(self, queue: str, messages: int, name: str = "") -> Run:
        """Start a run that receives, and wait until it has so many messages."""
        self.stage.stack.wait_for_dag(queue)
        run = Run(queue, self.api.trigger(queue))
        self.wait_until(lambda: bool(self.api.xcom(queue, run.run_id, "orders")), f"receiving from {queue}")
        received = self.api.xcom(queue, run.run_id, "orders")
        assert len(received) == messages
        for index, message in enumerate(received):
            one = json.loads(message["Body"])["name"]
            run.indexes[one] = index
            run.child_ids[one] = f"message-{message['MessageId']}"
        self.runs[name or queue] = run
        return run

    def instances(self, run: Run) -> dict[int, TaskState]:
        """The task instances that wait for the runs, by map index."""
        states = self.api.task_states(run.dag_id, run.run_id)
        return {task.map_index: task for task in states if task.task_id == "run"}

    def waits(self, run: Run, names: Sequence[str]) -> bool:
        """Whether the tasks of some messages wait for their runs."""
        states = self.instances(run)
        return all(
            index in states and states[index].state == "deferred" for index in (run.indexes[name] for name in names)
        )

    def times(self, name: str, what: str) -> list[float]:
        """When the work on a message began, or ended."""
        path = self.work / f"{name}.log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [float(at) for said, at in (line.split() for line in lines) if said == what]

    def began(self, names: Sequence[str]) -> dict[str, int]:
        """How often the work on some messages began."""
        return {name: len(self.times(name, "began")) for name in names}

    def wait_until_working(self, run: Run, names: Sequence[str]) -> dict[str, int]:
        """Wait until some messages are worked on, and their runs waited for.

        Returns:
            How often the work on each began. Where Airflow's answer to the request for a run came too late, it was made
            again, and had the run begin again.
        """
        self.wait_until(lambda: self.waits(run, names) and all(self.began(names).values()), "working")
        return self.began(names)

    def wait_until_working_again(self, before: Mapping[str, int]) -> None:
        """Wait until the work on some messages has begun once more."""
        self.wait_until(
            lambda: all(times > before[name] for name, times in self.began([*before]).items()), "working again"
        )

    def go(self, names: Sequence[str]) -> None:
        """Let work end that waits."""
        for name in names:
            (self.work / f"{name}.go").touch()

    def received_by_others(self) -> dict[str, list[float]]:
        """When the second consumer was given messages of the queue *routed*, by the names of their orders."""
        found: dict[str, list[float]] = {}
        for reception in self.stage.consumers["routed"].receptions:
            found.setdefault(json.loads(reception.body)["name"], []).append(reception.at)
        return found

    def play_routed(self) -> None:
        """A hundred messages, and what users do to their runs and to what waits for them."""
        self.stage.fill("routed", 0, later=len(ROUTED))
        self.send("routed", [one for one, _ in ROUTED])
        began_at = time()
        run = self.receive("routed", len(ROUTED))
        waiting, api = NAMES_BY["wait"], self.api
        before = self.wait_until_working(run, waiting)
        for name in waiting:
            api.clear_run(DAG_OF_KIND["work"], run.child_ids[name])
        self.wait_until_working_again(before)
        self.go(waiting)
        users = [name for one, _ in ROUTED if one["kind"] in ("held", "paused") for name in (one["name"],)]
        self.wait_until(lambda: self.waits(run, users), "waiting for runs that are held or paused")
        deleted = [*NAMES_BY["be deleted"], *NAMES_BY["be deleted and made again"]]
        for name in deleted:
            api.delete_run(DAG_OF_KIND["paused"], run.child_ids[name])
        deleted_at = time()
        logger.info("100 messages: users act after %.0f s", deleted_at - began_at)
        others = {index for name, index in run.indexes.items() if name not in users}
        self.wait_until(
            lambda: all(self.instances(run)[index].state in ("success", "failed") for index in others),
            "done with all that no user acts on",
        )
        self.stage.pause(max(0.0, deleted_at + 3 * POKE_SECONDS - time()))
        self.held_states = Counter(task.state for index, task in self.instances(run).items() if index not in others)
        self.wait_until(lambda: self.stage.left("routed") == len(users) + len(self.received_by_others()), "settling")
        self.still_in_flight = self.stage.in_flight("routed") - len(self.received_by_others())
        for name in NAMES_BY["be marked failed"]:
            api.mark_run(DAG_OF_KIND["held"], run.child_ids[name], "failed")
        for name in NAMES_BY["be marked success"]:
            api.mark_run(DAG_OF_KIND["held"], run.child_ids[name], "success")
        for name in (*NAMES_BY["lose its task"], *NAMES_BY["be deleted"]):
            api.mark_task(run.dag_id, run.run_id, "run", "failed", run.indexes[name])
        for name in NAMES_BY["be deleted and made again"]:
            api.clear_task(run.dag_id, run.run_id, "run", run.indexes[name])
        api.unpause(DAG_OF_KIND["paused"])
        self.stage.stack.wait_for_run(run.dag_id, run.run_id, DEADLINE_SECONDS)
        logger.info("100 messages: done after %.0f s", time() - began_at)
        self.stage.consumers["routed"].received(sum(one is Outcome.RETURNED for one in OUTCOMES.values()))

    def begin_again(self, queue: str) -> tuple[Run, list[str]]:
        """Receive messages of which, in the end, one is deleted, one is back, and two are worked on."""
        names = [one["name"].format(queue=queue) for one in AGAIN]
        self.send(queue, [{**one, "name": name} for one, name in zip(AGAIN, names, strict=True)])
        run = self.receive(queue, len(AGAIN))
        done, failed, *working = names
        self.wait_until_working(run, working)
        ended = {run.indexes[done]: "success", run.indexes[failed]: "failed"}
        self.wait_until(
            lambda: all(self.instances(run)[index].state == state for index, state in ended.items()), "done with two"
        )
        self.wait_until(lambda: self.stage.left(queue) == self.stage.in_flight(queue) + 1 == len(AGAIN) - 1, "settling")
        self.go([failed])
        return run, working

    def play_cleared(self) -> None:
        """The run that waits is cleared, and receives again what its runs still work on."""
        run, working = self.begin_again("cleared")
        before = self.began(working)
        self.api.clear_run(run.dag_id, run.run_id)
        self.wait_until_working_again(before)
        self.go(working)
        self.wait_until(lambda: self.stage.left("cleared") == 0, "done with what came again")

    def play_redelivered(self) -> None:
        """Messages come again, and another run receives them: two whose runs still work, or have succeeded since."""
        run, (works, succeeds) = self.begin_again("redelivered")
        self.api.mark_task(run.dag_id, run.run_id, "orders_keeper", "failed")
        self.wait_until(lambda: self.stage.in_flight("redelivered") == 0, "giving back")
        self.go([succeeds])
        self.wait_until(
            lambda: self.api.run_state(DAG_OF_KIND["work"], run.child_ids[succeeds]) == "success", "done with one"
        )
        before = self.began([works])
        self.receive("redelivered", len(AGAIN) - 1, "received again")
        self.wait_until_working_again(before)
        self.go([works])
        self.wait_until(lambda: self.stage.left("redelivered") == 0, "done with what came again")

    def play_recipe(self) -> None:
        """Documents arrive that are booked, paid, refused by their work, and of no kind."""
        for one in ("documents_to_dags", "book_invoice", "pay_refund"):
            self.stage.stack.wait_for_dag(one)
        sqs, urls = self.stage.sqs, self.stage.queue_urls
        urls["dead"] = sqs.create_queue(QueueName="dead")["QueueUrl"]
        answer = sqs.get_queue_attributes(QueueUrl=urls["dead"], AttributeNames=["QueueArn"])["Attributes"]
        redrive = json.dumps({"deadLetterTargetArn": answer["QueueArn"], "maxReceiveCount": 1})
        urls["documents"] = sqs.create_queue(QueueName="documents", Attributes={"RedrivePolicy": redrive})["QueueUrl"]
        for name, kind, amount in (("a", "invoice", 5), ("b", "refund", 7), ("c", "invoice", -1), ("d", "order", 2)):
            self.send("documents", [{"name": name, "kind": kind, "amount": amount}])
        self.wait_until(
            lambda: self.stage.left("dead") == 2 and self.stage.left("documents") == 0, "settling documents"
        )
        # By now its processes are warm, and the queue that the watcher counts is known to it.
        for number in range(LATE_DOCUMENTS):
            self.send("documents", [{"name": f"late {number}", "kind": "refund", "amount": 1}])
        self.wait_until(
            lambda: list(self.api.run_states("pay_refund").values()).count("success") == 1 + LATE_DOCUMENTS, "paying"
        )
        self.wait_until(lambda: self.stage.left("documents") == 0, "settling documents")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    home, work = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("work")
    dags = shutil.copytree(HERE / "dags_routes", tmp_path_factory.mktemp("dags") / "dags")
    shutil.copy(RECIPE, dags)
    environment = {"WORK": str(work), "AIRFLOW_VAR_SECRET": "secret", "AIRFLOW__CORE__PARALLELISM": "14"}
    with (
        postgres_server(migrated_postgres()) as database,
        stage(home, dags, environment, database_url=database.url) as here,
    ):
        played = Scene(here, work)
        played.api.set_pool(CLOSED, 0)
        for queue in QUEUES:
            here.send_bodies(queue, [])
        played.play_routed()
        _log_seconds("100 messages: sent -> its run starts", _waits_to_start(played))
        _log_seconds("100 messages: its run failed -> visible", list(_waits_after_failure(played).values()))
        played.play_recipe()
        _log_seconds("recipe: sent -> its run starts", _waits_of_documents(played))
        played.play_cleared()
        played.play_redelivered()
        yield played


def test_each_message_is_deleted_or_visible_again_by_what_became_of_its_run(scene: Scene) -> None:
    received = scene.received_by_others()
    found = {name: Outcome.RETURNED if name in received else Outcome.DELETED for name in OUTCOMES}
    assert found == OUTCOMES
    assert {len(times) for times in received.values()} == {1}
    # The second consumer's messages are in flight for it; all else is gone.
    assert scene.stage.left("routed") == len(received)
    report = scene.stage.report("routed", scene.runs["routed"].run_id)
    counts = Counter(OUTCOMES.values())
    assert (report["received"], report["deleted"], report["released"], report["lost"], report["uncertain"]) == (
        len(ROUTED),
        counts[Outcome.DELETED],
        counts[Outcome.RETURNED],
        0,
        0,
    )


def test_a_failed_run_s_message_is_visible_within_seconds_and_not_before_its_end(scene: Scene) -> None:
    waits = _waits_after_failure(scene)
    assert set(waits) == {*NAMES_BY["fail"]}
    # The run's end is noted by the scheduler, after the end of its task.
    for name in waits:
        (ended_at,) = scene.times(name, "ended")
        assert scene.received_by_others()[name][0] >= ended_at
    assert max(waits.values()) <= POKE_SECONDS + 120


def test_no_message_is_worked_on_twice_at_once(scene: Scene) -> None:
    assert list(scene.work.glob("*.overlap")) == []


def test_nothing_takes_a_worker_slot_while_runs_are_waited_for(scene: Scene) -> None:
    # The runs that were deleted are still waited for: Airflow does not notice.
    assert scene.held_states == {"deferred": 12}
    assert scene.still_in_flight == 12


def test_texts_are_passed_on_as_they_were_sent(scene: Scene) -> None:
    assert (scene.work / "template.text").read_text() == TEMPLATE
    assert (scene.work / "large.text").read_text() == LARGE


@pytest.mark.parametrize("queue", ["cleared", "redelivered"])
def test_a_message_that_comes_again_has_the_same_run_again(scene: Scene, queue: str) -> None:
    done, failed, works, other = (one["name"].format(queue=queue) for one in AGAIN)
    first = scene.runs[queue]
    runs = {**scene.api.run_states(DAG_OF_KIND["work"]), **scene.api.run_states(DAG_OF_KIND["empty"])}
    assert {runs[first.child_ids[name]] for name in (done, failed, works, other)} == {"success"}
    # Once more each, also where the run had succeeded meanwhile.
    assert min(scene.began((failed, works, other)).values()) >= 2
    if queue == "redelivered":
        assert scene.runs["received again"].child_ids.items() <= first.child_ids.items()


def test_there_is_one_run_for_each_message(scene: Scene) -> None:
    expected = Counter(one["kind"] for one, _ in ROUTED if one["kind"] in DAG_OF_KIND)
    # Four messages came again, and two of those that were deleted are made again.
    expected += Counter(one["kind"] for one in AGAIN for _ in ("cleared", "redelivered"))
    expected["paused"] -= len(NAMES_BY["be deleted"])
    found = {kind: len(scene.api.run_states(dag_id)) for kind, dag_id in DAG_OF_KIND.items()}
    assert found == expected


def test_the_recipe_starts_a_run_of_the_dag_that_the_content_names(scene: Scene) -> None:
    states = {dag_id: scene.api.run_states(dag_id) for dag_id in ("book_invoice", "pay_refund")}
    assert sorted(states["book_invoice"].values()) == ["failed", "success"]
    assert list(states["pay_refund"].values()) == ["success"] * (1 + LATE_DOCUMENTS)
    answer = scene.stage.sqs.receive_message(QueueUrl=scene.stage.queue_urls["dead"], MaxNumberOfMessages=10)
    assert sorted(json.loads(message["Body"])["name"] for message in answer["Messages"]) == ["c", "d"]


def _waits_of_documents(scene: Scene) -> list[float]:
    """How long each of the late documents waited for its run to start."""
    started = sorted(at for at, _ in scene.api.run_times("pay_refund").values() if at is not None)
    return [at - scene.sent_at["late 0"] for at in started[-LATE_DOCUMENTS:]]


def _waits_to_start(scene: Scene) -> list[float]:
    """How long each of the hundred messages waited for its run to start, if no user stopped it."""
    run = scene.runs["routed"]
    times = {**scene.api.run_times(DAG_OF_KIND["empty"]), **scene.api.run_times(DAG_OF_KIND["work"])}
    again = {*NAMES_BY["wait"]}  # They started twice.
    waits = []
    for name, child_id in run.child_ids.items():
        started_at, _ = times.get(child_id, (None, None))
        if started_at is not None and name not in again:
            waits.append(started_at - scene.sent_at[name])
    return waits


def _waits_after_failure(scene: Scene) -> dict[str, float]:
    """How long after the end of its run each message reached the second consumer, of those whose work failed."""
    run, received = scene.runs["routed"], scene.received_by_others()
    times = scene.api.run_times(DAG_OF_KIND["work"])
    found = {}
    for name in NAMES_BY["fail"]:
        _, ended_at = times[run.child_ids[name]]
        if ended_at is not None and name in received:
            found[name] = received[name][0] - ended_at
    return found


def _log_seconds(what: str, seconds: Sequence[float]) -> None:
    ordered = sorted(seconds)
    logger.info(
        "%s: %d, p50 %.1f s, p95 %.1f s, max %.1f s",
        what,
        len(ordered),
        statistics.median(ordered),
        ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))],
        ordered[-1],
    )
