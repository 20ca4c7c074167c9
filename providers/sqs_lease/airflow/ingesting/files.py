"""The files between a task and the job that it starts: manifests for the job, and the result that it leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfileobj
from typing import Any
from uuid import uuid4

from airflow.sdk import ObjectStoragePath

from sqs_lease.airflow.handover.payload import MANIFESTS, BatchValue
from sqs_lease.batch_files.manifests import temporary_manifest
from sqs_lease.core.messages import Message


def manifests_of(messages: BatchValue) -> list[str] | None:
    """Where the messages of a batch are stored; None where they are values.

    Raises:
        TypeError: ``messages`` is not what a lease gives.
    """
    if isinstance(messages, Mapping):
        if MANIFESTS not in messages:
            raise TypeError("messages is a mapping that is not the value of a lease")
        return list(messages[MANIFESTS])
    if isinstance(messages, str | bytes) or not all(isinstance(message, Mapping) for message in messages):
        raise TypeError("messages is not the value of a lease: a list of mappings with MessageId and Body")
    return None


def local_manifests(messages: BatchValue, directory: Path, name: str) -> list[Path]:
    """Write the messages of a batch to files of this machine, whichever way they came.

    Args:
        messages: The value of the lease.
        directory: Where the files go.
        name: Names the batch in the manifest, where it has none yet.

    Raises:
        FileNotFoundError: The batch's files are gone.
        OSError: Files cannot be read or written.
        TypeError: ``messages`` is not what a lease gives.
    """
    stored = manifests_of(messages)
    if stored is None:
        path = directory / "messages.parquet"
        # Not needed to parse a DAG, and it takes pyarrow.
        from sqs_lease.batch_files.manifest import write_manifest

        write_manifest(path, batch_id=name, queue_url="", messages=_messages(messages))
        return [path]
    paths = []
    for number, uri in enumerate(stored):
        paths.append(directory / f"messages-{number}.parquet")
        stored_at: Any = ObjectStoragePath(uri)
        with stored_at.open("rb") as source, paths[-1].open("wb") as copy:
            copyfileobj(source, copy)
    return paths


@contextmanager
def shared_manifests(messages: BatchValue, workspace: str, name: str) -> Iterator[list[str]]:
    """Have the messages of a batch in files that other machines reach too, as long as the block lasts.

    Args:
        messages: The value of the lease.
        workspace: A directory that those machines reach, as a path or URI.
        name: Names the batch in the manifest, where it has none yet.

    Yields:
        The URIs of the manifests.

    Raises:
        OSError: The file cannot be written.
        TypeError: ``messages`` is not what a lease gives.
    """
    stored = manifests_of(messages)
    if stored is not None:
        yield stored
        return
    uri = f"{workspace.rstrip('/')}/manifests/{uuid4().hex}.parquet"
    with temporary_manifest(shared_path(uri), _messages(messages), batch_id=name):
        yield [uri]


def shared_path(uri: str) -> Any:
    """The file at a URI, its directory made where it lies in a file system."""
    path: Any = ObjectStoragePath(uri)
    if path.protocol in ("", "file"):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _messages(values: Any) -> list[Message]:
    return [Message.from_api(value) for value in values]
