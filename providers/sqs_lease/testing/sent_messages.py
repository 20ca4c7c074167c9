"""The checks of :class:`sqs_lease.testing.MemorySqs` for sent messages, like those of the real service."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any, Final

from sqs_lease.testing import service_errors as errors
from sqs_lease.testing.service_errors import MemorySqsError, ServiceError

LONGEST_MESSAGE_BYTES: Final = 1024 * 1024
"""Most bytes of a message: its body and its attributes' names, types and values together."""

MOST_ATTRIBUTES: Final = 10

_LONGEST_TOKEN: Final = 128
_TOKEN: Final = frozenset(string.ascii_letters + string.digits + string.punctuation)
_OUTSIDE_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ATTRIBUTE_NAME: Final = re.compile(r"(?!(?i:aws|amazon)\.)[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_LONGEST_ATTRIBUTE_NAME: Final = 256
_VALUE_OF_TYPE: Final = {"String": "StringValue", "Number": "StringValue", "Binary": "BinaryValue"}


def check_sent_message(body: str, message_attributes: Mapping[str, Mapping[str, Any]]) -> None:
    """Check a message's body and attributes.

    Raises:
        TypeError: The body is not a text, or an attribute not a mapping.
        MemorySqsError: The service would refuse it.
    """
    if not isinstance(body, str):
        raise TypeError(f"the body of a message is a text, not {type(body).__name__}: json.dumps() makes one")
    if not body:
        raise MemorySqsError(errors.MISSING_BODY)
    if _OUTSIDE_XML.search(body):
        raise MemorySqsError(errors.INVALID_CONTENTS)
    if len(message_attributes) > MOST_ATTRIBUTES:
        raise MemorySqsError(errors.too_many_attributes(len(message_attributes), MOST_ATTRIBUTES))
    length = len(body.encode())
    for name, attribute in message_attributes.items():
        if not isinstance(attribute, Mapping):
            raise TypeError(
                f"attribute {name!r} is of type {type(attribute).__name__}; the SQS API has "
                f'{{"DataType": "String", "StringValue": "..."}} there'
            )
        length += len(name.encode()) + _checked_attribute_bytes(name, attribute)
    if length > LONGEST_MESSAGE_BYTES:
        raise MemorySqsError(errors.MESSAGE_TOO_LONG)


def check_token(value: str, parameter: str) -> None:
    """Check a message group id or a deduplication id.

    Raises:
        MemorySqsError: The service would refuse it.
    """
    if not 1 <= len(value) <= _LONGEST_TOKEN or not _TOKEN.issuperset(value):
        raise MemorySqsError(errors.invalid_token(parameter))


def _checked_attribute_bytes(name: str, attribute: Mapping[str, Any]) -> int:
    """Check an attribute, and return the bytes of its type and value."""
    if len(name) > _LONGEST_ATTRIBUTE_NAME or not _ATTRIBUTE_NAME.fullmatch(name):
        raise _invalid(name, "has a name that is not allowed")
    data_type = attribute.get("DataType")
    if not isinstance(data_type, str) or not data_type:
        raise _invalid(name, "must contain a non-empty message attribute type")
    kind = data_type.partition(".")[0]
    if kind not in _VALUE_OF_TYPE:
        raise _invalid(name, "has an invalid type: the supported type prefixes are Binary, Number and String")
    value = attribute.get(_VALUE_OF_TYPE[kind])
    if not value:
        raise _invalid(name, "must contain a non-empty message attribute value")
    if not isinstance(value, bytes if kind == "Binary" else str):
        raise _invalid(name, f"must contain a message attribute value of the type {kind}")
    if isinstance(value, bytes):
        return len(data_type.encode()) + len(value)
    if _OUTSIDE_XML.search(value):
        raise MemorySqsError(errors.INVALID_CONTENTS)
    if kind == "Number" and not _is_number(value):
        raise _invalid(name, "must contain a number")
    return len(data_type.encode()) + len(value.encode())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _invalid(name: str, what: str) -> MemorySqsError:
    return MemorySqsError(ServiceError("InvalidParameterValue", f"The message (user) attribute '{name}' {what}."))
