"""Has Airflow notice at once that the process of a task was killed, instead of up to five seconds later.

A task's supervisor waits for something to happen on the sockets that it shares with the task's process, for up to
``[workers] min_heartbeat_interval``. A process that is killed closes them, which wakes the supervisor; but a moment may
pass before the process counts as ended. A supervisor that looks within it finds a process that runs, and waits again,
with nothing left that could wake it. So a companion keeps one of the sockets open a little longer: a shell that
waits for the end of the task's process on a pipe, which it shares with nobody else, and ends soon after. Then the
supervisor looks once more.
"""

from __future__ import annotations

import os
from typing import Final

LATER_SECONDS: Final = 0.5
"""The kernel gives back the memory of a killed process within them. So much longer is a worker's slot taken."""

_SHELL: Final = "/bin/sh"

_SCRIPT: Final = f"exec 3<&0 </dev/null; {{ read -r line <&3 || sleep {LATER_SECONDS}; }} &"
"""In the background, so that it is no child of the task's: nobody there who waits for children waits for it."""


def start_companion() -> None:
    """Start it for this process, which is that of a task; it ends by itself, after this one.

    Raises:
        OSError: The machine has no shell, or too many processes.
    """
    its, ours = os.pipe()
    try:
        # Neither end is inherited by anything else that this process starts, and this one's stays open until it ends:
        # that is how the companion learns of it. Its standard error is the task's, the socket to be kept open.
        shell = os.posix_spawn(
            _SHELL,
            [_SHELL, "-c", _SCRIPT],
            {"PATH": os.environ.get("PATH", os.defpath)},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, its, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            ],
            # Whoever kills the task's process group does not kill the companion, too.
            setpgroup=0,
        )
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(its)
    os.waitpid(shell, 0)
