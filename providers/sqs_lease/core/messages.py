"""Messages, receipts that prove that we hold them, and leases with their deadlines."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

_MAPPINGS = (dict, Mapping)  # dict first: a check against the abstract class is slow, and made for each message

_SHOWN_HANDLE_CHARACTERS = 6
_BASE64 = "base64"

_LONGEST_NUMBER = 18  # digits
MOST_RECEIVES = 2**31 - 1
"""The largest receive count that tables and files have room for."""
LAST_MILLISECOND = 253_402_300_799_999
"""The last millisecond of the year 9999, since the epoch."""


class Receipt(Struct, frozen=True, gc=False):
    """Identifies one reception of one message: a redelivery has the same message id and another handle.

    A receipt handle is a credential (anyone who has it can delete the message), so ``repr`` and ``str``
    show only its last characters.

    Receipts and leases are values that Python's garbage collector does not look through: a triggerer may hold tens of
    thousands, and its event loop stands still for as long as that takes.

    Attributes:
        message_id: The id that SQS gave the message; it survives redelivery.
        handle: The receipt handle of this reception.
    """

    message_id: str
    handle: str

    def __str__(self) -> str:
        return f"{self.message_id} (receipt …{self.handle[-_SHOWN_HANDLE_CHARACTERS:]})"

    def __repr__(self) -> str:
        return f"Receipt({self!s})"


@dataclass(frozen=True, slots=True)
class Message:
    """One received message.

    ``repr`` leaves out the body and the receipt handle: neither belongs in a log.

    Attributes:
        receipt: The reception that brought it.
        body: The text that was sent.
        attributes: The service's own attributes, as strings, e.g. ``ApproximateReceiveCount``.
        message_attributes: The sender's attributes, in the shape of the SQS API:
            ``{"name": {"DataType": "String", "StringValue": "..."}}``.
    """

    receipt: Receipt
    body: str = field(repr=False)
    attributes: Mapping[str, str] = field(default_factory=dict)
    message_attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def message_id(self) -> str:
        """The id that SQS gave the message."""
        return self.receipt.message_id

    @property
    def receive_count(self) -> int:
        """How often the message was received, this reception included; 1 if the service did not say."""
        return min(whole_number(self.attributes.get("ApproximateReceiveCount")) or 1, MOST_RECEIVES)

    @property
    def message_group_id(self) -> str | None:
        """The message group (FIFO order, or the tenant of a fair queue); None without one."""
        return self.attributes.get("MessageGroupId")

    @property
    def sent_at(self) -> datetime | None:
        """When the message was sent, in UTC; None if the service did not say."""
        milliseconds = whole_number(self.attributes.get("SentTimestamp"))
        if milliseconds is None or milliseconds > LAST_MILLISECOND:
            return None
        return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)

    def as_dict(self) -> dict[str, Any]:
        """Return the message in the shape of the SQS API, *without* the receipt handle: tasks get it in this form.

        Keys: ``MessageId``, ``Body``, ``Attributes`` and ``MessageAttributes``, as in the answer of
        ``ReceiveMessage`` and in what the stock ``SqsSensor`` returns. Binary attributes have ``{"base64": "..."}`` in
        place of bytes, see :func:`plain_attributes`.

        Raises:
            TypeError: JSON has no value for an attribute.
        """
        return {
            "MessageId": self.message_id,
            "Body": self.body,
            "Attributes": dict(self.attributes),
            "MessageAttributes": plain_attributes(self.message_attributes),
        }

    @classmethod
    def from_api(cls, answer: Mapping[str, Any]) -> Message:
        """Build a message from one entry of ``ReceiveMessage``'s answer, or from :meth:`as_dict`.

        Args:
            answer: A mapping with ``MessageId`` and ``Body``; ``ReceiptHandle`` (empty if it is
                missing), ``Attributes`` and ``MessageAttributes`` are optional.

        Raises:
            KeyError: ``MessageId`` or ``Body`` is missing.
            TypeError: It is not a mapping, or one of its values is not of the API's type.
            ValueError: A Binary attribute is not base64.
        """
        message_id, body = answer["MessageId"], answer["Body"]
        handle, attributes = answer.get("ReceiptHandle", ""), answer.get("Attributes") or {}
        are_texts = isinstance(message_id, str) and isinstance(body, str) and isinstance(handle, str)
        if not are_texts or not isinstance(attributes, _MAPPINGS):
            raise TypeError("the id, the receipt handle and the body of a message are texts, its attributes a mapping")
        sent = answer.get("MessageAttributes")
        return cls(Receipt(message_id, handle), body, dict(attributes), attributes_from_plain(sent) if sent else {})


def count_of(number: int, noun: str = "message") -> str:
    """Return a number of things for people: ``1 message``, ``1,200 messages``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def whole_number(text: object) -> int | None:
    """Return the number in an attribute of the service; None if it is missing, or is not a number.

    A message may come from a service other than SQS, and one with a wrong attribute must not stop its batch.
    """
    if isinstance(text, int):
        text = str(text) if abs(text) < 10**_LONGEST_NUMBER else ""
    if not isinstance(text, str) or not (text.isascii() and text.isdecimal()) or len(text) > _LONGEST_NUMBER:
        return None
    return int(text)


def plain_attributes(attributes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return a message's attributes as JSON values, with ``{"base64": "..."}`` in place of bytes.

    Every place that publishes or stores messages uses this form: XComs, manifests. Attributes that
    have it already stay as they are.

    Args:
        attributes: The attributes in the shape of the SQS API.

    Raises:
        TypeError: JSON has no such value, or it is not a mapping of mappings.
    """
    _check_attributes(attributes)
    return {
        name: {key: _plain_value(value) for key, value in attribute.items()} for name, attribute in attributes.items()
    }


def attributes_from_plain(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Build a message's attributes, with their bytes, from what :func:`plain_attributes` returned.

    Raises:
        TypeError: It is not a mapping of mappings.
        ValueError: The text of a Binary attribute is not base64.
    """
    _check_attributes(plain)
    return {name: {key: _value_of(value) for key, value in attribute.items()} for name, attribute in plain.items()}


def _check_attributes(attributes: object) -> None:
    if not isinstance(attributes, Mapping) or not all(isinstance(value, Mapping) for value in attributes.values()):
        raise TypeError("the attributes of a message are a mapping of mappings")


def _plain_value(value: object) -> object:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes | bytearray):
        return {_BASE64: base64.b64encode(value).decode("ascii")}
    if isinstance(value, list | tuple):
        # The lists of values that the API has fields for, although the service does not use them yet.
        return [_plain_value(each) for each in value]
    if _is_base64(value):
        return value
    raise TypeError(f"a message attribute cannot hold a {type(value).__name__}")


def _value_of(plain: Any) -> object:
    if _is_base64(plain):
        return base64.b64decode(plain[_BASE64], validate=True)
    return [_value_of(each) for each in plain] if isinstance(plain, list) else plain


def _is_base64(value: object) -> bool:
    return isinstance(value, Mapping) and value.keys() == {_BASE64} and isinstance(value[_BASE64], str)


class Lease(Struct, frozen=True, gc=False):
    """Our hold on one received message. Times are seconds of the holder's clock.

    Attributes:
        receipt: The reception.
        received_at: The time at which the receive that returned it was *sent*: the service's 12 hours begin then or
            later.
        deadline: The time until which the message stays invisible, as far as the service confirmed it.
        receive_count: How often the message was received, this reception included.
        message_group_id: The message group; None without one.
        doubtful: Whether its deadline passed once before an extension was confirmed. Another consumer may have received
            the message since, and a standard queue extends it for either; so it is deleted, but never released.
        renewed_at: The time from which the deadline counts: that of the last extension that the service confirmed, or
            of writing the lease down for its next holder. None, the default: that of the receive.
    """

    receipt: Receipt
    received_at: float
    deadline: float
    receive_count: int = 1
    message_group_id: str | None = None
    doubtful: bool = False
    renewed_at: float | None = None

    def shifted(self, seconds: float) -> Lease:
        """Return the same lease on a clock that is ``seconds`` ahead of this one."""
        renewed_at = None if self.renewed_at is None else self.renewed_at + seconds
        received_at, deadline = self.received_at + seconds, self.deadline + seconds
        return replace(self, received_at=received_at, deadline=deadline, renewed_at=renewed_at)

    def in_doubt(self) -> Lease:
        """Return the same lease, marked as one that may have ended meanwhile."""
        return replace(self, doubtful=True)

    def lasting_until(self, deadline: float) -> Lease:
        """Return the same lease, which is known to last until ``deadline`` at least."""
        return replace(self, deadline=max(self.deadline, deadline))
