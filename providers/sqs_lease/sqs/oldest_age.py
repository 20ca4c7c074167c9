"""The age of a queue's oldest message: a metric of CloudWatch, as the request for it and what its answer says.

SQS itself does not tell. The metric is a minute or more behind, and has no value for queues that nobody used for six
hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqs_lease.sqs.validation import queue_reference

OPERATION: Final = "GetMetricStatistics"
"""The call, which needs the permission ``cloudwatch:GetMetricStatistics``."""

METRIC_MINUTES: Final = 15
"""How far to look back for the newest value of the metric: CloudWatch gets one a minute, with some delay."""


def oldest_age_request(arn: str, now: float) -> dict[str, Any]:
    """Build the request.

    Args:
        arn: The queue's ARN.
        now: Seconds since the epoch.
    """
    end = datetime.fromtimestamp(now, tz=UTC)
    return {
        "Namespace": "AWS/SQS",
        "MetricName": "ApproximateAgeOfOldestMessage",
        "Dimensions": [{"Name": "QueueName", "Value": queue_reference(arn).name}],
        "StartTime": end - timedelta(minutes=METRIC_MINUTES),
        "EndTime": end,
        "Period": 60,
        "Statistics": ["Maximum"],
    }


def oldest_age_seconds(answer: Mapping[str, Any]) -> float | None:
    """Read the newest value, in seconds; None if CloudWatch has no value."""
    points = answer.get("Datapoints") or ()
    newest = max(points, key=lambda point: point["Timestamp"], default=None)
    return None if newest is None else float(newest["Maximum"])
