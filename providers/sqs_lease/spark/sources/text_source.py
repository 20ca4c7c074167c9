"""Messages of any text: the body is the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import StringType, StructField, StructType

from sqs_lease.spark import batch_file
from sqs_lease.spark.columns import MESSAGE_ID, REASON, SENT_AT


class TextChecker:
    """Takes whatever can be written as UTF-8."""

    def reasons(self, bodies: Sequence[str]) -> list[str | None]:
        """See :class:`.source.Checker`."""
        return [_reason(body) for body in bodies]

    def reasons_by_syntax(self, not_json: pa.ChunkedArray) -> pa.ChunkedArray:
        """See :class:`.source.SyntaxChecker`. What is in a manifest could be written as UTF-8, JSON or not."""
        return pa.chunked_array([pa.nulls(len(not_json), pa.string())])


@dataclass(frozen=True)
class TextSource:
    """Each body is stored as it is, in one ``STRING NOT NULL`` column.

    Only a body with half a surrogate pair in it, which is no text in UTF-8, is rejected.

    Attributes:
        column: The name of the column.
    """

    column: str = "body"

    @property
    def identity(self) -> str:
        """The column."""
        return f"text; {self.column}"

    @property
    def widens(self) -> bool:
        """Never."""
        return False

    def checker(self) -> TextChecker:
        """See :class:`.source.Source`."""
        return TextChecker()

    def columns(self, messages: DataFrame, checker: TextChecker) -> StructType:
        """The one column."""
        return StructType([StructField(self.column, StringType(), nullable=False)])

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`.source.Source`."""
        (name,) = columns.names
        return messages.select(
            F.col(batch_file.BODY).alias(name),
            F.col(batch_file.MESSAGE_ID).alias(MESSAGE_ID),
            F.col(batch_file.SENT_AT).alias(SENT_AT),
            F.lit(None).cast("string").alias(REASON),
        )


def _reason(body: str) -> str | None:
    try:
        body.encode()
    except UnicodeEncodeError:
        return "not text: half a surrogate pair"
    return None
