"""How the work on a batch ended, gathered from the events of all runs that worked on it.

A step that was executed more than once, in a run and in those that repeat it, counts as its last execution ended. What
each message is due then is decided as for a single run (``batch_verdict.py``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import dagster as dg

from sqs_lease.dagster.batch_verdict import Failure, StepEnd, Verdict, verdict
from sqs_lease.dagster.run_batch.folder import PieceOfWork
from sqs_lease.dagster.step_ends import StepEnds

_STEP_EVENTS: Final = {
    dg.DagsterEventType.STEP_START,
    dg.DagsterEventType.STEP_SUCCESS,
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.STEP_SKIPPED,
    dg.DagsterEventType.STEP_UP_FOR_RETRY,
}
_MAPPING_KEY: Final = re.compile(r"\[[^]]*\]")


def succeeded(message_ids: Collection[str], steps: Mapping[str, StepEnd], pieces: Mapping[str, PieceOfWork]) -> Verdict:
    """Return what becomes of messages whose work succeeded: what no step failed is deleted."""
    return verdict(message_ids, steps, pieces)


def failed(
    message_ids: Collection[str],
    steps: Mapping[str, StepEnd],
    pieces: Mapping[str, PieceOfWork],
    *,
    is_whole: bool,
    reason: str,
) -> Verdict:
    """Return what becomes of messages whose work failed for good.

    Args:
        message_ids: The messages, in the order of the batch.
        steps: How each step ended, by its key.
        pieces: What the steps said of their work, by their keys.
        is_whole: Whether every step came to an end, or could not run because of one that failed. Where it is not, as
            when a run worker was killed, no message is done.
        reason: Why the work failed, for messages of which no step said so.
    """
    found = verdict(message_ids, steps, pieces)
    undecided = set(message_ids) - {each for several in found.failed.values() for each in several}
    a_step_failed = any(end.failed for end in steps.values())
    if found.is_untouched or not is_whole or not a_step_failed:
        # Nobody can say that these are done: the run failed before its steps did, or around them.
        rest = [message_id for message_id in message_ids if message_id in undecided]
        failures = {**found.failed, Failure(reason): rest} if rest else found.failed
        return replace(found, failed=failures, released=(), is_untouched=False)
    return found


class WorkDone:
    """How the steps of a batch's runs ended.

    Args:
        instance: The instance that has the runs.
        runs: All runs that worked on the batch, the oldest first.
    """

    def __init__(self, instance: dg.DagsterInstance, runs: Sequence[dg.DagsterRun]) -> None:
        self.steps: dict[str, StepEnd] = {}
        self._skipped: set[str] = set()
        self._planned: set[str] = set()
        for run in runs:
            upstream = _upstream(instance, run)
            self._planned |= upstream.keys()
            self._see(run.run_id, upstream, _events(instance, run.run_id))

    def is_whole(self) -> bool:
        """Whether every step came to an end, was skipped, or waited for one that failed."""
        ended = {_MAPPING_KEY.sub("[?]", key) for key in (*self.steps, *self._skipped)}
        held_up = any(end.failed and end.holds_up for end in self.steps.values())
        return held_up or self._planned <= ended

    def _see(self, run_id: str, upstream: Mapping[str, Collection[str]], events: Iterable[dg.DagsterEvent]) -> None:
        ends = StepEnds(run_id, upstream)
        for event in events:
            key = event.step_key
            if key is None:
                continue
            if event.event_type == dg.DagsterEventType.STEP_START:
                # Executed again: how it ended before does not count any more.
                self.steps.pop(key, None)
                self._skipped.discard(key)
            elif event.event_type == dg.DagsterEventType.STEP_SKIPPED:
                self._skipped.add(key)
            ends.see(event)
        self.steps.update(ends.ends())


def _upstream(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dict[str, set[str]]:
    if run.execution_plan_snapshot_id is None:
        return {}
    plan = instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id)
    return {step.key: {key for value in step.inputs for key in value.upstream_step_keys} for step in plan.steps}


def _events(instance: dg.DagsterInstance, run_id: str) -> Iterable[dg.DagsterEvent]:
    for entry in instance.all_logs(run_id, of_type=_STEP_EVENTS):
        if entry.dagster_event is not None:
            yield entry.dagster_event
