"""A batch's messages as a file, for batches too large to travel through an orchestrator's own database.

The format, version 1: UTF-8 text, one JSON object a line, each line ended by a line feed.

- The first line is the header::

      {"format": "sqs-lease-manifest", "version": 1, "batch_id": "...", "queue_url": "...", "messages": 2}

- Each further line is one message in the shape of the SQS API, in the order of the batch::

      {"MessageId": "...", "Body": "...", "Attributes": {...}, "MessageAttributes": {...}}

  It is what :meth:`sqs_lease.core.messages.Message.as_dict` gives: without the receipt handle, so whoever may read the
  file can neither delete nor release a message. Characters outside ASCII are escaped, so any body that SQS gives can
  be written, and a binary message attribute is ``{"base64": "..."}`` in place of its bytes.

The number in the header is that of the lines that follow: a file that ends early is no manifest. A reader ignores
keys that it does not know, and refuses a version that it does not know.

Nothing here knows an orchestrator: a path is anything that opens files as :class:`pathlib.Path` does, for example
Airflow's ``ObjectStoragePath``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sqs_lease.core.messages import Message

FORMAT: Final = "sqs-lease-manifest"
"""What the header calls the format."""

VERSION: Final = 1
"""The version of the format that is written, and the newest that is read."""


class ManifestError(ValueError):
    """The file is no manifest that can be read; the text says which file and what to do."""


class ManifestPath(Protocol):
    """Where a manifest is: anything that opens files in binary mode as :class:`pathlib.Path` does."""

    def open(self, mode: str) -> Any:
        """Open the file as a context manager that gives a binary file."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a manifest.

    Attributes:
        batch_id: Names the batch.
        queue_url: The queue that its messages were received from.
        messages: The messages in the order of the batch; their receipt handles are empty.
    """

    batch_id: str
    queue_url: str
    messages: tuple[Message, ...]


def write_manifest(path: ManifestPath, *, batch_id: str, queue_url: str, messages: Sequence[Message]) -> None:
    """Write a manifest. It blocks.

    On a local path readers can see the file while it is written, and will refuse it; so name it to them afterwards.

    Args:
        path: The file, whose directory exists.
        batch_id: Names the batch.
        queue_url: The queue.
        messages: The messages; their receipt handles are left out.

    Raises:
        OSError: The file cannot be written.
    """
    header = {
        "format": FORMAT,
        "version": VERSION,
        "batch_id": batch_id,
        "queue_url": queue_url,
        "messages": len(messages),
    }
    with path.open("wb") as file:
        file.write(_line(header))
        for message in messages:
            file.write(_line(message.as_dict()))


def read_manifest(path: ManifestPath) -> Manifest:
    """Read a manifest. It blocks.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: The file cannot be read.
        ManifestError: It is no manifest, is not whole, or is of a version that this release does not know.
    """
    with path.open("rb") as file:
        header = _header(path, file.readline())
        try:
            messages = tuple(Message.from_api(json.loads(line, object_hook=_bytes_again)) for line in file)
        except (ValueError, KeyError, TypeError):
            # Not the error itself: it may quote a body.
            raise ManifestError(f"{path} has a line that is no message: receive the batch again") from None
    if len(messages) != header.get("messages"):
        raise ManifestError(
            f"{path} has {len(messages)} of its {header.get('messages')} messages: it was not written to its end, or "
            "was cut off; receive the batch again"
        )
    return Manifest(header.get("batch_id", ""), header.get("queue_url", ""), messages)


def _header(path: ManifestPath, line: bytes) -> Mapping[str, Any]:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, Mapping) or header.get("format") != FORMAT:
        raise ManifestError(f"{path} is not a manifest of sqs-lease: its first line must be a header of {FORMAT!r}")
    if header.get("version") != VERSION:
        raise ManifestError(
            f"{path} is a manifest of version {header.get('version')!r}, and this release of sqs-lease reads version "
            f"{VERSION}: read it with the release that wrote it, or a newer one"
        )
    return header


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=_plain).encode("ascii") + b"\n"


def _plain(value: object) -> dict[str, str]:
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode("ascii")}
    raise TypeError(f"a message cannot hold a {type(value).__name__}")


def _bytes_again(value: dict[str, Any]) -> Any:
    # A message attribute of that name is a mapping itself.
    if value.keys() == {"base64"} and isinstance(value["base64"], str):
        return base64.b64decode(value["base64"])
    return value
