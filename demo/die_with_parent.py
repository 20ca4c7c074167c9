"""Start a command that is told to end when the process that asked for it is gone, however it went.

Run as a script with an interpreter of its own, because what is set here must be set in the process that
becomes the command::

    python die_with_parent.py PARENT_PID COMMAND [ARGUMENT ...]

On Linux the kernel sends SIGTERM to the command when the thread that started it ends (prctl(2),
PR_SET_PDEATHSIG). Elsewhere there is no such thing and the command is started as it is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, then become the command."""
    parent_pid = int(sys.argv[1])
    command = sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # A parent that died before the call above would send no signal any more.
    if os.getppid() != parent_pid:
        sys.exit(f"The process {parent_pid} that started this one is gone.")
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted here


if __name__ == "__main__":
    main()
