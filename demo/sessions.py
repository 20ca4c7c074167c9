"""A process and everything it started: found by their session, which none of Airflow's processes leaves."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence

import psutil


def session_members(session: int) -> list[int]:
    """The ids of the processes of a session that run; processes that ended and were not waited for do not count.

    Args:
        session: The id of the session, which is the process id of its leader.
    """
    return [pid for pid in psutil.pids() if _runs_in(pid, session)]


def send_signal(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to those of the processes that still run."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_for(pids: Sequence[int], seconds: float) -> None:
    """Wait until processes have ended, whose ever children they are.

    Args:
        pids: The processes.
        seconds: How long to wait at most.
    """
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    psutil.wait_procs(processes, timeout=seconds)


def _runs_in(pid: int, session: int) -> bool:
    try:
        return os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):  # It ended meanwhile, or belongs to another user.
        return False
