"""Sources of records that are whole bodies: as text, or as one JSON value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import StringType, StructField, StructType, VariantType

from sqs_lease.spark import batch_file
from sqs_lease.spark.columns import MESSAGE_ID, REASON, SENT_AT
from sqs_lease.spark.json_syntax import decode
from sqs_lease.spark.schemas import quoted
from sqs_lease.spark.sources.source import BodyChecker, FixedSource

TOO_LARGE_VARIANT: Final = "cannot be stored as a VARIANT: too large or too long a name"
"""The reason for a value that is beyond the limits of the type."""


class TextChecker:
    """Checker that accepts every body. Bodies that a manifest cannot hold are rejected for all sources."""

    def reasons(self, bodies: Sequence[str]) -> list[str | None]:
        """See :class:`.source.Checker`."""
        return [None] * len(bodies)

    @property
    def is_repeated(self) -> bool:
        """See :class:`.source.RepeatedChecker`."""
        return True


@dataclass(frozen=True)
class TextSource(FixedSource):
    """Source that stores each body as it is, in one ``STRING NOT NULL`` column.

    A body is rejected only if it has half a surrogate pair, because UTF-8 cannot hold it.

    Attributes:
        column: The name of the column.
    """

    column: str = "body"

    @property
    def identity(self) -> str:
        """The column."""
        return f"text; {self.column}"

    def checker(self) -> TextChecker:
        """See :class:`.source.Source`."""
        return TextChecker()

    def columns(self, messages: DataFrame, checker: TextChecker) -> StructType:
        """The one column."""
        return StructType([StructField(self.column, StringType(), nullable=False)])

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`.source.Source`."""
        return _rows(messages, self.column, F.col(batch_file.BODY))


@dataclass(frozen=True)
class VariantSource(FixedSource):
    """Source of one JSON value for each message, an object or any other, in one ``VARIANT NOT NULL`` column.

    The syntax is checked as strictly as for ``JsonSource``. The table must have the type; in PostgreSQL it is
    ``jsonb``.

    Attributes:
        column: The name of the column.
    """

    column: str = "record"

    @property
    def identity(self) -> str:
        """The column."""
        return f"variant; {self.column}"

    def checker(self) -> BodyChecker:
        """See :class:`.source.Source`."""
        return BodyChecker(decode)

    def columns(self, messages: DataFrame, checker: BodyChecker) -> StructType:
        """The one column."""
        return StructType([StructField(self.column, VariantType(), nullable=False)])

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`.source.Source`."""
        too_large = F.lit(TOO_LARGE_VARIANT)
        # Not `parse_json`: it fails the whole batch if one body is beyond the limits of the type.
        rows = _rows(messages, self.column, F.try_parse_json(batch_file.BODY))
        return rows.withColumn(REASON, F.when(F.col(quoted(self.column)).isNull(), too_large))


def _rows(messages: DataFrame, column: str, value: Column) -> DataFrame:
    return messages.select(
        value.alias(column),
        F.col(batch_file.MESSAGE_ID).alias(MESSAGE_ID),
        F.col(batch_file.SENT_AT).alias(SENT_AT),
        F.lit(None).cast("string").alias(REASON),
    )
