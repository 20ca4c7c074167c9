"""A user's function of DataFrames makes records; what it leaves out is rejected, and not lost."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it

from sqs_lease.spark.columns import NOTHING_TO_STORE
from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.sources.functions import NO_ANSWER, NO_REASON, SparkSource
from tests.spark.sources.parsing import parsed

pytestmark = pytest.mark.processes


def words(messages: DataFrame) -> DataFrame:
    """A row for each word; none for a body that begins with a dash."""
    split = messages.where(~F.col("body").startswith("-")).withColumn("word", F.explode(F.split("body", " ")))
    return split.withColumn("length", F.length("word")).drop("sent_at")


def test_each_row_is_a_record_and_a_message_that_is_filtered_out_is_rejected(spark: SparkSession) -> None:
    outcome = parsed(spark, SparkSource(words, "word STRING, length INT"), {"m1": "a bc", "m2": "-", "m3": "d"})

    assert sorted(row["word"] for row in outcome.records["m1"]) == ["a", "bc"]
    assert outcome.records["m3"] == [{"word": "d", "length": 1}]
    assert outcome.rejected == {"m2": NO_ANSWER}


def test_reasons_reject_or_say_that_there_is_nothing_to_store(spark: SparkSession) -> None:
    def judged(messages: DataFrame) -> DataFrame:
        reason = F.when(F.col("body") == "bad", "too bad").when(F.col("body") == "", NOTHING_TO_STORE)
        return messages.select("message_id", F.col("body").try_cast("int").alias("n"), reason.alias("reason"))

    outcome = parsed(spark, SparkSource(judged, "n INT NOT NULL"), {"m1": "1", "m2": "bad", "m3": "", "m4": "x"})

    assert outcome.records == {"m1": [{"n": 1}]}
    assert outcome.rejected == {"m2": "too bad", "m4": "required, but missing or null: n"}
    assert outcome.empty == {"m3"}


def test_rows_of_a_message_that_it_did_not_get_fail_the_batch(spark: SparkSession) -> None:
    def mistaken(messages: DataFrame) -> DataFrame:
        return messages.select(F.lit("other").alias("message_id"), F.lit(1).alias("n"))

    with pytest.raises(PySparkException, match="gave rows of messages that it did not get"):
        parsed(spark, SparkSource(mistaken, "n INT"), {"m1": ""})


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda messages: messages.select("message_id"), "gave no column n; it gave message_id"),
        (lambda messages: messages.select(F.lit(1).alias("n")), "gave no column message_id"),
        (lambda messages: messages.withColumn("n", F.col("body")), "the column n as string, and the schema says int"),
        (
            lambda messages: messages.withColumns({"n": F.lit(1), "reason": F.lit(False)}),
            "reason as boolean",
        ),
        (lambda messages: messages.select("message_id", F.lit(1).alias("n"), F.lit(2).alias("N")), "column n twice"),
        (lambda messages: messages.collect(), "gave a list: it must give a DataFrame"),
    ],
)
def test_rows_of_another_schema_are_refused(spark: SparkSession, function: Any, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        parsed(spark, SparkSource(function, "n INT"), {"m1": ""})


def test_a_reason_that_is_empty_is_said_to_be_so(spark: SparkSession) -> None:
    source = SparkSource(lambda its: its.select("message_id", F.lit(1).alias("n"), F.lit(" ").alias("reason")), "n INT")

    assert parsed(spark, source, {"m1": ""}).rejected == {"m1": NO_REASON}


def test_columns_of_the_answer_must_not_be_in_the_schema(spark: SparkSession) -> None:
    with pytest.raises(SchemaError, match="a column reason, which has another meaning"):
        SparkSource(words, "Reason STRING").checker()


def test_the_function_and_the_schema_are_the_identity() -> None:
    assert SparkSource(words, "word STRING").identity == f"spark; {__name__}.words; word STRING"
