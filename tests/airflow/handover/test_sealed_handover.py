"""The lease in XCom is sealed as a whole: an edited one, or one copied from elsewhere, is refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from sqs_lease.airflow.airflow_api import requests
from sqs_lease.airflow.airflow_api.requests import RunOfTask, seal
from sqs_lease.airflow.connection import AwsConnection
from sqs_lease.airflow.handover import HandedLease, OtherKeyError, PayloadError, warn_if_plain
from sqs_lease.airflow.payload import read_lease, write_batch
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.core.policies import Growing
from sqs_lease.core.specs import decode_policy, encode_policy
from sqs_lease.keeper.plain_leases import WrittenBatch

RECEIVING = RunOfTask("dag", "run", "orders")


def handed(batch_id: str = "batch", count: int = 3, queue: str = "orders") -> HandedLease:
    leases = [Lease(Receipt(f"{batch_id}-{n}", f"handle {n}"), 0.0, 300.0) for n in range(count)]
    return HandedLease(
        f"https://sqs.eu-west-1.amazonaws.com/123456789012/{queue}",
        decode_policy(encode_policy(Growing(visibility=30.0))),
        AwsConnection("orders_aws"),
        WrittenBatch(batch_id, 0.0, tuple(leases)),
        count,
    )


@pytest.mark.parametrize("count", [0, 1, 3, 2_500])
def test_it_comes_back_as_it_was(count: int) -> None:
    assert HandedLease.decode(handed(count=count).encode(RECEIVING), RECEIVING) == handed(count=count)


def test_nothing_that_names_anything_is_outside_the_seal() -> None:
    plain = handed().encode(RECEIVING)
    assert plain.keys() == {"messages", "sealed"}
    assert "orders" not in str(plain)
    assert "handle" not in str(plain)


@pytest.mark.parametrize("edited", ["dag_id", "run_id", "task_id"])
def test_a_lease_of_another_task_or_run_is_refused(edited: str) -> None:
    elsewhere = replace(RECEIVING, **{edited: "another"})
    with pytest.raises(PayloadError, match="was made for another task or run"):
        HandedLease.decode(handed().encode(elsewhere), RECEIVING)


def lines(plain: dict[str, Any]) -> list[str]:
    sealed: str = plain["sealed"]
    return sealed.splitlines()


def test_leases_of_another_batch_are_refused() -> None:
    ours, theirs = handed().encode(RECEIVING), handed("another").encode(RECEIVING)
    mixed = {**ours, "sealed": "\n".join([lines(ours)[0], *lines(theirs)[1:]])}
    with pytest.raises(PayloadError, match="not those of the batch"):
        HandedLease.decode(mixed, RECEIVING)


@pytest.mark.parametrize("order", [[0, 1], [0, 2, 1, 3], [0, 1, 1, 3], [0, 1, 2, 3, 1]])
def test_leases_that_were_left_out_repeated_or_moved_are_refused(order: list[int]) -> None:
    plain = handed(count=2_500).encode(RECEIVING)
    moved = {**plain, "sealed": "\n".join(lines(plain)[place] for place in order)}
    with pytest.raises(PayloadError, match="not those of the batch"):
        HandedLease.decode(moved, RECEIVING)


@pytest.mark.parametrize("line", [0, 1])
def test_an_edited_lease_does_not_open(line: int) -> None:
    plain = handed().encode(RECEIVING)
    sealed = lines(plain)
    middle = len(sealed[line]) // 2
    other = "A" if sealed[line][middle] != "A" else "B"
    sealed[line] = sealed[line][:middle] + other + sealed[line][middle + 1 :]
    with pytest.raises(OtherKeyError, match="a user changed them"):
        HandedLease.decode({**plain, "sealed": "\n".join(sealed)}, RECEIVING)


@pytest.mark.parametrize("sealed", [None, "", 5, ["a"], {"a": 1}])
def test_a_value_that_is_not_a_lease_is_refused(sealed: object) -> None:
    with pytest.raises(PayloadError, match="is not what sqs-lease writes there"):
        HandedLease.decode({"messages": 3, "sealed": sealed}, RECEIVING)


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"made_for": 3}', "x"])
def test_a_sealed_text_that_is_something_else_is_refused(text: str) -> None:
    with pytest.raises(PayloadError):
        HandedLease.decode({"messages": 3, "sealed": seal(text)}, RECEIVING)


@pytest.mark.parametrize(
    "key", ["manifest_uri", "leases_uri", "queue_url", "connection", "policy", "batch_id", "parts"]
)
def test_fields_beside_the_seal_are_not_looked_at(key: str) -> None:
    plain = {**handed().encode(RECEIVING), key: "file:///etc/passwd"}
    assert HandedLease.decode(plain, RECEIVING) == handed()


def test_stored_leases_of_another_batch_are_refused(tmp_path: Any) -> None:
    messages = [Message(Receipt(f"batch-{n}", f"handle {n}"), "body") for n in range(3)]
    ours = write_batch(f"file://{tmp_path}/ours", handed(), messages)
    theirs = write_batch(f"file://{tmp_path}/theirs", handed("another"), messages)
    plain = ours.encode(RECEIVING)
    assert read_lease(plain, RECEIVING).written == handed().written
    (tmp_path / "ours/batch.leases").write_bytes((tmp_path / "theirs/another.leases").read_bytes())
    assert theirs.leases_uri is not None
    with pytest.raises(PayloadError, match="not those of the batch"):
        read_lease(plain, RECEIVING)


def test_without_a_fernet_key_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class NoKey:
        def encrypt(self, text: bytes) -> bytes:
            return text

        decrypt = encrypt

    warn_if_plain(handed().encode(RECEIVING))
    assert not caplog.records
    monkeypatch.setattr(requests, "get_fernet", NoKey)
    plain = handed().encode(RECEIVING)
    assert HandedLease.decode(plain, RECEIVING) == handed()
    with caplog.at_level(logging.WARNING):
        warn_if_plain(plain)
    (record,) = caplog.records
    assert "[core] fernet_key" in record.getMessage()
