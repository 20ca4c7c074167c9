"""Leases as plain values, rules, and manifests are what they were, or there is a documented error without contents."""

from __future__ import annotations

import functools
import io
import json
from random import Random
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from sqs_lease.batch_files.manifest import METADATA_KEY, SCHEMA, Manifest, ManifestError, read_manifest, write_manifest
from sqs_lease.core.failure_rules import FailureRule, backoff, by_exception, dead_letter, release
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.core.policies import Buffered, Growing, RenewalPolicy
from sqs_lease.core.specs import (
    decode_failure_rule,
    decode_policy,
    encode_failure_rule,
    encode_policy,
    resolve_failure_rule,
)
from sqs_lease.keeper.plain_leases import WrittenBatch, decode_leases, encode_leases
from sqs_lease.testing import VirtualClock
from tests.fuzz.strange import ANYTHING, CONTENT, damaged, examples, json_near, near, outcome_of, said_by

LEASES: Final = [Lease(Receipt(f"m{number}", f"{CONTENT}{number}"), 1.5, 31.5, 2, "group") for number in range(2)]
RULES: Final = [release(5), backoff(), dead_letter(), by_exception({ValueError: dead_letter()}, backoff(1, 3, 60, 0))]
POLICIES: Final = [Growing(visibility=30), Buffered(visibility=60)]


@examples(150)
@given(json_near(json.loads(encode_leases(LEASES))))
def test_leases_are_of_their_types_or_refused(content: bytes) -> None:
    found = said_by(lambda: decode_leases(content.decode("utf-8", "replace")), ValueError)
    if isinstance(found, ValueError):
        return
    for lease in found:
        assert isinstance(lease.receipt.message_id, str)
        assert isinstance(lease.receipt.handle, str)
        assert isinstance(lease.shifted(1.0).lasting_until(0.0).in_doubt().deadline, float)
        assert isinstance(lease.receive_count, int)
        assert lease.message_group_id is None or isinstance(lease.message_group_id, str)
    assert decode_leases(encode_leases(found)) == found


@examples(150)
@given(json_near(json.loads(WrittenBatch("batch", 100.0, tuple(LEASES)).encode())))
def test_a_batch_that_was_written_down_is_of_its_types_or_refused(content: bytes) -> None:
    found = said_by(lambda: WrittenBatch.decode(content.decode("utf-8", "replace")), ValueError)
    if isinstance(found, WrittenBatch):
        assert WrittenBatch.decode(found.encode()) == found
        clock = VirtualClock(1_000.0)
        for lease in found.leases_now(clock, "orders"):
            assert lease.received_at <= clock.now()
            assert lease.doubtful or clock.now() < lease.deadline


@examples(150)
@given(st.sampled_from([encode_failure_rule(rule) for rule in RULES]).flatmap(near))
def test_a_failure_rule_can_be_asked_or_is_refused(plain: Any) -> None:
    rule = outcome_of(lambda: decode_failure_rule(plain), ValueError, TypeError)
    if isinstance(rule, FailureRule):
        for count in (1, 2**31 - 1):
            rule.matching(["builtins.ValueError"]).settlement(receive_count=count, reason="x", random=Random(0))


@examples(80)
@given(ANYTHING | near({"kind": "backoff", "initial": 30, "factor": 2.0}))
def test_a_failure_rule_of_a_user_can_be_asked_or_is_refused(plain: Any) -> None:
    rule = outcome_of(lambda: resolve_failure_rule(plain), ValueError, TypeError)
    if isinstance(rule, FailureRule):
        rule.settlement(receive_count=1, reason="x", random=Random(0))


@examples(150)
@given(st.sampled_from([encode_policy(policy) for policy in POLICIES]).flatmap(near))
def test_a_policy_has_a_visibility_timeout_or_is_refused(plain: Any) -> None:
    policy = outcome_of(lambda: decode_policy(plain), ValueError, TypeError)
    if isinstance(policy, RenewalPolicy) and policy.visibility is not None:
        assert 0 < policy.visibility_seconds <= 43_200


class Opened:
    """A file in memory, as a path."""

    def __init__(self, content: bytes = b"") -> None:
        self.file = io.BytesIO(content)
        self.file.close = lambda: None  # type: ignore[method-assign]

    def __str__(self) -> str:
        return "b.parquet"

    def open(self, mode: str) -> io.BytesIO:
        return self.file


MESSAGES: Final = [
    Message(
        Receipt(f"m{number}", CONTENT),
        f'{{"{CONTENT}": {number}}}',
        {"ApproximateReceiveCount": "2", "SentTimestamp": "1700000000000"},
        {"text": {"DataType": "String", "StringValue": CONTENT}, "b": {"DataType": "Binary", "BinaryValue": b"\xff"}},
    )
    for number in range(2)
]


@functools.cache
def manifest_of(version: int = 1) -> bytes:
    path = Opened()
    write_manifest(path, batch_id="b", queue_url="q", messages=MESSAGES)
    return path.file.getvalue()


def checked(content: bytes) -> None:
    found = said_by(lambda: read_manifest(Opened(content)), OSError, ManifestError)
    if isinstance(found, Manifest):
        assert isinstance(found.batch_id, str)
        assert isinstance(found.queue_url, str)
        for message in found.messages:
            assert isinstance(message.message_id, str)
            assert isinstance(message.body, str)
            assert message.receive_count >= 1
            assert message.sent_at is None or message.sent_at.tzinfo
            assert json.dumps(message.as_dict())


@examples(150)
@given(st.builds(manifest_of).flatmap(damaged))
def test_a_damaged_manifest_is_read_or_refused(content: bytes) -> None:
    checked(content)


HEADER: Final = {"version": 1, "batch_id": "b", "queue_url": "q"}
ROW: Final = {
    "attributes": {"ApproximateReceiveCount": "2", "SentTimestamp": "1700000000000", "MessageGroupId": "g"},
    "message_attributes": {"b": {"DataType": "Binary", "BinaryValue": {"base64": "/w=="}}},
}


@st.composite
def other_manifests(draw: st.DrawFn) -> bytes:
    """Parquet files that nearly are manifests: other headers, texts and columns."""
    names = SCHEMA.names
    columns: dict[str, Any] = {
        "message_id": ["m1", None],
        "body": [CONTENT, ""],
        "sent_at": [None, None],
        "receive_count": [1, 1],
        "attributes": [draw(json_near(ROW["attributes"])), b"{}"],
        "message_attributes": [draw(json_near(ROW["message_attributes"])), None],
        "altered": [False, True],
    }
    columns |= {
        name: [draw(st.none() | st.integers(0, 5) | st.binary(max_size=5))] * 2
        for name in draw(st.sets(st.sampled_from(names), max_size=1))
    }
    left = [name for name in names if name not in draw(st.sets(st.sampled_from(names), max_size=1))]
    table = pa.table({name: pa.array(columns[name]) for name in left})
    for place, name in enumerate(left):
        if draw(st.integers(0, 4)) and pa.types.is_binary(table.schema.field(name).type):
            try:
                table = table.set_column(place, name, table[name].cast(pa.string()))
            except pa.ArrowInvalid:
                continue
    table = table.replace_schema_metadata({METADATA_KEY: draw(json_near(HEADER)).replace(CONTENT.encode(), b"")})
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


@examples(120)
@given(other_manifests())
def test_a_file_that_is_nearly_a_manifest_is_read_or_refused(content: bytes) -> None:
    checked(content)


@examples(120)
@given(
    near(
        {
            "MessageId": "m1",
            "ReceiptHandle": CONTENT,
            "Body": CONTENT,
            "Attributes": ROW["attributes"],
            "MessageAttributes": ROW["message_attributes"],
        }
    )
)
def test_a_message_in_the_shape_of_the_api_is_taken_or_refused(plain: Any) -> None:
    found = said_by(lambda: Message.from_api(plain), KeyError, TypeError, ValueError)
    if isinstance(found, Message):
        assert isinstance(found.body, str)
        assert isinstance(found.message_id, str)
        assert found.receive_count >= 1
        assert found.sent_at is None or found.sent_at.tzinfo
        said_by(found.as_dict, TypeError)
