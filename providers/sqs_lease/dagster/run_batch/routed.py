"""The leases of a batch in its directory, for a process that takes them over from one that is gone.

The files, beside those of ``folder.py``:

- ``leases.json``: the leases as they were received. It is written last, so a directory without it is of a batch that
  nobody was told of. It has the receipt handles in it, so on a local path only its owner can read it; a prefix of an
  object store should be as private.
- ``held-until.json``: until when every lease lasts at least, written again whenever they were extended.
- ``settling.json``: the batch is being settled, and these messages are deleted. It is written before the first call.
  Who finds it does not extend or release anything: what was given back may be somebody else's by now, and a standard
  queue would take it from them. It deletes once more what was to be deleted; the rest comes back by itself.

The directory of a settled batch is removed file by file in the order of their names, so ``leases.json`` goes before
``settling.json``: a process that is killed in between leaves nothing that could be taken for a batch that is held.

All of it blocks. Times are seconds since the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from sqs_lease.core.messages import Lease
from sqs_lease.dagster.run_batch.folder import SETTLING, BatchFolder
from sqs_lease.keeper.plain_leases import decode_leases, encode_leases

LEASES: Final = "leases.json"
HELD_UNTIL: Final = "held-until.json"


@dataclass(frozen=True, slots=True)
class RecordedLeases:
    """What a directory has of a batch's leases.

    Attributes:
        batch_id: The batch.
        queue_url: The queue.
        leases: The leases, in the order of the batch, with their deadlines as far as they are known.
        deleting: The ids of what is to be deleted, where the batch is being settled; None where it is not.
    """

    batch_id: str
    queue_url: str
    leases: Sequence[Lease]
    deleting: frozenset[str] | None = None


class _LeasesFile(msgspec.Struct):
    """What :func:`write_leases` writes."""

    batch_id: str
    queue_url: str
    leases: str


def write_leases(folder: BatchFolder, batch_id: str, queue_url: str, leases: Sequence[Lease]) -> None:
    """Write the leases of a batch whose messages are written already.

    Raises:
        OSError: They cannot be written.
    """
    content = {"batch_id": batch_id, "queue_url": queue_url, "leases": encode_leases(leases)}
    folder.put(LEASES, json.dumps(content).encode())


def write_held_until(folder: BatchFolder, until: float) -> None:
    """Write until when every lease lasts at least.

    Raises:
        OSError: It cannot be written.
    """
    folder.put(HELD_UNTIL, json.dumps(until).encode())


def begin_settling(folder: BatchFolder, deleting: Iterable[str]) -> None:
    """Write that the batch is being settled; nobody begins to work on it any more.

    Args:
        folder: The batch's directory.
        deleting: The ids of the messages that are deleted.

    Raises:
        OSError: It cannot be written.
    """
    folder.put(SETTLING, json.dumps(sorted(deleting)).encode())


def stop_settling(folder: BatchFolder) -> None:
    """Take :func:`begin_settling` back: nothing was settled yet.

    Raises:
        OSError: It cannot be removed.
    """
    (folder.path / SETTLING).unlink(missing_ok=True)


def read_leases(folder: BatchFolder) -> RecordedLeases | None:
    """Read the leases of a batch; None where none can be read.

    Raises:
        OSError: They cannot be read, and may be later.
    """
    content, until, deleting = folder.get(LEASES), folder.get(HELD_UNTIL), folder.get(SETTLING)
    if content is None:
        return None
    try:
        stored = msgspec.json.decode(content, type=_LeasesFile)
        leases = decode_leases(stored.leases)
        held_until = 0.0 if until is None else msgspec.json.decode(until, type=float)
        settled = None if deleting is None else msgspec.json.decode(deleting, type=frozenset[str])
    except (msgspec.DecodeError, ValueError, RecursionError):
        # Not the error itself: it may quote a receipt handle.
        return None
    lasting = [lease.lasting_until(held_until) for lease in leases]
    return RecordedLeases(stored.batch_id, stored.queue_url, lasting, settled)
