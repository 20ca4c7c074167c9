"""Connections to PostgreSQL: errors without passwords and values of rows, and bounded waits for locks.

**Errors.** The server's text may quote a value of a row, depending on the class of its code (SQLSTATE). So for some
classes only the name of the error and the column are told. The class also tells whether the cause is in a row
(:class:`...errors.RowsRefusedError`).

**Locks.** PostgreSQL bounds the wait itself (``lock_timeout``). Only the server knows who holds a lock, and the
connection that waits cannot ask it. So a second connection asks, in a thread of its own, and only for a transaction
that takes longer than a second.
"""

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
"""The parameters of a connection, by their names in libpq; with the password, if there is one."""

_CONNECT_SECONDS: Final = 30
# The classes of errors that triggers raise, in PL/pgSQL and in other languages.
_TRIGGER_CLASSES: Final = ("P0", "38")
# The classes whose texts may quote a value: data exceptions, and errors of triggers.
_QUOTING_CLASSES: Final = ("22", *_TRIGGER_CLASSES)
# The server's function that raises errors for PL/pgSQL, with any code that the function chose.
_RAISE: Final = "exec_stmt_raise"
# Data exceptions, violated constraints, limits such as that of a key's size, and WITH CHECK OPTION.
_ROW_CLASSES: Final = ("22", "23", "44", "54")
# Errors of triggers, policies of row level security, and upserts in which a trigger made two keys equal: the cause may
# be in a row, or elsewhere.
_PERHAPS_ROW: Final = (*_TRIGGER_CLASSES, "42501", "21000")
# A sequence without numbers left, and a staging table with too many columns: the cause is not in a row, and no value is
# quoted.
_NEVER_ROWS: Final = ("2200H", "54011")

LOOK_SECONDS: Final = 1.0
"""The interval at which the server is asked who holds the lock."""

_END_SECONDS: Final = 30.0
_UNKNOWN: Final = "the holder is unknown"
_BLOCKING: Final = (
    "SELECT a.pid, a.application_name, a.usename::text, extract(epoch FROM now() - a.xact_start)::bigint "
    "FROM pg_stat_activity a WHERE a.pid = ANY (pg_blocking_pids(%s)) ORDER BY a.pid"
)


def parameters_of(url: str) -> dict[str, Any]:
    """Parse the address of a server.

    Raises:
        TableError: It cannot be parsed. The error does not quote it, because it may have a password.
    """
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        given = None
    if given is None:
        raise TableError(
            "the url of the PostgreSQL server cannot be read: write postgresql://user@host:5432/database, or host=... "
            "dbname=... in libpq's notation"
        )
    return {"connect_timeout": _CONNECT_SECONDS, "application_name": "sqs-lease", **given}


def place_of(parameters: Parameters) -> str:
    """Name the server and the database, without user and password."""
    host, port = parameters.get("host", "the default host"), parameters.get("port", "the default port")
    return f"{parameters.get('dbname', 'the default database')} on {host}, port {port}"


def connect(parameters: Parameters) -> psycopg.Connection[tuple[Any, ...]]:
    """Connect; the block of a ``with`` is one transaction.

    Raises:
        psycopg.Error: The server cannot be reached, or refuses the connection.
    """
    # Without prepared statements, which a pooler between here and the server loses after a transaction.
    connection = psycopg.connect(**{**parameters, "client_encoding": "UTF8"}, prepare_threshold=None)
    # Set against the role's default: after a wait for another transaction, its result must be visible.
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return connection


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Translate errors of PostgreSQL in the block; ``what`` begins their texts.

    Raises:
        RowsRefusedError: For an error whose cause is, or may be, in a row.
        TableError: For every other error.
    """
    try:
        yield
    except psycopg.Error as error:
        raised, reason = error, reason_of(error)
    else:
        return
    # Raised without its cause, because a traceback would show the text of that, which may quote rows.
    code = raised.sqlstate or ""
    if code not in _NEVER_ROWS and (code.startswith((*_ROW_CLASSES, *_PERHAPS_ROW)) or _is_of_function(raised)):
        raise RowsRefusedError(f"{what}: {reason}", rule=reason, is_certain=code.startswith(_ROW_CLASSES)) from None
    raise TableError(f"{what}: {reason}") from None


def reason_of(error: psycopg.Error) -> str:
    """Return the text of an error of PostgreSQL, without values of rows."""
    code = error.sqlstate
    if code is None:
        # An error of the connection, which does not quote rows.
        return str(error).strip()
    name = f"{type(error).__name__} ({code})"
    if _is_of_function(error) or (code not in _NEVER_ROWS and code.startswith(_QUOTING_CLASSES)):
        column = error.diag.column_name
        return f"{name}{f' in column {column}' if column else ''}"
    return f"{error.diag.message_primary}, {name}"


def _is_of_function(error: psycopg.Error) -> bool:
    """Whether a function, such as a trigger, raised the error or made the failed statement, which may have values."""
    return error.diag.source_function == _RAISE or error.diag.internal_query is not None


@contextmanager
def bounded_locks(
    connection: psycopg.Connection[Any], parameters: Parameters, writers: ConcurrentWriters
) -> Iterator[None]:
    """Bound the waits for locks of the transaction in the block, and find out who holds a lock.

    Raises:
        TableError: The wait for a lock was too long; the transaction is over.
    """
    milliseconds = max(1, int(writers.limit_seconds * 1000))
    # The server is asked for its process, because behind a pooler the connection has another number.
    found = connection.execute("SELECT pg_backend_pid(), set_config('lock_timeout', %s, true)", [str(milliseconds)])
    (pid, _) = found.fetchone() or (0, None)
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
                    who[0] = ", ".join(_holder(*row) for row in found)
                    writers.waited(who[0])
                if stop.wait(LOOK_SECONDS):
                    return
    except psycopg.Error as error:
        logger.debug("the holder of a lock is unknown: %s", reason_of(error))


def _holder(pid: int, application: str | None, user: str | None, seconds: int | None) -> str:
    since = "" if seconds is None else f", in a transaction of {seconds} s"
    return f"process {pid} of {application or 'an unnamed program'} (user {user or 'unknown'}{since})"
