"""What a worker leaves for the keeper when a work task fails for good: an XCom with the details, and a fast signal.

When a work task skips itself, it leaves an XCom that says so.

The XCom, ``sqs_lease_failure`` of the task instance that failed, has the classes of the exception and the ids of
``MessageFailed``; never the exception's text, which may contain anything. The signal is an Airflow variable
whose key says it all: which keeper (by a hash), which of its work tasks, which map index. So one request for the keys
with a common prefix tells a triggerer about the failures of all of its keepers. The keeper deletes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from sqs_lease.core.failure_rules import exception_names, named_message_ids

FAILURE_KEY: Final = "sqs_lease_failure"
"""The XCom key of a failed task instance's report."""

SKIP_KEY: Final = "sqs_lease_skip"
"""The XCom key by which a task instance says that it skipped itself while it ran."""


@dataclass(frozen=True, slots=True)
class FailureReport:
    """Why a task instance failed for good.

    Attributes:
        errors: The qualified names of the exception's class and those it derives from; empty without one.
        message_ids: The messages that ``MessageFailed`` named, alone or in groups; None for other exceptions.
    """

    errors: tuple[str, ...] = ()
    message_ids: tuple[str, ...] | None = None

    @classmethod
    def of(cls, error: object) -> Self:
        """The report of what Airflow tells a listener: an exception, a text, or nothing."""
        if not isinstance(error, BaseException):
            return cls()
        return cls(exception_names(error), named_message_ids(error))

    def encode(self) -> dict[str, Any]:
        """Return it as plain values."""
        ids = None if self.message_ids is None else list(self.message_ids)
        return {"errors": list(self.errors), "message_ids": ids}

    @classmethod
    def decode(cls, plain: object) -> Self | None:
        """Build it from what :meth:`encode` returned; None from anything else."""
        if not isinstance(plain, Mapping):
            return None
        errors, ids = _texts(plain.get("errors")), plain.get("message_ids")
        return None if errors is None else cls(errors, _texts(ids))


def _texts(value: object) -> tuple[str, ...] | None:
    texts = [item for item in value if isinstance(item, str)] if isinstance(value, list | tuple) else None
    return None if texts is None else tuple(texts)
