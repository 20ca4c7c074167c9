"""Whichever way a notification of S3 came, it names the same objects."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqs_lease.spark.json_syntax import NotJsonError
from sqs_lease.spark.sources.s3_events.notification import S3Object, created_objects, key_of
from sqs_lease.spark.sources.source import NotANotificationError
from tests.spark.sources.s3_messages import direct, event_bridge, in_sns, record

TEST_EVENT = {
    "Service": "Amazon S3",
    "Event": "s3:TestEvent",
    "Time": "2026-01-02T03:04:05.000Z",
    "Bucket": "data",
    "RequestId": "5582815E1AEA5ADF",
    "HostId": "8cLeGAmw098X5cv4Zkwcmo8vvZa3eH3eKxsPzbB9wrR+YstdA6Knx4Ip8EXAMPLE",
}


def test_s3_itself_names_several_objects_with_their_versions() -> None:
    body = direct(record("data", "a.json"), record("data", "b.json", version_id="v2"))

    assert created_objects(body) == (S3Object("data", "a.json"), S3Object("data", "b.json", "v2"))


def test_the_keys_of_s3_itself_are_url_encoded() -> None:
    body = direct(record("data", "year%3D2026/red+flower%2B%C3%A9.json"))

    assert created_objects(body) == (S3Object("data", "year=2026/red flower+é.json"),)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_key_is_decoded_to_what_it_was(key: str) -> None:
    assert created_objects(direct(record("data", quote_plus(key, safe="/")))) == (S3Object("data", key),)


def test_the_key_of_an_event_bridge_event_is_as_it_is() -> None:
    body = event_bridge("data", "a+b %2B.json", version_id="v1")

    assert created_objects(body) == (S3Object("data", "a+b %2B.json", "v1"),)


@pytest.mark.parametrize("body", [direct(record("data", "a+b")), event_bridge("data", "a b")])
def test_through_sns_the_message_is_the_same(body: str) -> None:
    assert created_objects(in_sns(body)) == created_objects(body) == (S3Object("data", "a b"),)


def test_an_object_that_is_named_twice_counts_once() -> None:
    body = direct(record("data", "a", version_id="1"), record("data", "a", version_id="1"), record("data", "a"))

    assert created_objects(body) == (S3Object("data", "a", "1"), S3Object("data", "a"))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(json.dumps(TEST_EVENT), id="a test event"),
        pytest.param(in_sns(json.dumps(TEST_EVENT)), id="a test event through SNS"),
        pytest.param(direct(), id="no records"),
        pytest.param(direct(record("data", "a", event="ObjectRemoved:Delete")), id="an object was removed"),
        pytest.param(direct(record("data", "a", event="ObjectRestore:Completed")), id="an object was restored"),
        pytest.param(event_bridge("data", "a", event="Object Deleted"), id="an object was deleted"),
    ],
)
def test_other_events_have_nothing_to_store(body: str) -> None:
    assert created_objects(body) == ()


def test_created_and_removed_objects_may_stand_in_one_message() -> None:
    body = direct(record("data", "a", event="ObjectRemoved:Delete"), record("data", "b", event="ObjectCreated:Copy"))

    assert created_objects(body) == (S3Object("data", "b"),)


def test_other_servers_name_their_events_a_little_differently() -> None:
    body = direct(record("data", "a", event="s3:ObjectCreated:Put", source="minio:s3"))

    assert created_objects(body) == (S3Object("data", "a"),)


CREATED: dict[str, Any] = {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param({}, "not an S3 notification", id="an empty object"),
        pytest.param({"order": 1}, "not an S3 notification", id="something else"),
        pytest.param({"Records": {}}, "not an S3 notification", id="records of a wrong type"),
        pytest.param({"Records": ["a"]}, "not an S3 notification", id="a record that is none"),
        pytest.param({"Records": [{"eventSource": "aws:sqs"}]}, "not an S3 notification", id="of another service"),
        pytest.param({"Records": [CREATED]}, "object 1 .* no bucket", id="no object"),
        pytest.param(
            {"Records": [{**CREATED, "s3": {"object": {"key": "a"}}}]}, "object 1 .* no bucket", id="no bucket"
        ),
        pytest.param(
            {"Records": [{**CREATED, "s3": {"bucket": {"name": "data"}, "object": {"key": ""}}}]},
            "object 1 .* no key",
            id="an empty key",
        ),
        pytest.param(
            {"Records": [{**CREATED, "s3": {"bucket": {"name": "data"}, "object": {"key": "%FF"}}}]},
            "key of object 1 is not UTF-8",
            id="a key that is not UTF-8",
        ),
        pytest.param({"detail": {}, "source": "aws.ec2"}, "not an S3 notification", id="an event of another service"),
        pytest.param({"detail": 1, "source": "aws.s3", "detail-type": "Object Created"}, "no bucket", id="no detail"),
        pytest.param(
            {"Type": "SubscriptionConfirmation", "TopicArn": "arn", "Message": "You have chosen"},
            "SNS SubscriptionConfirmation",
            id="a subscription",
        ),
    ],
)
def test_a_body_that_is_not_a_notification_is_refused_with_the_reason(body: dict[str, Any], says: str) -> None:
    with pytest.raises(NotANotificationError, match=says):
        created_objects(json.dumps(body))


@pytest.mark.parametrize("body", ["", "[]", "{'Records': []}", in_sns("no JSON"), in_sns('{"a": 1, "a": 1}')])
def test_a_body_that_is_not_json_is_refused_within_an_envelope_too(body: str) -> None:
    with pytest.raises(NotJsonError):
        created_objects(body)


def changed(body: str, **fields: str) -> str:
    notification = json.loads(body)
    notification["Records"][0]["s3"]["object"] |= fields
    return json.dumps(notification)


def test_notifications_of_one_writing_of_an_object_have_one_key_whichever_way_they_came() -> None:
    body = direct(record("data", "a+b.json"))
    assert key_of(body) is not None
    assert key_of(body) == key_of(in_sns(body)) == key_of(event_bridge("data", "a b.json"))
    versions = [direct(record("data", "a+b.json", version_id=version)) for version in ("v1", "v2", "v1")]
    assert key_of(changed(versions[0], sequencer="other")) == key_of(versions[2]) != key_of(versions[1])


@pytest.mark.parametrize(
    "other",
    [
        direct(record("other", "a.json")),
        direct(record("data", "b.json")),
        changed(direct(record("data", "a.json")), sequencer="0055AED7"),
        changed(direct(record("data", "a.json", version_id="null")), sequencer="0055AED7"),
        direct(record("data", "a.json"), record("data", "b.json")),
    ],
    ids=["bucket", "key", "sequencer", "suspended versions", "another object more"],
)
def test_notifications_of_something_else_have_another_key(other: str) -> None:
    assert key_of(other) not in (None, key_of(direct(record("data", "a.json"))))


def test_two_writings_of_an_object_while_versions_are_suspended_have_two_keys() -> None:
    body = direct(record("data", "a.json", version_id="null"))
    first, second = (key_of(changed(body, sequencer=number, eTag="")) for number in ("1", "2"))
    assert None not in (first, second)
    assert first != second


@pytest.mark.parametrize(
    "body",
    ["{}", "not JSON", direct(), json.dumps(TEST_EVENT), changed(direct(record("data", "a.json")), sequencer="")],
    ids=["another message", "no JSON", "no object", "test", "no sequencer"],
)
def test_a_notification_without_an_object_or_its_version_has_no_key(body: str) -> None:
    assert key_of(body) is None


def test_an_address_is_one_line_whatever_the_key() -> None:
    (its,) = created_objects(direct(record("data", "a%0AERROR+forged%1B%5B2K")))

    assert its.key == "a\nERROR forged\x1b[2K"
    assert str(its) == "s3://data/a ERROR forged [2K"
