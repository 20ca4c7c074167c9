"""A user's own parser gets the messages in batches; what it answers is checked before anything believes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession

from sqs_lease.spark import batch_file
from sqs_lease.spark.columns import MESSAGE_ID, NOTHING_TO_STORE, REASON, SENT_AT
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.schemas import arrow_schema, struct_type
from sqs_lease.spark.sources.functions import NO_ANSWER, NO_REASON, Answers, ParserError, ParserSource, SparkSource
from tests.spark.sources.parsing import SENT, parsed

RECORD = pa.schema([("n", pa.int64()), ("word", pa.string())])
ROWS = pa.schema([*RECORD, (MESSAGE_ID, pa.string()), (SENT_AT, pa.timestamp("us", tz="UTC")), (REASON, pa.string())])


def answered(function: Callable[[pa.RecordBatch], Any], **bodies: str) -> dict[str, list[tuple[Any, Any, Any]]]:
    """Run a parser without Spark: (n, word, reason) by message id."""
    messages = pa.record_batch(
        {
            batch_file.MESSAGE_ID: pa.array(bodies.keys(), pa.string()),
            batch_file.BODY: pa.array(bodies.values(), pa.string()),
            batch_file.SENT_AT: pa.array([SENT] * len(bodies), pa.timestamp("us", tz="UTC")),
            batch_file.MESSAGE_ATTRIBUTES: pa.nulls(len(bodies), pa.string()),
        }
    )
    found: dict[str, list[tuple[Any, Any, Any]]] = {}
    for batch in Answers(function, ROWS)(iter([messages, messages.slice(0, 0)])):
        assert batch.schema == ROWS
        for row in batch.to_pylist():
            assert row[SENT_AT] == SENT
            found.setdefault(row[MESSAGE_ID], []).append((row["n"], row["word"], row[REASON]))
    return found


def table(**columns: Any) -> pa.Table:
    return pa.table(columns)


def test_a_message_may_have_several_rows_in_several_batches_and_any_order() -> None:
    def parser(messages: pa.RecordBatch) -> Iterator[pa.RecordBatch | pa.Table]:
        assert messages.schema.names == ["message_id", "body", "sent_at", "message_attributes"]
        yield pa.record_batch({"word": ["b", "a"], "n": [2, 1], "message_id": ["m2", "m1"]})
        yield table(word=["c"], n=[3], message_id=["m2"], more=[0])

    assert answered(parser, m1="", m2="") == {"m1": [(1, "a", None)], "m2": [(2, "b", None), (3, "c", None)]}


def test_a_reason_rejects_a_message_or_says_that_there_is_nothing_to_store() -> None:
    def parser(_: pa.RecordBatch) -> pa.Table:
        return table(
            message_id=["m1", "m2", "m3"], n=[1, None, None], word=["a"] * 3, reason=[None, "bad", NOTHING_TO_STORE]
        )

    found = answered(parser, m1="", m2="", m3="")

    assert [rows[0][2] for rows in found.values()] == [None, "bad", NOTHING_TO_STORE]


def test_a_message_without_an_answer_is_rejected() -> None:
    assert answered(lambda _: table(message_id=["m2"], n=[1], word=["a"]), m1="", m2="", m3="") == {
        "m1": [(None, None, NO_ANSWER)],
        "m2": [(1, "a", None)],
        "m3": [(None, None, NO_ANSWER)],
    }
    assert answered(lambda _: [], m1="") == {"m1": [(None, None, NO_ANSWER)]}


def test_values_are_converted_to_the_schemas_types_where_nothing_is_lost() -> None:
    answer = table(message_id=["m1"], n=pa.array([1], pa.int8()), word=pa.array(["a"], pa.large_string()))

    assert answered(lambda _: answer, m1="") == {"m1": [(1, "a", None)]}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        pytest.param(None, "gave a NoneType", id="nothing"),
        pytest.param("m1", "gave a str", id="a text"),
        pytest.param([{"message_id": "m1"}], "gave a dict", id="dicts"),
        pytest.param(table(n=[1], word=["a"]), "without a column message_id", id="no message ids"),
        pytest.param(
            table(message_id=["m1", "m7"], n=[1, 1], word=["a", "a"]), "gave 1 rows .* did not get", id="an unknown id"
        ),
        pytest.param(table(message_id=[None], n=[1], word=["a"]), "gave 1 rows .* did not get", id="no id"),
        pytest.param(table(message_id=["secret"], n=[1], word=["a"]), "did not get", id="a body as an id"),
        pytest.param(
            pa.Table.from_arrays([pa.array(["m1"]), pa.array([1]), pa.array([2])], names=["message_id", "n", "n"]),
            "a column twice; it gave message_id, n, n",
            id="a column twice",
        ),
        pytest.param(
            table(message_id=["m1"], n=[1], word=["a"], reason=[False]), "column reason of type bool", id="no reason"
        ),
        pytest.param(
            table(message_id=["m1"], n=[1], word=["a"], reason=[float("nan")]), "reason of type double", id="not a text"
        ),
        pytest.param(table(message_id=["m1"], n=[1]), "the column word .* it gave message_id, n", id="a column"),
        pytest.param(
            table(message_id=["m1"], n=["secret"], word=["a"]), "column n of type string with values", id="a type"
        ),
        pytest.param(table(message_id=["m1"], n=[1.5], word=["a"]), "column n of type double with values", id="lost"),
    ],
)
def test_a_wrong_answer_stops_the_batch_and_says_why(answer: Any, says: str) -> None:
    with pytest.raises(ParserError, match=says) as caught:
        answered(lambda _: answer, m1="secret")

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("reason", [pa.array(["", " "]), pa.array(["", ""]).dictionary_encode()])
def test_a_reason_that_is_empty_is_said_to_be_so(reason: pa.Array) -> None:
    found = answered(lambda _: table(message_id=["m1", "m2"], n=[1, 2], word=["a", "b"], reason=reason), m1="", m2="")

    assert {rows[0][2] for rows in found.values()} == {NO_REASON}


async def _later(messages: pa.RecordBatch) -> pa.RecordBatch:
    return messages


async def _later_in_pieces(messages: pa.RecordBatch) -> AsyncIterator[pa.RecordBatch]:
    yield messages


def _in_pieces(messages: Any) -> Iterator[Any]:
    yield messages


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_later, "is async"),
        (_later_in_pieces, "is async"),
        (partial(_later), "is async"),
        ("package.module:function", "must be a function, not str"),
        (None, "must be a function, not NoneType"),
        (pa, "must be a function, not module"),
    ],
)
def test_a_function_that_gives_no_answer_is_refused_at_once(function: Any, says: str) -> None:
    for source in (ParserSource, SparkSource):
        with pytest.raises(TypeError, match=f"the function of a {source.__name__} {says}"):
            source(function, "n INT")


def test_only_a_parser_may_yield() -> None:
    ParserSource(_in_pieces, "n INT")
    with pytest.raises(TypeError, match="the function of a SparkSource yields"):
        SparkSource(_in_pieces, "n INT")


@pytest.mark.processes
class TestOnSpark:
    def test_records_come_out_as_the_schema_says(self, spark: SparkSession) -> None:
        def parser(messages: pa.RecordBatch) -> pa.Table:
            rows: list[dict[str, Any]] = []
            for message in messages.to_pylist():
                its = {"message_id": message["message_id"], "at": message["sent_at"]}
                for number, word in enumerate(message["body"].split()):
                    rows.append({**its, "n": number, "trip": {"to": None if word == "nowhere" else word}})
                if not message["body"]:
                    rows.append({**its, "reason": NOTHING_TO_STORE})
            trip = pa.struct([("to", pa.string())])
            sent = pa.timestamp("us", tz="UTC")
            schema = pa.schema(
                {"message_id": pa.string(), "n": pa.int64(), "trip": trip, "at": sent, "reason": pa.string()}
            )
            return pa.Table.from_pylist(rows, schema)

        source = ParserSource(parser, "n INT NOT NULL, trip STRUCT<to: STRING NOT NULL>, at TIMESTAMP")

        outcome = parsed(spark, source, {"m1": "a b", "m2": "nowhere", "m3": "", "m4": "  ", "half": "\ud800"})

        assert [(row["n"], row["trip"]) for row in outcome.records.pop("m1")] == [(0, {"to": "a"}), (1, {"to": "b"})]
        assert outcome.records == {}
        assert outcome.rejected.pop("half").startswith("not text")
        assert outcome.rejected == {"m2": "required, but missing or null: trip.to", "m4": NO_ANSWER}
        assert outcome.empty == {"m3"}

    @pytest.mark.parametrize(
        ("schema", "says"),
        [
            ("reason STRING", "column reason, which has another meaning"),
            ("a STRUCT<v: VARIANT>", r"column a\.v: .* cannot have the type variant"),
            ("id BIGGINT", "is not Spark DDL"),
        ],
    )
    def test_a_schema_that_cannot_be_used_is_refused_at_once(self, spark: SparkSession, schema: str, says: str) -> None:
        with pytest.raises(SchemaError, match=says):
            ParserSource(lambda messages: messages, schema).checker()

    def test_all_types_that_arrow_and_spark_share_are_translated(self, spark: SparkSession) -> None:
        schema = struct_type(
            "a TINYINT, b SMALLINT, c INT, d BIGINT, e FLOAT, f DOUBLE, g DECIMAL(6,2), h STRING, i BINARY, j BOOLEAN, "
            "k DATE, l TIMESTAMP, m TIMESTAMP_NTZ, n ARRAY<INT>, o MAP<STRING, INT>, p STRUCT<q: INT>"
        )
        columns = {field.name: pa.nulls(1, field.type) for field in arrow_schema(schema)}

        outcome = parsed(
            spark, ParserSource(lambda messages: table(message_id=["m1"], **columns), schema), {"m1": "anything"}
        )

        assert outcome.records == {"m1": [dict.fromkeys(schema.names)]}


def test_the_identity_names_the_function_and_the_schema() -> None:
    assert "answered" in ParserSource(answered, "n INT").identity
    assert ParserSource(answered, "n INT").identity != ParserSource(answered, "n BIGINT").identity
