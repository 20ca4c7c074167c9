"""Manifests: what is written is read again, nothing else is, and no receipt handle is in the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.manifest import ManifestError, read_manifest, write_manifest

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
HANDLE = "AQEB-handle"
MESSAGES = [
    Message(
        Receipt("m0", HANDLE),
        "first\nline",
        {"ApproximateReceiveCount": "2", "MessageGroupId": "g"},
        {
            "kind": {"DataType": "String", "StringValue": "order"},
            "raw": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
        },
    ),
    Message(Receipt("m1", HANDLE), "half a pair \ud800, ünïcode \u2028", {}, {}),
]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "batch.jsonl"
    write_manifest(path, batch_id="batch", queue_url=QUEUE, messages=MESSAGES)
    return path


def test_what_is_written_is_read_again_in_order(written: Path) -> None:
    manifest = read_manifest(written)
    assert (manifest.batch_id, manifest.queue_url) == ("batch", QUEUE)
    assert [message.as_dict() for message in manifest.messages] == [message.as_dict() for message in MESSAGES]


def test_no_receipt_handle_is_written(written: Path) -> None:
    assert HANDLE not in written.read_text()
    assert all(message.receipt.handle == "" for message in read_manifest(written).messages)


def test_the_file_is_one_header_and_one_line_of_json_a_message(written: Path) -> None:
    header, *lines = [json.loads(line) for line in written.read_bytes().splitlines()]
    assert header == {
        "format": "sqs-lease-manifest",
        "version": 1,
        "batch_id": "batch",
        "queue_url": QUEUE,
        "messages": 2,
    }
    assert [line["MessageId"] for line in lines] == ["m0", "m1"]


def test_a_message_attribute_that_is_called_base64_stays_one(tmp_path: Path) -> None:
    attributes = {"base64": {"DataType": "String", "StringValue": "x"}}
    message = Message(Receipt("m", HANDLE), "body", {}, attributes)
    write_manifest(tmp_path / "m", batch_id="b", queue_url=QUEUE, messages=[message])
    assert read_manifest(tmp_path / "m").messages[0].message_attributes == attributes


def test_an_empty_batch_is_a_header(tmp_path: Path) -> None:
    write_manifest(tmp_path / "m", batch_id="b", queue_url=QUEUE, messages=[])
    assert read_manifest(tmp_path / "m").messages == ()


def test_a_reader_ignores_keys_that_it_does_not_know(written: Path) -> None:
    header, *lines = written.read_text().splitlines()
    written.write_text("\n".join([json.dumps({**json.loads(header), "later": True}), *lines]) + "\n")
    assert len(read_manifest(written).messages) == 2


@pytest.mark.parametrize("kept_lines", [1, 2])
def test_a_file_that_ends_early_is_refused(written: Path, kept_lines: int) -> None:
    lines = written.read_bytes().splitlines(keepends=True)
    written.write_bytes(b"".join(lines[:kept_lines]))
    with pytest.raises(ManifestError, match="of its 2 messages"):
        read_manifest(written)


def test_a_file_that_ends_within_a_line_is_refused_without_quoting_it(written: Path) -> None:
    written.write_bytes(written.read_bytes()[:-20])
    with pytest.raises(ManifestError, match="a line that is no message") as refused:
        read_manifest(written)
    assert "half a pair" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"hello\n", b"[]\n", b'{"format": "other"}\n', b"\xff\xfe\n"])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(ManifestError, match="is not a manifest"):
        read_manifest(tmp_path / "m")


def test_a_newer_version_is_refused_with_the_remedy(written: Path) -> None:
    written.write_bytes(written.read_bytes().replace(b'"version":1', b'"version":2'))
    with pytest.raises(ManifestError, match=r"version 2.*a newer one"):
        read_manifest(written)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_manifest(tmp_path / "none")
