"""What the messages of a batch are due, after one run or several that repeat one another."""

import os
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

import dagster as dg
import pytest

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.dagster import MessageFailed, SqsQueueResource
from sqs_lease.dagster import verdict as verdicts
from sqs_lease.dagster._internals import run_events
from sqs_lease.dagster.lease_sensor.runs import Fate, decide
from sqs_lease.dagster.lease_sensor.settler import leaves_out
from sqs_lease.dagster.run_batch.folder import BatchFolder
from sqs_lease.dagster.run_batch.leased_batch import BATCH_TAG
from sqs_lease.dagster.verdict import Verdict, WorkDone, failed, verdict

IDS = ["m1", "m2", "m3"]


def step(context: dg.OpExecutionContext, name: str) -> None:
    """Work as the environment says: nothing else reaches a run that is executed again."""
    told = os.environ.get(name, "work")
    if told == "stop":
        raise dg.Failure("before it began")
    with SqsQueueResource(queue="orders").lease(context) as batch:
        if told == "fail m1":
            batch.fail("m1", "it is bad")
        if told == "raise":
            raise ZeroDivisionError
        if told == "name m2":
            raise MessageFailed(["m2"])


@dg.op(out={"out": dg.Out(int, is_required=False)})
def first(context: dg.OpExecutionContext) -> Iterator[dg.Output[int]]:
    step(context, "FIRST")
    if os.environ.get("FIRST") != "skip":
        yield dg.Output(1, "out")


@dg.op
def second(context: dg.OpExecutionContext, number: int) -> None:
    step(context, "SECOND")


@dg.op
def beside(context: dg.OpExecutionContext) -> None:
    step(context, "BESIDE")


@dg.job(executor_def=dg.in_process_executor)
def work() -> None:
    second(first())
    beside()


class Story:
    """Runs of the job on one batch."""

    def __init__(self, instance: dg.DagsterInstance, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.instance = instance
        self.folder = BatchFolder(path / "batch")
        messages = [Message(Receipt(message_id, ""), "body") for message_id in IDS]
        self.folder.create(batch_id="batch", queue_url="https://queue/orders", messages=messages)
        self.patch = patch
        self.runs: list[dg.DagsterRun] = []

    def run(self, *, resume: bool = False, steps: Sequence[str] = (), **told: str) -> bool:
        """Execute the job, or repeat its last run: from its failure, or some steps of it.

        Runs that are repeated in Python have none of the tags by which Dagster says what they leave out.
        """
        with self.patch.context() as patch:
            for name, what in told.items():
                patch.setenv(name, what)
            options = dg.ReexecutionOptions.from_failure(self.runs[-1].run_id, self.instance) if resume else None
            if steps:
                options = dg.ReexecutionOptions(self.runs[-1].run_id, step_selection=list(steps))
            result = dg.execute_job(
                dg.reconstructable(work),
                self.instance,
                tags={BATCH_TAG: str(self.folder), "dagster/run_key": "batch"},
                reexecution_options=options,
            )
        run = self.instance.get_run_by_id(result.run_id)
        assert run is not None
        self.runs.append(run)
        return result.success

    def fate(self) -> Fate:
        """What a sensor that holds the batch does with it."""
        decision = decide(
            "batch",
            self.runs[::-1],
            quiet_seconds=0,
            run_deadline_seconds=600,
            retries_enabled=False,
            leaves_out=partial(leaves_out, self.instance),
        )
        return decision.fate

    def verdict(self) -> Verdict:
        done, pieces = WorkDone(self.instance, self.runs), self.folder.pieces()
        if self.runs[-1].is_success:
            return verdict(IDS, done.steps, pieces)
        return failed(IDS, done.steps, pieces, is_whole=done.is_whole(), reason="the run failed")

    def outcome(self) -> dict[str, str]:
        """What becomes of each message."""
        found = self.verdict()
        fates = dict.fromkeys(IDS, "deleted") | dict.fromkeys(found.released, "released")
        for failure, ids in found.failed.items():
            fates |= dict.fromkeys(ids, failure.reason)
        return fates


@pytest.fixture
def story(instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    return Story(instance, tmp_path, monkeypatch)


def test_what_no_step_failed_is_deleted_after_a_success(story: Story) -> None:
    assert story.run(FIRST="fail m1")
    assert story.outcome() == {"m1": "it is bad", "m2": "deleted", "m3": "deleted"}


def test_steps_that_were_skipped_by_design_fail_nothing(story: Story) -> None:
    assert story.run(FIRST="skip")
    assert story.outcome() == dict.fromkeys(IDS, "deleted")


def test_an_exception_fails_all_and_its_class_is_known(story: Story) -> None:
    assert not story.run(SECOND="raise")
    assert story.outcome() == dict.fromkeys(IDS, "ZeroDivisionError")
    (failure,) = story.verdict().failed
    assert failure.errors[0] == "builtins.ZeroDivisionError"


def test_a_last_step_that_names_messages_fails_those_alone(story: Story) -> None:
    assert not story.run(SECOND="name m2")
    assert story.outcome() == {"m1": "deleted", "m2": "MessageFailed", "m3": "deleted"}


def test_a_step_that_names_messages_and_holds_up_others_fails_those_and_releases_the_rest(story: Story) -> None:
    assert not story.run(FIRST="name m2")
    assert story.outcome() == {"m1": "released", "m2": "MessageFailed", "m3": "released"}


def test_a_resumed_run_counts_with_what_the_first_one_did(story: Story) -> None:
    assert not story.run(FIRST="fail m1", SECOND="raise")
    assert story.run(resume=True)
    assert story.outcome() == {"m1": "it is bad", "m2": "deleted", "m3": "deleted"}


def test_the_work_is_done_when_all_that_a_run_leaves_out_was_done_before(story: Story) -> None:
    assert not story.run(SECOND="raise")
    assert story.fate() is Fate.FAILED
    assert story.run(resume=True)
    assert story.fate() is Fate.SUCCEEDED


def test_a_run_of_some_steps_is_the_rest_of_the_work_or_not(story: Story) -> None:
    assert not story.run(SECOND="raise", BESIDE="raise")
    assert story.run(steps=["beside"])
    assert story.fate() is Fate.FAILED
    assert story.run(steps=["second"])
    assert story.fate() is Fate.SUCCEEDED


def test_steps_that_never_ran_are_not_left_out_of_the_work(story: Story) -> None:
    assert not story.run(FIRST="raise")
    assert story.run(steps=["first"])
    assert story.fate() is Fate.FAILED


def test_a_run_that_repeats_all_steps_counts_alone(story: Story) -> None:
    assert not story.run(FIRST="fail m1", BESIDE="raise")
    assert story.run()
    assert story.outcome() == dict.fromkeys(IDS, "deleted")


def test_a_step_that_failed_before_it_began_fails_all(story: Story) -> None:
    assert not story.run(BESIDE="stop")
    assert story.outcome() == dict.fromkeys(IDS, "beside failed")


def test_work_that_stopped_between_two_steps_is_not_done(story: Story) -> None:
    """As after the death of a run worker: no step failed, and one never ran."""
    story.run()
    done, pieces = WorkDone(story.instance, story.runs), story.folder.pieces()
    assert done.is_whole()
    del done.steps["second"]
    assert not done.is_whole()
    found = failed(IDS, done.steps, pieces, is_whole=False, reason="the run failed")
    assert {failure.reason for failure in found.failed} >= {"second came to no end"}
    del pieces["second"]
    found = failed(IDS, done.steps, pieces, is_whole=False, reason="the run failed")
    assert [(failure.reason, ids) for failure, ids in found.failed.items()] == [("the run failed", IDS)]


def test_a_failure_that_names_messages_does_not_make_up_for_a_step_that_never_ran(story: Story) -> None:
    story.run(BESIDE="name m2")
    done, pieces = WorkDone(story.instance, story.runs), story.folder.pieces()
    del done.steps["second"], pieces["second"]
    found = failed(IDS, done.steps, pieces, is_whole=done.is_whole(), reason="the run failed")
    assert {failure.reason: ids for failure, ids in found.failed.items()} == {
        "MessageFailed": ["m2"],
        "the run failed": ["m1", "m3"],
    }


def test_a_step_that_succeeded_and_is_executed_again_is_not_done_until_it_ends(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the death of a run worker in the midst of a run that repeats everything."""
    assert story.run()
    assert story.run()
    read = run_events

    def cut_off(
        instance: dg.DagsterInstance, run_id: str, types: Collection[dg.DagsterEventType]
    ) -> Iterator[dg.DagsterEvent]:
        for event in read(instance, run_id, types):
            yield event
            if run_id == story.runs[1].run_id:
                assert event.event_type == dg.DagsterEventType.STEP_START
                return

    monkeypatch.setattr(verdicts, "run_events", cut_off)
    done = WorkDone(story.instance, story.runs)
    assert not done.is_whole()
    assert len(done.steps) == 2


def test_a_run_that_failed_around_its_steps_deletes_nothing(story: Story) -> None:
    story.run()
    done = WorkDone(story.instance, story.runs)
    found = failed(IDS, done.steps, story.folder.pieces(), is_whole=True, reason="the run failed")
    assert [(failure.reason, ids) for failure, ids in found.failed.items()] == [("the run failed", IDS)]


def test_a_batch_that_no_step_worked_on_is_given_back_after_a_success(story: Story) -> None:
    found = verdict(IDS, {}, {})
    assert (list(found.released), dict(found.failed)) == (IDS, {})
