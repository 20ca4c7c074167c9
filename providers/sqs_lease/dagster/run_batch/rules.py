"""The steps of a run as units of work, for :mod:`sqs_lease.core.verdict`. Pure.

By the last event of a step:

    the step                                       its unit is
    succeeded                                      done
    was skipped: an optional output was missing    skipped
    failed with MessageFailed                      failed for the messages that it names, and done with the others
    failed with another exception                  failed
    failed before it reached the messages          not done
    did not run, because a step before it failed,
    or because the executor ended too early        not done
    began, and its end is not known                unknown

A step's reports on single messages add to that:

- ``batch.fail``: the message has failed, in every attempt and for all steps.
- ``batch.succeed``: the step is done with the message, and later failures of the step do not concern it.
- ``batch.release``, in the last attempt: the message is not done.
- A ``lease()`` block that was ended by an exception has failed its messages, even if the step goes on.
- A ``lease()`` block that has not ended when its step succeeds has not done the messages that it did not settle.

**A run that Dagster repeats.** A step that failed, and one that did not run, will be tried again, so their units are
open, and only ``batch.fail`` is final. Messages that are held at the end of the run go to the next run. Messages that a
step gave back do not: the next run may leave that step out.

If no step began to work on the batch, it was not done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import dagster as dg

from sqs_lease.core.failure_rules import failed_by_exception
from sqs_lease.core.verdict import End, Failure, Unit
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


def units(
    message_ids: Collection[str],
    steps: Mapping[str, StepEnd],
    pieces: Mapping[str, PieceOfWork],
    *,
    is_whole: bool = True,
    is_repeated: bool = False,
) -> Iterator[Unit]:
    """Translate a run that ended into units of work; if several fail a message, the one with the best reason is first.

    Args:
        message_ids: The messages, in the order of the batch.
        steps: How each step ended, by its key.
        pieces: The steps' reports on their work, by their keys.
        is_whole: Whether the executor ended by itself: then every step ended, or could not run.
        is_repeated: Whether Dagster repeats the run.
    """
    if not pieces:
        yield Unit(End.NOT_DONE)
        return
    last = {key: piece for key, piece in pieces.items() if key in steps and piece.attempt == steps[key].attempt}
    failed, not_done, undone = End.FAILED, End.NOT_DONE, message_ids
    if is_repeated:
        # The step that gave a message back may be left out when the run is repeated: the next run must not have it.
        given_back = frozenset[str]().union(*(piece.released for piece in last.values()))
        failed, not_done, undone = End.OPEN, End.OPEN, [each for each in message_ids if each not in given_back]
    for piece in pieces.values():
        why = {each: Failure(reason, piece.errors.get(each, ())) for each, reason in piece.failed.items()}
        yield Unit(End.SKIPPED, (), failed=why)
    for key, piece in last.items():
        yield Unit(End.NOT_DONE, piece.released)
        if piece.raised is not None:
            named = piece.raised.message_ids if _ended_the_step(piece, steps[key]) else None
            concerns = _left(failed_by_exception(named, message_ids).intersection(undone), pieces[key], piece)
            # A step that survived the exception is not tried again.
            end = failed if steps[key].failed else End.FAILED
            yield Unit(end, concerns, Failure(piece.raised.errors[0].rpartition(".")[2], piece.raised.errors))
    for key, step in steps.items():
        yield Unit(not_done, undone) if step.has_no_batch else Unit(End.DONE)
        if key in last and not last[key].is_over and not step.failed:
            yield Unit(End.NOT_DONE, _left(message_ids, pieces[key], last[key]))
        said = key in last and last[key].raised is not None
        if step.failed and not step.has_no_batch and not said:
            concerns = _left(undone, pieces.get(key), last.get(key))
            yield Unit(failed, concerns, Failure(_NO_REASON.format(step=key)))
    if not is_whole or any(step.failed and step.holds_up for step in steps.values()):
        yield Unit(not_done, undone)
    if pieces.keys() - steps.keys():
        yield Unit(End.UNKNOWN)


def _left(message_ids: Iterable[str], piece: PieceOfWork | None, last: PieceOfWork | None) -> tuple[str, ...]:
    """Return the messages that a step did not succeed, nor give back in its last attempt."""
    said = (frozenset() if piece is None else piece.done) | (frozenset() if last is None else last.released)
    return tuple(each for each in message_ids if each not in said)


def _ended_the_step(piece: PieceOfWork, end: StepEnd) -> bool:
    """Whether the exception that ended the block also ended the step, if the step failed."""
    return piece.raised is not None and (not end.failed or piece.raised.errors[0].rpartition(".")[2] in end.errors)


class StepEnds:
    """The ends of a run's steps, by the events of its executor; ``upstream`` has the steps that each step waits for."""

    def __init__(self, run_id: str, upstream: Mapping[str, Collection[str]]) -> None:
        self._run_id = run_id
        self._awaited = {without_mapping_key(before) for steps in upstream.values() for before in steps}
        self._retries: dict[str, int] = {}
        self._ends: dict[str, StepEnd] = {}
        self.is_interrupted = False

    def see(self, event: dg.DagsterEvent) -> None:
        """Take in an event of the run."""
        key = event.step_key
        self.is_interrupted |= is_interruption(event)
        if key is None:
            return
        if event.is_step_up_for_retry:
            self._retries[key] = self._retries.get(key, 0) + 1
        elif event.is_step_success:
            self._ends[key] = StepEnd(self._attempt(key))
        elif event.is_step_failure:
            holds_up = without_mapping_key(key) in self._awaited
            self._ends[key] = StepEnd(self._attempt(key), failed=True, errors=error_names(event), holds_up=holds_up)

    def ends(self) -> Mapping[str, StepEnd]:
        """Return the ends of the steps that ended, by key; skipped ones are not among them."""
        return self._ends

    def has_failures(self) -> bool:
        """Whether a step failed for good."""
        return any(end.failed for end in self._ends.values())

    def _attempt(self, key: str) -> str:
        return attempt_name(self._run_id, self._retries.get(key, 0))
