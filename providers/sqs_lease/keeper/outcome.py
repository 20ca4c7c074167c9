"""How the work of a task about a queue ends badly, and whether the task's retries help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqs_lease.core.calls import Verdict
from sqs_lease.sqs.errors import SqsError

TIMED_OUT: Final = "timed out"
"""The time for it was over."""

FAILED: Final = "failed"
"""A retry may help."""

FAILED_FOR_GOOD: Final = "failed for good"
"""No retry helps."""


class OutcomeError(Exception):
    """The work did not come to its end, or not to a good one.

    Attributes:
        status: :data:`TIMED_OUT`, :data:`FAILED` or :data:`FAILED_FOR_GOOD`.
        report: What was done until then.
    """

    def __init__(self, text: str, status: str, report: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.report = dict(report or {})

    @classmethod
    def of(cls, error: SqsError | ValueError) -> OutcomeError:
        """Build it from what a call, or the check of an argument, raised."""
        may_pass = isinstance(error, SqsError) and error.verdict is not Verdict.REFUSED
        return cls(str(error), FAILED if may_pass else FAILED_FOR_GOOD)
