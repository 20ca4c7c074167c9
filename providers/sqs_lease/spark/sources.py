"""What a source is: it says which bodies are records, and turns a batch's manifest into rows."""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


class Source(Protocol):
    """Reads one kind of message. The driver calls ``rejection`` on every body, Spark runs what ``parse`` plans."""

    def columns(self, spark: SparkSession) -> StructType:
        """The columns of a record.

        Raises:
            SchemaError: The source was given a schema that cannot be used.
        """

    def rejection(self, body: str) -> str | None:
        """Say why a body cannot be a record, without Spark: what Spark would not notice.

        Returns:
            The reason, without anything of what the body says; None for a body that Spark is to parse.
        """

    def parse(self, manifest: DataFrame, columns: StructType) -> DataFrame:
        """Plan the parsing of one batch; nothing runs yet.

        Args:
            manifest: One row a message that was not rejected: the columns of :mod:`.manifest`.
            columns: What :meth:`columns` returned.

        Returns:
            ``columns``, then ``MESSAGE_ID``, ``SENT_AT`` and ``REASON`` of :mod:`.columns`. Every message
            gives exactly one row: a record (``REASON`` is null) or a reject with its reason.
        """
