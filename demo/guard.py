"""Ends a session when the process that started it is gone, however that went: `python -m demo.guard SESSION`.

The starter holds the other end of this process's standard input. As long as it is open, there is nothing to do;
when it closes without a word, the starter was killed, and the session is ended in its place. A line means that
the starter has seen to the session itself.
"""

from __future__ import annotations

import signal
import sys
import time

from demo.sessions import send_signal, session_members, wait_for

GRACE_SECONDS = 5.0
LOOK_SECONDS = 0.2


def main() -> None:
    """Wait for the end of the starter, or its word."""
    session = int(sys.argv[1])
    if sys.stdin.readline():
        return
    deadline = time.monotonic() + GRACE_SECONDS
    if session in session_members(session):
        send_signal([session], signal.SIGTERM)
    while members := session_members(session):
        if session not in members or time.monotonic() > deadline:
            send_signal(members, signal.SIGKILL)
        wait_for(members, LOOK_SECONDS)


if __name__ == "__main__":
    main()
