"""The causes of messages in a dead-letter queue: a sample of them, counted by cause, for people and for programs.

`dead_letter()` writes its reason into a message attribute. When SQS moves a message that was received too often, it
writes only the source queue. So a message has a reason, a source queue, both or neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from sqs_lease.cli.durations import shown_duration
from sqs_lease.cli.message_text import age_seconds, harmless
from sqs_lease.cli.sampling import Sample
from sqs_lease.core.messages import Message
from sqs_lease.keeper.driver import REASON_ATTRIBUTE
from sqs_lease.sqs.validation import queue_reference

CAUSES_SHOWN: Final = 15
"""How many causes the table has, at most."""

_REASON_CHARACTERS: Final = 300
_SOURCE_ARN: Final = "DeadLetterQueueSourceArn"
_TOO_OFTEN: Final = "received too often"
_SENT_DIRECTLY: Final = "sent there without a reason"


@dataclass(slots=True)
class Cause:
    """Messages that were dead-lettered for the same reason.

    Attributes:
        reason: The reason that ``dead_letter()`` wrote; empty without one.
        messages: The number of messages.
        sources: The names of the queues that SQS moved them from.
        oldest_seconds: The age of the oldest.
    """

    reason: str
    messages: int = 0
    sources: set[str] = field(default_factory=set)
    oldest_seconds: float = 0.0

    @property
    def text(self) -> str:
        """The reason, or a description of the cause without one."""
        return self.reason or (_TOO_OFTEN if self.sources else _SENT_DIRECTLY)


def causes_of(sample: Sample) -> list[Cause]:
    """Count messages by cause, the most frequent cause first."""
    causes: dict[tuple[str, bool], Cause] = {}
    for message in sample.messages:
        reason, source = _reason(message), message.attributes.get(_SOURCE_ARN)
        cause = causes.setdefault((reason, source is None), Cause(reason))
        cause.messages += 1
        cause.oldest_seconds = max(cause.oldest_seconds, age_seconds(message, sample.looked_at) or 0.0)
        if source is not None:
            cause.sources.add(queue_reference(source).name)
    return sorted(causes.values(), key=lambda cause: (-cause.messages, cause.text))


def _reason(message: Message) -> str:
    return str(message.message_attributes.get(REASON_ATTRIBUTE, {}).get("StringValue") or "")


def causes_table(causes: Sequence[Cause]) -> Table:
    """Return the first causes, for people."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("reason", overflow="fold")
    table.add_column("messages", justify="right", no_wrap=True)
    table.add_column("oldest", justify="right", no_wrap=True)
    has_sources = any(cause.sources for cause in causes)
    if has_sources:
        table.add_column("from", overflow="fold")
    for cause in causes[:CAUSES_SHOWN]:
        text = harmless(cause.text)
        if len(text) > _REASON_CHARACTERS:
            text = f"{text[: _REASON_CHARACTERS - 1]}…"
        table.add_row(
            Text(text, style="" if cause.reason else "italic"),
            f"{cause.messages:,}",
            shown_duration(round(cause.oldest_seconds)),
            *([Text(", ".join(sorted(cause.sources)))] if has_sources else []),
        )
    return table


def causes_as_json(causes: Sequence[Cause]) -> list[dict[str, Any]]:
    """Return all causes, for programs."""
    return [
        {
            "reason": cause.reason or None,
            "messages": cause.messages,
            "oldest_seconds": cause.oldest_seconds,
            "sources": sorted(cause.sources),
        }
        for cause in causes
    ]
