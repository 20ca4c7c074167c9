"""Sources for messages of any kind: a user's function makes records from Arrow batches or from DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import NullType, StringType, StructField, StructType, TimestampType

from sqs_lease.core.functions import require_function
from sqs_lease.spark import batch_file
from sqs_lease.spark.columns import MESSAGE_ID, REASON, SENT_AT
from sqs_lease.spark.errors import IngestionError, SchemaError
from sqs_lease.spark.schemas import arrow_schema, notation, nullable, quoted, record_batch, struct_type, without_case
from sqs_lease.spark.sources.row_flaws import flaw
from sqs_lease.spark.sources.source import FixedSource
from sqs_lease.spark.sources.whole_bodies import TextChecker

Parser = Callable[[pa.RecordBatch], Any]
"""Takes a record batch of messages; returns a record batch or a table of records, or an iterable of them."""

GIVEN: Final = (batch_file.MESSAGE_ID, batch_file.BODY, batch_file.SENT_AT, batch_file.MESSAGE_ATTRIBUTES)
"""The columns of the messages for a function."""

ANSWERED_ID: Final = "message_id"
"""The column of a function's answer with the message id of a row."""

ANSWERED_REASON: Final = "reason"
"""The column of a function's answer with the reason why a message is rejected; it may be left out."""

NO_ANSWER: Final = "the parser gave no row for it"
"""The reason for a message without a row in the answer."""

NO_REASON: Final = "the parser rejected it with an empty reason"
"""The reason for a message whose row has an empty one; a row without a reason has null there."""

_GIVEN_ID: Final = "_sqs_lease_message_id"
_ANSWERED: Final = "_sqs_lease_answered"


class ParserError(IngestionError):
    """A parser returned something that is not an answer to its messages."""


@dataclass(frozen=True)
class _FunctionSource(FixedSource):
    function: Callable[..., Any]
    schema: str | StructType

    kind: ClassVar[str]
    may_yield: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_function(self.function, f"the function of a {type(self).__name__}", may_yield=self.may_yield)

    @property
    def identity(self) -> str:
        """The function's name and the schema."""
        module = getattr(self.function, "__module__", "")
        return f"{self.kind}; {module}.{_name(self.function)}; {notation(self.schema)}"

    def checker(self) -> TextChecker:
        """See :class:`.source.Source`. It checks the schema as well, before anything is written."""
        if taken := {ANSWERED_ID, ANSWERED_REASON} & set(map(without_case, struct_type(self.schema).names)):
            raise SchemaError(
                f"the schema has a column {', '.join(sorted(taken))}, which has another meaning in the answer of the "
                "function: rename it"
            )
        return TextChecker()

    def columns(self, messages: DataFrame, checker: TextChecker) -> StructType:
        """The schema."""
        return struct_type(self.schema)


@dataclass(frozen=True)
class ParserSource(_FunctionSource):
    """Source for messages that a function parses.

    The function is called on the executors, with record batches of up to 10 000 messages: ``message_id``, ``body``,
    ``sent_at`` and ``message_attributes`` (the sender's attributes in the shape of the SQS API, as JSON text, or null).
    It returns the records: a record batch or a table, or several, for example as a generator. Their columns are
    ``message_id``, those of the schema, and optionally ``reason``:

    - one row for each record of a message, with its ``message_id``; the types must be those of the schema, or be
      convertible to them without loss;
    - or one row with a ``reason``: the message is rejected, and all other columns may be null;
    - or one row with the reason ``sqs_lease.spark.NOTHING_TO_STORE``: the message is valid and done, without a record.

    A message without a row is rejected, and so is a message with null in a column that is ``NOT NULL``. After an
    exception, a row of an unknown message, or a value that does not fit the schema, the batch is tried in parts. A
    message is rejected if the function fails twice with it alone and other messages are stored meanwhile; otherwise the
    batch fails.

    Attributes:
        function: The function. Spark pickles it, so it may be a lambda or a closure; but this package, and the modules
            that the function imports, must be installed on the executors.
        schema: The columns of a record, as a Spark DDL string or a ``StructType``.
    """

    kind: ClassVar[str] = "parser"
    may_yield: ClassVar[bool] = True

    def checker(self) -> TextChecker:
        """See :class:`.source.Source`. It checks the schema as well, before anything is written."""
        arrow_schema(struct_type(self.schema))
        return super().checker()

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`.source.Source`."""
        rows = StructType(
            [
                *nullable(columns).fields,
                StructField(MESSAGE_ID, StringType()),
                StructField(SENT_AT, TimestampType()),
                StructField(REASON, StringType()),
            ]
        )
        answered = messages.select(*GIVEN).mapInArrow(Answers(self.function, arrow_schema(rows)), rows)
        return answered.select(
            *(quoted(name) for name in columns.names),
            MESSAGE_ID,
            SENT_AT,
            F.coalesce(F.col(REASON), flaw(columns)).alias(REASON),
        )


@dataclass(frozen=True)
class Answers:
    """Function for ``mapInArrow``: it calls the parser with the messages of a partition, and checks every answer.

    Attributes:
        function: The parser.
        rows: The columns of a record, then the message's id and time, and the reason.
    """

    function: Parser
    rows: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See ``DataFrame.mapInArrow``."""
        for messages in batches:
            if messages.num_rows:
                yield from self._answer(messages)

    def _answer(self, messages: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        ids = messages.column(batch_file.MESSAGE_ID)
        sent_at = messages.column(batch_file.SENT_AT)
        answered = set()
        for part in _parts(self.function(messages)):
            positions = self._positions(part, ids)
            answered.update(positions.to_pylist())
            yield self._converted(part, ids.take(positions), sent_at.take(positions))
        left = pa.array(sorted(set(range(len(ids))) - answered), pa.int32())
        if len(left):
            given = {MESSAGE_ID: ids.take(left), SENT_AT: sent_at.take(left), REASON: NO_ANSWER}
            yield record_batch(self.rows, len(left), given)

    def _positions(self, part: pa.RecordBatch, ids: pa.Array) -> pa.Array:
        names = part.schema.names
        if len(set(names)) < len(names):
            raise self._error(f"gave a column twice; it gave {', '.join(names)}")
        if ANSWERED_ID not in names:
            raise self._error(f"gave rows without a column {ANSWERED_ID}")
        named = part.column(ANSWERED_ID).cast(pa.string())
        positions = pc.index_in(named, ids.cast(pa.string()))
        if positions.null_count:
            # They are not named: what stands in the wrong column may be a part of a body.
            raise self._error(
                f"gave {positions.null_count} rows of messages that it did not get: it must copy the {ANSWERED_ID} of "
                "the messages"
            )
        return positions

    def _converted(self, part: pa.RecordBatch, ids: pa.Array, sent_at: pa.Array) -> pa.RecordBatch:
        names = part.schema.names
        reasons = self._reasons(part) if ANSWERED_REASON in names else pa.nulls(part.num_rows)
        own = {MESSAGE_ID: ids, SENT_AT: sent_at, REASON: reasons}
        arrays = []
        for field in self.rows:
            if field.name not in own and field.name not in names:
                raise self._error(
                    f"gave rows without the column {field.name} of the schema; it gave {', '.join(names)}"
                )
            values = own[field.name] if field.name in own else part.column(field.name)
            try:
                arrays.append(values.cast(field.type))
            except pa.ArrowException:
                # Arrow's text quotes the value.
                raise self._error(
                    f"gave a column {field.name} of type {values.type} with values that the schema's {field.type} "
                    "cannot hold: convert them there, or reject their messages"
                ) from None
        return pa.RecordBatch.from_arrays(arrays, schema=self.rows)

    def _reasons(self, part: pa.RecordBatch) -> pa.Array:
        reasons = part.column(ANSWERED_REASON)
        if pa.types.is_dictionary(reasons.type):
            reasons = reasons.dictionary_decode()
        if not (pa.types.is_null(reasons.type) or _is_text(reasons.type)):
            # False and not-a-number would be reasons, too, and reject every message.
            raise self._error(f"gave a column {ANSWERED_REASON} of type {reasons.type}: it must be texts or null")
        texts = reasons.cast(pa.string())
        return pc.if_else(pc.equal(pc.utf8_trim_whitespace(texts), ""), NO_REASON, texts)

    def _error(self, what: str) -> ParserError:
        return ParserError(f"the parser {_name(self.function)} {what}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _parts(answer: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(answer, pa.RecordBatch):
        yield answer
    elif isinstance(answer, pa.Table):
        yield from answer.to_batches()
    elif isinstance(answer, Iterable) and not isinstance(answer, str | bytes | dict):
        for part in answer:
            yield from _parts(part)
    else:
        raise ParserError(
            f"a parser gave a {type(answer).__name__}: it must give a pyarrow RecordBatch or Table, or several of them"
        )


@dataclass(frozen=True)
class SparkSource(_FunctionSource):
    """Source for messages that a function turns into records with Spark, from a DataFrame to a DataFrame.

    The function gets the columns ``message_id``, ``body``, ``sent_at`` and ``message_attributes`` (the sender's
    attributes in the shape of the SQS API, as JSON text, or null). It returns ``message_id``, the columns of the schema
    with their types, and optionally ``reason``; further columns are dropped:

    - one row for each record of a message, with its ``message_id``;
    - or one row with a ``reason``: the message is rejected;
    - or one row with the reason ``sqs_lease.spark.NOTHING_TO_STORE``: the message is valid and done, without a record.

    A message without a row is rejected, so a filter loses no message; so is a message with null in a column that is
    ``NOT NULL``. The function may join, explode and call user-defined functions. It must give the same rows when it is
    planned again.

    Attributes:
        function: The function.
        schema: The columns of a record, as a Spark DDL string or a ``StructType``.
    """

    kind: ClassVar[str] = "spark"

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`.source.Source`.

        Raises:
            SchemaError: The function returned other columns than those of the schema.
        """
        rows = self.function(messages.select(*GIVEN))
        self._check(rows, columns)
        unknown = F.raise_error(
            f"the function {_name(self.function)} gave rows of messages that it did not get: it must keep their "
            f"{ANSWERED_ID}"
        ).cast("string")
        reason = F.col(ANSWERED_REASON) if _names(rows, ANSWERED_REASON) else F.lit(None)
        reason = F.when(F.trim(reason.cast("string")) == "", F.lit(NO_REASON)).otherwise(reason)
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
            F.coalesce(F.col(_GIVEN_ID), unknown).alias(MESSAGE_ID),
            F.col(batch_file.SENT_AT).alias(SENT_AT),
            F.coalesce(F.when(F.col(_ANSWERED).isNull(), F.lit(NO_ANSWER)), F.col(REASON), flaw(columns)).alias(REASON),
        )

    def _check(self, rows: DataFrame, columns: StructType) -> None:
        if not isinstance(rows, DataFrame):
            raise SchemaError(
                f"the function {_name(self.function)} gave a {type(rows).__name__}: it must give a DataFrame"
            )
        for name in [ANSWERED_ID, *columns.names]:
            if not _names(rows, name):
                raise SchemaError(
                    f"the function {_name(self.function)} gave no column {name}; it gave {', '.join(rows.columns)}"
                )
        own = {ANSWERED_ID, ANSWERED_REASON, *columns.names}
        given = [without_case(name) for name in rows.columns]
        if twice := [name for name in own if given.count(without_case(name)) > 1]:
            raise SchemaError(f"the function {_name(self.function)} gave the column {min(twice)} twice")
        if _names(rows, ANSWERED_REASON):
            found = rows.select(ANSWERED_REASON).schema[0].dataType
            if not isinstance(found, StringType | NullType):
                # False and 0 would be reasons, too, and reject every message.
                raise SchemaError(
                    f"the function {_name(self.function)} gave the column {ANSWERED_REASON} as {found.simpleString()}: "
                    "it must be a string, or null for a record"
                )
        for field in columns.fields:
            found = rows.select(quoted(field.name)).schema[0].dataType
            # Types are compared without nullability, because nulls are checked in each row.
            if found.simpleString() != field.dataType.simpleString():
                raise SchemaError(
                    f"the function {_name(self.function)} gave the column {field.name} as {found.simpleString()}, and "
                    f"the schema says {field.dataType.simpleString()}: cast it there"
                )


def _names(rows: DataFrame, name: str) -> bool:
    return without_case(name) in map(without_case, rows.columns)
