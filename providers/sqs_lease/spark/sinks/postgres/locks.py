"""Waiting for locks of PostgreSQL: bounded by the server, and told with who holds them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, Final

import psycopg

from sqs_lease.spark.sinks.postgres.connection import Parameters, connect, reason_of
from sqs_lease.spark.waits import Others

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""How often it is asked who holds what the transaction waits for."""

_END_SECONDS: Final = 30.0
_UNKNOWN: Final = "PostgreSQL does not say who"
_BLOCKING: Final = (
    "SELECT a.pid, a.application_name, a.usename::text, extract(epoch FROM now() - a.xact_start)::bigint "
    "FROM pg_stat_activity a WHERE a.pid = ANY (pg_blocking_pids(%s)) ORDER BY a.pid"
)


@contextmanager
def bounded_locks(connection: psycopg.Connection[Any], parameters: Parameters, others: Others) -> Iterator[None]:
    """Have the transaction in the block wait for no lock longer than it may.

    Who holds the lock is asked on a connection of its own, in a thread of its own, and only of a transaction that takes
    longer than a moment.

    Args:
        connection: The connection, in its transaction.
        parameters: For another connection.
        others: Whoever writes the table, too.

    Raises:
        TableError: A lock was waited for too long; the transaction is over.
    """
    milliseconds = max(1, int(others.limit_seconds * 1000))
    # The server's own number of the process: behind a pooler the connection has another one.
    asked = connection.execute("SELECT pg_backend_pid(), set_config('lock_timeout', %s, true)", [str(milliseconds)])
    (pid, _) = asked.fetchone() or (0, None)
    stop = Event()
    who = [_UNKNOWN]
    watch = Thread(
        target=_watch,
        args=(pid, parameters, others, who, stop),
        name="sqs-lease locks",
        daemon=True,
    )
    watch.start()
    try:
        yield
    except psycopg.errors.LockNotAvailable:
        raise others.error(who[0]) from None
    finally:
        stop.set()
        watch.join(_END_SECONDS)


def _watch(pid: int, parameters: Parameters, others: Others, who: list[str], stop: Event) -> None:
    if stop.wait(LOOK_SECONDS):
        return
    try:
        with connect({**parameters, "application_name": "sqs-lease locks"}) as connection:
            connection.autocommit = True
            while True:
                found = connection.execute(_BLOCKING, [pid]).fetchall()
                if found:
                    who[0] = ", ".join(_said(*row) for row in found)
                    others.waited(who[0])
                if stop.wait(LOOK_SECONDS):
                    return
    except psycopg.Error as error:
        logger.debug("it was not found out who holds a lock: %s", reason_of(error))


def _said(pid: int, application: str | None, user: str | None, seconds: int | None) -> str:
    since = "" if seconds is None else f", in a transaction of {seconds} s"
    return f"process {pid} of {application or 'an unnamed program'} (user {user or 'unknown'}{since})"
