"""The envelope that SNS puts around a message on its way to a queue, unless raw delivery is on. Without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqs_lease.batch_files.json_syntax import decode_object
from sqs_lease.spark.sources.source import NotANotificationError

MESSAGE: Final = "Message"
"""The field of the envelope that holds what was published."""

_ATTRIBUTES: Final = "MessageAttributes"
_CONFIRMATIONS: Final = {"SubscriptionConfirmation", "UnsubscribeConfirmation"}
# Of an attribute, the longest name that is used: "Amazon SNS message attributes" in the Amazon SNS Developer Guide.
_NAME_CHARACTERS: Final = 256


def is_envelope(value: Mapping[str, Any]) -> bool:
    """Whether a decoded body is what SNS sends: a notification, or one of its confirmations."""
    return isinstance(value.get("Type"), str) and "TopicArn" in value and MESSAGE in value


def unwrap(body: str) -> str:
    """Take the published text out of a body.

    Raises:
        NotANotificationError: The body is an envelope that holds none.
        sqs_lease.batch_files.json_syntax.NotJsonError: The body is no JSON object.
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
    if kind != "Notification" or not isinstance(value[MESSAGE], str) or not _is_plain(value):
        raise NotANotificationError("an SNS envelope of an unknown form")
    message: str = value[MESSAGE]
    return message


def _is_plain(envelope: Mapping[str, Any]) -> bool:
    """Whether an envelope holds nothing but texts, so that Spark's parser too takes it apart without exception."""
    attributes = envelope.get(_ATTRIBUTES)
    if attributes is None:
        return _are_texts(envelope)
    others = {name: value for name, value in envelope.items() if name != _ATTRIBUTES}
    return (
        _are_texts(others)
        and isinstance(attributes, dict)
        and all(len(name) <= _NAME_CHARACTERS for name in attributes)
        and all(isinstance(its, dict) and _are_texts(its) for its in attributes.values())
    )


def _are_texts(fields: Mapping[str, Any]) -> bool:
    return all(
        len(name) <= _NAME_CHARACTERS and (value is None or isinstance(value, str)) for name, value in fields.items()
    )
