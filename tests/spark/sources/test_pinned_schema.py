"""A schema that is inferred is pinned by the first batch, and grows only where that is wanted."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType

from sqs_lease.spark.errors import SchemaError
from sqs_lease.spark.sources.json import MOST_COLUMNS, JsonSource, OpenChecker
from sqs_lease.spark.sources.pinned_schema import InferredSchema
from tests.spark.inferring import CAN_INFER, infers
from tests.spark.sources.parsing import messages_of, parsed


@pytest.fixture
def pin(tmp_path: Path) -> InferredSchema:
    return InferredSchema(tmp_path / "schemas" / "orders.json")


def pinned(pin: InferredSchema) -> str:
    schema = pin.load()
    assert schema is not None
    return schema.simpleString()


ID = StructType([StructField("id", LongType())])


@pytest.mark.processes
class TestOnSpark:
    @infers
    def test_the_first_batch_pins_what_its_records_have_and_later_ones_keep_to_it(
        self, spark: SparkSession, pin: InferredSchema
    ) -> None:
        source = JsonSource(pin)
        first = {"m1": '{"id": 1, "at": {"x": 1.5}}', "m2": '{"id": 2, "tags": ["a"]}', "bad": "{'id': \"x\"}"}

        assert parsed(spark, source, first).records["m1"] == [{"id": 1, "at": {"x": 1.5}, "tags": None}]

        assert pinned(pin) == "struct<at:struct<x:double>,id:bigint,tags:array<string>>"
        later = parsed(spark, JsonSource(pin), {"m3": '{"id": "three"}', "m4": '{"id": 4, "size": 1}'})
        assert later.rejected == {"m3": "not of the type in the schema: id"}
        assert later.records == {"m4": [{"id": 4, "at": None, "tags": None}]}
        assert "size" not in pinned(pin)

    @infers
    def test_values_without_a_type_or_without_a_name_for_a_column_are_not_inferred(
        self, spark: SparkSession, pin: InferredSchema
    ) -> None:
        body = {
            "id": 1,
            "nothing": None,
            "none": [],
            "no_fields": {},
            "two words": 1,
            "_batch_id": 1,
            "ID": 2,
            "odd": {"a b": 1},
            "twice": [{"x": 1, "X": 2}],
        }

        outcome = parsed(spark, JsonSource(pin), {"m1": json.dumps(body)})

        assert pinned(pin) == "struct<ID:bigint,odd:string,twice:array<string>>"
        assert outcome.records["m1"] == [{"ID": 2, "odd": '{"a b":1}', "twice": ['{"x":1,"X":2}']}]

    @infers
    def test_a_new_object_with_fields_that_spark_cannot_tell_apart_becomes_a_column_of_texts(
        self, spark: SparkSession, pin: InferredSchema
    ) -> None:
        pin.pin(ID)
        bodies = {
            "m1": '{"id": 1, "place": {"town": "Ulm", "Town": "Bern"}}',
            "m2": '{"id": 2, "place": {"town": "Basel"}}',
        }

        outcome = parsed(spark, JsonSource(pin, new_fields="add"), bodies)

        assert pinned(pin) == "struct<id:bigint,place:string>"
        assert outcome.rejected == {}
        assert outcome.records["m1"] == [{"id": 1, "place": '{"town":"Ulm","Town":"Bern"}'}]
        assert outcome.records["m2"] == [{"id": 2, "place": '{"town":"Basel"}'}]

    @infers
    def test_of_too_many_fields_those_that_most_messages_have_become_columns(
        self,
        spark: SparkSession,
        pin: InferredSchema,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr("sqs_lease.spark.sources.json.MOST_COLUMNS", 3)
        # One message with as many fields as it likes decides nothing for the others.
        bodies = {
            "many": json.dumps({"z": 1, **{f"a{number}": number for number in range(50)}}),
            "m1": '{"z": 1, "y": {"a5": 1}, "x": "text"}',
            "m2": '{"y": {"a5": 2}, "x": "text"}',
        }

        outcome = parsed(spark, JsonSource(pin), bodies)

        assert pinned(pin) == "struct<x:string,y:struct<a5:bigint>,z:bigint>"
        assert outcome.records.keys() == bodies.keys()
        assert "the messages have 53 different fields, of which the 3 that most of them have" in caplog.text

    @infers
    def test_an_object_of_more_fields_than_a_table_gets_stays_whole_and_small_ones_have_columns(
        self, spark: SparkSession, pin: InferredSchema
    ) -> None:
        names = {f"n{number}": number for number in range(20_000)}
        bodies = {
            "many": json.dumps({"id": 1, "large": {"in": [{"more": names}]}}),
            "m1": '{"id": 2, "small": {"a": 1, "b": {"c": 2}}}',
        }

        outcome = parsed(spark, JsonSource(pin), bodies)

        assert pinned(pin) == "struct<id:bigint,large:string,small:struct<a:bigint,b:struct<c:bigint>>>"
        assert outcome.rejected == {}
        assert json.loads(outcome.records["many"][0]["large"]) == {"in": [{"more": names}]}

    @infers
    def test_new_fields_bring_no_more_inside_of_them_than_there_is_room_beside_those_before(
        self, spark: SparkSession, pin: InferredSchema, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sqs_lease.spark.sources.json.MOST_FIELDS_INSIDE", 3)
        source = JsonSource(pin, new_fields="add")

        parsed(spark, source, {"m1": '{"id": 1, "a": {"x": 1, "y": 1}}'})
        parsed(spark, source, {"m2": '{"id": 1, "b": {"x": 1, "y": 1}, "c": {"x": 1}}'})
        parsed(spark, source, {"m3": '{"id": 1, "d": {"x": 1}}'})

        assert pinned(pin) == ("struct<a:struct<x:bigint,y:bigint>,id:bigint,b:string,c:struct<x:bigint>,d:string>")

    @infers
    def test_a_batch_without_a_field_pins_nothing(self, spark: SparkSession, pin: InferredSchema) -> None:
        with pytest.raises(SchemaError, match="no message of this batch has a field"):
            parsed(spark, JsonSource(pin), {"m1": "{}"})

        assert pin.load() is None

    def test_new_fields_are_rejected_by_name(self, spark: SparkSession, pin: InferredSchema) -> None:
        pin.pin(ID)

        outcome = parsed(spark, JsonSource(pin, new_fields="reject"), {"m1": '{"id": 1}', "m2": '{"id": 1, "x": 1}'})

        assert outcome.records == {"m1": [{"id": 1}]}
        assert outcome.rejected == {"m2": "not in the schema: x"}

    @infers
    def test_new_fields_become_columns_when_they_have_a_value(self, spark: SparkSession, pin: InferredSchema) -> None:
        pin.pin(StructType([StructField("id", LongType(), nullable=False)]))
        source = JsonSource(pin, new_fields="add")
        bodies = {"m1": '{"id": 1, "x": 1}', "m2": '{"id": 2, "x": 2.5, "y": {"z": ["a"]}, "n": null, "e": [{}]}'}

        outcome = parsed(spark, source, bodies)

        assert source.widens
        assert pinned(pin) == "struct<id:bigint,x:double,y:struct<z:array<string>>>"
        assert outcome.records["m1"] == [{"id": 1, "x": 1.0, "y": None}]
        assert outcome.records["m2"] == [{"id": 2, "x": 2.5, "y": {"z": ["a"]}}]
        # The next batch finds them, also in another process.
        again = parsed(spark, JsonSource(InferredSchema(str(pin.path)), new_fields="add"), {"m3": '{"id": 3}'})
        assert again.records == {"m3": [{"id": 3, "x": None, "y": None}]}
        assert not again.columns["id"].nullable

    @infers
    def test_fields_without_a_value_give_the_first_batch_no_column(
        self, spark: SparkSession, pin: InferredSchema
    ) -> None:
        # Spark makes a text of an object and an array, also where neither has a value.
        bodies = {"m1": '{"id": 1}', "m2": '{"id": 2, "ID": [[]]}', "m3": '{"id": 3, "ID": {"x": null}}'}

        outcome = parsed(spark, JsonSource(pin, new_fields="add"), bodies)

        assert pinned(pin) == "struct<id:bigint>"
        assert outcome.records == {f"m{number}": [{"id": number}] for number in (1, 2, 3)}

    @infers
    def test_of_two_drivers_that_add_the_same_field_the_second_takes_the_firsts_type(
        self, spark: SparkSession, pin: InferredSchema
    ) -> None:
        pin.pin(ID)
        mine, theirs = (JsonSource(pin, new_fields="add") for _ in range(2))
        checkers = mine.checker(), theirs.checker()
        bodies = {"m1": '{"id": 1, "x": 1, "mine": 1}'}, {"m2": '{"id": 2, "x": "a", "theirs": 1}'}
        for checker, its in zip(checkers, bodies, strict=True):
            assert checker.reasons(list(its.values())) == [None]

        mine.columns(messages_of(spark, bodies[0]), checkers[0])
        found = theirs.columns(messages_of(spark, bodies[1]), checkers[1])

        assert found.simpleString() == pinned(pin) == "struct<id:bigint,mine:bigint,x:bigint,theirs:bigint>"


def test_drivers_that_pin_at_once_end_with_one_schema(pin: InferredSchema) -> None:
    schemas = [StructType([StructField(f"x{number}", LongType())]) for number in range(16)]

    with ThreadPoolExecutor(8) as drivers:
        results = list(drivers.map(InferredSchema(pin.path).pin, schemas))

    assert len({schema.json() for schema in results}) == 1
    assert pin.load() == results[0]


def test_drivers_that_widen_at_once_lose_no_column(pin: InferredSchema) -> None:
    pin.pin(ID)

    with ThreadPoolExecutor(8) as drivers:
        list(drivers.map(pin.widen, [[StructField(f"x{number}", DoubleType())] for number in range(16)]))

    schema = pin.load()
    assert schema is not None
    assert set(schema.names) == {"id", *(f"x{number}" for number in range(16))}
    assert [path.name for path in pin.file.parent.iterdir() if path.name.startswith(".")] == []


def test_a_column_that_another_driver_just_added_in_other_letters_stops_the_batch(pin: InferredSchema) -> None:
    pin.pin(ID)
    pin.widen([StructField("Size", LongType())])

    with pytest.raises(SchemaError, match="run the batch again"):
        pin.widen([StructField("size", LongType())])


@pytest.mark.parametrize("content", ["", "{}", "[]", "id INT", '{"type": "struct"}', '"long"'])
def test_a_file_that_is_not_a_schema_is_named(pin: InferredSchema, content: str) -> None:
    pin.file.parent.mkdir()
    pin.file.write_text(content)

    with pytest.raises(SchemaError, match=r"orders\.json is not a Spark schema"):
        pin.load()


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SchemaError, match=r"cannot be pinned in .*file/orders\.json"):
        InferredSchema(tmp_path / "file" / "orders.json").pin(ID)


@pytest.mark.parametrize(
    ("bodies", "says"),
    [
        (['{"two words": 1}'], "a name that no column can have"),
        (['{"_message_id": 1}'], "a name that no column can have"),
        (['{"' + "x" * 64 + '": 1}'], "a name that no column can have"),
        (['{"": 1}'], "a name that no column can have"),
        (['{"xmin": 1}'], "a name that no column can have"),
        (['{"_FILE": 1}'], "a name that no column can have"),
        (['{"_change_type": 1}'], "a name that no column can have"),
        (['{"Ingested_Batch": 1}'], "a name that no column can have"),
        (['{"_sqs_lease_attempt": 1}'], "a name that no column can have"),
        (['{"ID": 1}'], "the field ID differs from the column id in upper and lower case only"),
        (['{"\u0130d": 1}'], "the field \u0130d differs from the column id in upper and lower case only"),
        (['{"_\u017fent_at": 1}'], "a name that no column can have"),
        (['{"new": 1}', '{"NEW": 1}'], "the field NEW differs from the column new"),
        ([json.dumps({f"x{number}": 1 for number in range(MOST_COLUMNS)})], "wider than 1000 columns"),
    ],
)
def test_a_field_that_cannot_be_a_column_has_its_message_rejected(bodies: list[str], says: str) -> None:
    checker = OpenChecker(["id"])

    *taken, reason = checker.reasons(bodies)

    assert taken == [None] * (len(bodies) - 1)
    assert says in str(reason)
    assert len(checker.new_fields) == len(taken)


def test_a_field_without_a_value_may_have_any_name() -> None:
    checker = OpenChecker(["id"])

    assert checker.reasons(['{"id": 1, "two words": null, "ID": [], "x": {"y": [null]}}']) == [None]
    assert checker.new_fields == set()


def test_a_pinned_column_keeps_its_name_whatever_it_is() -> None:
    assert OpenChecker(["two words"]).reasons(['{"two words": 1}']) == [None]


def test_a_pinned_type_that_spark_misreads_is_refused(pin: InferredSchema) -> None:
    pin.file.parent.mkdir()
    pin.file.write_text('{"type": "struct", "fields": [{"name":"x","type":"byte","nullable":true,"metadata":{}}]}')

    with pytest.raises(SchemaError, match="use SMALLINT"):
        JsonSource(pin).checker()


def test_a_pinned_schema_is_read_back_as_it_was(pin: InferredSchema) -> None:
    schema = StructType([StructField("a", ArrayType(StringType(), containsNull=False), nullable=False)])

    assert pin.pin(schema) == schema == pin.load()


@pytest.mark.processes
def test_a_spark_that_cannot_infer_says_so_and_takes_a_schema_that_was_written_by_hand(
    spark: SparkSession, pin: InferredSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    if CAN_INFER:
        monkeypatch.setattr("pyspark.__version__", "4.1.2")
    refusal = rf"PySpark 4\.2 or newer, and this is {re.escape(pyspark.__version__)}: name the fields in the schema"

    with pytest.raises(SchemaError, match=refusal):
        parsed(spark, JsonSource(pin), {"m1": '{"id": 1}'})
    assert pin.load() is None

    pin.pin(ID)
    assert parsed(spark, JsonSource(pin), {"m1": '{"id": 1, "x": 1}'}).records == {"m1": [{"id": 1}]}
    with pytest.raises(SchemaError, match=refusal):
        parsed(spark, JsonSource(pin, new_fields="add"), {"m1": '{"id": 1, "x": 1}'})
    assert pin.load() == ID
