"""The files of batches on a real object store: S3, as the SQS server serves it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import boto3
import dagster as dg
import pytest

from demo.sqs_server import SqsServer
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.dagster import BATCH_TAG, MessageFailed, SqsQueueResource
from sqs_lease.dagster.run_batch import folder
from sqs_lease.dagster.run_batch.folder import (
    BatchFolder,
    BatchFolderError,
    remove_left_over,
    run_batch_uri,
    workspace_path,
)

pytestmark = pytest.mark.processes


@pytest.fixture
def bucket(server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return boto3.resource("s3").create_bucket(Bucket=f"batches-{uuid4()}")


def names_in(bucket: Any) -> list[str]:
    return sorted(entry.key.rpartition("/")[2] for entry in bucket.objects.all())


def create(uri: str) -> BatchFolder:
    folder = BatchFolder(workspace_path(uri))
    folder.create(batch_id="batch", queue_url="orders", messages=[Message(Receipt("m0", "handle"), "body ä")])
    return folder


def test_steps_read_messages_there_and_leave_what_they_failed(bucket: Any) -> None:
    uri = run_batch_uri(f"s3://{bucket.name}/orders", "run")
    folder = create(uri)
    assert folder.pieces() == {}

    def work_on_it() -> None:
        with SqsQueueResource(queue="orders").lease(dg.build_op_context(run_tags={BATCH_TAG: uri})) as batch:
            assert [message.body for message in batch] == ["body ä"]
            # Written by this process, but read as another one would that has looked before.
            assert [work.is_over for work in folder.pieces().values()] == [False]
            raise MessageFailed("m0")

    with pytest.raises(MessageFailed):
        work_on_it()
    (work,) = folder.pieces().values()
    assert work.is_over
    assert work.raised is not None
    assert work.raised.message_ids == ("m0",)
    folder.remove()
    assert names_in(bucket) == []
    with pytest.raises(BatchFolderError, match="is not there"):
        folder.manifest()


def test_what_is_left_over_there_is_removed_by_its_age(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = f"s3://{bucket.name}/orders"
    assert remove_left_over(workspace) == 0
    create(run_batch_uri(workspace, "run"))
    assert remove_left_over(workspace) == 0
    monkeypatch.setattr(folder, "LEFT_OVER_AFTER_SECONDS", -60.0)
    assert remove_left_over(workspace) == 1
    assert names_in(bucket) == []


def test_a_file_there_is_read_as_another_process_wrote_it(bucket: Any) -> None:
    folder = create(run_batch_uri(f"s3://{bucket.name}/orders", "run"))
    folder.put("note.json", b"1.5")
    assert folder.get("note.json") == b"1.5"
    # The store's client knows the size from now on.
    assert folder.pieces() == {}
    bucket.put_object(Key="orders/run-run/note.json", Body=b"1700000000.25")
    assert folder.get("note.json") == b"1700000000.25"
