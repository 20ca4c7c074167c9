"""Which of the received messages a DAG is for: by the options of the amazon provider's ``SqsSensor``, and by two more.

- ``literal``: the body is one of the match values.
- ``jsonpath``: the body is JSON, and the expression finds something in it: anything at all, or one of the match values
  where there are any. ``jsonpath-ext`` is the same with the extended grammar of ``jsonpath_ng.ext``.
- ``attribute``: the message has the message attribute of that name, with one of the match values where there are any.
- ``callable``: the function of that dotted path returns True for the message. It must return True or False: a function
  that forgets to return would otherwise have its messages deleted where ``unmatched`` is ``discard()``.

Unlike the stock sensor, a body that is not JSON does not match and fails no task. Match values may be of any JSON
type, lists and objects included.

A filter that raises an error leaves open whether the message matches. So the ``unmatched`` rule does not apply, which
might delete the message: :class:`~sqs_lease.airflow.receiving.collector.Collector` settles it as a failed message.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Final, Self, TypeAlias

from sqs_lease.airflow.airflow_api.requests import DAG_FILE_MODULE
from sqs_lease.airflow.dag_file import is_final
from sqs_lease.core.durations import seconds_of
from sqs_lease.core.failure_rules import DiscardRule, FailureRule, ReleaseRule
from sqs_lease.core.messages import Message
from sqs_lease.core.specs import decode_failure_rule, encode_failure_rule
from sqs_lease.daemon_threads import DaemonThreads

LITERAL: Final = "literal"
JSONPATH: Final = "jsonpath"
JSONPATH_EXTENDED: Final = "jsonpath-ext"
ATTRIBUTE: Final = "attribute"
CALLABLE: Final = "callable"
KINDS: Final = (LITERAL, JSONPATH, JSONPATH_EXTENDED, ATTRIBUTE, CALLABLE)

_CONFIGS: Final[Mapping[str, str]] = {
    JSONPATH: "a JSONPath expression",
    JSONPATH_EXTENDED: "a JSONPath expression",
    ATTRIBUTE: "the name of a message attribute",
    CALLABLE: "the dotted path of a function",
}
"""What ``message_filtering_config`` is; ``literal`` has none."""

_DISCARD: Final = "discard"

FILTER_SECONDS: Final = 600.0
"""How long a filter may look at the messages of one receive, ten at most, before they count as unusable.

They are held meanwhile. One that waits for ever, for a server that does not answer say, must not hold them for ever.
"""

FILTERS_AT_ONCE: Final = 4
"""So many receives of one queue are looked at at once, each in a thread of its own."""

UnmatchedRule: TypeAlias = FailureRule | DiscardRule
"""What becomes of messages that do not match."""

Matcher: TypeAlias = Callable[[Message], bool]
"""Tells whether a message matches. It runs in threads, and may raise whatever a user's function raises."""


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
            ValueError: The kind does not exist, an option is missing or is not for this kind, the expression is not
                JSONPath, or the function cannot be used.
            TypeError: The match values are not a collection of JSON values.
        """
        if kind is None:
            if match_values is not None or expression is not None:
                raise ValueError(f"message_filtering must be one of {', '.join(KINDS)} where its other options are set")
            return None
        if kind not in KINDS:
            raise ValueError(f"message_filtering must be one of {', '.join(KINDS)}, not {kind!r}")
        if kind == LITERAL and match_values is None:
            raise ValueError("message_filtering='literal' needs message_filtering_match_values")
        if kind != LITERAL and is_final(expression) and (not isinstance(expression, str) or not expression):
            raise ValueError(f"message_filtering={kind!r} needs {_CONFIGS[kind]} as message_filtering_config")
        if kind == CALLABLE and match_values is not None:
            raise ValueError("message_filtering='callable' takes no message_filtering_match_values")
        made = cls(kind, _encoded_values(match_values), None if kind == LITERAL else expression)
        if is_final(expression):
            made.matcher()
        return made

    def matcher(self) -> Matcher:
        """Make the test for a message. Parsing an expression, or importing a function, takes tens of milliseconds.

        Raises:
            ValueError: The expression is not JSONPath, or the function cannot be used.
        """
        values = None if self.match_values is None else json.loads(self.match_values)
        expression = self.expression or ""
        if self.kind == LITERAL:
            bodies = {value for value in values or () if isinstance(value, str)}
            return lambda message: message.body in bodies
        if self.kind == CALLABLE:
            function = _function(expression)
            return lambda message: _true_or_false(function(message.as_dict()))
        find = _find_attribute(expression) if self.kind == ATTRIBUTE else _find_in_body(self.kind, expression)

        def matches(message: Message) -> bool:
            found = find(message)
            return bool(found) if values is None else any(value in values for value in found)

        return matches


class OpenFilter:
    """A filter of one queue that looks at messages in threads of its own. Made by :meth:`open`.

    In threads: a user's function may wait, and going through large bodies takes long enough to make extensions late.
    """

    def __init__(self, matches: Matcher, threads: DaemonThreads) -> None:
        self._matches = matches
        self._threads = threads

    @classmethod
    async def open(cls, made_of: MessageFilter) -> Self:
        """Make the test for a message.

        Raises:
            ValueError: See :meth:`MessageFilter.matcher`.
        """
        threads = DaemonThreads(FILTERS_AT_ONCE, "sqs-lease filter")
        return cls(await threads.run(made_of.matcher), threads)

    async def answers(self, messages: Sequence[Message]) -> Sequence[bool | str]:
        """Look at the messages of one receive, for :data:`FILTER_SECONDS` at most.

        Returns:
            For each message whether it matches, or why the filter does not say.
        """
        try:
            async with asyncio.timeout(FILTER_SECONDS):
                return await self._look_at(messages)
        except TimeoutError:
            # The thread goes on; what it finds is not waited for.
            return [f"message_filtering gave no answer within {FILTER_SECONDS:g} s"] * len(messages)

    async def _look_at(self, messages: Sequence[Message]) -> Sequence[bool | str]:
        return await self._threads.run(lambda: [self._answer(message) for message in messages])

    def _answer(self, message: Message) -> bool | str:
        try:
            return self._matches(message)
        except BaseException as error:  # noqa: BLE001 - a user's function: AirflowTaskTimeout, SystemExit, any
            # Elsewhere it would end the trigger, or the triggerer with all its triggers.
            # Its type only: the text may quote the body.
            return f"message_filtering failed on it: {type(error).__name__}"


def _encoded_values(match_values: Iterable[Any] | None) -> str | None:
    if match_values is None:
        return None
    if isinstance(match_values, str | bytes | Mapping) or not isinstance(match_values, Iterable):
        raise TypeError(f"message_filtering_match_values must be a list or a set of values, not {match_values!r}")
    values = list(match_values)
    try:
        return json.dumps(values)
    except (TypeError, ValueError) as error:
        raise TypeError(f"message_filtering_match_values must hold JSON values: {error}") from error


def _find_in_body(kind: str, expression: str) -> Callable[[Message], list[Any]]:
    # Imported where it is needed: it takes a while, and few sensors filter.
    from jsonpath_ng.ext.parser import parse as parse_extended
    from jsonpath_ng.parser import parse

    try:
        parsed = parse_extended(expression) if kind == JSONPATH_EXTENDED else parse(expression)
    except Exception as error:
        # The library raises bare exceptions besides its own.
        raise ValueError(f"message_filtering_config is not a JSONPath expression, {expression!r}: {error}") from error

    def find(message: Message) -> list[Any]:
        try:
            body = json.loads(message.body)
        except (ValueError, RecursionError):
            return []
        return [match.value for match in parsed.find(body)]

    return find


def _find_attribute(name: str) -> Callable[[Message], list[Any]]:
    def find(message: Message) -> list[Any]:
        attribute = message.message_attributes.get(name)
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


def _function(path: str) -> Callable[[dict[str, Any]], object]:
    """Import the function of a filter.

    Raises:
        ValueError: It cannot be imported, is defined in a DAG file, or is not an ordinary function.
    """
    remedy = (
        "give the path of a function (package.module.function) in a module that the triggerer can import too: an "
        "installed package, or a module in Airflow's plugins folder, but not a DAG file"
    )
    try:
        function: Any = resolve_name(path)
    except (Exception, SystemExit) as error:
        # The import runs a module of the user's, which may raise anything. A SystemExit would end the triggerer.
        kind = type(error).__name__
        raise ValueError(
            f"message_filtering_config, {path!r}, cannot be imported ({kind}: {error}): {remedy}"
        ) from error
    if (
        not callable(function)
        or inspect.isclass(function)
        or any(map(_returns_no_answer, (function, function.__call__)))
    ):
        raise ValueError(f"message_filtering_config, {path!r}, is not an ordinary function: {remedy}")
    if _is_of_dag_file(function):
        raise ValueError(f"message_filtering_config, {path!r}, is defined in a DAG file: {remedy}")
    return function  # type: ignore[no-any-return]


def _returns_no_answer(function: Any) -> bool:
    """Whether a call only makes a coroutine or a generator, which count as true."""
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_kind(function) for is_kind in kinds)


class NotTrueOrFalseError(TypeError):
    """A filter's function returned something else, such as the None of a function that forgets to return."""


def _true_or_false(answer: object) -> bool:
    if isinstance(answer, bool):
        return answer
    if inspect.iscoroutine(answer):
        answer.close()  # Python would warn that nobody awaited it.
    raise NotTrueOrFalseError(
        f"a function for message_filtering must return True or False, not {type(answer).__name__}"
    )


def _is_of_dag_file(function: Any) -> bool:
    """Whether a DAG file defines a function, by whatever name the file was imported."""
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
