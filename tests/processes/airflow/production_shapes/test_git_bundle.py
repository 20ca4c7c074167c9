"""A DAG bundle on git: the DAG is changed by a commit while a run works.

Then callables of the repository's own modules: a triggerer has no DAG bundles, so it cannot import them.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Final

import pytest

from demo.airflow_api import AirflowApiError
from tests.processes.airflow.production_shapes.scene import KEEPER, LOADED_SECONDS, Scene, scene

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1200)]

logger = logging.getLogger(__name__)

HERE: Final = Path(__file__).parent
DAG_ID: Final = "versions"
VISIBILITY_SECONDS: Final = 30
FIRST: Final = ["good first", "bad first", "bad api first", "long first"]
SECOND: Final = ["good second", "bad second", "bad api second", "long second"]
BESIDE: Final = "on_lost_beside"
UNFILTERED: Final = "filter_beside"


@dataclass(frozen=True, slots=True)
class Repository:
    """A bare git repository, and a work tree that commits to it.

    Attributes:
        bare: The repository that the DAG bundle is cloned from.
        work_tree: The work tree.
    """

    bare: Path
    work_tree: Path

    @classmethod
    def make(cls, directory: Path) -> Repository:
        """Make both, without a commit."""
        made = cls(directory / "dags.git", directory / "work_tree")
        _git(directory, "init", "--quiet", "--bare", "--initial-branch=main", str(made.bare))
        _git(directory, "init", "--quiet", "--initial-branch=main", str(made.work_tree))
        return made

    def commit(self, files: Path) -> None:
        """Put the Python files of a directory into the work tree, commit and push them."""
        for file in files.glob("*.py"):
            (self.work_tree / file.name).write_bytes(file.read_bytes())
        _git(self.work_tree, "add", "--all")
        author = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
        _git(self.work_tree, *author, "commit", "--quiet", f"--message={files.name}")
        _git(self.work_tree, "push", "--quiet", str(self.bare), "main")


@dataclass(slots=True)
class Story:
    """The events and measurements of the DAGs' runs.

    Attributes:
        scene: Where.
        repository: Where the DAGs are.
        runs: The run of the first version of the DAG, and that of the second.
        noticed_after: How long after the commit Airflow had the second version, in seconds.
        seen_before_failing: The messages of another consumer before work failed.
        dead_lettered: The bodies of the messages in the dead-letter queue, sorted.
        import_errors: The last line of the error of each DAG file that cannot be imported, by its name.
        states: The states of runs at their end: by their ids, or by DAG for those of one run.
    """

    scene: Scene
    repository: Repository
    runs: tuple[str, str] = ("", "")
    noticed_after: float = 0.0
    seen_before_failing: list[str] = field(default_factory=list)
    dead_lettered: list[str] = field(default_factory=list)
    import_errors: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)

    def play(self) -> None:
        """Commit while a run works, let everything end, and then commit DAGs with callables of their own."""
        here = self.scene
        dead_letter_url = self._make_queues()
        # When the second run has received, the good message of the first one is deleted.
        here.fill(DAG_ID, FIRST, later=len(SECOND) - 1)
        here.stage.stack.wait_for_dag(DAG_ID)
        first = here.api.trigger(DAG_ID)
        began_to_hold = here.wait_for_keeper(DAG_ID)
        here.wait_for_starts(FIRST)
        here.wait_until(lambda: here.stage.left(DAG_ID) == len(FIRST) - 1, "done with the good message")
        committed_at = time()
        self.repository.commit(HERE / "git_second")
        # A run that starts up to a second before that would have tasks of the first version, with code of the second.
        here.wait_until(lambda: here.api.version_number(DAG_ID) == 2, "beside the second version")
        self.noticed_after = time() - committed_at
        here.stage.send_bodies(DAG_ID, SECOND)
        self.runs = first, here.api.trigger(DAG_ID)
        here.wait_for_keeper(DAG_ID, since=began_to_hold)
        here.wait_for_starts(SECOND)
        here.wait_until(lambda: here.stage.consumers[DAG_ID].is_polling, "beside another consumer", LOADED_SECONDS)
        here.hold(DAG_ID, 2.5 * VISIBILITY_SECONDS)
        self.seen_before_failing = here.received_by_others(DAG_ID)
        for gate in ("fail", "finish"):
            here.open_gate(gate)
        for run_id in self.runs:
            here.runs[DAG_ID] = run_id
            self.states[run_id] = here.wait_for_end(DAG_ID)
        here.stage.consumers[DAG_ID].received(2, LOADED_SECONDS)
        answer = here.stage.sqs.receive_message(QueueUrl=dead_letter_url, MaxNumberOfMessages=10, WaitTimeSeconds=2)
        self.dead_lettered = sorted(message["Body"] for message in answer.get("Messages", []))
        self._play_callables()

    def _has_dags(self, *dag_ids: str) -> bool:
        try:
            return all(map(self.scene.api.has_dag, dag_ids))
        except AirflowApiError:
            return False

    def _make_queues(self) -> str:
        sqs = self.scene.stage.sqs
        dead_letter_url = sqs.create_queue(QueueName="dead")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=dead_letter_url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 10})
        url = sqs.create_queue(QueueName=DAG_ID, Attributes={"RedrivePolicy": redrive})["QueueUrl"]
        self.scene.stage.queue_urls[DAG_ID] = url
        return dead_letter_url

    def _play_callables(self) -> None:
        here = self.scene
        self.repository.commit(HERE / "git_callables")
        refused = {"filter_in_dag_file.py", "on_lost_in_dag_file.py"}
        here.wait_until(lambda: here.api.import_errors().keys() >= refused, "done with files that are refused")
        self.import_errors = {name: trace.strip().splitlines()[-1] for name, trace in here.api.import_errors().items()}
        # No second consumer polls this one: the test asks whether its message is left visible.
        here.stage.send_bodies(UNFILTERED, ["good unfiltered"])
        # Not wait_for_dag(): files that are refused, on purpose, may be parsed before these.
        here.wait_until(lambda: self._has_dags(UNFILTERED, BESIDE), "done with the files beside them")
        here.runs[UNFILTERED] = here.api.trigger(UNFILTERED)
        here.begin(BESIDE, ["good beside", "bad beside"])
        for dag_id in (UNFILTERED, BESIDE):
            self.states[dag_id] = here.wait_for_end(dag_id)


def _git(directory: Path, *arguments: str) -> None:
    # A hook of another checkout names its own by variables, which would go before the directory.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(directory), "-c", "core.hooksPath=/dev/null", *arguments]
    subprocess.run(command, env=environment, check=True)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    pytest.importorskip("airflow.providers.git", reason="apache-airflow-providers-git is not installed")
    home, repositories = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("repositories")
    repository = Repository.make(repositories)
    repository.commit(HERE / "git_first")
    bundle = {
        "name": "on_git",
        "classpath": "airflow.providers.git.bundles.git.GitDagBundle",
        "kwargs": {"repo_url": str(repository.bare), "tracking_ref": "main", "refresh_interval": 2},
    }
    settings = {
        "AIRFLOW__CORE__PARALLELISM": "16",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(home / "bundles"),
    }
    with scene(home, home / "no_dags", settings) as here:
        told = Story(here, repository)
        told.play()
        logger.info("commit pushed -> Airflow has the second version: %.1f s", told.noticed_after)
        yield told


def test_messages_of_a_run_are_settled_by_the_rules_of_its_own_version(story: Story) -> None:
    here = story.scene
    assert [story.states[run_id] for run_id in story.runs] == ["failed", "failed"]
    assert here.received_by_others(DAG_ID) == ["bad api second", "bad first"]
    assert story.dead_lettered == ["bad api first", "bad second"]
    # Another consumer has these; everything else was deleted.
    assert here.stage.left(DAG_ID) == 2
    for run_id in story.runs:
        report = here.stage.report(DAG_ID, run_id)
        counts = {name: report[name] for name in ("received", "deleted", "released", "dead_lettered", "late", "lost")}
        assert counts == {"received": 4, "deleted": 2, "released": 1, "dead_lettered": 1, "late": 0, "lost": 0}


def test_tasks_that_start_after_the_commit_run_as_their_run_began(story: Story) -> None:
    assert (story.scene.place / "stored long first").exists()
    assert not (story.scene.place / "stored long second").exists()


def test_no_other_consumer_is_given_a_message_before_its_work_failed(story: Story) -> None:
    assert story.seen_before_failing == []
    assert [len(story.scene.starts(body)) for body in FIRST + SECOND] == [1] * 8


def test_callables_of_a_dag_file_are_refused_when_it_is_parsed(story: Story) -> None:
    assert "is defined in a DAG file" in story.import_errors["filter_in_dag_file.py"]
    assert "is defined in a DAG file" in story.import_errors["on_lost_in_dag_file.py"]


def test_a_filter_that_only_the_triggerer_cannot_import_fails_its_sensor_before_anything_is_received(
    story: Story,
) -> None:
    here = story.scene
    assert story.states[UNFILTERED] == "failed"
    assert here.stage.in_flight(UNFILTERED) == 0
    assert here.stage.left(UNFILTERED) == 1
    log = here.api.log(UNFILTERED, here.runs[UNFILTERED], "orders")
    assert "cannot be imported (ModuleNotFoundError" in log


def test_an_on_lost_callback_that_only_the_triggerer_cannot_import_is_told_and_stops_no_lease(story: Story) -> None:
    here = story.scene
    assert here.outcomes(BESIDE) == here.expected_outcomes(BESIDE)
    assert here.received_by_others(BESIDE) == ["bad beside"]
    assert here.stage.log_lines(KEEPER, "beside_dag_files.notice, cannot be imported", dag_id=BESIDE) != []
