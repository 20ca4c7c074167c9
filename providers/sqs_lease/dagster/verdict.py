"""What becomes of each message of a run's batch, by how the run's steps ended.

A message is deleted when every step succeeded, or was skipped by design, and none failed it. Otherwise it is

- *failed*, and settled by the failure rule: a step named it (``batch.fail``, ``MessageFailed``), or a step failed for
  good that did not say which;
- *released* at once, whatever the failure rule: its work was not finished, for no fault of its own. That is where a
  step failed by naming other messages and steps behind it did not run for that reason, and where no step began to work
  on the batch at all.

What a step says counts for its last attempt only.

How the steps ended is gathered from the events of a run's executor, or of all runs that worked on the batch. A step
that was executed more than once, in a run and in those that repeat it, counts as its last execution ended.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import dagster as dg

from sqs_lease.core.failure_rules import failed_by_exception
from sqs_lease.dagster.run_batch.folder import BatchFolderError, PieceOfWork
from sqs_lease.dagster.run_batch.leased_batch import attempt_name

_NO_REASON: Final = "{step} failed"


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How a step of the run ended for good; for one that was skipped, there is none.

    Attributes:
        attempt: The last attempt at it: see :class:`PieceOfWork <sqs_lease.dagster.run_batch.folder.PieceOfWork>`.
        failed: Whether it failed.
        errors: The bare names of the classes of the exception that it failed with and of its causes.
        holds_up: Whether other steps did not run because it failed.
    """

    attempt: str
    failed: bool = False
    errors: frozenset[str] = frozenset()
    holds_up: bool = False

    @property
    def has_no_batch(self) -> bool:
        """Whether it failed because it did not reach the messages, for which these are not at fault."""
        return self.failed and BatchFolderError.__name__ in self.errors


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message failed.

    Attributes:
        reason: For people.
        errors: The qualified names of the exception's class and those it derives from; empty where none is known.
    """

    reason: str
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of the messages of a batch; those in neither are deleted.

    Attributes:
        failed: The messages that failed alike, by why.
        released: The messages that nobody failed, and whose work is not done.
        is_untouched: Whether no step began to work on the batch.
    """

    failed: Mapping[Failure, Collection[str]]
    released: Collection[str]
    is_untouched: bool = False


def verdict(
    message_ids: Collection[str],
    steps: Mapping[str, StepEnd],
    pieces: Mapping[str, PieceOfWork],
    *,
    is_whole: bool = True,
) -> Verdict:
    """Decide what becomes of the messages of a run that came to its end.

    Args:
        message_ids: The messages, in the order of the batch.
        steps: How each step ended, by its key.
        pieces: What the steps said of their work, by their keys.
        is_whole: Whether every step came to an end, or could not run because of one that failed. Where it is not,
            because the executor of the steps failed, no message is done, and those that no step failed are released.
    """
    if not pieces:
        return Verdict({}, tuple(message_ids), is_untouched=True)
    is_whole = is_whole and not any(end.has_no_batch for end in steps.values())
    if not is_whole:
        steps = {key: end for key, end in steps.items() if not end.has_no_batch}
        pieces = {key: piece for key, piece in pieces.items() if key in steps}
    why: dict[str, Failure] = {}
    for failure, failed in _failures(message_ids, steps, pieces):
        for message_id in failed:
            why.setdefault(message_id, failure)
    failed_alike: dict[Failure, list[str]] = {}
    for message_id in message_ids:
        if message_id in why:
            failed_alike.setdefault(why[message_id], []).append(message_id)
    finished = is_whole and not any(end.failed and end.holds_up for end in steps.values())
    return Verdict(failed_alike, () if finished else [each for each in message_ids if each not in why])


def _failures(
    message_ids: Collection[str], steps: Mapping[str, StepEnd], pieces: Mapping[str, PieceOfWork]
) -> Iterator[tuple[Failure, Iterable[str]]]:
    """The failures that steps tell of, what is known best first."""
    last = {key: piece for key, piece in pieces.items() if key in steps and piece.attempt == steps[key].attempt}
    for piece in last.values():
        for message_id, reason in piece.failed.items():
            yield Failure(reason), (message_id,)
    for key, piece in last.items():
        if piece.raised is not None:
            named = piece.raised.message_ids if _ended_the_step(piece, steps[key]) else None
            name = piece.raised.errors[0].rpartition(".")[2]
            yield Failure(name, piece.raised.errors), failed_by_exception(named, message_ids)
    for key, end in steps.items():
        said = key in last and last[key].raised is not None
        if end.failed and not said:
            yield Failure(_NO_REASON.format(step=key)), message_ids
        elif key in last and not last[key].is_over:
            yield Failure(f"{key} ended within its leased_batch() block"), message_ids
    for key in pieces.keys() - steps.keys():
        yield Failure(f"{key} came to no end"), message_ids


def _ended_the_step(piece: PieceOfWork, end: StepEnd) -> bool:
    """Whether the exception that the block ended with is what the step failed with, if it failed."""
    return piece.raised is not None and (not end.failed or piece.raised.errors[0].rpartition(".")[2] in end.errors)


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


class StepEnds:
    """What is seen of a run's steps.

    Args:
        run_id: The run.
        upstream: The steps that each step waits for, by key; those of dynamic outputs as ``load[?]``.
    """

    def __init__(self, run_id: str, upstream: Mapping[str, Collection[str]]) -> None:
        self._run_id = run_id
        self._awaited = {before for steps in upstream.values() for before in steps}
        self._retries: dict[str, int] = {}
        self._ends: dict[str, StepEnd] = {}
        self._skipped: set[str] = set()
        self.is_interrupted = False

    def see(self, event: dg.DagsterEvent) -> None:
        """Take in an event of the run."""
        key = event.step_key
        if event.event_type == dg.DagsterEventType.ENGINE_EVENT:
            # What the multiprocess executor says when it was told to terminate.
            self.is_interrupted |= "steps_interrupted" in event.engine_event_data.metadata
        elif key is None:
            return
        elif event.is_step_up_for_retry:
            self._retries[key] = self._retries.get(key, 0) + 1
        elif event.is_step_skipped:
            self._skipped.add(key)
        elif event.is_step_success:
            self._ends[key] = StepEnd(self._attempt(key))
        elif event.is_step_failure:
            holds_up = _MAPPING_KEY.sub("[?]", key) in self._awaited
            errors = _error_names(event.step_failure_data.error)
            self._ends[key] = StepEnd(self._attempt(key), failed=True, errors=errors, holds_up=holds_up)

    def ends(self) -> Mapping[str, StepEnd]:
        """How the steps that came to an end did so, by key; skipped ones are not among them."""
        return self._ends

    def attempts(self) -> set[tuple[str, str]]:
        """The last attempts that came to an end: the step's key, and the name of the attempt."""
        return {(key, end.attempt) for key, end in self._ends.items()}

    def unfinished(self, planned: Iterable[str]) -> set[str]:
        """The steps of a plan of which no end was seen; none where one that failed may be why.

        Those that a dynamic output makes are known by their ends alone, so they are never among them.

        Args:
            planned: The keys of the steps.
        """
        if any(end.failed and end.holds_up for end in self._ends.values()):
            return set()
        return {key for key in planned if not _MAPPING_KEY.search(key)} - self._ends.keys() - self._skipped

    def _attempt(self, key: str) -> str:
        return attempt_name(self._run_id, self._retries.get(key, 0))


def _error_names(error: Any) -> frozenset[str]:
    names = set()
    while error is not None:
        names.add(error.cls_name)
        error = error.cause
    return frozenset(names)
