"""The errors of ingestion. Each text says what is wrong and what to do, and never quotes a message body."""

from __future__ import annotations

from collections.abc import Collection


class IngestionError(Exception):
    """Error that ended an ingestion: no message of the batch may be deleted from the queue.

    The batch can be ingested again at any time; the next call finds what a failed call has committed.
    """


class JavaError(IngestionError):
    """Java is missing, too old or cannot be started."""


class LeaseLostError(IngestionError):
    """The leases of the messages have ended, so the ingestion was stopped and commits nothing more."""


class SchemaError(IngestionError):
    """The schema cannot be used, or differs from the table's."""


class NothingToInferError(SchemaError):
    """No schema is pinned yet and no message of the batch has a field, so ingestion rejects them all."""


class TableError(IngestionError):
    """The table cannot be created, read or written."""


class RowsRefusedError(TableError):
    """The table refused some rows when they were staged or committed; nothing was committed.

    Sinks raise it. Ingestion rejects the messages of those rows and stores the others.

    Args:
        text: The event, and the table.
        rule: The rule that refused the rows, as the reason of the rejects: names of constraints and columns, no value.
        message_ids: The messages, if the table can name them. If empty, the default, ingestion finds them by trying
            smaller and smaller parts of the batch.
        is_certain: False if the cause may be another one than the rows: messages are then rejected only if the table
            takes rows of other messages. True, the default, may reject all messages of a batch.
    """

    def __init__(self, text: str, *, rule: str, message_ids: Collection[str] = (), is_certain: bool = True) -> None:
        super().__init__(text)
        self.rule = rule
        self.message_ids = frozenset(message_ids)
        self.is_certain = is_certain


class WorkspaceError(IngestionError):
    """The directory of the manifests cannot be written, or a manifest in it cannot be read."""


class BatchIdReusedError(IngestionError):
    """The batch id was used before, with other messages."""


class ReconciliationError(IngestionError):
    """Not all messages of a batch are accounted for, so nothing was committed."""
