"""A batch's messages in a file for the job that ingests them, as long as it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqs_lease.core.messages import Message


@contextmanager
def temporary_manifest(
    path: Any, messages: Iterable[Message | Mapping[str, Any]], *, batch_id: str, queue_url: str = ""
) -> Iterator[None]:
    """Have the messages in a manifest as long as the block lasts.

    Args:
        path: The file: anything that opens and removes files as :class:`pathlib.Path` does. Where it has directories,
            its own exists.
        messages: The messages, or mappings in the shape of the SQS API; their receipt handles are left out.
        batch_id: Names the batch.
        queue_url: The queue.

    Raises:
        OSError: The file cannot be written.
    """
    # Not needed to plan an ingestion, and it takes pyarrow.
    from sqs_lease.batch_files.manifest import write_manifest

    try:
        write_manifest(path, batch_id=batch_id, queue_url=queue_url, messages=messages)
        yield
    finally:
        path.unlink(missing_ok=True)
