"""What is held: a message, the receipt that proves we hold it, and the lease with its deadline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

_SHOWN_HANDLE_CHARACTERS = 6


class Receipt(Struct, frozen=True, gc=False):
    """Identifies one reception of one message: a redelivery has the same message id and another handle.

    A receipt handle is a credential (whoever has it can delete the message), so ``repr`` and ``str``
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
        receipt: Which reception this is.
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
        """How often the message was received, this reception included; 1 where the service did not say."""
        return int(self.attributes.get("ApproximateReceiveCount", "1"))

    @property
    def message_group_id(self) -> str | None:
        """The message group (FIFO order, or the tenant of a fair queue); None without one."""
        return self.attributes.get("MessageGroupId")

    @property
    def sent_at(self) -> datetime | None:
        """When the message was sent, in UTC; None where the service did not say."""
        milliseconds = self.attributes.get("SentTimestamp")
        if milliseconds is None:
            return None
        return datetime.fromtimestamp(int(milliseconds) / 1000, tz=UTC)

    def as_dict(self) -> dict[str, Any]:
        """The message in the shape of the SQS API, *without* the receipt handle: what work tasks are given.

        Keys: ``MessageId``, ``Body``, ``Attributes`` and ``MessageAttributes``, as in the answer of
        ``ReceiveMessage`` and in what the stock ``SqsSensor`` returns.
        """
        return {
            "MessageId": self.message_id,
            "Body": self.body,
            "Attributes": dict(self.attributes),
            "MessageAttributes": {name: dict(value) for name, value in self.message_attributes.items()},
        }

    @classmethod
    def from_api(cls, answer: Mapping[str, Any]) -> Message:
        """Build a message from one entry of ``ReceiveMessage``'s answer, or from :meth:`as_dict`.

        Args:
            answer: A mapping with ``MessageId`` and ``Body``; ``ReceiptHandle`` (empty where it is
                missing), ``Attributes`` and ``MessageAttributes`` are optional.

        Raises:
            KeyError: ``MessageId`` or ``Body`` is missing.
        """
        return cls(
            receipt=Receipt(answer["MessageId"], answer.get("ReceiptHandle", "")),
            body=answer["Body"],
            attributes=dict(answer.get("Attributes") or {}),
            message_attributes=dict(answer.get("MessageAttributes") or {}),
        )


class Lease(Struct, frozen=True, gc=False):
    """Our hold on one received message. Times are seconds of the holder's clock.

    Attributes:
        receipt: Which reception.
        received_at: When the receive that returned it was *sent*: the service's 12 hours count from a
            moment not before it.
        deadline: Until when the message stays invisible, as far as the service confirmed it.
        receive_count: How often the message was received, this reception included.
        message_group_id: The message group; None without one.
        doubtful: Its deadline passed once before an extension was confirmed. Somebody else may have received the
            message since, and a standard queue extends it for either; so it is deleted, but never released.
    """

    receipt: Receipt
    received_at: float
    deadline: float
    receive_count: int = 1
    message_group_id: str | None = None
    doubtful: bool = False

    def shifted(self, seconds: float) -> Lease:
        """The same lease on a clock that is ``seconds`` ahead of this one."""
        return replace(self, received_at=self.received_at + seconds, deadline=self.deadline + seconds)

    def lasting_until(self, deadline: float) -> Lease:
        """The same lease, which is known to last until ``deadline`` at least."""
        return replace(self, deadline=max(self.deadline, deadline))
