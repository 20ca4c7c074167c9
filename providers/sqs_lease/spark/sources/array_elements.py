"""Messages that are JSON arrays: each element is a message of another source, and all are records of one message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import StructType

from sqs_lease.spark import batch_file
from sqs_lease.spark.columns import MESSAGE_ID, NOTHING_TO_STORE, REASON, SENT_AT
from sqs_lease.spark.json_syntax import decode
from sqs_lease.spark.schemas import record_batch
from sqs_lease.spark.sources.source import AroundSource, CheckerT, PartsChecker

_NUMBER: Final = "^[0-9]+#"
"""The part of an element's id before the id of its message."""


@dataclass(frozen=True)
class ArrayElements(AroundSource[CheckerT]):
    """JSON arrays, whose elements are messages of another source: a producer sends them together to save requests.

    The records of one message are stored together or not at all: if one element is not a record, its message is
    rejected, and the reason names the element. An empty array has nothing to store. A body that is not an array is
    handed to the other source as it is. Arrays are taken apart by Spark's tasks, on executors that have this package. A
    function of the user's gets each element under an id of its own, made of its number and the id of the message.

    Attributes:
        source: The source of the elements, for example ``JsonSource("id BIGINT NOT NULL")``. Its ``dedupe_by`` has no
            effect: messages are told apart by their ids.
    """

    @property
    def identity(self) -> str:
        """That of the other source, and that there are arrays."""
        return f"elements; {self.source.identity}"

    def prepared(self, messages: DataFrame) -> DataFrame:
        """See :class:`.source.AroundSource`: a row for each element, with an id of its own."""
        return messages.mapInArrow(_one_row_each, messages.schema)

    def checker(self) -> PartsChecker[CheckerT]:
        """See :class:`.source.Source`."""
        return PartsChecker(self.source.checker(), checked_elements)

    def columns(self, messages: DataFrame, checker: PartsChecker[CheckerT]) -> StructType:
        """See :class:`.source.Source`."""
        return self.source.columns(self.prepared(messages), checker.inner)

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`.source.Source`."""
        parsed = self.source.parse(self.prepared(messages), columns)
        records = parsed.withColumn(MESSAGE_ID, F.regexp_replace(MESSAGE_ID, _NUMBER, ""))
        nothing = messages.where(F.json_array_length(batch_file.BODY) == 0).select(
            *(F.lit(None).cast(field.dataType).alias(field.name) for field in columns.fields),
            F.col(batch_file.MESSAGE_ID).alias(MESSAGE_ID),
            F.col(batch_file.SENT_AT).alias(SENT_AT),
            F.lit(NOTHING_TO_STORE).alias(REASON),
        )
        return records.union(nothing)


def elements(text: str) -> list[str]:
    """Return the elements of a JSON array, each as its text, so that numbers keep all of their digits."""
    return [bytes(element).decode() for element in msgspec.json.decode(text, type=list[msgspec.Raw])]


def checked_elements(body: str) -> list[tuple[str, str]]:
    """Return the elements of a body that is strict JSON, each with its name; the body itself if it is not an array."""
    if not isinstance(decode(body), list):
        return [("", body)]
    return [(f"element {number}: ", element) for number, element in enumerate(elements(body), 1)]


def _one_row_each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        bodies, message_ids = (batch.column(name).to_pylist() for name in (batch_file.BODY, batch_file.MESSAGE_ID))
        parts = [
            (at, number, text)
            for at, body in enumerate(bodies)
            for number, text in enumerate(elements(body) if body.lstrip(" \t\r\n").startswith("[") else [body], 1)
        ]
        rows = batch.take(pa.array([at for at, _, _ in parts], pa.int64()))
        given = dict(zip(rows.schema.names, rows.columns, strict=True))
        given[batch_file.BODY] = pa.array([text for _, _, text in parts], pa.string())
        # The other source may tell its messages apart by their ids.
        ids = [f"{number}#{message_ids[at]}" for at, number, _ in parts]
        given[batch_file.MESSAGE_ID] = pa.array(ids, pa.string())
        yield record_batch(batch.schema, len(parts), given)
