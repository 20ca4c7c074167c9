"""The parts of a source that need no Spark turn a body into a value, or a reason without a word of the body."""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sqs_lease.batch_files.manifest import message_tables
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.spark.batch_file import place_of
from sqs_lease.spark.json_syntax import NotJsonError
from sqs_lease.spark.sources.array_elements import checked_elements, elements
from sqs_lease.spark.sources.arrow_json import ArrowJson
from sqs_lease.spark.sources.s3_events.extended_client import pointed_at
from sqs_lease.spark.sources.s3_events.notification import created_objects, key_of
from sqs_lease.spark.sources.sns import unwrap
from sqs_lease.spark.sources.source import BodyChecker, NotANotificationError, PartsChecker
from tests.fuzz.strange import CONTENT, damaged, examples, json_near, near, said_by
from tests.spark.samples import why_not_json
from tests.spark.sources.s3_messages import direct, event_bridge, in_sns, record

RECORD: Final = {"id": 1, "name": CONTENT, "at": "2013-01-02T03:04:05Z", "tags": [CONTENT], "home": {"zip": 1}}
BODIES: Final = [
    json.loads(direct(record("bucket", f"{CONTENT}.json", version_id="v"))),
    json.loads(event_bridge("bucket", f"{CONTENT}.json")),
    json.loads(in_sns(direct(record("bucket", f"{CONTENT}.json")))),
    json.loads(in_sns(CONTENT)) | {"MessageAttributes": {"a": {"Type": "String", "Value": CONTENT}}},
    ["software.amazon.payloadoffloading.PayloadS3Pointer", {"s3BucketName": "bucket", "s3Key": CONTENT}],
    [RECORD, RECORD],
    RECORD,
]


def decoded(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


bodies = st.one_of(*(json_near(body) for body in BODIES)).map(decoded)
"""Bodies of every kind that a source reads."""


@examples(250)
@given(bodies)
def test_an_envelope_is_opened_or_refused(body: str) -> None:
    published = said_by(lambda: unwrap(body), NotJsonError, NotANotificationError)
    assert isinstance(published, str | NotJsonError | NotANotificationError)
    objects = said_by(lambda: created_objects(body), NotJsonError, NotANotificationError)
    if isinstance(objects, tuple):
        assert all(found.bucket and found.key for found in objects)
        key_of(body)
    where = said_by(lambda: pointed_at(body), NotJsonError, NotANotificationError)
    assert isinstance(where, tuple | NotJsonError | NotANotificationError)


@examples(150)
@given(st.lists(bodies, min_size=1, max_size=3))
def test_a_checker_gives_each_body_a_reason_or_accepts_it(some: list[str]) -> None:
    for checker in (BodyChecker(pointed_at), PartsChecker(BodyChecker(pointed_at), checked_elements)):
        reasons = said_by(lambda checker=checker: checker.reasons(some))  # type: ignore[misc]
        assert isinstance(reasons, list)
        assert len(reasons) == len(some)
        for body, reason in zip(some, reasons, strict=True):
            assert reason is None or CONTENT not in reason
            if isinstance(checker, PartsChecker) and reason is None and body.lstrip()[:1] == "[":
                assert all(isinstance(element, str) for element in elements(body))


SCHEMA: Final = StructType(
    [
        StructField("id", LongType(), nullable=False),
        StructField("name", StringType()),
        StructField("at", TimestampType()),
        StructField("tags", ArrayType(StringType())),
        StructField("home", StructType([StructField("zip", IntegerType())])),
    ]
)
READER: Final = ArrowJson.of(SCHEMA)


@examples(120)
@given(st.lists(near(RECORD).map(json.dumps) | damaged(json.dumps(RECORD).encode()).map(decoded), max_size=4))
def test_texts_are_records_or_rejected_and_no_reason_has_a_word_of_theirs(some: list[str]) -> None:
    texts = [text for text in some if not any("\ud800" <= one <= "\udfff" for one in text)]
    rows, reasons = said_by(lambda: READER(pa.array(texts, pa.string())))
    assert len(reasons) == len(texts)
    assert len(rows) == reasons.null_count
    for text, reason in zip(texts, reasons.to_pylist(), strict=True):
        if (not_json := why_not_json(text)) is not None:
            assert reason == not_json
        assert reason is None or CONTENT not in reason


MESSAGE: Final = {
    "attributes": {"SentTimestamp": "1700000000000", "ApproximateReceiveCount": "2", "MessageGroupId": "g"},
    "message_attributes": {"b": {"DataType": "Binary", "BinaryValue": {"base64": "/w=="}}},
}


@examples(120)
@given(bodies, near(MESSAGE["attributes"]), near(MESSAGE["message_attributes"]))
def test_messages_of_which_one_is_strange_are_one_table(body: str, attributes: Any, message_attributes: Any) -> None:
    if not isinstance(attributes, dict):
        return
    strange = {"MessageId": "m2", "Body": body, "Attributes": attributes, "MessageAttributes": message_attributes or {}}
    given: list[Message | dict[str, Any]] = [Message(Receipt("m1", ""), "{}"), strange]
    said = said_by(lambda: next(message_tables(given)), TypeError)
    assert isinstance(said, pa.Table | TypeError)
    if isinstance(said, pa.Table):
        place_of(said["attributes"][1].as_py())
