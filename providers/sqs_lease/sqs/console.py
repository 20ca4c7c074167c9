"""Addresses of queues in the AWS console, for the links that hosts show."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

_QUEUE_URL: Final = re.compile(
    r"https://sqs\.(?P<region>[a-z0-9-]+)\.(?P<domain>amazonaws\.com(?:\.cn)?)/\d{12}/[A-Za-z0-9_-]+(?:\.fifo)?"
)
_LEGACY_QUEUE_URL: Final = re.compile(
    r"https://(?P<region>[a-z0-9-]+)\.queue\.(?P<domain>amazonaws\.com(?:\.cn)?)/\d{12}/[A-Za-z0-9_-]+(?:\.fifo)?"
)
_CONSOLES: Final = {"amazonaws.com.cn": "console.amazonaws.cn"}


def console_link(queue_url: str) -> str:
    """Return the address of a queue in the AWS console; an empty one for queues that are not on AWS.

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
