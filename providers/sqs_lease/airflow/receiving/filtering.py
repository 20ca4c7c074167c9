"""Which of the received messages a DAG is for, by the same options as the amazon provider's ``SqsSensor``.

- ``literal``: the body is one of the match values.
- ``jsonpath``: the body is JSON, and the expression finds something in it: anything at all, or one of the match values
  where there are any. ``jsonpath-ext`` is the same with the extended grammar of ``jsonpath_ng.ext``.

Differently from there, a body that is not JSON does not match, and is no error of the task; and match values may be of
any JSON type, lists and objects included.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

from sqs_lease.core.durations import seconds_of
from sqs_lease.core.failure_rules import DiscardRule, FailureRule, ReleaseRule
from sqs_lease.core.messages import Message
from sqs_lease.core.specs import decode_failure_rule, encode_failure_rule

logger = logging.getLogger(__name__)

LITERAL: Final = "literal"
JSONPATH: Final = "jsonpath"
JSONPATH_EXTENDED: Final = "jsonpath-ext"
KINDS: Final = (LITERAL, JSONPATH, JSONPATH_EXTENDED)

_DISCARD: Final = "discard"

UnmatchedRule: TypeAlias = FailureRule | DiscardRule
"""What becomes of messages that do not match."""

Matcher: TypeAlias = Callable[[Message], bool]


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """A filter as plain values.

    Attributes:
        kind: One of :data:`KINDS`.
        match_values: The values to match, as JSON; None matches anything that the expression finds.
        expression: The JSONPath expression; None for ``literal``.
    """

    kind: str
    match_values: str | None
    expression: str | None

    @classmethod
    def of(cls, kind: str | None, match_values: Iterable[Any] | None, expression: str | None) -> Self | None:
        """Build it from the sensor's options; None without filtering.

        Raises:
            ValueError: There is no such kind, or an option is missing, is not for this kind, or is no JSONPath.
            TypeError: The match values are no collection of JSON values.
        """
        if kind is None:
            if match_values is not None or expression is not None:
                raise ValueError(f"message_filtering must be one of {', '.join(KINDS)} where its other options are set")
            return None
        if kind not in KINDS:
            raise ValueError(f"message_filtering must be one of {', '.join(KINDS)}, not {kind!r}")
        if kind == LITERAL and match_values is None:
            raise ValueError("message_filtering='literal' needs message_filtering_match_values")
        if kind != LITERAL and not isinstance(expression, str):
            raise ValueError(f"message_filtering={kind!r} needs a JSONPath expression as message_filtering_config")
        made = cls(kind, _encoded_values(match_values), None if kind == LITERAL else expression)
        if expression is None or "{{" not in expression:
            made.matcher()
        return made

    def matcher(self) -> Matcher:
        """Make the test for a message. Parsing an expression takes tens of milliseconds.

        Raises:
            ValueError: The expression is no JSONPath.
        """
        values = None if self.match_values is None else json.loads(self.match_values)
        if self.kind == LITERAL:
            bodies = {value for value in values or () if isinstance(value, str)}
            return lambda message: message.body in bodies
        find = _find(self.kind, self.expression or "")

        def matches(message: Message) -> bool:
            try:
                found = find(json.loads(message.body))
            except (ValueError, RecursionError):
                return False
            except Exception as error:  # noqa: BLE001 - the library's own, about a body of an unexpected shape
                # Its type only: the text may quote the body.
                logger.warning("Message %s does not match: %s", message.message_id, type(error).__name__)
                return False
            return bool(found) if values is None else any(value in values for value in found)

        return matches


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


def _find(kind: str, expression: str) -> Callable[[Any], list[Any]]:
    # Imported where it is needed: it takes a while, and few sensors filter.
    from jsonpath_ng.ext.parser import parse as parse_extended
    from jsonpath_ng.parser import parse

    try:
        parsed = parse_extended(expression) if kind == JSONPATH_EXTENDED else parse(expression)
    except Exception as error:
        # The library raises bare exceptions besides its own.
        raise ValueError(f"message_filtering_config is no JSONPath expression, {expression!r}: {error}") from error
    return lambda body: [match.value for match in parsed.find(body)]


def check_unmatched(rule: object) -> UnmatchedRule:
    """Return the rule for messages that do not match, if it is one.

    Raises:
        TypeError: It is none.
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
        TypeError: It is none of the known rules.
    """
    return {"on_failure": _DISCARD} if isinstance(rule, DiscardRule) else encode_failure_rule(rule)


def decode_unmatched(spec: Mapping[str, Any]) -> UnmatchedRule:
    """Build the rule from what :func:`encode_unmatched` returned."""
    return DiscardRule() if spec["on_failure"] == _DISCARD else decode_failure_rule(spec)
