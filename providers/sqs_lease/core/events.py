"""Events of leases, as values that the ledger hands out and the keeper passes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from msgspec import Struct

from sqs_lease.core.messages import Receipt


class Outcome(Enum):
    """The ways in which a lease ends."""

    # Members are hashed several times per message: by identity, which is faster than by name.
    __hash__ = object.__hash__

    DELETED = "deleted"
    """The message is gone: its work succeeded."""

    RELEASED = "released"
    """The message is visible again, at once or after the delay that was asked for."""

    DEAD_LETTERED = "dead-lettered"
    """The message was sent to the dead-letter queue and deleted here."""

    EXPIRED = "expired"
    """No call was made: the message is visible again when (or because) its visibility timeout ended."""

    UNCERTAIN = "uncertain"
    """The message may come again. Its work succeeded and SQS confirmed the delete, but the lease had ended before: on a
    standard queue SQS also confirms the delete of a message that another consumer has received since, and keeps that
    message. Or a delete got no answer, and SQS refused the next one: the first was probably carried out."""

    LOST = "lost"
    """The service refused: the message was deleted, or another consumer holds it."""

    FAILED = "failed"
    """The service refused the settlement, or it did not succeed before the lease ended: the message comes back."""


OUTCOME_LETTERS: Final[Mapping[str, Outcome]] = {
    "d": Outcome.DELETED,
    "r": Outcome.RELEASED,
    "q": Outcome.DEAD_LETTERED,
    "e": Outcome.EXPIRED,
    "u": Outcome.UNCERTAIN,
    "l": Outcome.LOST,
    "f": Outcome.FAILED,
}
"""One letter per outcome: the outcomes of 50 000 messages are a text of 50 kB, which a host writes in milliseconds."""


class Settled(Struct, frozen=True, gc=False):
    """The end of a lease.

    Attributes:
        receipt: The lease.
        outcome: How it ended.
        detail: For people: the error's code and text, empty when all went well.
        hidden_seconds: How long a message of ``FAILED`` stays invisible, by its deadline; 0 if it is visible already.

    Python's garbage collector does not look through these values, as of leases: whole batches of them end at once.
    """

    receipt: Receipt
    outcome: Outcome
    detail: str = ""
    hidden_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Lost:
    """The loss of a lease whose work goes on: an extension was refused, so others may receive or have the message."""

    receipt: Receipt
    detail: str


@dataclass(frozen=True, slots=True)
class Ending:
    """The final end of a lease, at ``ends_at`` (the ledger's clock): ``max_lease``, or the service's 12 hours."""

    receipt: Receipt
    ends_at: float


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A deadline that passed without a confirmed extension: others may receive the message."""

    receipt: Receipt
    overdue_seconds: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal to extend, for an error of the caller's, e.g. a permission; it is tried again."""

    receipt: Receipt
    detail: str


LeaseEvent: TypeAlias = Settled | Lost | Ending | Lapsed | Refused
