"""Connections to PostgreSQL: what may be said of errors (no password, no value of a row), and waiting for locks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from sqs_lease.spark.errors import RowsRefusedError, TableError
from sqs_lease.spark.waits import ConcurrentWriters

logger = logging.getLogger(__name__)

Parameters = Mapping[str, Any]
"""What a connection is made with, as libpq names it; with the password, if there is one."""

_CONNECT_SECONDS: Final = 30
# What triggers raise, in PL/pgSQL and in other languages.
_TRIGGER_CLASSES: Final = ("P0", "38")
# Of these classes of SQLSTATE, the server's own words may quote a value: data exceptions, and what triggers raise.
_QUOTING_CLASSES: Final = ("22", *_TRIGGER_CLASSES)
# Where the server raises what PL/pgSQL says, under whatever code that gives.
_RAISE: Final = "exec_stmt_raise"
# Data exceptions, violated constraints, limits such as that of a key's size, and WITH CHECK OPTION.
_ROW_CLASSES: Final = ("22", "23", "44", "54")
# What a trigger raises, the policies of row level security, and upserts of which a trigger made two keys the same: for
# these rows, or for whatever other reason.
_PERHAPS_ROW: Final = (*_TRIGGER_CLASSES, "42501", "21000")
# A sequence that has no number left, and a staging table of too many columns: of no row, and they quote none.
_NEVER_ROWS: Final = ("2200H", "54011")

LOOK_SECONDS: Final = 1.0
"""How often it is asked who holds what the transaction waits for."""

_END_SECONDS: Final = 30.0
_UNKNOWN: Final = "PostgreSQL does not say who"
_BLOCKING: Final = (
    "SELECT a.pid, a.application_name, a.usename::text, extract(epoch FROM now() - a.xact_start)::bigint "
    "FROM pg_stat_activity a WHERE a.pid = ANY (pg_blocking_pids(%s)) ORDER BY a.pid"
)


def parameters_of(url: str) -> dict[str, Any]:
    """Take an address apart.

    Raises:
        TableError: It is no address. The error does not repeat it: a password may be in it.
    """
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        given = None
    if given is None:
        raise TableError(
            "the url of the PostgreSQL server cannot be read: write postgresql://user@host:5432/database, or host=... "
            "dbname=... as libpq has it"
        )
    return {"connect_timeout": _CONNECT_SECONDS, "application_name": "sqs-lease", **given}


def place_of(parameters: Parameters) -> str:
    """Say which server and database, without user and password."""
    host, port = parameters.get("host", "the default host"), parameters.get("port", "the default port")
    return f"{parameters.get('dbname', 'the default database')} on {host}, port {port}"


def connect(parameters: Parameters) -> psycopg.Connection[tuple[Any, ...]]:
    """Connect; the block of a ``with`` is one transaction.

    Raises:
        psycopg.Error: The server cannot be reached, or lets nobody in.
    """
    # Prepared statements would not outlive a transaction behind a pooler.
    connection = psycopg.connect(**{**parameters, "client_encoding": "UTF8"}, prepare_threshold=None)
    # Whatever the role's default is: after waiting for another transaction, its outcome is to be seen.
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return connection


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Have errors of PostgreSQL in the block say what failed, as the beginning of a sentence.

    Raises:
        RowsRefusedError: Instead of what psycopg raised, where that is for what is in a row.
        TableError: Otherwise.
    """
    try:
        yield
    except psycopg.Error as error:
        said, reason = error, reason_of(error)
    else:
        return
    # Without what led to it, which a traceback would show: its text may quote rows.
    code = said.sqlstate or ""
    if code not in _NEVER_ROWS and (code.startswith((*_ROW_CLASSES, *_PERHAPS_ROW)) or _is_of_function(said)):
        raise RowsRefusedError(f"{what}: {reason}", rule=reason, is_certain=code.startswith(_ROW_CLASSES)) from None
    raise TableError(f"{what}: {reason}") from None


def reason_of(error: psycopg.Error) -> str:
    """What an error of PostgreSQL says, apart from the values of rows."""
    code = error.sqlstate
    if code is None:
        # Of the connection, not of rows.
        return str(error).strip()
    name = f"{type(error).__name__} ({code})"
    if _is_of_function(error) or (code not in _NEVER_ROWS and code.startswith(_QUOTING_CLASSES)):
        column = error.diag.column_name
        return f"{name}{f' in column {column}' if column else ''}"
    return f"{error.diag.message_primary}, {name}"


def _is_of_function(error: psycopg.Error) -> bool:
    """Whether a function, such as a trigger, raised it, or wrote the statement that failed: of values, perhaps."""
    return error.diag.source_function == _RAISE or error.diag.internal_query is not None


@contextmanager
def bounded_locks(
    connection: psycopg.Connection[Any], parameters: Parameters, writers: ConcurrentWriters
) -> Iterator[None]:
    """Have the transaction in the block wait for no lock longer than it may.

    Who holds the lock is asked on a connection of its own, in a thread of its own, and only of a transaction that takes
    longer than a moment.

    Raises:
        TableError: A lock was waited for too long; the transaction is over.
    """
    milliseconds = max(1, int(writers.limit_seconds * 1000))
    # The server's own number of the process: behind a pooler the connection has another one.
    asked = connection.execute("SELECT pg_backend_pid(), set_config('lock_timeout', %s, true)", [str(milliseconds)])
    (pid, _) = asked.fetchone() or (0, None)
    stop = Event()
    who = [_UNKNOWN]
    watch = Thread(
        target=_watch,
        args=(pid, parameters, writers, who, stop),
        name="sqs-lease locks",
        daemon=True,
    )
    watch.start()
    try:
        yield
    except psycopg.errors.LockNotAvailable:
        raise writers.error(who[0]) from None
    finally:
        stop.set()
        watch.join(_END_SECONDS)


def _watch(pid: int, parameters: Parameters, writers: ConcurrentWriters, who: list[str], stop: Event) -> None:
    if stop.wait(LOOK_SECONDS):
        return
    try:
        with connect({**parameters, "application_name": "sqs-lease locks"}) as connection:
            connection.autocommit = True
            while True:
                found = connection.execute(_BLOCKING, [pid]).fetchall()
                if found:
                    who[0] = ", ".join(_said(*row) for row in found)
                    writers.waited(who[0])
                if stop.wait(LOOK_SECONDS):
                    return
    except psycopg.Error as error:
        logger.debug("it was not found out who holds a lock: %s", reason_of(error))


def _said(pid: int, application: str | None, user: str | None, seconds: int | None) -> str:
    since = "" if seconds is None else f", in a transaction of {seconds} s"
    return f"process {pid} of {application or 'an unnamed program'} (user {user or 'unknown'}{since})"
