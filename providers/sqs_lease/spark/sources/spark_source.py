"""Messages of any kind, made into records by a function of DataFrames of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import StructType

from sqs_lease.spark import batch_file
from sqs_lease.spark.columns import MESSAGE_ID, REASON, SENT_AT
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.schemas import notation, quoted, struct_type
from sqs_lease.spark.sources.json import flaw
from sqs_lease.spark.sources.parser_source import ANSWERED_ID, ANSWERED_REASON, GIVEN, NO_ANSWER
from sqs_lease.spark.sources.text_source import TextChecker

_GIVEN_ID: Final = "_sqs_lease_message_id"


@dataclass(frozen=True)
class SparkSource:
    """Messages that a function makes into records with Spark: a DataFrame of messages in, one of records out.

    It gets the columns ``message_id``, ``body``, ``sent_at`` and ``message_attributes`` (the sender's attributes in
    the shape of the SQS API, as JSON text, or null). What it returns has ``message_id``, the columns of the schema,
    with its types, and, if it likes, ``reason``; further columns are dropped:

    - one row for each record of a message, with its ``message_id``;
    - or one row with a ``reason``: the message is rejected;
    - or one row with the reason ``sqs_lease.spark.NOTHING_TO_STORE``: the message gives no record, and is done.

    A message without a row is rejected, and so is one with null in a column that is ``NOT NULL``: a filter loses none.
    The function may join, explode and call user-defined functions; it must give the same rows when it is planned again.

    Attributes:
        function: The function.
        schema: The columns of a record, as a Spark DDL string or a ``StructType``.
    """

    function: Callable[[DataFrame], DataFrame]
    schema: str | StructType

    @property
    def identity(self) -> str:
        """The function's name and the schema."""
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return f"spark; {getattr(self.function, '__module__', '')}.{name}; {notation(self.schema)}"

    @property
    def widens(self) -> bool:
        """Never."""
        return False

    def checker(self) -> TextChecker:
        """See :class:`.source.Source`. The schema is checked here, before anything is written."""
        if taken := {ANSWERED_ID, ANSWERED_REASON} & {name.lower() for name in struct_type(self.schema).names}:
            raise SchemaError(
                f"the schema has a column {', '.join(sorted(taken))}, which has a meaning of its own in what the "
                "function gives: rename it"
            )
        return TextChecker()

    def columns(self, messages: DataFrame, checker: TextChecker) -> StructType:
        """The schema."""
        return struct_type(self.schema)

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`.source.Source`.

        Raises:
            SchemaError: What the function gives is not of the schema.
        """
        rows = self.function(messages.select(*GIVEN))
        self._check(rows, columns)
        reason = F.col(ANSWERED_REASON) if _names(rows, ANSWERED_REASON) else F.lit(None)
        answered = rows.select(
            *(F.col(quoted(name)).alias(name) for name in columns.names),
            F.col(ANSWERED_ID).alias(MESSAGE_ID),
            reason.cast("string").alias(REASON),
            F.lit(True).alias(_ANSWERED),
        )
        given = messages.select(F.col(batch_file.MESSAGE_ID).alias(_GIVEN_ID), batch_file.SENT_AT)
        together = given.join(answered, F.col(_GIVEN_ID) == F.col(MESSAGE_ID), "full_outer")
        return together.select(
            *(quoted(name) for name in columns.names),
            F.coalesce(F.col(_GIVEN_ID), self._unknown()).alias(MESSAGE_ID),
            F.col(batch_file.SENT_AT).alias(SENT_AT),
            F.coalesce(F.when(F.col(_ANSWERED).isNull(), F.lit(NO_ANSWER)), F.col(REASON), flaw(columns)).alias(REASON),
        )

    def _unknown(self) -> Column:
        return F.raise_error(
            f"the function {self._name} gave rows of messages that it did not get: it must keep their {ANSWERED_ID}"
        ).cast("string")

    def _check(self, rows: DataFrame, columns: StructType) -> None:
        if not isinstance(rows, DataFrame):
            raise SchemaError(f"the function {self._name} gave a {type(rows).__name__}: it must give a DataFrame")
        for name in [ANSWERED_ID, *columns.names]:
            if not _names(rows, name):
                raise SchemaError(f"the function {self._name} gave no column {name}; it gave {', '.join(rows.columns)}")
        for field in columns.fields:
            found = rows.select(quoted(field.name)).schema[0].dataType
            # The same but for what may be null, which is looked at in each row.
            if found.simpleString() != field.dataType.simpleString():
                raise SchemaError(
                    f"the function {self._name} gave the column {field.name} as {found.simpleString()}, and the schema "
                    f"says {field.dataType.simpleString()}: cast it there"
                )

    @property
    def _name(self) -> str:
        return str(getattr(self.function, "__qualname__", type(self.function).__qualname__))


_ANSWERED: Final = "_sqs_lease_answered"


def _names(rows: DataFrame, name: str) -> bool:
    return name.lower() in {column.lower() for column in rows.columns}
