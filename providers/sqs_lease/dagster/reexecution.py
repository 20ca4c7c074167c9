"""Refuses to receive where messages would be deleted that not all of their work has seen.

What concerns the messages of a run that ``sqs_lease_executor`` receives for is its job *as it is defined*. A run may
execute a part of it: somebody selected some ops or assets, or repeats a run from its failure, which leaves out what
succeeded. The messages of the earlier run were given back by then, so this run gets others, which the steps left out
would never see. A step may be left out all the same if it succeeded in an earlier run and did not work on the messages
there, such as one that looks up what the others need.

A step that receives by itself settles its messages itself, so the steps around it do not matter, with two exceptions:
a step that gave back messages of the same queue, because it has seen what another step deletes; and other assets of the
same step, because they were stored before it failed.

What ran, and which steps worked on the messages, is read from the events of the runs. Tags decide nothing: a run that
repeats another one has different tags when Dagster's daemon, the web UI or Python started it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import dagster as dg

from sqs_lease.dagster._internals import (
    JobParts,
    PlannedStep,
    asset_of_event,
    event_metadata,
    planned_steps,
    reached,
    run_events,
    without_mapping_key,
)
from sqs_lease.dagster.metadata import PREFIX, QUEUE
from sqs_lease.dagster.run_batch.folder import MESSAGES, BatchFolder, BatchFolderError
from sqs_lease.dagster.run_batch.run_folders import run_batch_uri, workspace_path

WORKED_ON_BY: Final = f"{PREFIX}worked_on_by"
"""What the executor adds to the last event of a run: the keys of the steps that worked on its messages."""

_GIVEN_BACK: Final = (f"{PREFIX}released", f"{PREFIX}expired", f"{PREFIX}unsettled")

_REMEDY: Final = 'Set the tag "dagster/retry_strategy": "ALL_STEPS" on the job, or choose "re-execute all steps"'


class ResumedRunError(dg.DagsterError):
    """The run executes a part of the work only, so it must not receive; the text says what to do."""


def refuse_where_steps_are_left_out(
    instance: dg.DagsterInstance, run: dg.DagsterRun, step_key: str, queue: str
) -> None:
    """Refuse to receive in a step whose run repeats another one, and leaves out what has seen messages of the queue.

    That is a step before or after this one that gave messages of the queue back when it was last executed, and an
    asset of this step that was stored before the step failed.

    Args:
        instance: The instance that has the runs.
        run: The run.
        step_key: The step that is to receive.
        queue: The queue's name, ARN or URL.

    Raises:
        ResumedRunError: It leaves out such a step or asset.
    """
    earlier = list(_ancestors(instance, run))
    if not earlier:
        return
    graph: dict[str, set[str]] = {}
    for each in (run, *earlier):
        # The plan of a run that repeats assets has only those; the steps left out are in its parent's.
        for key, step in planned_steps(instance, each).items():
            graph.setdefault(key, set()).update(step.upstream)
    here = {key: step for key, step in planned_steps(instance, run).items() if step.is_executed}
    left_out = []
    for key in sorted(_connected(graph, without_mapping_key(step_key)) - here.keys()):
        done = _last_execution(instance, earlier, key)
        if done is not None and _name(queue) in done.gave_back_to(key):
            left_out.append(key)
    left_out += _assets_stored_before(instance, earlier, here, step_key)
    if left_out:
        raise ResumedRunError(
            f"{step_key!r} does not receive from {queue}: this run repeats run {run.parent_run_id} and leaves out "
            f"{_named(left_out)}, which had messages of it there and would never see those received now. {_REMEDY}. If "
            'what this step does with its messages depends on no other step, say lease(..., on_resume="receive")'
        )


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
        queues: The queues of which a step gave messages back, by the step.
        stored: The assets that a step stored, by the step.
        workers: The steps that worked on the batch of the run; None where the run does not say.
    """

    run_id: str
    ends: dict[str, dg.DagsterEventType] = field(default_factory=dict)
    queues: dict[str, set[str]] = field(default_factory=dict)
    stored: dict[str, set[dg.AssetKey]] = field(default_factory=dict)
    workers: Collection[str] | None = None

    def has(self, step: str) -> bool:
        """Whether it executed the step, or skipped it."""
        return any(without_mapping_key(key) == step for key in self.ends)

    def is_done(self, step: str) -> bool:
        """Whether the step succeeded, or was skipped by design."""
        done = (dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_SKIPPED)
        return all(end in done for key, end in self.ends.items() if without_mapping_key(key) == step)

    def gave_back_to(self, step: str) -> Collection[str]:
        """The names of the queues that the step gave messages back to."""
        return self.queues.get(step, ())

    def see(self, event: dg.DagsterEvent) -> None:
        """Take in an event."""
        if event.event_type == dg.DagsterEventType.ENGINE_EVENT:
            said = event_metadata(event).get(WORKED_ON_BY)
            if said is not None:
                self.workers = frozenset(json.loads(str(said.value)))
        if event.step_key is None:
            return
        step = without_mapping_key(event.step_key)
        if event.event_type in _ENDS:
            self.ends[event.step_key] = event.event_type
            if event.event_type in _BEGINNINGS:
                # What an earlier attempt gave back has come to this one again.
                self.queues.pop(step, None)
        elif event.event_type in _WITH_METADATA:
            asset = asset_of_event(event)
            if event.event_type == dg.DagsterEventType.ASSET_MATERIALIZATION and asset is not None:
                self.stored.setdefault(step, set()).add(asset)
            metadata = event_metadata(event)
            if any(int(metadata[key].value or 0) for key in _GIVEN_BACK if key in metadata) and QUEUE in metadata:
                names = {_name(queue) for queue in str(metadata[QUEUE].value).split(", ")}
                self.queues.setdefault(step, set()).update(names)


_BEGINNINGS: Final = (dg.DagsterEventType.STEP_START, dg.DagsterEventType.STEP_RESTARTED)
_ENDS: Final = (
    *_BEGINNINGS,
    dg.DagsterEventType.STEP_SUCCESS,
    dg.DagsterEventType.STEP_SKIPPED,
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.STEP_UP_FOR_RETRY,
)
_WITH_METADATA: Final = (
    dg.DagsterEventType.STEP_OUTPUT,
    dg.DagsterEventType.ASSET_MATERIALIZATION,
    dg.DagsterEventType.ASSET_OBSERVATION,
    # What each lease leaves in the log: a block that raised leaves nothing else where its step went on.
    dg.DagsterEventType.ENGINE_EVENT,
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
    wanted = {*_ENDS, *_WITH_METADATA}
    for event in run_events(instance, run.run_id, wanted):
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


def _assets_stored_before(
    instance: dg.DagsterInstance,
    earlier: Iterable[dg.DagsterRun],
    here: Mapping[str, PlannedStep],
    step_key: str,
) -> list[str]:
    """The assets of a step that were stored before it failed in an earlier run, and that this run does not make."""
    step = without_mapping_key(step_key)
    done = _last_execution(instance, earlier, step)
    if done is None or done.is_done(step) or step not in here:
        return []
    return sorted(key.to_user_string() for key in done.stored.get(step, set()) - here[step].assets)


def _connected(graph: Mapping[str, Collection[str]], step_key: str) -> set[str]:
    """The steps before and after a step, near and far."""
    after: dict[str, set[str]] = {}
    for key, before in graph.items():
        for each in before:
            after.setdefault(each, set()).add(key)
    return reached(graph, step_key) | reached(after, step_key)


def _name(queue: str) -> str:
    """A queue's name, of its name, ARN or URL."""
    return queue.rstrip("/").rpartition("/")[2].rpartition(":")[2]


def _named(keys: Iterable[str]) -> str:
    return ", ".join(map(repr, keys))
