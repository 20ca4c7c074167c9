"""Filters for received messages: the options of the amazon provider's ``SqsSensor``, and two more.

- ``literal``: the body is one of the match values.
- ``jsonpath``: the body is JSON, and the expression finds something in it: anything at all, or one of the match values
  where there are any. ``jsonpath-ext`` is the same with the extended grammar of ``jsonpath_ng.ext``.
- ``attribute``: the message has the message attribute of that name, with one of the match values where there are any.
- ``callable``: the function of that dotted path returns True for the message. It must return True or False: a function
  that forgets to return would otherwise have its messages deleted where ``unmatched`` is ``discard()``.

Unlike the stock sensor, a body that is not JSON does not match and fails no task. Match values may be of any JSON
type, lists and objects included.

Bodies and attributes are compared where the messages are received. JSONPath and functions run in a process of their own
(:mod:`~sqs_lease.airflow.filter_process` says why): one for each receiving task, from its first message until none
came for a while.

If a filter raises an error or does not answer, it is unknown whether the message matches. The ``unmatched`` rule might
delete the message, so it does not apply: :class:`~sqs_lease.airflow.triggers.receive.Collector` settles it as a failed
message.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final, Self, TypeAlias, TypeVar

from sqs_lease.airflow import filter_process
from sqs_lease.airflow.airflow_api.requests import DAG_FILE_MODULE
from sqs_lease.airflow.dag_file import is_final
from sqs_lease.airflow.filter_process import (
    ATTRIBUTE,
    CALLABLE,
    FUNCTION_REMEDY,
    JSONPATH,
    JSONPATH_EXTENDED,
    LITERAL,
    Matcher,
    answer_of,
    failed,
    users_function,
)
from sqs_lease.core.durations import seconds_of
from sqs_lease.core.failure_rules import DiscardRule, FailureRule, ReleaseRule
from sqs_lease.core.messages import Message
from sqs_lease.core.specs import decode_failure_rule, encode_failure_rule
from sqs_lease.daemon_threads import DaemonThreads

KINDS: Final = (LITERAL, JSONPATH, JSONPATH_EXTENDED, ATTRIBUTE, CALLABLE)

_CONFIGS: Final[Mapping[str, str]] = {
    JSONPATH: "a JSONPath expression",
    JSONPATH_EXTENDED: "a JSONPath expression",
    ATTRIBUTE: "the name of a message attribute",
    CALLABLE: "the dotted path of a function",
}
"""The meaning of ``message_filtering_config`` for each kind; ``literal`` does not take it."""

_DISCARD: Final = "discard"

ANSWER_SECONDS: Final = 60.0
"""How long a filter may look at one message before that message counts as unusable.

The ten messages of a receive are held meanwhile. A function that waits for ever, for a server that does not answer for
example, must not hold them for ever. ``$..name`` takes 7 s on 1 MiB of empty lists on a busy machine.
"""

START_SECONDS: Final = 60.0
"""How long a filter's process may take to start: a function's module may import much."""

IDLE_SECONDS: Final = 10.0
"""How long a filter's process waits for another message before it is ended: a sensor may wait for days."""

_GRACE: Final = 1.5

UnmatchedRule: TypeAlias = FailureRule | DiscardRule
"""The rule for messages that do not match."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """A filter as plain values.

    Attributes:
        kind: One of :data:`KINDS`.
        match_values: The values to match, as JSON; None matches anything that the expression finds.
        expression: The JSONPath expression, the attribute's name or the function's path; None for ``literal``.
    """

    kind: str
    match_values: str | None
    expression: str | None

    @classmethod
    def of(cls, kind: str | None, match_values: Iterable[Any] | None, expression: str | None) -> Self | None:
        """Build it from the sensor's options; None without filtering.

        Args:
            kind: ``message_filtering``.
            match_values: ``message_filtering_match_values``.
            expression: ``message_filtering_config``.

        Raises:
            ValueError: The kind does not exist, an option is missing or is not for this kind, there are no match values
                in their list, the expression is not JSONPath, or the function cannot be used.
            TypeError: The match values are not a collection of JSON values, or for ``literal`` of strings.
        """
        if kind is None:
            options = {"message_filtering_match_values": match_values, "message_filtering_config": expression}
            if given := [name for name, value in options.items() if value is not None]:
                raise ValueError(f"message_filtering must be one of {', '.join(KINDS)} where {given[0]} is given")
            return None
        if kind not in KINDS:
            raise ValueError(f"message_filtering must be one of {', '.join(KINDS)}, not {kind!r}")
        if kind == LITERAL and match_values is None:
            raise ValueError("message_filtering='literal' needs message_filtering_match_values")
        if kind == LITERAL and expression is not None:
            raise ValueError(
                "message_filtering='literal' takes no message_filtering_config: the bodies to match are "
                "message_filtering_match_values"
            )
        if kind != LITERAL and is_final(expression) and (not isinstance(expression, str) or not expression):
            raise ValueError(f"message_filtering={kind!r} needs {_CONFIGS[kind]} as message_filtering_config")
        if kind == CALLABLE and match_values is not None:
            raise ValueError("message_filtering='callable' takes no message_filtering_match_values")
        made = cls(kind, _encoded_values(kind, match_values), expression)
        if kind == CALLABLE and not is_final(expression):
            raise ValueError(
                f"message_filtering_config, {expression!r}, is a template: the path of a function must stand in the "
                "DAG file, so that only authors of DAGs choose the code that runs in the triggerer"
            )
        if is_final(expression):
            made.matcher()
        if kind == CALLABLE and _is_of_dag_file(users_function(expression or "")):
            raise ValueError(f"message_filtering_config, {expression!r}, is defined in a DAG file: {FUNCTION_REMEDY}")
        return made

    def matcher(self) -> Matcher:
        """Make the test for a message, in this process; see :func:`filter_process.matcher`.

        Raises:
            ValueError: The expression is not JSONPath, or the function cannot be used.
        """
        return filter_process.matcher(self.kind, self.match_values, self.expression)

    def asks_about(self, message: Message) -> dict[str, Any]:
        """Return the parts of a message that the test gets.

        Raises:
            TypeError: A function is to be given an attribute for which JSON has no value.
        """
        if self.kind == CALLABLE:
            return message.as_dict()
        return {"Body": message.body, "MessageAttributes": message.message_attributes}


class OpenFilter:
    """A filter that looks at the messages of one receiving task. Made by :meth:`open`, ended by :meth:`close`.

    Args:
        made_of: The filter.
    """

    def __init__(self, made_of: MessageFilter) -> None:
        self._made_of = made_of
        is_comparison = made_of.kind in (LITERAL, ATTRIBUTE)
        self._matches = made_of.matcher() if is_comparison else None
        self._threads = DaemonThreads(1, "sqs-lease filter")
        self._process: _FilterProcess | None = None
        self._under_way = 0
        self._idle: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, made_of: MessageFilter) -> Self:
        """Open it; a function is imported now, because only this process can tell whether it can import it.

        Raises:
            ValueError: The function cannot be used here.
        """
        opened = cls(made_of)
        if made_of.kind == CALLABLE:
            await opened._in_thread(opened._started)
        return opened

    async def answers(self, messages: Sequence[Message]) -> Sequence[bool | str]:
        """Look at the messages of one receive, for :data:`ANSWER_SECONDS` each at most.

        Returns:
            For each message whether it matches, or why the filter could not decide.
        """
        if self._matches is not None:
            return [answer_of(self._matches, self._made_of.asks_about(message)) for message in messages]
        return await self._in_thread(lambda: [self._answer(message) for message in messages])

    def close(self) -> None:
        """End the process, if there is one. Another message would start it again."""
        process, self._process = self._process, None
        if process is not None:
            # In the thread: the end of a process that has much memory takes a while.
            self._threads.submit(process.end)

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        self._under_way += 1
        if self._idle is not None:
            self._idle.cancel()
        try:
            return await self._threads.run(call)
        finally:
            self._under_way -= 1
            if self._under_way == 0:
                self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.close)

    def _started(self) -> _FilterProcess:
        if self._process is None:
            self._process = _FilterProcess(self._made_of)
        return self._process

    def _answer(self, message: Message) -> bool | str:
        try:
            asked = self._made_of.asks_about(message)
        except TypeError as error:
            return failed(error)
        try:
            process = self._started()
        except ValueError as error:
            return f"message_filtering cannot begin: {error}"
        answer = process.answer(asked)
        if process.has_ended:
            self._process = None
        return answer


class _FilterProcess:
    """A process that answers about messages, see :func:`filter_process.serve`. All methods block.

    Attributes:
        has_ended: Whether the process has ended and gives no more answers.

    Args:
        made_of: The filter.

    Raises:
        ValueError: The filter cannot be made there.
    """

    def __init__(self, made_of: MessageFilter) -> None:
        self.has_ended = False
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this Python, and a file of this package
                # -P: the modules beside that file must not hide others. It finds what this process finds.
                [sys.executable, "-P", filter_process.__file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
        answer = self._answer_within((*astuple(made_of), START_SECONDS, ANSWER_SECONDS), START_SECONDS)
        if answer is not True:
            self.end()
            raise ValueError(str(answer))

    def answer(self, asked: Mapping[str, Any]) -> bool | str:
        """Return whether a message matches, or why there is no answer; the process may have ended then."""
        return self._answer_within(asked, ANSWER_SECONDS)

    def end(self) -> None:
        """End the process at once."""
        self.has_ended = True
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def _answer_within(self, asked: object, seconds: float) -> bool | str:
        is_late = False
        try:
            self._connection.send(asked)
            # The process ends itself earlier, unless a function changed its signal handlers.
            is_late = not self._connection.poll(seconds * _GRACE)
            if not is_late:
                said: bool | str = json.loads(self._connection.recv_bytes())
                return said
        except (EOFError, OSError):
            pass
        self.end()
        if is_late or self._process.returncode == -signal.SIGALRM:
            return f"message_filtering gave no answer within {seconds:g} s"
        return "message_filtering ended the process that it ran in"


def plain_values(match_values: Iterable[Any] | None) -> list[Any] | None:
    """Return match values as a list, so that they can be serialised and read more than once; None for None.

    Raises:
        TypeError: They are not a collection.
    """
    if match_values is None:
        return None
    if isinstance(match_values, str | bytes | Mapping) or not isinstance(match_values, Iterable):
        raise TypeError(f"message_filtering_match_values must be a list or a set of values, not {match_values!r}")
    return list(match_values)


def _encoded_values(kind: str, match_values: Iterable[Any] | None) -> str | None:
    if (values := plain_values(match_values)) is None:
        return None
    if not values:
        raise ValueError(
            "message_filtering_match_values is empty, so that messages would never match: give the values to match"
        )
    try:
        encoded = json.dumps(values)
    except (TypeError, ValueError) as error:
        raise TypeError(f"message_filtering_match_values must hold JSON values: {error}") from error
    if kind == LITERAL and not all(isinstance(value, str) for value in values):
        raise TypeError(
            "message_filtering_match_values of message_filtering='literal' must be strings, because a body is one, not "
            f"{next(value for value in values if not isinstance(value, str))!r}"
        )
    return encoded


def _is_of_dag_file(function: Any) -> bool:
    """Whether a DAG file defines a function, under any module name of that file."""
    dag_files = {
        getattr(module, "__file__", None)
        for name, module in tuple(sys.modules.items())
        if name.startswith(DAG_FILE_MODULE)
    }
    module = str(getattr(function, "__module__", ""))
    return module.startswith(DAG_FILE_MODULE) or getattr(sys.modules.get(module), "__file__", "") in dag_files


def check_unmatched(rule: object) -> UnmatchedRule:
    """Return the rule for messages that do not match, if it is one.

    Raises:
        TypeError: ``rule`` is not a failure rule.
        ValueError: It makes them visible at once, to be received again by the same sensor.
    """
    if not isinstance(rule, FailureRule | DiscardRule):
        raise TypeError(f"unmatched must be expire(), release(delay), dead_letter() or discard(), not {rule!r}")
    if isinstance(rule, ReleaseRule) and (rule.delay is None or seconds_of(rule.delay, name="delay") < 1):
        raise ValueError(
            "unmatched=release() would give messages back to be received by the same sensor again at once: "
            "give it a delay, release(60), or use expire()"
        )
    return rule


def encode_unmatched(rule: UnmatchedRule) -> dict[str, Any]:
    """Return the rule as plain values.

    Raises:
        TypeError: ``rule`` is not one of the known rules.
    """
    return {"on_failure": _DISCARD} if isinstance(rule, DiscardRule) else encode_failure_rule(rule)


def decode_unmatched(spec: Mapping[str, Any]) -> UnmatchedRule:
    """Build the rule from what :func:`encode_unmatched` returned."""
    return DiscardRule() if spec["on_failure"] == _DISCARD else decode_failure_rule(spec)
