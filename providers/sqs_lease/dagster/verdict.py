"""What becomes of each message of a run's batch, by how the run's steps ended.

A message is deleted when every step succeeded, or was skipped by design, and none failed it. Otherwise it is

- *failed*, and settled by the failure rule: a step named it (``batch.fail``, ``MessageFailed``), or a step failed for
  good that did not say which, and was not done with it (``batch.succeed``);
- *released* at once, whatever the failure rule: its work was not finished, for no fault of its own. That is where a
  step gave it back (``batch.release``), where a step failed for others and steps behind it did not run for that reason,
  and where no step began to work on the batch at all.

What a step says counts for its last attempt only, but for messages that it is done with: later attempts do not get
them.

How the steps ended is gathered from the events of a run's executor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import dagster as dg

from sqs_lease.core.failure_rules import failed_by_exception
from sqs_lease.dagster._internals import error_names, is_interruption, without_mapping_key
from sqs_lease.dagster.run_batch.folder import BatchFolderError, PieceOfWork
from sqs_lease.dagster.run_batch.leased_batch import attempt_name

_NO_REASON: Final = "{step} failed"


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How a step of the run ended for good. A skipped step has no end.

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
        is_final: Whether a step failed it by ``batch.fail``, which no retry of the run changes.
    """

    reason: str
    errors: tuple[str, ...] = ()
    is_final: bool = False


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

    def before_a_retry(self) -> Verdict:
        """The same where Dagster repeats the run: what no step failed by its id is released, to be received again."""
        final = {failure: ids for failure, ids in self.failed.items() if failure.is_final}
        others = [each for failure, ids in self.failed.items() if not failure.is_final for each in ids]
        return replace(self, failed=final, released=(*self.released, *others))


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
    unfinished = not is_whole or any(end.failed and end.holds_up for end in steps.values())
    given_back = {each for piece in _last_pieces(steps, pieces).values() for each in piece.released}
    released = (each for each in message_ids if each not in why and (unfinished or each in given_back))
    return Verdict(failed_alike, tuple(released))


def _last_pieces(steps: Mapping[str, StepEnd], pieces: Mapping[str, PieceOfWork]) -> dict[str, PieceOfWork]:
    """What the last attempts at the steps said."""
    return {key: piece for key, piece in pieces.items() if key in steps and piece.attempt == steps[key].attempt}


def _failures(
    message_ids: Collection[str], steps: Mapping[str, StepEnd], pieces: Mapping[str, PieceOfWork]
) -> Iterator[tuple[Failure, Iterable[str]]]:
    """The failures that steps tell of, what is known best first."""
    last = _last_pieces(steps, pieces)

    def left_by(step: str, chosen: Iterable[str] = message_ids) -> list[str]:
        """What a step did not settle; what an attempt released that is not the last one is forgotten."""
        settled = pieces[step].done if step in pieces else frozenset()
        settled |= last[step].released if step in last else frozenset()
        return [each for each in chosen if each not in settled]

    for piece in last.values():
        for message_id, reason in piece.failed.items():
            yield Failure(reason, piece.errors.get(message_id, ()), is_final=True), (message_id,)
    for key, piece in last.items():
        if piece.raised is not None:
            named = piece.raised.message_ids if _ended_the_step(piece, steps[key]) else None
            name = piece.raised.errors[0].rpartition(".")[2]
            yield Failure(name, piece.raised.errors), left_by(key, failed_by_exception(named, message_ids))
    for key, end in steps.items():
        said = key in last and last[key].raised is not None
        if end.failed and not said:
            yield Failure(_NO_REASON.format(step=key)), left_by(key)
        elif key in last and not last[key].is_over:
            yield Failure(f"{key} ended within its lease() block"), left_by(key)
    for key in pieces.keys() - steps.keys():
        yield Failure(f"{key} came to no end"), left_by(key)


def _ended_the_step(piece: PieceOfWork, end: StepEnd) -> bool:
    """Whether the exception that the block ended with is what the step failed with, if it failed."""
    return piece.raised is not None and (not end.failed or piece.raised.errors[0].rpartition(".")[2] in end.errors)


class StepEnds:
    """What is seen of a run's steps.

    Args:
        run_id: The run.
        upstream: The steps that each step waits for, by key.
    """

    def __init__(self, run_id: str, upstream: Mapping[str, Collection[str]]) -> None:
        self._run_id = run_id
        self._awaited = {without_mapping_key(before) for steps in upstream.values() for before in steps}
        self._retries: dict[str, int] = {}
        self._ends: dict[str, StepEnd] = {}
        self._skipped: set[str] = set()
        self.is_interrupted = False

    def see(self, event: dg.DagsterEvent) -> None:
        """Take in an event of the run."""
        key = event.step_key
        self.is_interrupted |= is_interruption(event)
        if key is None:
            return
        if event.is_step_up_for_retry:
            self._retries[key] = self._retries.get(key, 0) + 1
        elif event.is_step_skipped:
            self._skipped.add(key)
        elif event.is_step_success:
            self._ends[key] = StepEnd(self._attempt(key))
        elif event.is_step_failure:
            holds_up = without_mapping_key(key) in self._awaited
            self._ends[key] = StepEnd(self._attempt(key), failed=True, errors=error_names(event), holds_up=holds_up)

    def ends(self) -> Mapping[str, StepEnd]:
        """How the steps that came to an end did so, by key; skipped ones are not among them."""
        return self._ends

    def unfinished(self, planned: Iterable[str]) -> set[str]:
        """The steps of a plan of which no end was seen; none where one that failed may be why.

        Those that a dynamic output makes are known by their ends alone, so they are never among them.

        Args:
            planned: The keys of the steps.
        """
        if any(end.failed and end.holds_up for end in self._ends.values()):
            return set()
        single = {key for key in planned if key == without_mapping_key(key)}
        return single - self._ends.keys() - self._skipped

    def _attempt(self, key: str) -> str:
        return attempt_name(self._run_id, self._retries.get(key, 0))
