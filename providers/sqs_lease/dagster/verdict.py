"""What becomes of each message of a run's batch, by how the run's steps ended. No I/O.

A message is deleted when every step succeeded, or was skipped by design, and none failed it. Otherwise it is

- *failed*, and settled by the failure rule: a step named it (``batch.fail``, ``MessageFailed``), or a step failed for
  good that did not say which;
- *released* at once, whatever the failure rule: its work was not finished, for no fault of its own. That is where a
  step failed by naming other messages and steps behind it did not run for that reason, and where no step began to work
  on the batch at all.

What a step says counts for its last attempt only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sqs_lease.core.failure_rules import failed_by_exception
from sqs_lease.dagster.run_batch.folder import PieceOfWork

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


def verdict(message_ids: Collection[str], steps: Mapping[str, StepEnd], pieces: Mapping[str, PieceOfWork]) -> Verdict:
    """Decide what becomes of the messages of a run that came to its end.

    Args:
        message_ids: The messages, in the order of the batch.
        steps: How each step ended, by its key.
        pieces: What the steps said of their work, by their keys.
    """
    if not pieces:
        return Verdict({}, tuple(message_ids), is_untouched=True)
    why: dict[str, Failure] = {}
    for failure, failed in _failures(message_ids, steps, pieces):
        for message_id in failed:
            why.setdefault(message_id, failure)
    failed_alike: dict[Failure, list[str]] = {}
    for message_id in message_ids:
        if message_id in why:
            failed_alike.setdefault(why[message_id], []).append(message_id)
    finished = not any(end.failed and end.holds_up for end in steps.values())
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
