"""The result of an ingestion for the process that started it: one JSON file, written at its end.

The format, version 1: one JSON object with ``"format": "sqs-lease-ingestion-result"``, ``"version": 1`` and the fields
of :class:`StoredResult`. ``batchItemFailures`` names the messages that must not be deleted from the queue, in the shape
that AWS Lambda defines, each with its ``reason``. A reader ignores keys that it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import msgspec

FORMAT: Final = "sqs-lease-ingestion-result"
VERSION: Final = 1


class ResultError(ValueError):
    """Error for a text that is not the result of an ingestion."""


@dataclass(frozen=True, slots=True)
class CleanUp:
    """The outcomes of the objects that a batch was read from, if the source cleans up: each was tried once.

    Attributes:
        cleaned: How many were deleted or tagged.
        left: How many were left alone: written again since, in a store without tags, or of an unknown version.
        failed: How many could not be deleted or tagged.
        error: The error of one of them, or of the whole clean-up. None without errors.
    """

    cleaned: int
    left: int
    failed: int
    error: str | None


@dataclass(frozen=True, slots=True)
class StoredResult:
    """The outcome of a batch.

    Attributes:
        batch_id: The batch.
        received: How many messages were handed over.
        ingested: How many have their records in the table because of this batch.
        empty: How many had no records, and are done.
        duplicates: How many were done before, or were in the batch more than once.
        rejected: How many are not valid records.
        rows: How many rows the batch added.
        table_version: The version of the table that has them; None without versions.
        rejects_stored: Whether the rejected messages are in the rejects table, and so are done too.
        batchItemFailures: The messages that are not done: ``{"itemIdentifier": message id, "reason": text}``.
        objects: The outcomes of the objects that it was read from; None if the source leaves them.
    """

    batch_id: str
    received: int
    ingested: int
    empty: int
    duplicates: int
    rejected: int
    rows: int
    table_version: int | None
    rejects_stored: bool
    batchItemFailures: Sequence[Mapping[str, str]]  # noqa: N815 - as AWS spells it
    objects: CleanUp | None = None

    def failures(self) -> dict[str, str]:
        """Return the messages that are not done, and why."""
        return {failure["itemIdentifier"]: failure.get("reason", "") for failure in self.batchItemFailures}

    def encode(self) -> str:
        """Return it as JSON text."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)})

    @classmethod
    def decode(cls, text: str) -> Self:
        """Build it from what :meth:`encode` returned.

        Raises:
            ResultError: It is something else, or of another version.
        """
        try:
            plain: Any = json.loads(text)
        except (ValueError, RecursionError):
            plain = None
        if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
            raise ResultError("it is not the result of an ingestion")
        if plain.get("version") != VERSION:
            raise ResultError(f"it is a result of version {plain.get('version')!r}, and this release reads {VERSION}")
        try:
            result = msgspec.convert(plain, cls)
        except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
            raise ResultError(f"it is not what this release writes: {error}") from None
        if not all("itemIdentifier" in failure for failure in result.batchItemFailures):
            raise ResultError("it has a failure that names no message")
        return result
