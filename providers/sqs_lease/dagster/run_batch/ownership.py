"""Which process may act on what several of them reach: a file in a shared directory names it.

The newest one to take it is the owner. The former one finds out when it looks, and must not act any more. So a new
owner first waits for as long as that takes, before it does what the former one must not undo.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import msgspec

from sqs_lease.dagster.run_batch.folder import BatchFolder

OWNER: Final = "owner.json"
"""The file."""


class ForeignOwnerError(RuntimeError):
    """The directory belongs to somebody else for good; the text says whose and what to do."""


@dataclass(frozen=True, slots=True)
class Owner:
    """What the file says: a token that no other has, for whom, and for people which process it is."""

    token: str
    deployment: str
    host: str
    pid: int


class Ownership:
    """One process's claim to a directory. All of it blocks.

    Args:
        directory: The directory; a :class:`pathlib.Path` where it is of the local file system.
        deployment: For whom it acts. Processes of one deployment follow one another; another one is refused.
    """

    def __init__(self, directory: Any, deployment: str) -> None:
        # Not a batch's, but written and read like one.
        self._folder = BatchFolder(directory)
        self._owner = Owner(uuid4().hex, deployment, socket.gethostname(), os.getpid())

    def take(self) -> Owner | None:
        """Become the owner.

        Returns:
            Who was it before; None where nobody was.

        Raises:
            ForeignOwnerError: The directory belongs to another deployment.
            OSError: It cannot be read or written.
        """
        former = self._read()
        if former is not None and former.deployment != self._owner.deployment:
            raise ForeignOwnerError(
                f"{self._folder} belongs to another deployment (process {former.pid} on {former.host} used it last): "
                f"give each its own directory. If that one is gone for good, remove {OWNER} there"
            )
        self._folder.put(OWNER, json.dumps(_plain(self._owner)).encode())
        return former

    def is_ours(self) -> bool:
        """Whether this process is the owner still.

        Raises:
            OSError: It cannot be read.
        """
        return self._read() == self._owner

    def leave(self) -> None:
        """Own it no longer, where it is ours.

        Raises:
            OSError: It cannot be read or removed.
        """
        if self.is_ours():
            (self._folder.path / OWNER).unlink(missing_ok=True)

    def _read(self) -> Owner | None:
        content = self._folder.get(OWNER)
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=Owner)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            # Its writer is unknown: nobody is refused for it, and it is not ours either.
            return None


def _plain(owner: Owner) -> dict[str, Any]:
    return {"token": owner.token, "deployment": owner.deployment, "host": owner.host, "pid": owner.pid}
