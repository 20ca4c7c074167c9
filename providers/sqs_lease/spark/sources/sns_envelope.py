"""The envelope that SNS puts around a message on its way to a queue, unless raw delivery is on. Without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqs_lease.json_syntax import decode_object

MESSAGE: Final = "Message"
"""The field of the envelope that holds what was published."""

_CONFIRMATIONS: Final = {"SubscriptionConfirmation", "UnsubscribeConfirmation"}


class NotANotificationError(ValueError):
    """The body is no notification; the error's text says why, without a word of what it says."""


def is_envelope(value: Mapping[str, Any]) -> bool:
    """Whether a decoded body is what SNS sends: a notification, or one of its confirmations."""
    return isinstance(value.get("Type"), str) and "TopicArn" in value and MESSAGE in value


def unwrap(body: str) -> str:
    """Take the published text out of a body.

    Raises:
        NotANotificationError: The body is an envelope that holds none.
        sqs_lease.json_syntax.NotJsonError: The body is no JSON object.
    """
    return published(decode_object(body))


def published(value: Mapping[str, Any]) -> str:
    """Take the published text out of a decoded body.

    Raises:
        NotANotificationError: There is none.
    """
    if not is_envelope(value):
        raise NotANotificationError(
            "not an SNS notification: where raw message delivery is on, the body is the message itself, and needs no "
            "SnsEnvelope"
        )
    kind = value["Type"]
    if kind in _CONFIRMATIONS:
        raise NotANotificationError(
            f"an SNS {kind}, which carries nothing to store: confirm the subscription, then delete the message"
        )
    if kind != "Notification" or not isinstance(value[MESSAGE], str):
        raise NotANotificationError("an SNS envelope of an unknown type")
    message: str = value[MESSAGE]
    return message
