"""The messages of one ingestion, each once, and the name they go by."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqs_lease.core.messages import Message

_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages by id.

    Attributes:
        messages: Each message once: of several receptions of one message, the one received last.
        received: How many were handed over, repetitions included.
    """

    messages: tuple[Message, ...]
    received: int

    @classmethod
    def of(cls, messages: Iterable[Message | Mapping[str, Any]]) -> Batch:
        """Collect messages.

        Args:
            messages: :class:`Message` values, or dicts in the shape of the SQS API (``MessageId``,
                ``Body``, ``Attributes``).

        Raises:
            TypeError: One is neither.
            ValueError: One lacks its id or body.
        """
        received = 0
        latest: dict[str, Message] = {}
        for position, given in enumerate(messages):
            message = _message(given, position)
            received += 1
            known = latest.get(message.message_id)
            if known is None or message.receive_count >= known.receive_count:
                latest[message.message_id] = message
        return cls(tuple(latest.values()), received)

    @property
    def repeated(self) -> int:
        """How many of the messages were handed over more than once."""
        return self.received - len(self.messages)

    def default_id(self, schema: str) -> str:
        """Name the batch after what is in it.

        The same messages, received as often, under the same schema are the same batch: a task that is
        tried again finds what its first try committed. A redelivery has a higher receive count and a
        corrected schema is another one, so that messages which were rejected get their next chance.

        Args:
            schema: The schema of the records, in any fixed notation.
        """
        content = [schema, sorted((message.message_id, message.receive_count) for message in self.messages)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def directory_name(batch_id: str) -> str:
    """A name for the batch's files: readable, unique, and of characters that every file system and Spark take.

    A batch id may be anything, for example an Airflow run id with its colons and plus signs.
    """
    readable = re.sub(r"[^A-Za-z0-9]+", "-", batch_id).strip("-")[:_SHOWN_CHARACTERS]
    return f"{readable or 'batch'}-{hashlib.sha256(batch_id.encode()).hexdigest()[:16]}"


def _message(given: Message | Mapping[str, Any], position: int) -> Message:
    if isinstance(given, Message):
        message = given
    elif isinstance(given, Mapping):
        try:
            message = Message.from_api(given)
        except KeyError as error:
            raise ValueError(
                f"messages[{position}] has no {error}: expected a message in the shape of the SQS API, "
                "with MessageId and Body"
            ) from None
    else:
        raise TypeError(f"messages[{position}] must be a Message or a dict, not {type(given).__name__}")
    if not isinstance(message.message_id, str) or not message.message_id:
        raise ValueError(f"messages[{position}] has an empty message id")
    if not isinstance(message.body, str):
        raise TypeError(
            f"the body of messages[{position}] ({message.message_id}) must be a str, not {type(message.body).__name__}"
        )
    return message
