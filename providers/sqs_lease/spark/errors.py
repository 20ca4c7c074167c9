"""The errors of ingestion: each says what is wrong and what to do; none quotes a message body."""

from __future__ import annotations


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


class TableError(IngestionError):
    """The table cannot be created, read or written."""


class WorkspaceError(IngestionError):
    """The directory of the manifests cannot be written, or a manifest in it cannot be read."""


class BatchIdReusedError(IngestionError):
    """A batch id that was used before, with other messages."""


class ReconciliationError(IngestionError):
    """A batch's messages are not all accounted for, so nothing of it was committed."""
