"""Says whether a batch whose leases have all ended fails its keeper, and why.

- Messages that could not be settled always do: their work may be done, and they come back to the queue all the same.
- Leases that were lost or have lapsed do with ``on_lost="fail"``. So do deletes after a lapse (``uncertain``): SQS
  confirms such a delete also where another consumer received the message since, and then it is not gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqs_lease.airflow.keeping.lost_leases import FAIL

REFUSALS: Final = "refusals"
"""The report's field with what SQS said when it refused to settle messages: how many, by what it said."""


def why_it_fails(report: Mapping[str, Any], on_lost: object, queue_url: str) -> str | None:
    """Return why the keeper of a batch fails, for people; None where it does not.

    Args:
        report: The lease report.
        on_lost: What :func:`~sqs_lease.airflow.keeping.lost_leases.encode_on_lost` returned.
        queue_url: The queue.
    """
    reasons = []
    if report["failed"]:
        refusals = report.get(REFUSALS, {})
        said = "".join(f" SQS said {count} times: {text}." for text, count in refusals.items())
        reasons.append(
            f"{report['failed']} of {report['received']} messages of {queue_url} could not be settled, so they come "
            f"back to the queue, although their work may be done.{said} Check that the queue exists, that the AWS "
            "connection may sqs:DeleteMessage and sqs:ChangeMessageVisibility on it, and for dead_letter() that it "
            "has a dead-letter queue to which the connection may sqs:SendMessage"
        )
    if on_lost == FAIL and (report["lost"] or report["late"] or report["uncertain"]):
        reasons.append(
            f"{report['lost']} leases of {queue_url} were lost and {report['late']} lapsed, and {report['uncertain']} "
            "messages were deleted only after their lease had lapsed. This fails the task, as on_lost says: other "
            "consumers may have worked on their messages as well. Make the work idempotent, or raise the visibility "
            "timeout"
        )
    return ". ".join(reasons) or None
