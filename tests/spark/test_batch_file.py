"""A batch becomes a file, whatever its messages come as; the file is gone at the end, and after a kill."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sqs_lease.batch_files.manifest import ManifestError, write_manifest
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.spark import TextSource, WorkspaceError, batch_parts, message_ids
from sqs_lease.spark.batch_file import REASONS, BatchFile, written_batch
from sqs_lease.spark.sources.json import PlainChecker
from sqs_lease.spark.workspace import scratch_directory
from tests.spark.samples import good, message


@dataclass
class Checker:
    """Rejects bodies that begin with an x, and remembers what it saw."""

    seen: list[str] = field(default_factory=list)

    def reasons(self, bodies: Sequence[str]) -> list[str | None]:
        self.seen += bodies
        return ["an x" if body.startswith("x") else None for body in bodies]


def rows(path: Path) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return read


def manifest_of(path: Path, messages: Sequence[Message]) -> Path:
    write_manifest(path, batch_id="b", queue_url="q", messages=messages)
    return path


def test_messages_are_written_with_what_the_service_and_the_sender_said_of_them(tmp_path: Path) -> None:
    attributes = {"trace": {"DataType": "Binary", "BinaryValue": b"\x00\xff"}}
    said = {"SentTimestamp": "1700000000123", "ApproximateReceiveCount": "3", "SenderId": "me"}
    full = Message(Receipt("full", "handle"), "body", said, attributes)

    for form in (full, full.as_dict()):
        with written_batch([form, {"MessageId": "bare", "Body": "x"}], workspace=tmp_path, checker=Checker()) as batch:
            assert batch is not None
            assert rows(batch.path) == [
                {
                    "message_id": "full",
                    "body": "body",
                    "sent_at": datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC),
                    "receive_count": 3,
                    "attributes": msgspec.json.encode(said).decode(),
                    "message_attributes": '{"trace":{"DataType":"Binary","BinaryValue":{"base64":"AP8="}}}',
                    "altered": False,
                },
                {
                    "message_id": "bare",
                    "body": "x",
                    "sent_at": None,
                    "receive_count": 1,
                    "attributes": "{}",
                    "message_attributes": None,
                    "altered": False,
                },
            ]
            assert batch.rejected.to_pylist() == [{"message_id": "bare", "reason": "an x"}]


def test_attributes_that_are_numbers_already_are_taken_as_they_are(tmp_path: Path) -> None:
    given = {"MessageId": "m", "Body": "", "Attributes": {"SentTimestamp": 0, "ApproximateReceiveCount": 2}}

    with written_batch([given], workspace=tmp_path, checker=Checker()) as batch:
        assert batch is not None
        assert batch.messages["receive_count"].to_pylist() == [2]
        assert batch.messages["sent_at"].to_pylist() == [datetime(1970, 1, 1, tzinfo=UTC)]


def test_an_attribute_that_is_not_a_number_counts_as_missing(tmp_path: Path) -> None:
    odd = {"SentTimestamp": "yesterday", "ApproximateReceiveCount": "often"}

    with written_batch(
        [*good([7]), {"MessageId": "m", "Body": "", "Attributes": odd}], workspace=tmp_path, checker=Checker()
    ) as batch:
        assert batch is not None
        assert batch.messages["receive_count"].to_pylist() == [1, 1]
        assert batch.messages["sent_at"].is_null().to_pylist() == [False, True]


@pytest.mark.parametrize("as_manifest", [False, True], ids=["objects", "manifest"])
def test_a_body_that_no_file_can_hold_is_rejected_whatever_its_source_is(tmp_path: Path, *, as_manifest: bool) -> None:
    halves = [message("m", "half \ud800"), message("json", '"\ud800"')]
    given: Any = manifest_of(tmp_path / "manifest", halves) if as_manifest else halves
    for checker in (Checker(), TextSource().checker(), PlainChecker()):
        with written_batch(given, workspace=tmp_path / "w", checker=checker) as batch:
            assert batch is not None
            assert rows(batch.path)[0]["body"] == "half ?"
            assert batch.rejected["message_id"].to_pylist() == ["m", "json"]
            assert set(batch.rejected["reason"].to_pylist()) == {"not text: half a surrogate pair"}


@pytest.mark.parametrize("as_manifest", [False, True], ids=["objects", "manifest"])
def test_of_several_receptions_of_one_message_the_last_counts(tmp_path: Path, *, as_manifest: bool) -> None:
    first, second = message("m", "first"), message("m", "second", receive_count=2)
    third = message("m", "x third", receive_count=2)
    cases: list[tuple[list[Message], str]] = [
        ([first, second, *good([1])], "second"),
        ([*good([1]), second, first], "second"),
        ([second, *good([1]), third], "x third"),
        ([third, *good([1]), second], "second"),
    ]
    for number, (messages, body) in enumerate(cases):
        given: Any = manifest_of(tmp_path / f"manifest-{number}", messages) if as_manifest else messages
        with written_batch(given, workspace=tmp_path / "w", checker=Checker()) as batch:
            assert batch is not None
            assert (batch.received, batch.repeated) == (len(messages), len(messages) - 2)
            assert {row["message_id"]: row["body"] for row in rows(batch.path)}["m"] == body
            assert batch.rejected["message_id"].to_pylist() == (["m"] if body == "x third" else [])
            assert sorted(batch.looked_up["message_id"].to_pylist()) == ["m", "m1"]


def test_a_batch_is_written_in_row_groups_that_spark_reads_in_parallel(tmp_path: Path) -> None:
    many = [message(f"m{number}", "") for number in range(10_001)]
    large = [message(f"l{number}", " " * 2**20) for number in range(20)]

    for messages in (many, large):
        with written_batch(iter(messages), workspace=tmp_path, checker=Checker()) as batch:
            assert batch is not None
            assert batch.messages.num_rows == len(messages)
            assert pq.read_metadata(batch.path).num_row_groups == 2


def test_a_manifest_is_the_file_already(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "manifest", [*good([1]), message("bad", "{")])
    with written_batch(manifest, workspace=tmp_path / "w", checker=PlainChecker()) as batch:
        assert batch is not None
        assert batch.path.samefile(manifest)
        assert batch.rejected.num_rows == 0
        # Its sender may remove it meanwhile.
        manifest.unlink()
        assert len(rows(batch.path)) == 2
    assert list((tmp_path / "w").iterdir()) == []


def test_bodies_of_a_manifest_are_only_read_for_a_checker_of_more_than_their_syntax(tmp_path: Path) -> None:
    class Syntax(PlainChecker):
        def reasons(self, bodies: Sequence[str]) -> list[str | None]:
            raise AssertionError(f"{len(bodies)} bodies were read")

    manifest = manifest_of(tmp_path / "manifest", [message("a", "{}"), message("b", "x {}")])
    checker = Checker()
    with written_batch(manifest, workspace=tmp_path / "w", checker=checker) as batch:
        assert batch is not None
        assert batch.rejected.to_pylist() == [{"message_id": "b", "reason": "an x"}]
    with written_batch(str(manifest), workspace=tmp_path / "w", checker=Syntax()) as batch:
        assert batch is not None
    assert checker.seen == ["{}", "x {}"]


def test_a_body_that_is_not_json_is_still_text(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "manifest", [message("a", "{}"), message("b", "hello")])

    with written_batch(manifest, workspace=tmp_path / "w", checker=TextSource().checker()) as batch:
        assert batch is not None
        assert batch.rejected.num_rows == 0


@dataclass(frozen=True)
class Elsewhere:
    """A manifest that is not on a file system, such as an object in a store."""

    path: Path

    def open(self, mode: str) -> Any:
        return self.path.open(mode)


def test_a_manifest_from_elsewhere_is_copied(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "manifest", good([1]))

    with written_batch(Elsewhere(manifest), workspace=tmp_path / "w", checker=PlainChecker()) as batch:
        assert batch is not None
        assert batch.messages["message_id"].to_pylist() == ["m1"]
        assert not batch.path.samefile(manifest)


def test_a_manifest_without_messages_is_an_empty_batch(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "manifest", [])

    with written_batch(manifest, workspace=tmp_path / "w", checker=Checker()) as batch:
        assert batch is None


def test_row_groups_without_messages_are_passed_over(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "manifest", [message(name, "{}") for name in ("m1", "m2")])
    messages, schema = pq.read_table(manifest), pq.read_schema(manifest)

    def read(*groups: pa.Table) -> pa.Table | None:
        with pq.ParquetWriter(manifest, schema) as writer:
            for group in groups:
                writer.write_table(group)
        with written_batch(manifest, workspace=tmp_path / "w", checker=Checker()) as batch:
            return None if batch is None else batch.messages

    nothing, first, second = messages.slice(0, 0), messages.slice(0, 1), messages.slice(1)
    assert read(nothing, nothing) is None
    assert read(nothing, first, nothing, second) == read(first, second)


def in_groups(path: Path, groups: Sequence[Sequence[Message]]) -> Path:
    """A manifest with these row groups."""
    manifest = manifest_of(path, [message for group in groups for message in group])
    messages, schema = pq.read_table(manifest), pq.read_schema(manifest)
    with pq.ParquetWriter(manifest, schema) as writer:
        start = 0
        for group in groups:
            writer.write_table(messages.slice(start, len(group)))
            start += len(group)
    return manifest


def as_text(bodies: pa.Array) -> tuple[pa.Table, pa.Array]:
    """A parser that takes every body."""
    return pa.table({"text": bodies}), pa.nulls(len(bodies), pa.string())


@given(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=6), out=st.sets(st.integers(0, 24)))
def test_tasks_make_rows_of_the_messages_that_are_wanted(sizes: list[int], out: set[int]) -> None:
    ends = list(accumulate(sizes))
    assume(ends[-1])
    groups = [
        [message(f"m{at}", "x" * (at % 5)) for at in range(end - size, end)]
        for size, end in zip(sizes, ends, strict=True)
    ]
    # The driver rejects the texts that are not empty here.
    wanted = [f"m{at}" for at in range(ends[-1]) if at not in out and at % 5 == 0]

    # A task reads one message at a time.
    with patch.object(batch_parts, "_BYTES_AT_ONCE", 1), tempfile.TemporaryDirectory() as directory:
        manifest = in_groups(Path(directory, "manifest"), groups)
        with written_batch(manifest, workspace=directory, checker=Checker()) as batch:
            assert batch is not None
            left_out = pa.chunked_array([[f"m{at}" for at in sorted(out)]], pa.string())
            parts = batch.parts(as_text, left_out, "b")
            made = [one.rows["_message_id"].to_pylist() for one in parts.read(range(parts.count))]

    assert [message_id for of_part in made for message_id in of_part] == wanted
    assert all(made)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3)), min_size=1, max_size=20))
def test_of_a_message_that_is_there_again_the_newest_receive_is_kept(received: list[tuple[int, int]]) -> None:
    messages = [message(f"m{name}", str(at), receive_count=count) for at, (name, count) in enumerate(received)]
    newest: dict[int, tuple[int, int]] = {}
    for at, (name, count) in enumerate(received):
        newest[name] = max(newest.get(name, (0, 0)), (count, at))

    with (
        tempfile.TemporaryDirectory() as directory,
        written_batch(
            in_groups(Path(directory, "manifest"), [messages[:7], messages[7:]]), workspace=directory, checker=Checker()
        ) as batch,
    ):
        assert batch is not None
        kept = [(row["message_id"], row["body"]) for row in rows(batch.path)]
        assert batch.messages["message_id"].to_pylist() == [message_id for message_id, _ in kept]
        assert batch.repeated == len(messages) - len(kept)

    assert sorted(kept) == sorted((f"m{name}", str(at)) for name, (_, at) in newest.items())
    assert [int(body) for _, body in kept] == sorted(int(body) for _, body in kept)


def test_a_file_that_is_not_a_manifest_is_refused_by_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("hello")

    with (
        pytest.raises(ManifestError, match=f"{path} is not a manifest"),
        written_batch(path, workspace=tmp_path / "w", checker=Checker()),
    ):
        pass
    with pytest.raises(FileNotFoundError), written_batch(tmp_path / "x", workspace=tmp_path, checker=Checker()):
        pass


class Reader:
    """Takes what Spark would be told to read."""

    def __getattr__(self, _name: str) -> Any:
        return self

    def __call__(self, *_arguments: object) -> Any:
        return self

    def parquet(self, address: str) -> str:
        return address.removeprefix("file://")


def rejects_of(batch: BatchFile, reasons: dict[str, str]) -> list[tuple[str, str, str]]:
    """Message, body and reason of each row of a table of rejects."""
    given = pa.table([list(reasons), list(reasons.values())], schema=REASONS)
    read = rows(Path(str(batch.rejects(Reader(), given))))  # type: ignore[arg-type]
    return [(row["_message_id"], row["body"], row["reason"]) for row in read]


@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    at_once=st.integers(1, 5),
    reasons=st.dictionaries(st.integers(0, 24).map("m{}".format), st.sampled_from(["late", "early"]), min_size=1),
)
def test_rejects_have_their_own_reasons_and_are_looked_for_in_all_row_groups_at_once(
    sizes: list[int], at_once: int, reasons: dict[str, str]
) -> None:
    ends = list(accumulate(sizes))
    assume(ends[-1])
    groups = [
        [message(f"m{at}", f"body {at}") for at in range(end - size, end)]
        for size, end in zip(sizes, ends, strict=True)
    ]
    expected = [(f"m{at}", f"body {at}", reasons[f"m{at}"]) for at in range(ends[-1]) if f"m{at}" in reasons]

    with (
        tempfile.TemporaryDirectory() as directory,
        patch.multiple(message_ids, AT_ONCE=at_once, _IN_MEMORY=2),
        patch.object(pc, "index_in", wraps=pc.index_in) as looked,
        written_batch(in_groups(Path(directory, "m"), groups), workspace=directory, checker=Checker()) as batch,
    ):
        assert batch is not None
        assert rejects_of(batch, reasons) == expected
        assert looked.call_count == -(-len(reasons) // at_once)


def test_a_file_beside_the_batch_that_cannot_be_written_is_an_error_that_says_where(tmp_path: Path) -> None:
    with written_batch([message("m1", "")], workspace=tmp_path, checker=Checker()) as batch:
        assert batch is not None
        left_out = batch.messages["message_id"]
        lost = replace(batch, path=tmp_path / "gone" / batch.path.name)
        writes: list[Callable[[], object]] = [
            lambda: lost.parts(as_text, left_out, "b"),
            lambda: lost.only(Reader(), left_out),  # type: ignore[arg-type]
            lambda: rejects_of(lost, {"m1": "late"}),
        ]
        for write in writes:
            with pytest.raises(WorkspaceError, match=f"the batch cannot be written to {tmp_path}/gone"):
                write()


def test_rejects_are_picked_out_of_the_file_with_their_reason(tmp_path: Path) -> None:
    messages = [message(f"m{number}", f"body {number}") for number in range(10_002)]
    reasons = pa.table([["m10001", "m1"], ["late", "early"]], schema=REASONS)
    with written_batch(messages, workspace=tmp_path, checker=Checker()) as batch:
        assert batch is not None
        read = rows(Path(str(batch.rejects(Reader(), reasons))))  # type: ignore[arg-type]
    assert [(row["_message_id"], row["body"], row["reason"]) for row in read] == [
        ("m1", "body 1", "early"),
        ("m10001", "body 10001", "late"),
    ]
    assert read[0]["_sent_at"] == datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)


def test_the_file_is_gone_at_the_end_even_of_a_failure(tmp_path: Path) -> None:
    def messages() -> Iterable[Message]:
        yield from (message(f"m{number}", "") for number in range(10_000))
        raise KeyError("no more")

    with pytest.raises(KeyError), written_batch(messages(), workspace=tmp_path, checker=Checker()):
        pass
    with pytest.raises(ZeroDivisionError), written_batch(good([1]), workspace=tmp_path, checker=Checker()):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_files_of_a_killed_process_are_removed_and_those_of_a_living_one_are_not(tmp_path: Path) -> None:
    code = f"""
import sys
from sqs_lease.spark.workspace import scratch_directory
with scratch_directory({str(tmp_path)!r}) as directory:
    (directory / "file").write_text("scratch")
    print(directory, flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        with scratch_directory(tmp_path) as ours:
            assert ours != theirs
        assert (theirs / "file").exists()
        other.send_signal(signal.SIGKILL)
        other.wait()
    (tmp_path / "of the user").touch()

    with scratch_directory(tmp_path) as ours:
        assert sorted(tmp_path.iterdir()) == sorted([ours, tmp_path / "of the user"])


class TestWhoMayRead:
    @pytest.fixture(autouse=True)
    def open_to_all(self) -> Iterator[None]:
        """As most systems create files: readable by all."""
        before = os.umask(0o022)
        yield
        os.umask(before)

    def test_a_directory_of_the_drivers_own_lets_no_other_user_in(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with written_batch(good([1]), workspace=None, checker=Checker()) as batch:
            assert batch is not None
            closed = batch.path.parent.stat()
            assert (stat.S_IMODE(closed.st_mode), closed.st_uid) == (0o700, os.getuid())
            # There is no directory above that others could have made.
            assert batch.path.parent.parent == tmp_path
        assert list(tmp_path.iterdir()) == []

    def test_a_link_that_another_user_laid_is_not_followed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        temporary, theirs = tmp_path / "tmp", tmp_path / "theirs"
        temporary.mkdir()
        theirs.mkdir()
        (theirs / "kept").touch()
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        for name in (f"sqs-lease-batches-{os.getuid()}", f"sqs-lease-batch-{os.getuid()}-abc"):
            (temporary / name).symlink_to(theirs)

        with scratch_directory(None) as directory:
            assert not directory.is_relative_to(theirs)
            assert directory.parent.resolve() == temporary
            assert sorted(path.name for path in theirs.iterdir()) == ["kept"]
        assert sorted(path.name for path in theirs.iterdir()) == ["kept"]

    def test_files_of_another_user_that_look_left_over_are_left_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        theirs = tmp_path / "try-of-another"
        theirs.mkdir()
        uid = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)

        with scratch_directory(tmp_path):
            pass

        assert list(theirs.iterdir()) == []

    @pytest.mark.parametrize(
        ("mode", "expected"), [(0o700, 0o700), (0o755, 0o750), (0o770, 0o770), (0o777, 0o770)], ids=oct
    )
    def test_in_a_workspace_the_group_gets_in_where_the_owner_let_it_and_others_never(
        self, mode: int, expected: int, tmp_path: Path
    ) -> None:
        tmp_path.chmod(mode)

        with scratch_directory(tmp_path) as directory:
            assert stat.S_IMODE(directory.stat().st_mode) == expected

    def test_a_workspace_that_is_created_is_the_owners(self, tmp_path: Path) -> None:
        with scratch_directory(tmp_path / "a" / "work") as directory:
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "a" / "work").stat().st_mode) == 0o700


def test_a_workspace_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with (
        pytest.raises(WorkspaceError, match=rf"{tmp_path}/file \(.*\): make workspace= a directory"),
        scratch_directory(tmp_path / "file"),
    ):
        pass


@pytest.mark.parametrize("address", ["s3://bucket/batches", "file:///data/batches"])
def test_an_address_is_not_a_workspace_and_becomes_no_directory(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkspaceError, match=f"{address} is an address"), scratch_directory(address):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_named(tmp_path: Path) -> None:
    class Full(Checker):
        def reasons(self, bodies: Sequence[str]) -> list[str | None]:
            raise OSError(28, "No space left on device")

    with (
        pytest.raises(WorkspaceError, match="No space left on device"),
        written_batch(good([1]), workspace=tmp_path, checker=Full()),
    ):
        pass


@pytest.mark.parametrize("as_manifest", [False, True], ids=["as messages", "as a manifest"])
def test_dead_letters_are_looked_up_whenever_they_were_sent_as_a_fifo_queue_gives_them_a_new_time(
    tmp_path: Path, as_manifest: bool
) -> None:
    said = {"SentTimestamp": "1700000000123", "DeadLetterQueueSourceArn": "arn:aws:sqs:eu-west-1:1:orders.fifo"}
    messages = [Message(Receipt("m1", "handle"), "{}", said), Message(Receipt("m2", "handle"), "{}")]
    messages.reverse()
    given = manifest_of(tmp_path / "manifest", messages) if as_manifest else messages

    with written_batch(given, workspace=tmp_path / "batches", checker=Checker()) as batch:
        assert batch is not None
        assert batch.looked_up["sent_at"].to_pylist() == [None, None]
        assert rows(batch.path)[1]["sent_at"] is not None


def fifo(message_id: str, number: int, *, group: str = "a", milliseconds: int = 123) -> Message:
    said = {
        "SentTimestamp": str(1_700_000_000_000 + milliseconds),
        "MessageGroupId": group,
        # A number of 128 bits, says the service: of however many digits.
        "SequenceNumber": f"{number}",
    }
    return Message(Receipt(message_id, "handle"), "{}", said)


@pytest.mark.parametrize("as_manifest", [False, True], ids=["as messages", "as a manifest"])
def test_of_messages_that_a_fifo_queue_took_in_one_millisecond_the_later_one_has_the_later_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_manifest: bool
) -> None:
    monkeypatch.setattr("sqs_lease.batch_files.manifest.ROW_GROUP_MESSAGES", 2)
    # Two are a row group; in some of these no message has a message group, as where a batch is of several queues.
    messages = [
        *(message(f"plain {number}", "{}") for number in range(2)),
        fifo("third", 100),
        fifo("first", 10),
        *(message(f"plain {number}", "{}") for number in range(2, 4)),
        fifo("in another group", 5, group="b"),
        fifo("second", 20),
        fifo("first", 10),
        fifo("later", 40, milliseconds=124),
    ]
    given = manifest_of(tmp_path / "manifest", messages) if as_manifest else messages

    with written_batch(given, workspace=tmp_path / "batches", checker=Checker()) as batch:
        assert batch is not None
        found, looked_up = (
            {one["message_id"]: one["sent_at"].microsecond for one in its if not one["message_id"].startswith("plain")}
            for its in (rows(batch.path), batch.looked_up.to_pylist())
        )
        assert [file for file in batch.path.parent.iterdir() if file.suffix == ".parquet"] == [batch.path]

    expected = {"first": 123_000, "second": 123_001, "third": 123_002, "in another group": 123_000, "later": 124_000}
    assert found == looked_up == expected


def test_attributes_with_half_a_surrogate_pair_are_written_all_the_same(tmp_path: Path) -> None:
    given = {"MessageId": "m", "Body": "", "Attributes": {"MessageGroupId": "\ud83d"}}

    with written_batch([given], workspace=tmp_path, checker=Checker()) as batch:
        assert batch is not None
        assert rows(batch.path)[0]["attributes"] == '{"MessageGroupId":"\\ud83d"}'
