"""Refuses to receive in a run that resumes another one, where messages would be deleted that not all steps worked on.

Dagster repeats failed runs *from the failure* unless told otherwise: steps that succeeded are not executed again. The
messages of the first run were given back by then, so a step that leases again in the second gets *others*. Those would
be deleted although the steps that are left out, which belong to the same work, never saw them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import dagster as dg

RESUMED_TAGS: Final = ("dagster/is_resume_retry", "dagster/is_asset_resume_retry")
"""Dagster's tags of runs that leave out what succeeded in the run before them, with the value ``true``."""


class ResumedRunError(dg.DagsterError):
    """The run resumes another one, so it must not receive; the text says what to set."""


def resumes(run: dg.DagsterRun) -> bool:
    """Whether a run leaves out steps that succeeded in the run before it."""
    return any(run.tags.get(tag) == "true" for tag in RESUMED_TAGS)


def refuse_where_steps_are_left_out(
    instance: dg.DagsterInstance, run: dg.DagsterRun, step_key: str, queue: str
) -> None:
    """Refuse to receive in a resumed run that leaves out steps before or after the one that receives.

    Steps of the same job that are connected with it by nothing do not matter.

    Args:
        instance: The instance that has the runs.
        run: The run.
        step_key: The step that is to receive.
        queue: The queue, for the error.

    Raises:
        ResumedRunError: It leaves out such steps.
    """
    if not resumes(run):
        return
    graph, executed = _steps(instance, run, with_parent=True)
    left_out = sorted(_connected(graph, step_key) - executed)
    if left_out:
        raise ResumedRunError(
            f"{step_key!r} does not receive from {queue}: this run repeats run {run.parent_run_id} from its failure "
            f"and leaves out {', '.join(map(repr, left_out))}, which would never see the messages received now. "
            'Set the tag "dagster/retry_strategy": "ALL_STEPS" on the job, or choose "re-execute all steps". If what '
            'this step does with its messages depends on no other step, say lease(..., on_resume="receive")'
        )


def refuse_where_any_step_is_left_out(
    instance: dg.DagsterInstance, run: dg.DagsterRun, executed: Collection[str], queue: str
) -> None:
    """Refuse to receive for all steps of a run that repeats another one and leaves out any of its steps.

    Args:
        instance: The instance that has the runs.
        run: The run.
        executed: The keys of the steps that it executes.
        queue: The queue, for the error.

    Raises:
        ResumedRunError: It leaves out steps.
    """
    if run.parent_run_id is None:
        return
    # Another plan than the run's own counts only where that has not all of the work: steps may have other names by now.
    graph, _ = _steps(instance, run, with_parent=resumes(run))
    left_out = sorted(graph.keys() - set(executed))
    if left_out:
        raise ResumedRunError(
            f"Run {run.run_id} does not receive from {queue}: it repeats run {run.parent_run_id} and leaves out "
            f"{', '.join(map(repr, left_out))}, which would never see the messages received now. Those of run "
            f"{run.parent_run_id} were given back when it ended. Set the tag "
            '"dagster/retry_strategy": "ALL_STEPS" on the job, or choose "re-execute all steps"'
        )


def _steps(
    instance: dg.DagsterInstance, run: dg.DagsterRun, *, with_parent: bool
) -> tuple[dict[str, set[str]], set[str]]:
    """The steps of a run (and of the one that it repeats) with those that each waits for, and what the run executes."""
    graph: dict[str, set[str]] = {}
    executed: set[str] = set()
    parent = instance.get_run_by_id(run.parent_run_id) if with_parent and run.parent_run_id else None
    for each in (run, parent):
        if each is None or each.execution_plan_snapshot_id is None:
            continue
        # The plan of a run that repeats assets has only those; the steps left out are in its parent's.
        plan = instance.get_execution_plan_snapshot(each.execution_plan_snapshot_id)
        if each is run:
            executed.update(plan.step_keys_to_execute)
        for step in plan.steps:
            before = {key for value in step.inputs for key in value.upstream_step_keys}
            graph.setdefault(step.key, set()).update(before)
    return graph, executed


def _connected(graph: Mapping[str, Iterable[str]], step_key: str) -> set[str]:
    """The steps before and after a step, near and far."""
    after: dict[str, set[str]] = {}
    for key, before in graph.items():
        for each in before:
            after.setdefault(each, set()).add(key)
    return _reached(graph, step_key) | _reached(after, step_key)


def _reached(edges: Mapping[str, Iterable[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = list(edges.get(start, ()))
    while waiting:
        if (key := waiting.pop()) not in reached:
            reached.add(key)
            waiting.extend(edges.get(key, ()))
    return reached
