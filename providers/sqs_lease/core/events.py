"""What happens to leases, as values that the ledger hands out and the keeper passes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from msgspec import Struct

from sqs_lease.core.messages import Receipt


class Outcome(Enum):
    """How a lease ended."""

    # The identity of a member says as much as its name, and is asked for some times a message.
    __hash__ = object.__hash__

    DELETED = "deleted"
    """The message is gone: its work succeeded."""

    RELEASED = "released"
    """The message is visible again, at once or after the delay that was asked for."""

    DEAD_LETTERED = "dead-lettered"
    """The message was sent to the dead-letter queue and deleted here."""

    EXPIRED = "expired"
    """Nothing was called: the message is visible again when (or because) its visibility timeout ended."""

    UNCERTAIN = "uncertain"
    """Its work succeeded and SQS answered the delete with success, but the lease had ended before: on a standard queue
    SQS gives that answer also where another consumer received the message since, and then it is not gone. Or a delete
    got no answer, and SQS refused the next one: the first was probably carried out."""

    LOST = "lost"
    """The service refused: the message was deleted, or is somebody else's."""

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
"""One letter a message: what became of 50 000 is a text of 50 kB, which a host writes within milliseconds."""


class Settled(Struct, frozen=True, gc=False):
    """A lease ended. ``detail`` is for people: the error's code and text, empty when all went well.

    Python's garbage collector does not look through these values, as of leases: whole batches of them end at once.
    """

    receipt: Receipt
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """An extension was refused while the work goes on: somebody else may receive, or have, the message."""

    receipt: Receipt
    detail: str


@dataclass(frozen=True, slots=True)
class Ending:
    """The lease ends at ``ends_at`` (the ledger's clock) for good: ``max_lease``, or the service's 12 hours."""

    receipt: Receipt
    ends_at: float


@dataclass(frozen=True, slots=True)
class Lapsed:
    """The deadline passed without a confirmed extension: others may receive it."""

    receipt: Receipt
    overdue_seconds: float


@dataclass(frozen=True, slots=True)
class Refused:
    """An extension was refused for an error of the caller's, e.g. a permission; it is tried again."""

    receipt: Receipt
    detail: str


LeaseEvent: TypeAlias = Settled | Lost | Ending | Lapsed | Refused
