"""The link from a task to its queue in the AWS console."""

from __future__ import annotations

from typing import Any, Final

from airflow.sdk import BaseOperatorLink

from sqs_lease.sqs.console import console_link


class SqsQueueLink(BaseOperatorLink):
    """The button *SQS queue* of a task.

    The URL of a queue that was given by name or ARN is known only after a request to SQS, so the triggers publish the
    link under :attr:`xcom_key` as well.
    """

    name = "SQS queue"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the link; empty if the queue's URL is not known or is not one of AWS."""
        return console_link(getattr(operator, "queue_url", None) or "")


LINK_KEY: Final = SqsQueueLink().xcom_key
"""The XCom key that Airflow's user interface reads the link from."""
