"""The run that a batch goes to, in the batch's directory: what asks for it again, after a crash, must ask for the same.

The file is written before ``leases.json`` and removed after it, so a batch that is held has it where it had one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from sqs_lease.dagster.lease_sensor.dispatch import Destination
from sqs_lease.dagster.run_batch.folder import BatchFolder

RUN: Final = "run.json"
"""The file. Files are removed in the order of their names (``lease_files.py``)."""


class RecordedRun(msgspec.Struct, frozen=True):
    """What the file says.

    Attributes:
        destination: The run.
        after: The ids of the batches that it waits for.
    """

    destination: Destination
    after: tuple[str, ...] = ()


def write_run(folder: BatchFolder, destination: Destination, after: Iterable[str]) -> None:
    """Write the run that a batch goes to.

    Raises:
        OSError: It cannot be written.
    """
    folder.put(RUN, msgspec.json.encode(RecordedRun(destination, tuple(sorted(after)))))


def read_run(folder: BatchFolder) -> RecordedRun | None:
    """Read it; None where there is none that can be read.

    Raises:
        OSError: It cannot be read, and may be later.
    """
    content = folder.get(RUN)
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=RecordedRun)
    except (msgspec.DecodeError, UnicodeError):
        return None
