"""Checks, their outcomes, and the service that they check."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from sqs_lease.sqs.move_tasks import RedriveTransport

if TYPE_CHECKING:
    from sqs_lease.cli.contract.ground import Ground


class Outcome(StrEnum):
    """The ways in which a service may keep or break one part of the contract."""

    HOLDS = "as relied on"
    HARMLESS = "differs, harmless"
    """The service differs from SQS, and breaks no promise of this package."""
    DIFFERS = "differs"
    """The service differs from SQS, and breaks a promise of this package."""
    NOT_CHECKED = "not checked"


class DiffersError(Exception):
    """A difference between the service and the contract. The text says what the service did.

    Attributes:
        outcome: :attr:`Outcome.DIFFERS`, or :attr:`Outcome.HARMLESS` if no promise of this package breaks.
    """

    def __init__(self, what: str, *, outcome: Outcome = Outcome.DIFFERS) -> None:
        super().__init__(what)
        self.outcome = outcome


class TooSlowError(Exception):
    """An error: the calls took so long that their answers prove nothing. The check needs longer times."""


class QueueKind(StrEnum):
    """The kinds of queues that a check works on; each check has a queue of its own."""

    STANDARD = "standard"
    FIFO = "FIFO"
    WITH_DEAD_LETTERS = "with a dead-letter queue"
    """A standard queue that moves a message to its dead-letter queue after :data:`MAX_RECEIVES` receives."""


MAX_RECEIVES = 2
"""``maxReceiveCount`` of queues with a dead-letter queue: the least that still shows that a message comes again."""


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the contract.

    Attributes:
        name: A word that does not change between versions.
        relied_on: The behaviour that this package relies on, in a sentence.
        otherwise: The effect on leases if the service differs, in a sentence.
        kind: The kind of queues that it works on.
        run: Checks the service, and returns its observation, in a few words. It raises :class:`DiffersError` or
            :class:`TooSlowError`, or the :class:`sqs_lease.sqs.errors.SqsError` of a call that failed.
    """

    name: str
    relied_on: str
    otherwise: str
    kind: QueueKind
    run: Callable[[Ground], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check.

    Attributes:
        check: The check.
        outcome: The outcome for the service.
        found: The observation, in one line.
    """

    check: Check
    outcome: Outcome
    found: str


@dataclass(frozen=True, slots=True)
class Requests:
    """The number of requests that AWS counts: each call, and each further 64 KiB that it carries.

    Attributes:
        standard: Requests for standard queues, and for no queue.
        fifo: Requests for FIFO queues, which cost more.
    """

    standard: int = 0
    fifo: int = 0


class QueueService(RedriveTransport, Protocol):
    """A transport that also makes and deletes queues, and counts its requests."""

    @property
    def requests(self) -> Requests:
        """The requests so far."""

    async def create_queue(self, name: str, attributes: Mapping[str, str]) -> str:
        """Create a queue and return its URL; if it is cancelled, it first awaits the answer.

        Args:
            name: Its name.
            attributes: Its attributes, as the SQS API names them.

        Raises:
            sqs_lease.sqs.errors.SqsError: The call failed.
        """

    async def delete_queue(self, queue_url: str) -> None:
        """Delete a queue.

        Raises:
            sqs_lease.sqs.errors.SqsError: The call failed.
        """

    async def queue_urls(self, prefix: str) -> Sequence[str]:
        """Return the URLs of queues with names that begin so, up to a thousand.

        Raises:
            sqs_lease.sqs.errors.SqsError: The call failed.
        """
