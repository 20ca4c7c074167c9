"""The errors of ingestion: each says what is wrong and what to do; none quotes a message body."""

from __future__ import annotations

from collections.abc import Collection


class IngestionError(Exception):
    """Something that stops an ingestion: none of the batch's messages may be deleted from the queue.

    The batch can be handed over again at any time; what a failed call did commit is found in the table.
    """


class JavaError(IngestionError):
    """Java is missing, too old or cannot be started."""


class LeaseLostError(IngestionError):
    """The messages are held no longer, so the ingestion was stopped and nothing more of it is committed."""


class SchemaError(IngestionError):
    """A schema that cannot be used, or that differs from the table's."""


class NothingToInferError(SchemaError):
    """No schema is pinned yet, and no message of the batch has a field: ingestion rejects them all."""


class TableError(IngestionError):
    """The table cannot be created, read or written."""


class RowsRefusedError(TableError):
    """The table does not take some of the rows that were to be staged or committed; nothing was committed.

    Sinks raise it. Ingestion rejects the messages of those rows, and brings the others into the table.

    Args:
        text: What happened, to which table.
        rule: What refuses the rows, as the reason of the rejects: it names constraints and columns, and no value.
        message_ids: The messages, where the table can tell them. Empty, the default, has ingestion find them, by trying
            the messages in smaller and smaller parts.
        is_certain: False where it may also be for another reason than the rows: then it counts only if the table takes
            rows of other messages. True, the default, rejects all messages if need be.
    """

    def __init__(self, text: str, *, rule: str, message_ids: Collection[str] = (), is_certain: bool = True) -> None:
        super().__init__(text)
        self.rule = rule
        self.message_ids = frozenset(message_ids)
        self.is_certain = is_certain


class WorkspaceError(IngestionError):
    """The directory of the manifests cannot be written, or a manifest in it cannot be read."""


class BatchIdReusedError(IngestionError):
    """A batch id that was used before, with other messages."""


class ReconciliationError(IngestionError):
    """A batch's messages are not all accounted for, so nothing of it was committed."""
