"""What becomes of a batch whose runs are such: pure decisions, from the runs that Dagster has of it.

A batch has one run that the sensor asked for, and the runs that repeat it: those that Dagster starts itself (run
retries), and those that somebody starts by hand. All have the batch's tag. The rules:

- As long as one of them is queued or under way, the batch is held.
- When a run *of the whole work* has succeeded, the work is done. The first run is one; so is one that repeats it and
  leaves out nothing but what was done before on the same messages. What a run leaves out is read from its plan, and
  what was done before it from the events of the other runs: a run that repeats another one has different tags when
  Dagster's daemon, the web UI or Python started it.
- A failed run that Dagster is going to repeat is not the end. Whether it is, Dagster writes on the run about 20 ms
  *after* its status, so with run retries switched on a failed run without that tag is looked at again.
- A run that does not come by the deadline, be it the first one or a promised repetition, is not waited for.
- Otherwise the newest run of the whole work decides: failed, or cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import dagster as dg

RUN_KEY_TAG: Final = "dagster/run_key"
WILL_RETRY_TAG: Final = "dagster/will_retry"
AUTO_RETRY_RUN_ID_TAG: Final = "dagster/auto_retry_run_id"

RETRY_TAG_SECONDS: Final = 15.0
"""How long a failed run may be without Dagster's word on whether it is repeated.

It takes 20 ms; what is left over is for a run worker that died in between, on whose behalf the daemon writes it.
"""


LeavesOut: TypeAlias = Callable[[dg.DagsterRun, Sequence[dg.DagsterRun]], bool]


class Fate(Enum):
    """What becomes of a batch."""

    REQUESTED = "waits for its run"
    """There is no run, or none that was launched."""

    WORKING = "is worked on"
    """A run is queued or under way, or will be started by Dagster."""

    SUCCEEDED = "was worked on"
    """All the work has succeeded: delete what no step failed."""

    FAILED = "failed"
    """The work failed for good: the failure rule says what becomes of the messages."""

    GIVEN_BACK = "is given back"
    """Nothing is wrong with the messages: they are visible at once."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a batch, and why.

    Attributes:
        fate: What.
        reason: Why, for people.
        run_id: The run that decided it; None where there is none.
    """

    fate: Fate
    reason: str
    run_id: str | None = None

    @property
    def is_final(self) -> bool:
        """Whether the batch is to be settled now."""
        return self.fate in (Fate.SUCCEEDED, Fate.FAILED, Fate.GIVEN_BACK)


def decide(
    batch_id: str,
    runs: Sequence[dg.DagsterRun],
    *,
    quiet_seconds: float,
    run_deadline_seconds: float,
    retries_enabled: bool,
    leaves_out: LeavesOut,
) -> Decision:
    """Decide what becomes of a batch.

    Args:
        batch_id: The batch, which is also the run key of its first run.
        runs: All runs with the batch's tag, the newest first.
        quiet_seconds: For how long no run of it has been queued or under way.
        run_deadline_seconds: For how long a run that does not appear is waited for.
        retries_enabled: Whether the instance repeats failed runs.
        leaves_out: Says of a run that repeats another one whether it leaves out work that was not done before it; it
            gets the runs before it, too, the oldest first.
    """
    for run in runs:
        if not run.is_finished and run.status is not dg.DagsterRunStatus.NOT_STARTED:
            return Decision(Fate.WORKING, f"run {run.run_id} is {run.status.value.lower()}", run.run_id)
    late = quiet_seconds >= run_deadline_seconds
    by_id = {run.run_id: run for run in runs}
    first = next((run for run in reversed(runs) if _is_asked_for(run, batch_id)), None)
    whole = [run for run in runs if run.is_finished and _is_of_the_whole_work(run, runs, first, leaves_out)]
    for run in whole:
        if run.is_success:
            return Decision(Fate.SUCCEEDED, f"run {run.run_id} succeeded", run.run_id)
    if not late and any(not run.is_finished for run in runs):
        return Decision(Fate.REQUESTED, "its run was made, but not launched")
    if not whole:
        if late:
            return Decision(Fate.GIVEN_BACK, f"no run of it started within {run_deadline_seconds:g} s")
        return Decision(Fate.REQUESTED, "its run was not made yet")
    newest = whole[0]
    if newest.status is dg.DagsterRunStatus.CANCELED:
        return Decision(Fate.GIVEN_BACK, f"run {newest.run_id} was canceled", newest.run_id)
    if (awaited := _awaited_retry(newest, by_id)) and not late:
        return Decision(Fate.WORKING, awaited, newest.run_id)
    said = WILL_RETRY_TAG in newest.tags
    if retries_enabled and not said and quiet_seconds < RETRY_TAG_SECONDS:
        return Decision(Fate.WORKING, f"Dagster has not said yet whether it repeats run {newest.run_id}", newest.run_id)
    return Decision(Fate.FAILED, f"run {newest.run_id} failed", newest.run_id)


def _awaited_retry(run: dg.DagsterRun, by_id: Mapping[str, dg.DagsterRun]) -> str:
    """Why a failed run is not the end: Dagster promised to repeat it, and has not done so."""
    if run.tags.get(WILL_RETRY_TAG, "").lower() != "true" or run.tags.get(AUTO_RETRY_RUN_ID_TAG) in by_id:
        return ""
    return f"Dagster is going to repeat run {run.run_id}"


def _is_asked_for(run: dg.DagsterRun, batch_id: str) -> bool:
    """Whether the sensor asked for a run: Dagster makes one for a run key, so of several it is the oldest."""
    return run.parent_run_id is None and run.tags.get(RUN_KEY_TAG) == batch_id


def _is_of_the_whole_work(
    run: dg.DagsterRun, runs: Sequence[dg.DagsterRun], first: dg.DagsterRun | None, leaves_out: LeavesOut
) -> bool:
    """Whether all the work is done when this run has succeeded."""
    if run is first:
        return True
    by_id = {each.run_id: each for each in runs}
    if first is None or not _descends(run, first, by_id):
        return False
    before = [each for each in runs[runs.index(run) + 1 :] if each.is_finished and _descends(each, first, by_id)]
    return not leaves_out(run, before[::-1])


def _descends(run: dg.DagsterRun, first: dg.DagsterRun, by_id: Mapping[str, dg.DagsterRun]) -> bool:
    """Whether a run repeats the first one, or one that does."""
    seen: set[str] = set()
    while run is not first:
        parent = by_id.get(run.parent_run_id or "")
        if parent is None or run.run_id in seen:
            return False
        seen.add(run.run_id)
        run = parent
    return True
