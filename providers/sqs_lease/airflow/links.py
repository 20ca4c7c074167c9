"""The link from a task to its queue in the AWS console."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

_QUEUE_URL: Final = re.compile(
    r"https://sqs\.(?P<region>[a-z0-9-]+)\.(?P<domain>amazonaws\.com(?:\.cn)?)/\d{12}/[A-Za-z0-9_-]+(?:\.fifo)?"
)
_LEGACY_QUEUE_URL: Final = re.compile(
    r"https://(?P<region>[a-z0-9-]+)\.queue\.(?P<domain>amazonaws\.com(?:\.cn)?)/\d{12}/[A-Za-z0-9_-]+(?:\.fifo)?"
)
_CONSOLES: Final = {"amazonaws.com.cn": "console.amazonaws.cn"}


class SqsQueueLink(BaseOperatorLink):
    """The button *SQS queue* of a task.

    A queue that was given by its name or ARN is known by its URL only once it was asked for, so the triggers publish
    the link under :attr:`xcom_key` as well.
    """

    name = "SQS queue"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the link, or nothing if the queue's URL is not known or is not one of AWS."""
        return console_link(getattr(operator, "queue_url", None) or "")


LINK_KEY: Final = SqsQueueLink().xcom_key
"""The XCom key that Airflow's user interface reads the link from."""


def console_link(queue_url: str) -> str:
    """Return where the AWS console shows a queue; nothing for queues that are not on AWS.

    Args:
        queue_url: The queue's URL, as the service gives it.
    """
    found = _QUEUE_URL.fullmatch(queue_url) or _LEGACY_QUEUE_URL.fullmatch(queue_url)
    if found is None:
        return ""
    region = found["region"]
    console = _CONSOLES.get(found["domain"], "console.aws.amazon.com")
    if region.startswith("us-gov-"):
        console = "console.amazonaws-us-gov.com"
    return f"https://{region}.{console}/sqs/v3/home?region={region}#/queues/{quote(queue_url, safe='')}"
