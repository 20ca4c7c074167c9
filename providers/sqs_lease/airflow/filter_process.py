"""A program that tells the process that started it whether messages match a filter.

A stranger wrote the body, and a user the expression. Together they can take any time. ``=~`` runs a regular
expression, which may need minutes on 1 MiB (the largest body of SQS) or never end; ``..`` visits every part of the
body; arithmetic may make a string of a gigabyte; and a user's function may do anything.

Python's lock is held while a regular expression runs, and while a body is parsed (0.1 to 0.3 s for 1 MiB of
``[],[],...``). In a thread of a triggerer that would stop all extensions of leases, and a time-out could not end it. So
expressions and functions run in this program. The kernel ends it when an answer takes too long, also in the middle of a
regular expression, and when the process that waits for the answer is gone.

It imports nothing of this package, so that it starts in a tenth of a second instead of one or two.
"""

from __future__ import annotations

import inspect
import json
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pkgutil import resolve_name
from typing import Any, Final, TypeAlias

from sqs_lease.core.functions import is_async, yields

LITERAL: Final = "literal"
JSONPATH: Final = "jsonpath"
JSONPATH_EXTENDED: Final = "jsonpath-ext"
ATTRIBUTE: Final = "attribute"
CALLABLE: Final = "callable"

MEMORY_BYTES: Final = 1 << 30
"""The largest memory for data of this program; a filter that needs more fails on its message."""

Matcher: TypeAlias = Callable[[Mapping[str, Any]], bool]
"""Test for a message: by its ``Body`` and ``MessageAttributes``, or for a function by the whole message.

It may raise any exception that a user's function raises.
"""


def matcher(kind: str, match_values: str | None, expression: str | None) -> Matcher:
    """Make the test for a message. Parsing an expression, or importing a function, takes tens of milliseconds.

    Args:
        kind: How to match, such as :data:`LITERAL`.
        match_values: The values to match, as JSON; None matches anything that the expression finds.
        expression: The JSONPath expression, the attribute's name or the function's path; None for ``literal``.

    Raises:
        ValueError: The expression is not JSONPath, or the function cannot be used.
    """
    values = None if match_values is None else json.loads(match_values)
    expression = expression or ""
    if kind == LITERAL:
        bodies = {value for value in values or () if isinstance(value, str)}
        return lambda message: message["Body"] in bodies
    if kind == CALLABLE:
        function = users_function(expression)
        return lambda message: _true_or_false(function(dict(message)))
    find = _find_attribute(expression) if kind == ATTRIBUTE else _find_in_body(kind, expression)

    def matches(message: Mapping[str, Any]) -> bool:
        found = find(message)
        return bool(found) if values is None else any(value in values for value in found)

    return matches


def answer_of(matches: Matcher, message: Mapping[str, Any]) -> bool | str:
    """Return whether a message matches, or why the filter could not decide."""
    try:
        return matches(message)
    except BaseException as error:  # noqa: BLE001 - a user's function: AirflowTaskTimeout, SystemExit, any
        return failed(error)


def failed(error: BaseException) -> str:
    """Return why a filter could not decide, by the error's type: its text may quote the body."""
    return f"message_filtering failed on it: {type(error).__name__}"


def users_function(path: str) -> Callable[[dict[str, Any]], object]:
    """Import the function of a filter.

    Raises:
        ValueError: It cannot be imported, or is not an ordinary function.
    """
    try:
        function: Any = resolve_name(path)
    except (Exception, SystemExit) as error:
        # The import runs a module of the user's, which may raise anything.
        kind = type(error).__name__
        raise ValueError(
            f"message_filtering_config, {path!r}, cannot be imported ({kind}: {error}): {FUNCTION_REMEDY}"
        ) from error
    if not callable(function) or inspect.isclass(function) or is_async(function) or yields(function):
        raise ValueError(f"message_filtering_config, {path!r}, is not an ordinary function: {FUNCTION_REMEDY}")
    return function  # type: ignore[no-any-return]


FUNCTION_REMEDY: Final = (
    "give the path of a function (package.module.function) in a module that the triggerer can import too: an "
    "installed package, or a module in Airflow's plugins folder, but not a DAG file"
)


class NotTrueOrFalseError(TypeError):
    """A filter's function returned something else, such as the None of a function that forgets to return."""


def _true_or_false(answer: object) -> bool:
    if isinstance(answer, bool):
        return answer
    if inspect.iscoroutine(answer):
        answer.close()  # Python would warn that it was never awaited.
    raise NotTrueOrFalseError(
        f"a function for message_filtering must return True or False, not {type(answer).__name__}"
    )


def _find_in_body(kind: str, expression: str) -> Callable[[Mapping[str, Any]], list[Any]]:
    # Imported where it is needed: it takes a while, and few sensors filter.
    from jsonpath_ng.ext.parser import parse as parse_extended
    from jsonpath_ng.parser import parse

    try:
        parsed = parse_extended(expression) if kind == JSONPATH_EXTENDED else parse(expression)
    except Exception as error:
        # The library raises bare exceptions besides its own.
        raise ValueError(f"message_filtering_config is not a JSONPath expression, {expression!r}: {error}") from error

    def find(message: Mapping[str, Any]) -> list[Any]:
        try:
            body = json.loads(message["Body"])
        except (ValueError, RecursionError):
            return []
        return [match.value for match in parsed.find(body)]

    return find


def _find_attribute(name: str) -> Callable[[Mapping[str, Any]], list[Any]]:
    def find(message: Mapping[str, Any]) -> list[Any]:
        attribute = message["MessageAttributes"].get(name)
        return [] if attribute is None else [_attribute_value(attribute)]

    return find


def _attribute_value(attribute: Mapping[str, Any]) -> str | int | float | None:
    """The value as JSON has it; None for bytes. Senders may add their own label to a type (``Number.int``)."""
    text: str | None = attribute.get("StringValue")
    if text is None or attribute.get("DataType", "").partition(".")[0] != "Number":
        return text
    try:
        return int(text)
    except ValueError:
        return float(text)


def serve(connection: Connection) -> None:
    """Answer about one message after the other, until the other side closes the connection.

    The other side sends the arguments of :func:`matcher`, how many seconds making it may take and how many an answer,
    and then the messages. It is sent, as JSON, True once the filter is made or why it cannot be made, and then the
    answers.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    *made_of, start_seconds, seconds = connection.recv()
    signal.setitimer(signal.ITIMER_REAL, start_seconds)
    try:
        matches = matcher(*made_of)
    except ValueError as error:
        connection.send_bytes(json.dumps(str(error)).encode())
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (min(MEMORY_BYTES, most) if most >= 0 else MEMORY_BYTES, most))
    connection.send_bytes(b"true")
    while True:
        signal.setitimer(signal.ITIMER_REAL, 0)
        message = connection.recv()
        signal.setitimer(signal.ITIMER_REAL, seconds)
        connection.send_bytes(json.dumps(answer_of(matches, message)).encode())


if __name__ == "__main__":
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, OSError):
        # The process that asked is gone, or needs no more answers.
        sys.exit()
