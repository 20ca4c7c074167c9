"""Manifests: what is written is read again, nothing else is, and no receipt handle is in the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from demo.processes import ROOT
from sqs_lease.batch_files.manifest import (
    METADATA_KEY,
    ROW_GROUP_MESSAGES,
    SCHEMA,
    ManifestError,
    join_manifests,
    message_tables,
    read_manifest,
    write_manifest,
)
from sqs_lease.core.messages import Message, Receipt

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
HANDLE = "AQEB-handle"
MESSAGES = [
    Message(
        Receipt("m0", HANDLE),
        "first\nline",
        {"ApproximateReceiveCount": "2", "MessageGroupId": "g", "SentTimestamp": "1767225600123"},
        {
            "kind": {"DataType": "String", "StringValue": "order"},
            "raw": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
        },
    ),
    Message(Receipt("m1", HANDLE), '{"name": "ünïcode \u2028"}', {}, {}),
]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "batch.parquet"
    write_manifest(path, batch_id="batch", queue_url=QUEUE, messages=MESSAGES)
    return path


def write_again(path: Path, table: Any, header: Any) -> None:
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(header).encode()}), path)


def test_written_messages_are_read_again_in_order(written: Path) -> None:
    manifest = read_manifest(written)
    assert (manifest.batch_id, manifest.queue_url) == ("batch", QUEUE)
    assert [message.as_dict() for message in manifest.messages] == [message.as_dict() for message in MESSAGES]


def test_no_receipt_handle_is_written(written: Path) -> None:
    assert HANDLE.encode() not in written.read_bytes()
    assert HANDLE not in str(pq.read_table(written).to_pylist())
    assert all(message.receipt.handle == "" for message in read_manifest(written).messages)


def test_other_programs_read_it_as_a_table_with_what_they_need_of_each_message(written: Path) -> None:
    table = pq.read_table(written)
    first, second = table.to_pylist()

    assert table.schema.equals(SCHEMA)
    assert (first["message_id"], first["receive_count"]) == ("m0", 2)
    assert first["sent_at"].isoformat() == "2026-01-01T00:00:00.123000+00:00"
    assert json.loads(first["attributes"])["MessageGroupId"] == "g"
    assert (second["sent_at"], second["message_attributes"], second["altered"]) == (None, None, False)


def test_a_message_id_that_utf_8_cannot_express_is_an_error_and_never_another_id() -> None:
    messages = [{"MessageId": message_id, "Body": "{}"} for message_id in ("m\ud800", "m\udfff")]
    with pytest.raises(ValueError, match="surrogates not allowed"):
        list(message_tables(messages))


def test_half_a_surrogate_pair_is_replaced_and_its_message_kept(tmp_path: Path) -> None:
    messages = [Message(Receipt(f"m{number}", ""), body) for number, body in enumerate(["half \ud800", "whole ?"])]
    write_manifest(tmp_path / "m", batch_id="b", queue_url=QUEUE, messages=messages)
    assert [message.body for message in read_manifest(tmp_path / "m").messages] == ["half ?", "whole ?"]
    assert pq.read_table(tmp_path / "m")["altered"].to_pylist() == [True, False]


def test_messages_and_mappings_of_them_are_the_same_manifest(tmp_path: Path) -> None:
    mappings = [message.as_dict() for message in MESSAGES]
    given: dict[str, list[Any]] = {"objects": [*MESSAGES], "mappings": mappings, "mixed": [MESSAGES[0], mappings[1]]}
    for name, messages in given.items():
        write_manifest(tmp_path / name, batch_id="b", queue_url=QUEUE, messages=messages)
    assert (tmp_path / "mappings").read_bytes() == (tmp_path / "objects").read_bytes()
    assert (tmp_path / "mixed").read_bytes() == (tmp_path / "objects").read_bytes()


NUMBERS: Final[list[Any]] = [
    *("1767225600123", "0", "00012", "", "-1", "1.5", " 7", "7\n", "\N{FULLWIDTH DIGIT NINE}", "9" * 18, "9" * 19, "x"),
    *(None, 5, -5, 10**30, []),
]


@pytest.mark.parametrize("texts_only", [True, False])
def test_numbers_of_the_service_are_what_messages_say_they_are(tmp_path: Path, *, texts_only: bool) -> None:
    said = [value for value in NUMBERS if not texts_only or isinstance(value, str)]
    messages = [
        Message(Receipt(f"m{number}", ""), "", {"SentTimestamp": value, "ApproximateReceiveCount": value})
        for number, value in enumerate(said)
    ]
    write_manifest(tmp_path / "m", batch_id="b", queue_url=QUEUE, messages=messages)
    written = pq.read_table(tmp_path / "m")
    assert written["sent_at"].to_pylist() == [message.sent_at for message in messages]
    assert written["receive_count"].to_pylist() == [message.receive_count for message in messages]


def test_the_attributes_of_senders_count_when_row_groups_are_cut(tmp_path: Path) -> None:
    attributes = {"a": {"DataType": "String", "StringValue": "x" * 200_000}}
    messages = [Message(Receipt(f"m{number}", ""), "{}", {}, attributes) for number in range(100)]
    write_manifest(tmp_path / "m", batch_id="b", queue_url=QUEUE, messages=messages)
    assert pq.ParquetFile(tmp_path / "m").num_row_groups == 2


def test_a_message_attribute_that_is_called_base64_stays_one(tmp_path: Path) -> None:
    attributes = {"base64": {"DataType": "String", "StringValue": "x"}}
    message = Message(Receipt("m", HANDLE), "body", {}, attributes)
    write_manifest(tmp_path / "m", batch_id="b", queue_url=QUEUE, messages=[message])
    assert read_manifest(tmp_path / "m").messages[0].message_attributes == attributes


def test_an_empty_batch_is_a_file_without_rows(tmp_path: Path) -> None:
    write_manifest(tmp_path / "m", batch_id="b", queue_url=QUEUE, messages=[])
    assert read_manifest(tmp_path / "m").messages == ()


def test_a_large_batch_has_row_groups_that_can_be_read_side_by_side(tmp_path: Path) -> None:
    messages = [Message(Receipt(f"m{number}", ""), "{}") for number in range(ROW_GROUP_MESSAGES + 1)]
    write_manifest(tmp_path / "m", batch_id="b", queue_url=QUEUE, messages=messages)
    assert pq.ParquetFile(tmp_path / "m").num_row_groups == 2
    assert [message.message_id for message in read_manifest(tmp_path / "m").messages] == [
        m.message_id for m in messages
    ]


def test_several_joined_are_one_with_the_rows_of_all_in_their_order(written: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_manifest(other, batch_id="b", queue_url=QUEUE, messages=[Message(Receipt("m2", ""), "half \ud800")])
    join_manifests(tmp_path / "joined", [other, written])
    rows = [*pq.read_table(other).to_pylist(), *pq.read_table(written).to_pylist()]
    assert pq.read_table(tmp_path / "joined").to_pylist() == rows
    assert [message.message_id for message in read_manifest(tmp_path / "joined").messages] == ["m2", "m0", "m1"]


def test_a_file_that_is_not_a_manifest_is_named_where_several_are_joined(written: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("{}")
    with pytest.raises(ManifestError, match=f"{other} is not a manifest"):
        join_manifests(tmp_path / "joined", [written, other])


def test_a_reader_ignores_what_it_does_not_know(written: Path) -> None:
    table = pq.read_table(written)
    more = table.append_column("later", pa.array([1, 2]))
    write_again(written, more, {"version": 1, "batch_id": "b", "queue_url": QUEUE, "later": True})
    assert len(read_manifest(written).messages) == 2


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_file_that_ends_early_is_refused(written: Path, kept: float) -> None:
    content = written.read_bytes()
    written.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(ManifestError, match="not written to its end"):
        read_manifest(written)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello\n")
    pq.write_table(pa.table({"message_id": ["m"]}), tmp_path / "other")
    for name in ("text", "other"):
        with pytest.raises(ManifestError, match="is not a manifest"):
            read_manifest(tmp_path / name)


def test_a_row_that_is_not_a_message_is_refused_without_quoting_it(written: Path) -> None:
    table = pq.read_table(written).set_column(4, "attributes", pa.array(["{}", "private {"]))
    write_again(written, table, {"version": 1})
    with pytest.raises(ManifestError, match="a row that is not a message") as refused:
        read_manifest(written)
    assert "private" not in str(refused.value)


def test_a_newer_version_is_refused_with_the_remedy(written: Path) -> None:
    write_again(written, pq.read_table(written), {"version": 2})
    with pytest.raises(ManifestError, match=r"version 2.*a newer one"):
        read_manifest(written)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_manifest(tmp_path / "none")


WITHOUT_PARSER: Final = """
import sys
from pathlib import Path

sys.modules["jiter"] = None  # as where it is not installed

from sqs_lease.batch_files.manifest import read_manifest, write_manifest
from sqs_lease.batch_files.manifest_extra import require_manifests

require_manifests("this test", "manifest")
path = Path(sys.argv[1])
write_manifest(path, batch_id="b", queue_url="orders", messages=[{"MessageId": "m", "Body": "{}"}])
print(len(read_manifest(path).messages))
"""


def test_the_extra_of_manifests_has_no_need_of_what_parses_bodies(tmp_path: Path) -> None:
    program = [sys.executable, "-c", WITHOUT_PARSER, str(tmp_path / "m")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "providers")}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    # By its exit code, too: a process that read by Arrow's threads was aborted at its end, up to pyarrow 23.
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
