"""Refuses to receive where messages would be deleted that not all of their work has seen.

What concerns the messages of a run that ``sqs_lease_executor`` receives for is its job *as it is defined*. A run may
execute a part of it: somebody selected some ops or assets, or repeats a run from its failure, which leaves out what
succeeded. The messages of the earlier run were given back by then, so this run gets others, which the steps left out
would never see. A step may be left out all the same if it succeeded in an earlier run and did not work on the messages
there, such as one that looks up what the others need.

A step that leases by itself settles its messages at its own end, so the steps around it do not matter.

What ran, and which steps worked on the messages, is read from the events of the runs. Tags decide nothing: a run that
repeats another one has different tags when Dagster's daemon, the web UI or Python started it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import dagster as dg

from sqs_lease.dagster._internals import (
    JobParts,
    event_metadata,
    run_events,
    without_mapping_key,
)
from sqs_lease.dagster.metadata import PREFIX
from sqs_lease.dagster.run_batch.folder import MESSAGES, BatchFolder, BatchFolderError
from sqs_lease.dagster.run_batch.run_folders import run_batch_uri, workspace_path

WORKED_ON_BY: Final = f"{PREFIX}worked_on_by"
"""What the executor adds to the last event of a run: the keys of the steps that worked on its messages."""

_REMEDY: Final = 'Set the tag "dagster/retry_strategy": "ALL_STEPS" on the job, or choose "re-execute all steps"'


class ResumedRunError(dg.DagsterError):
    """The run executes a part of the work only, so it must not receive; the text says what to do."""


def refuse_part_of_the_job(
    instance: dg.DagsterInstance, run: dg.DagsterRun, parts: JobParts, queue: str, workspace: str
) -> None:
    """Refuse to receive for all steps of a run that leaves out a part of its job.

    Args:
        instance: The instance that has the runs.
        run: The run.
        parts: What of the job it leaves out.
        queue: The queue, for the error.
        workspace: Where the executor's files are, of runs whose worker was killed.

    Raises:
        ResumedRunError: It leaves out steps that never succeeded, or that worked on messages when they did.
    """
    earlier = list(_ancestors(instance, run))
    left_out = [key for key in sorted(parts.left_out_steps) if not _is_done(instance, earlier, key, workspace)]
    left_out = left_out or sorted(parts.left_out_assets)
    if not left_out:
        return
    whose = f"{_named(left_out)} of job {run.job_name!r}"
    if earlier:
        raise ResumedRunError(
            f"Run {run.run_id} does not receive from {queue}: it repeats run {run.parent_run_id} and leaves out "
            f"{whose}, which would never see the messages received now. Those of run {run.parent_run_id} were given "
            f"back when it ended. {_REMEDY}"
        )
    remedy = (
        "Give the executor to a job of these assets: dg.define_asset_job(..., executor_def=...)"
        if parts.is_implicit
        else "Run the whole job, or define a job of what is selected"
    )
    raise ResumedRunError(
        f"Run {run.run_id} does not receive from {queue}: it leaves out {whose}, which would never see the messages "
        f"that are deleted when it succeeds. {remedy}"
    )


def refuse_to_go_on(instance: dg.DagsterInstance, run: dg.DagsterRun, queue: str) -> None:
    """Refuse to receive for a run whose steps began already, under a run worker that is gone.

    Args:
        instance: The instance that has the run.
        run: The run.
        queue: The queue, for the error.

    Raises:
        ResumedRunError: Steps of it began.
    """
    if next(run_events(instance, run.run_id, (dg.DagsterEventType.STEP_START,)), None) is None:
        return
    raise ResumedRunError(
        f"Run {run.run_id} does not receive from {queue}: Dagster resumes it with a new run worker, and the steps that "
        "succeeded before would never see the messages received now. Those of the first worker come back when its "
        "last extension ends. Set run_monitoring.max_resume_run_attempts to 0, and let run_retries repeat such runs "
        'with the tag "dagster/retry_strategy": "ALL_STEPS"'
    )


def worked_on_by(folder: BatchFolder) -> dict[str, dg.MetadataValue]:
    """Say which steps worked on a batch, for a run that repeats this one; nothing where that cannot be read."""
    try:
        steps = sorted({without_mapping_key(name) for name in folder.pieces()})
    except (BatchFolderError, OSError):
        return {}
    return {WORKED_ON_BY: dg.MetadataValue.text(json.dumps(steps))}


@dataclass(slots=True)
class _Execution:
    """What the events of one run tell of its steps, dynamic ones together by the key of the step they are made of.

    Attributes:
        run_id: The run.
        ends: The last event of each step, by its whole key.
        workers: The steps that worked on the batch of the run; None where the run does not say.
    """

    run_id: str
    ends: dict[str, dg.DagsterEventType] = field(default_factory=dict)
    workers: Collection[str] | None = None

    def has(self, step: str) -> bool:
        """Whether it executed the step, or skipped it."""
        return any(without_mapping_key(key) == step for key in self.ends)

    def is_done(self, step: str) -> bool:
        """Whether the step succeeded, or was skipped by design."""
        done = (dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_SKIPPED)
        return all(end in done for key, end in self.ends.items() if without_mapping_key(key) == step)

    def see(self, event: dg.DagsterEvent) -> None:
        """Take in an event."""
        if event.event_type == dg.DagsterEventType.ENGINE_EVENT:
            said = event_metadata(event).get(WORKED_ON_BY)
            if said is not None:
                self.workers = frozenset(json.loads(str(said.value)))
        if event.step_key is not None and event.event_type in _ENDS:
            self.ends[event.step_key] = event.event_type


_ENDS: Final = (
    dg.DagsterEventType.STEP_START,
    dg.DagsterEventType.STEP_RESTARTED,
    dg.DagsterEventType.STEP_SUCCESS,
    dg.DagsterEventType.STEP_SKIPPED,
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.STEP_UP_FOR_RETRY,
)


def _ancestors(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Iterator[dg.DagsterRun]:
    """The runs that a run repeats, the newest first; one that was deleted ends them."""
    seen = {run.run_id}
    parent = run.parent_run_id
    while parent is not None and parent not in seen:
        seen.add(parent)
        found = instance.get_run_by_id(parent)
        if found is None:
            return
        yield found
        parent = found.parent_run_id


def _execution(instance: dg.DagsterInstance, run: dg.DagsterRun) -> _Execution:
    done = _Execution(run.run_id)
    for event in run_events(instance, run.run_id, {*_ENDS, dg.DagsterEventType.ENGINE_EVENT}):
        done.see(event)
    return done


def _last_execution(instance: dg.DagsterInstance, earlier: Iterable[dg.DagsterRun], step: str) -> _Execution | None:
    """The newest of the earlier runs that executed a step; None where none did."""
    for run in earlier:
        done = _execution(instance, run)
        if done.has(step):
            return done
    return None


def _is_done(instance: dg.DagsterInstance, earlier: Iterable[dg.DagsterRun], step: str, workspace: str) -> bool:
    """Whether a step succeeded in an earlier run without having worked on its messages."""
    done = _last_execution(instance, earlier, step)
    if done is None or not done.is_done(step):
        return False
    workers = done.workers
    if workers is None:
        workers = _workers_of_killed_run(workspace, done.run_id)
    return workers is not None and step not in workers


def _workers_of_killed_run(workspace: str, run_id: str) -> Collection[str] | None:
    """The steps that worked on a run's messages, by the files that its killed worker left; None without these."""
    folder = BatchFolder(workspace_path(run_batch_uri(workspace, run_id)))
    try:
        if folder.get(MESSAGES) is None:
            return None
        return {without_mapping_key(name) for name in folder.pieces()}
    except (BatchFolderError, OSError):
        return None


def _named(keys: Iterable[str]) -> str:
    return ", ".join(map(repr, keys))
