"""Attributes of a message, by SQS and by the sender, as columns beside those of its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from sqs_lease.spark import batch_file
from sqs_lease.spark.columns import MESSAGE_ID, REASON, SENT_AT, STRANGE_TIME
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.schemas import notation, quoted, struct_type, without_case
from sqs_lease.spark.sources.row_flaws import beyond
from sqs_lease.spark.sources.source import AroundSource, CheckerT, KeyedSource, KeysOf

SYSTEM_ATTRIBUTES: Final = frozenset(
    {
        "AWSTraceHeader",
        "ApproximateFirstReceiveTimestamp",
        "ApproximateReceiveCount",
        "DeadLetterQueueSourceArn",
        "MessageDeduplicationId",
        "MessageGroupId",
        "SenderId",
        "SentTimestamp",
        "SequenceNumber",
    }
)
"""The attributes by SQS itself: ``MessageSystemAttributeNames`` of ReceiveMessage in the SQS API Reference."""

JSON_OPTIONS: Final = {
    # Otherwise "NaN" and "Infinity" in quotes are numbers.
    "allowNonNumericNumbers": "false",
    # Otherwise the date "2013-01-02 or so" is one.
    "dateFormat": "yyyy-MM-dd",
    # Otherwise the date "20130102" is the 20 130 102nd day since 1970.
    "enableDateTimeParsingFallback": "false",
    # A timestamp without a zone means the same whichever session parses it.
    "timeZone": "UTC",
}

TIME_OF_DAY: Final = r"^[\x00-\x20\x7F]*[+-]?(T\d|\d{1,2}:)"
"""A text that names a time and no day; Spark leaves out spaces and control characters before it."""

_MILLISECONDS: Final = frozenset({"ApproximateFirstReceiveTimestamp", "SentTimestamp"})
_NESTED: Final = (ArrayType, MapType, StructType, VariantType)
_ATTRIBUTE: Final = "DataType STRING, StringValue STRING, BinaryValue STRUCT<base64: STRING>"
_VALUE: Final = "value"
_TIMES: Final = (DateType, TimestampNTZType, TimestampType)
# Types for which Spark takes texts that are no numbers.
_FRACTIONS: Final = (DecimalType, DoubleType, FloatType)
# Or no character, which a reader may take for a null. Nothing is tried twice: long texts would take hours.
_NUMBER: Final = r"^\s*+([+-]?+(\d++\.?+\d*+|\.\d++)([eE][+-]?+\d++)?+)?+\s*+$"
_ID: Final = "_sqs_lease_message_id"
_UNFIT: Final = "_sqs_lease_unfit"
_PREFIX: Final = "_sqs_lease_attribute_"


@dataclass(frozen=True)
class AttributeColumns(AroundSource[CheckerT]):
    """Messages of another source, whose attributes become columns as well.

    A column has the name of the attribute: one of those of SQS itself (``SenderId``, ``SentTimestamp``,
    ``ApproximateReceiveCount``, ``MessageGroupId``, ``SequenceNumber``, ...), or one that the sender gave. Values are
    texts, and are converted to the column's type: dates, times and numbers as in JSON (a time without a zone is in UTC,
    ``NaN`` is not a number), those in milliseconds to ``TIMESTAMP``, bytes to ``BINARY`` or, in base64, ``STRING``. A
    message is rejected if a value cannot be converted, or a ``NOT NULL`` one is missing. Each record of a message has
    its attributes.

    Around ``SnsEnvelope`` they are those of the SQS message, within it those that were published.

    Attributes:
        source: The source of the messages, for example ``JsonSource("id BIGINT NOT NULL")``.
        attributes: The columns, as a Spark DDL string (``"tenant STRING NOT NULL, `retry-of` BIGINT"``) or a
            ``StructType``.
    """

    attributes: str | StructType

    @property
    def identity(self) -> str:
        """That of the other source, and the columns."""
        return f"attributes; {notation(self.attributes)}; {self.source.identity}"

    @property
    def keys(self) -> KeysOf | None:
        """See :class:`.source.KeyedSource`: those of the other source."""
        return self.source.keys if isinstance(self.source, KeyedSource) else None

    def checker(self) -> CheckerT:
        """See :class:`.source.Source`. The columns are checked here, before anything is written."""
        own = struct_type(self.attributes).fields
        if not own:
            raise SchemaError("attributes names no columns: give at least one, or leave AttributeColumns out")
        for field in own:
            if isinstance(field.dataType, _NESTED):
                raise SchemaError(
                    f"attributes: an attribute cannot hold the type {field.dataType.simpleString()} of {field.name}"
                )
        return self.source.checker()

    def columns(self, messages: DataFrame, checker: CheckerT) -> StructType:
        """The other source's, then the attributes'; a name in both is a :class:`SchemaError`."""
        record = self.source.columns(messages, checker)
        own = struct_type(self.attributes)
        if twice := set(map(without_case, own.names)) & set(map(without_case, record.names)):
            raise SchemaError(
                f"attributes names {', '.join(sorted(twice))}, which is a column of the messages too: leave one out"
            )
        return StructType([*record.fields, *own.fields])

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`.source.Source`."""
        own = struct_type(self.attributes)
        record = StructType(columns.fields[: len(columns.fields) - len(own.fields)])
        texts = [(field, _text(field)) for field in own.fields]
        attributes = messages.select(
            F.col(batch_file.MESSAGE_ID).alias(_ID),
            *(_value(field, text).alias(f"{_PREFIX}{at}") for at, (field, text) in enumerate(texts)),
            F.coalesce(*(_flaw(field, text) for field, text in texts)).alias(_UNFIT),
        )
        # Whatever the other source did to the messages, their rows have the ids.
        rows = self.source.parse(messages, record).join(attributes, F.col(MESSAGE_ID) == F.col(_ID), "left")
        return rows.select(
            *(quoted(name) for name in record.names),
            *(F.col(f"{_PREFIX}{at}").alias(field.name) for at, field in enumerate(own)),
            MESSAGE_ID,
            SENT_AT,
            F.coalesce(F.col(REASON), F.col(_UNFIT)).alias(REASON),
        )


def _text(field: StructField) -> Column:
    if field.name in SYSTEM_ATTRIBUTES:
        return F.from_json(batch_file.ATTRIBUTES, "MAP<STRING, STRING>").getItem(field.name)
    given = F.from_json(batch_file.MESSAGE_ATTRIBUTES, f"MAP<STRING, STRUCT<{_ATTRIBUTE}>>").getItem(field.name)
    return F.coalesce(given.getField("StringValue"), given.getField("BinaryValue").getField("base64"))


def _value(field: StructField, text: Column) -> Column:
    if isinstance(field.dataType, BinaryType):
        return F.try_to_binary(text, F.lit("base64"))
    if isinstance(field.dataType, TimestampType) and field.name in _MILLISECONDS:
        # Not `timestamp_millis`, which fails the batch for a number that is too large.
        return F.timestamp_micros(F.try_multiply(text.try_cast("bigint"), F.lit(1000)))
    if isinstance(field.dataType, _TIMES):
        # Not `try_cast`, which takes "2026-01-31 or so" for a day, and the session's zone for one that is not given.
        read = F.from_json(
            F.to_json(F.struct(text.alias(_VALUE))), StructType([StructField(_VALUE, field.dataType)]), JSON_OPTIONS
        ).getField(_VALUE)
        return F.when(~text.rlike(TIME_OF_DAY), read) if isinstance(field.dataType, TimestampType) else read
    read = text.try_cast(field.dataType)
    return F.when(~_is_odd_number(text), read) if isinstance(field.dataType, _FRACTIONS) else read


def _is_odd_number(text: Column) -> Column:
    """Whether a text is not a number, such as "NaN" or "1d", or is one that no double can hold."""
    return ~text.rlike(_NUMBER) | F.coalesce(F.abs(text.try_cast("double")) == float("inf"), F.lit(False))


def _flaw(field: StructField, text: Column) -> Column:
    unfit = F.when(
        text.isNotNull() & _value(field, text).isNull(),
        F.lit(f"the attribute {field.name} is not of the type in the schema"),
    )
    if (strange := beyond(_value(field, text), field)) is not None:
        unfit = F.coalesce(unfit, F.when(strange, F.lit(f"{STRANGE_TIME}: the attribute {field.name}")))
    if field.nullable:
        return unfit
    return F.coalesce(unfit, F.when(text.isNull(), F.lit(f"it has no attribute {field.name}, which is required")))
