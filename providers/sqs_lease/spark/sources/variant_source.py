"""JSON messages of any shape: the body becomes one value of Spark's type VARIANT."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import StructField, StructType, VariantType

from sqs_lease.spark import batch_file
from sqs_lease.spark.columns import MESSAGE_ID, REASON, SENT_AT
from sqs_lease.spark.schemas import quoted
from sqs_lease.spark.sources.json import AnyJsonChecker


@dataclass(frozen=True)
class VariantSource:
    """One JSON value a message, an object or any other, in one ``VARIANT NOT NULL`` column.

    The syntax is checked as strictly as for ``JsonSource``. The table must know the type: plain Parquet files and
    native Delta tables do.

    Attributes:
        column: The name of the column.
    """

    column: str = "record"

    @property
    def identity(self) -> str:
        """The column."""
        return f"variant; {self.column}"

    @property
    def widens(self) -> bool:
        """Never."""
        return False

    def checker(self) -> AnyJsonChecker:
        """See :class:`.source.Source`."""
        return AnyJsonChecker()

    def columns(self, messages: DataFrame, checker: AnyJsonChecker) -> StructType:
        """The one column."""
        return StructType([StructField(self.column, VariantType(), nullable=False)])

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`.source.Source`."""
        (name,) = columns.names
        # Not `parse_json`, which fails the batch for one body that is beyond the limits of the type.
        return messages.select(
            F.try_parse_json(batch_file.BODY).alias(name),
            F.col(batch_file.MESSAGE_ID).alias(MESSAGE_ID),
            F.col(batch_file.SENT_AT).alias(SENT_AT),
        ).select(
            quoted(name),
            MESSAGE_ID,
            SENT_AT,
            F.when(F.col(quoted(name)).isNull(), F.lit("cannot be stored as a VARIANT: too large or too long a name"))
            .cast("string")
            .alias(REASON),
        )
