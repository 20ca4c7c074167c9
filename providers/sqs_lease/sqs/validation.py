"""Checks of arguments before a call is sent: each ``ValueError`` names the given value and the allowed ones."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from sqs_lease.core.calls import VisibilityChange
from sqs_lease.core.limits import MAX_BATCH_ENTRIES, MAX_VISIBILITY_SECONDS, MAX_WAIT_SECONDS

FIFO_SUFFIX: Final = ".fifo"

MOST_NAME_CHARACTERS: Final = 80
_TOKEN_CHARACTERS: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.fifo)?")
_ARN: Final = re.compile(
    r"arn:(?P<partition>aws[a-z-]*):sqs:(?P<region>[a-z0-9-]+):(?P<account>[0-9]{12}):(?P<name>[^:/]+)"
)
_TOKEN: Final = frozenset(string.ascii_letters + string.digits + string.punctuation)

# The hosts of AWS's own endpoints, old and new: sqs.eu-west-1.amazonaws.com(.cn), sqs-fips.us-east-1.amazonaws.com,
# sqs.eu-west-1.api.aws, vpce-….sqs.eu-west-1.vpce.amazonaws.com, and eu-west-1.queue.amazonaws.com.
_HOSTS: Final = (
    re.compile(
        r"(?:^|\.)sqs(?:-fips)?\.(?P<region>[a-z0-9-]+)\."
        r"(?:(?:vpce\.)?amazonaws\.(?:com|com\.cn|eu)|api\.aws|api\.amazonwebservices\.com\.cn)$"
    ),
    re.compile(r"^(?P<region>[a-z0-9-]+)\.queue\.amazonaws\.com(?:\.cn)?$"),
)
_OLDEST_HOST: Final = "queue.amazonaws.com"


@dataclass(frozen=True, slots=True)
class QueueReference:
    """The parts of a queue's name, ARN or URL.

    Attributes:
        name: The queue's name; it ends in ``.fifo`` for a FIFO queue.
        url: The URL; None for a name or an ARN.
        region: The region in an ARN or in a URL on one of AWS's hosts; None for all others.
        account: The account in an ARN; None for a name or a URL.
    """

    name: str
    url: str | None = None
    region: str | None = None
    account: str | None = None


def dead_letter_queue_url(queue_url: str, dead_letter_arn: str) -> str:
    """Return the URL of a queue's dead-letter queue, from the ARN in its redrive policy.

    SQS wants both in one account and region. So they differ in their names only, and what other servers write into the
    ARN as a region does not matter.
    """
    return f"{queue_url.rpartition('/')[0]}/{name_in_arn(dead_letter_arn)}"


def name_in_arn(arn: str) -> str:
    """Return the queue's name in an ARN of a server's answer: servers other than AWS write ARNs of their own form."""
    return arn.rpartition(":")[2]


def queue_reference(queue: str) -> QueueReference:
    """Read the parts of a queue's name, ARN or URL.

    Raises:
        ValueError: ``queue`` is not a queue name, ARN or URL.
    """
    _refuse_password(queue)
    if not isinstance(queue, str) or not queue.strip():
        raise ValueError(f"{queue!r} is not a queue name, ARN or URL")
    if queue.startswith("arn:"):
        arn = _ARN.fullmatch(queue)
        if arn is None:
            raise ValueError(
                f"{queue!r} is not the ARN of an SQS queue; such an ARN reads arn:aws:sqs:<region>:<account>:<name>"
            )
        return QueueReference(_checked_name(arn["name"], queue), region=arn["region"], account=arn["account"])
    if "/" in queue or ":" in queue:
        return _url_reference(queue)
    return QueueReference(_checked_name(queue, queue))


def check_queue_url(queue_url: str) -> QueueReference:
    """Read the parts of a queue URL.

    Raises:
        ValueError: ``queue_url`` is not the URL of a queue.
    """
    _refuse_password(queue_url)
    if not isinstance(queue_url, str) or "://" not in queue_url:
        raise ValueError(f"{queue_url!r} is not a queue URL; Transport.queue_url() finds the URL of a name or ARN")
    return _url_reference(queue_url)


def check_receive(
    queue_url: str, *, max_messages: int, wait_seconds: int, visibility_seconds: int | None, attempt_id: str | None
) -> None:
    """Check the arguments of a receive.

    Raises:
        ValueError: An argument is out of range, or an option is for the other kind of queue.
    """
    check_whole_number(max_messages, "max_messages", 1, MAX_BATCH_ENTRIES, f"receiving from {queue_url}")
    check_whole_number(wait_seconds, "wait_seconds", 0, MAX_WAIT_SECONDS, f"receiving from {queue_url}")
    if visibility_seconds is not None:
        check_visibility(visibility_seconds, f"receiving from {queue_url}")
    if attempt_id is not None:
        if not queue_url.endswith(FIFO_SUFFIX):
            raise ValueError(f"attempt_id is for FIFO queues only, and {queue_url} is a standard queue: leave it out")
        _check_token(attempt_id, "attempt_id", queue_url)


def check_visibility(seconds: int, doing: str, *, minimum: int = 0) -> None:
    """Check a visibility timeout: whole seconds, 0 to 43 200.

    Args:
        seconds: The visibility timeout.
        doing: The caller's action and the queue, such as "receiving from ..."; the error begins with this.
        minimum: 1 if the message must stay invisible, 0 (the default) if it may become visible.

    Raises:
        ValueError: The visibility timeout is out of range.
    """
    check_whole_number(seconds, "the visibility timeout", minimum, MAX_VISIBILITY_SECONDS, doing)


def check_whole_number(value: int, name: str, minimum: int, maximum: int, doing: str) -> None:
    """Check an integer.

    Raises:
        ValueError: ``value`` is not an integer, or out of range.
    """
    if not _is_whole_number(value, minimum, maximum):
        raise ValueError(f"{doing}: {name} must be an integer from {minimum} to {maximum}, not {value!r}")


def _is_whole_number(value: object, minimum: int, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum


def check_changes(changes: Sequence[VisibilityChange], queue_url: str) -> None:
    """Check the entries of a call that changes visibility timeouts.

    Raises:
        ValueError: There are more than ten, or a visibility timeout is out of range.
    """
    check_batch(changes, queue_url)
    for change in changes:
        # The text, which takes longer than the check, is made for an error only.
        if not _is_whole_number(change.seconds, 0, MAX_VISIBILITY_SECONDS):
            check_visibility(change.seconds, f"changing {change.receipt} of {queue_url}")


def check_batch(entries: Sequence[object], queue_url: str) -> None:
    """Check the number of entries of a batch call.

    Raises:
        ValueError: There are more than ten.
    """
    if len(entries) > MAX_BATCH_ENTRIES:
        raise ValueError(
            f"{len(entries)} entries in one batch call on {queue_url}: split them, {MAX_BATCH_ENTRIES} at most"
        )


def check_send(queue_url: str, body: str, *, message_group_id: str | None, deduplication_id: str | None) -> None:
    """Check the arguments of a send.

    Raises:
        ValueError: The body is empty, or an option is missing, malformed or for the other kind of queue.
    """
    if not isinstance(body, str) or not body:
        raise ValueError(f"the body of a message to {queue_url} must be a string and not empty")
    if queue_url.endswith(FIFO_SUFFIX):
        if message_group_id is None:
            raise ValueError(f"{queue_url} is a FIFO queue: message_group_id is required")
    elif deduplication_id is not None:
        raise ValueError(f"deduplication_id is for FIFO queues only, and {queue_url} is a standard queue: leave it out")
    if message_group_id is not None:
        _check_token(message_group_id, "message_group_id", queue_url)
    if deduplication_id is not None:
        _check_token(deduplication_id, "deduplication_id", queue_url)


def _refuse_password(queue: object) -> None:
    """Refuse a URL with a user name or a password, before any text quotes it: errors and logs name the queue."""
    if isinstance(queue, str) and "@" in queue:
        raise ValueError(
            "a queue has no @ in its name, ARN or URL, and this one is not shown, because a password may be before its "
            "@: leave out all between // and the @. SQS reads no password from a URL; the client has the credentials"
        )


@lru_cache(maxsize=256)  # each call of a transport asks again for the same few queues
def _url_reference(url: str) -> QueueReference:
    is_not_one = (
        f"{url!r} is not the URL of an SQS queue; such a URL reads https://sqs.<region>.amazonaws.com/<account>/<name>"
    )
    try:
        parts = urlsplit(url)
        # Only this checks that the port is a number, and not too large.
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError(is_not_one) from None
    path = [part for part in parts.path.split("/") if part]
    if parts.scheme not in {"http", "https"} or not host or not path or parts.query or parts.fragment:
        raise ValueError(is_not_one)
    return QueueReference(_checked_name(path[-1], url), url=url, region=region_of_host(host))


def region_of_host(host: str) -> str | None:
    """Return the region in the name of one of AWS's own SQS endpoints; None for any other host."""
    if host == _OLDEST_HOST:
        return "us-east-1"
    return next((found["region"] for pattern in _HOSTS if (found := pattern.search(host))), None)


def _checked_name(name: str, given: str) -> str:
    if len(name) > MOST_NAME_CHARACTERS or not _NAME.fullmatch(name):
        where = "" if name == given else f" (in {given!r})"
        raise ValueError(
            f"{name!r}{where} is not a queue name: a name has 1 to {MOST_NAME_CHARACTERS} letters, digits, hyphens and "
            f"underscores, and ends in {FIFO_SUFFIX} for a FIFO queue"
        )
    return name


def _check_token(value: str, name: str, queue_url: str) -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= _TOKEN_CHARACTERS or not _TOKEN.issuperset(value):
        raise ValueError(
            f"{name} for {queue_url} must be 1 to {_TOKEN_CHARACTERS} ASCII letters, digits and punctuation, "
            f"not {value!r}"
        )
