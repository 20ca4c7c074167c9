"""What the service said of one entry of a call: the only things the ledger needs to tell apart."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sqs_lease.core.messages import Receipt


class Verdict(Enum):
    """The classes of answer to an extension, a release or a delete."""

    DONE = "done"
    """The service did what was asked."""

    LOST = "lost"
    """The lease is no longer ours: the message was deleted, is visible again, or is held by somebody else."""

    CAPPED = "capped"
    """The service's 12 hours, counted from the receive, allow no such extension; the lease stands to its deadline."""

    THROTTLED = "throttled"
    """Too many requests: try again, more slowly, the most urgent lease first."""

    TRANSIENT = "transient"
    """No answer, or an error on the way: the call may or may not have been carried out. Try again."""

    REFUSED = "refused"
    """The caller's own error (denied, no such queue, malformed): trying again helps only once somebody mends it."""


@dataclass(frozen=True, slots=True)
class EntryAnswer:
    """The verdict on one entry of a batch call.

    Attributes:
        receipt: Which entry.
        verdict: The class of answer.
        code: The service's error code, e.g. ``InvalidParameterValue``; empty when done.
        text: The service's error text, for people; empty when done.
    """

    receipt: Receipt
    verdict: Verdict
    code: str = ""
    text: str = ""
