"""Settlements of messages, the rules that choose them for failed work, and the messages that a piece of work failed.

A :class:`Settlement` says how one message's lease ends. A user sets one :class:`FailureRule` per lease: it gives the
settlement of each failed message, by its receive count.

Work names the messages that it failed, in its return value or in the exception that ends it. The return value has
the shape that AWS Lambda defines for SQS event sources, and is read as Lambda reads it: a missing, null or empty list
means that all messages succeeded; a list with an entry that is malformed, empty, null or not one of the messages means
that all messages of the work failed. Beyond Lambda's shape, an entry may have a ``reason``: it goes with a message that
is dead-lettered. The ids of :class:`MessageFailed` are read in the same way, except that an empty list means all
messages: the work did fail.
"""

from __future__ import annotations

import builtins
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any, Final, TypeAlias

from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS
from sqs_lease.core.messages import Message, Receipt, count_of

RELEASES_AT_ONCE: Final = 3
"""How many times a message is given back at once by :func:`release` without a delay; from then on it waits."""

_DAG_FILE_MODULE: Final = re.compile(r"^unusual_prefix_[0-9a-f]{40}_")
"""The prefix that Airflow gives the module name of a DAG file; it differs from one machine to another."""


@dataclass(frozen=True, slots=True)
class Delete:
    """The settlement of a message whose work succeeded: delete it."""


@dataclass(frozen=True, slots=True)
class Release:
    """A return to the queue: visible after ``delay_seconds`` (whole seconds, up to 12 hours); 0 is at once."""

    delay_seconds: int = 0

    def __post_init__(self) -> None:
        seconds = self.delay_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int) or not 0 <= seconds <= MAX_VISIBILITY_SECONDS:
            raise ValueError(f"delay_seconds must be an integer from 0 to {MAX_VISIBILITY_SECONDS}, not {seconds!r}")


@dataclass(frozen=True, slots=True)
class Expire:
    """An end of extensions, without a call: the message is visible again when its visibility timeout ends."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A move to the dead-letter queue: send it there with ``reason`` as a message attribute, then delete it here."""

    reason: str

    def __post_init__(self) -> None:
        check_reason(self.reason)


Settlement: TypeAlias = Delete | Release | Expire | DeadLetter


@dataclass(frozen=True, slots=True)
class FailureRule(ABC):
    """A rule for messages whose work failed for good: it chooses the settlement of each."""

    @abstractmethod
    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Settlement:
        """Return the settlement of one failed message.

        Args:
            receive_count: How often the message was received so far, at least 1.
            reason: The reason for the failure, for people.
            random: Source of jitter.
        """

    @property
    def may_dead_letter(self) -> bool:
        """Whether it may move messages to the dead-letter queue; False unless a rule says so.

        Nothing is received for such a rule from a queue that has no dead-letter queue.
        """
        return False

    def matching(self, errors: Sequence[str]) -> FailureRule:
        """Return the rule for an exception: this one, unless it is a choice of rules.

        Args:
            errors: The qualified names of the exception's class and its base classes, its own first; empty if the work
                failed without a known exception.
        """
        return self


@dataclass(frozen=True, slots=True)
class ReleaseRule(FailureRule):
    """See :func:`release`."""

    delay: Duration | None = None

    def __post_init__(self) -> None:
        if self.delay is not None:
            seconds_of(self.delay, name="delay", maximum=MAX_VISIBILITY_SECONDS)

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Release:
        """Release after the requested delay, the same for all; without one, at once after the first receives."""
        if self.delay is not None:
            return Release(int(seconds_of(self.delay, name="delay")))
        if receive_count <= RELEASES_AT_ONCE:
            return Release()
        damped = BackoffRule(initial=5.0)
        return damped.settlement(receive_count=receive_count - RELEASES_AT_ONCE, reason=reason, random=random)


@dataclass(frozen=True, slots=True)
class BackoffRule(FailureRule):
    """See :func:`backoff`."""

    initial: Duration = 10.0
    factor: float = 2.0
    maximum: Duration = timedelta(minutes=15)
    jitter: float = 0.2

    def __post_init__(self) -> None:
        seconds_of(self.initial, name="initial", minimum=1, maximum=MAX_VISIBILITY_SECONDS)
        seconds_of(self.maximum, name="maximum", minimum=1, maximum=MAX_VISIBILITY_SECONDS)
        if not 1 <= self.factor <= 100:
            raise ValueError(f"factor must lie between 1 and 100, not {self.factor!r}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must lie between 0 and 1, not {self.jitter!r}")

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Release:
        """Release after ``initial x factor ** (receive count - 1)``, at most ``maximum``, less up to ``jitter``."""
        initial = seconds_of(self.initial, name="initial")
        maximum = seconds_of(self.maximum, name="maximum")
        # SQS counts receives without bound; 64 doublings are past every maximum and still a float.
        delay = min(initial * self.factor ** min(max(receive_count, 1) - 1, 64), maximum)
        return Release(int(delay * (1 - self.jitter * random.random())))


@dataclass(frozen=True, slots=True)
class ExpireRule(FailureRule):
    """See :func:`expire`."""

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Expire:
        """Let the lease run out."""
        return Expire()


@dataclass(frozen=True, slots=True)
class DeadLetterRule(FailureRule):
    """See :func:`dead_letter`."""

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> DeadLetter:
        """Move the message to the dead-letter queue, with the reason."""
        return DeadLetter(reason)

    @property
    def may_dead_letter(self) -> bool:
        """It always does."""
        return True


@dataclass(frozen=True, slots=True)
class DiscardRule:
    """See :func:`discard`. It is not a :class:`FailureRule`: failed messages are never deleted."""

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Delete:
        """Delete the message."""
        return Delete()


@dataclass(frozen=True, slots=True)
class ByExceptionRule(FailureRule):
    """See :func:`by_exception`."""

    rules: tuple[tuple[str, FailureRule], ...]
    otherwise: FailureRule

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Settlement:
        """Settle as for a failure without a known exception."""
        return self.otherwise.settlement(receive_count=receive_count, reason=reason, random=random)

    @property
    def may_dead_letter(self) -> bool:
        """Whether one of its rules may."""
        return any(rule.may_dead_letter for rule in (self.otherwise, *dict(self.rules).values()))

    def matching(self, errors: Sequence[str]) -> FailureRule:
        """Return the rule of the first class that has one, from the exception's own class upwards."""
        rules = dict(self.rules)
        for error in errors:
            if (rule := rules.get(error)) is not None:
                return rule
        return self.otherwise


def release(delay: Duration | None = None) -> FailureRule:
    """Make a failed message visible again at once (the default), or after ``delay``.

    Without a delay, a message that fails again and again does not keep the DAG busy for ever: up to its third receive
    it is visible at once; from the fourth on it waits 5 s, 10 s, 20 s ... up to 15 minutes, each shortened at random by
    up to a fifth. With a delay, 0 included, the wait is the same after every receive.

    Args:
        delay: Seconds or a ``timedelta``, up to 12 hours; rounded down to whole seconds.
    """
    return ReleaseRule(delay)


def backoff(
    initial: Duration = 10.0,
    factor: float = 2.0,
    maximum: Duration = timedelta(minutes=15),
    jitter: float = 0.2,
) -> FailureRule:
    """Make a failed message visible again after a delay that grows with its receive count.

    Args:
        initial: Delay after the first receive, at least 1 s; 10 s by default.
        factor: The factor by which each further receive multiplies the delay; 2 by default.
        maximum: Longest delay; 15 minutes by default.
        jitter: Largest share by which the delay is shortened at random, so that messages which failed
            together do not come back together; 0.2 by default.
    """
    return BackoffRule(initial, factor, maximum, jitter)


def expire() -> FailureRule:
    """Leave a failed message alone: it is visible again when its visibility timeout ends."""
    return ExpireRule()


def dead_letter() -> FailureRule:
    """Move a failed message to the queue's dead-letter queue at once, with the reason as a message attribute."""
    return DeadLetterRule()


def discard() -> DiscardRule:
    """Delete a message that a filter does not let through, although it was not processed.

    It is for messages that you do not need, as ``unmatched=discard()`` of the Airflow sensor, and not for failed work.
    """
    return DiscardRule()


def by_exception(
    rules: Mapping[type[BaseException] | str, FailureRule], otherwise: FailureRule | None = None
) -> FailureRule:
    """Settle a failed message by a rule that depends on the exception its work failed with.

    For example::

        by_exception({ValueError: dead_letter(), "shop.api.ApiError": backoff()}, otherwise=release())

    A rule also holds for the classes derived from its own; among several, the one nearest to the exception's class
    counts. An ``ExceptionGroup`` is settled by the rule for a class that all exceptions in it have in common; if
    that is only ``Exception``, it counts as an ``Exception``. Causes (``raise ... from``) are ignored.

    Args:
        rules: Rules by the exception's class, or by the class's qualified name, so that the module need not be
            imported; a name without a dot is a built-in exception's. For a class that is defined in a DAG file, the
            module is the file's name: ``"shop_dag.ApiError"``.
        otherwise: The rule for other exceptions, and for failures without a known one: messages that a return value
            names in ``batchItemFailures``, ``upstream_failed``, a task process that was killed, failures that were
            not reported. ``release()`` by default.

    Raises:
        TypeError: A key is neither an exception's class nor a name, or a value is not a failure rule.
        ValueError: There are no rules, a rule is itself ``by_exception()``, two rules are for one class, or a name
            without a dot is not that of a built-in exception.
    """
    by_name: dict[str, FailureRule] = {}
    for error, rule in rules.items():
        name = error if isinstance(error, str) else _class_name(error)
        name = _qualified(name)
        if name in by_name:
            raise ValueError(f"by_exception has two rules for {name}")
        by_name[name] = rule
    default = release() if otherwise is None else otherwise
    if not by_name:
        raise ValueError("by_exception needs at least one rule")
    chosen = [*by_name.values(), default]
    if any(isinstance(rule, ByExceptionRule) for rule in chosen):
        raise ValueError("by_exception cannot be nested: put all exceptions into one mapping")
    for rule in chosen:
        if not isinstance(rule, FailureRule):
            raise TypeError(f"by_exception takes failure rules such as release() or dead_letter(), not {rule!r}")
    return ByExceptionRule(tuple(by_name.items()), default)


def exception_names(error: BaseException) -> tuple[str, ...]:
    """Return the qualified names of an exception's class and its base classes, its own first, without ``object``.

    For an ``ExceptionGroup``, the classes that all of its leaves have in common follow the group's own:
    ``ExceptionGroup``, ``BaseExceptionGroup``, then for two ``ValueError``s ``ValueError``, at the end ``Exception``.
    """
    kinds = type(error).__mro__[:-1]
    if isinstance(error, BaseExceptionGroup):
        leaves = tuple(_leaves(error))
        groups = [kind for kind in kinds if issubclass(kind, BaseExceptionGroup)]
        shared = [kind for kind in type(leaves[0]).__mro__[:-1] if all(isinstance(leaf, kind) for leaf in leaves)]
        kinds = tuple(dict.fromkeys([*groups, *shared, *kinds]))
    return tuple(exception_name(f"{kind.__module__}.{kind.__qualname__}") for kind in kinds)


def checked_names(errors: Sequence[str]) -> tuple[str, ...]:
    """Return the names of an exception's classes as rules know them; a name without a dot is a built-in exception's.

    Raises:
        TypeError: They are not the names of classes.
        ValueError: A name without a dot is not that of a built-in exception.
    """
    # The type alone: an exception's text may quote a message.
    if isinstance(errors, str) or not isinstance(errors, Sequence):
        raise TypeError(f'errors takes a list of class names such as ["builtins.ValueError"], not {_kind(errors)}')
    for name in errors:
        if not isinstance(name, str):
            raise TypeError(f'errors takes names of classes such as "builtins.ValueError", not {_kind(name)}')
    return tuple(map(_qualified, errors))


def _qualified(name: str) -> str:
    if "." in name:
        return exception_name(name)
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        # Any other text may quote a message.
        shown = repr(name) if name.isidentifier() else f"a text of {len(name)} characters"
        text = f"{shown} is not a built-in exception: write its class, or the name with the module"
        raise ValueError(text)  # noqa: TRY004 - it is a text, and another text would do
    return f"builtins.{name}"


def check_reason(reason: object) -> None:
    """Check the reason for a failure.

    Raises:
        TypeError: It is not a text.
    """
    if not isinstance(reason, str):
        # The type alone: an exception's text may quote a message.
        raise TypeError(f"the reason for a failure must be a text, not {_kind(reason)}")


def _kind(value: object) -> str:
    return f"the class {value.__qualname__}" if isinstance(value, type) else f"a value of {type(value).__qualname__}"


def exception_name(name: str) -> str:
    """Return a class's qualified name without the prefix that Airflow gives the modules of DAG files."""
    return _DAG_FILE_MODULE.sub("", name)


def _class_name(error: object) -> str:
    if not (isinstance(error, type) and issubclass(error, BaseException)):
        raise TypeError(f"by_exception takes exceptions' classes or their qualified names, not {error!r}")
    return f"{error.__module__}.{error.__qualname__}"


_MAX_REASON: Final = 500


_ID: Final = "MessageId"

_MESSAGE_ID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

NamedMessage: TypeAlias = str | Message | Receipt | Mapping[str, Any]
"""A message's id, the message, its receipt, or a mapping in the shape of the SQS API, as tasks of Airflow get it."""


def ids_of(messages: NamedMessage | Iterable[NamedMessage]) -> tuple[str, ...]:
    """Return the ids of one message or of several. Of a mapping by ids, the keys count.

    Raises:
        TypeError: A value is neither a message nor an id.
    """
    is_one = isinstance(messages, str | Message | Receipt) or (isinstance(messages, Mapping) and _ID in messages)
    several = messages if isinstance(messages, Iterable) and not is_one else [messages]
    return tuple(map(_id_of, several))


def _id_of(named: object) -> str:
    if isinstance(named, Message | Receipt):
        return named.message_id
    name = named.get(_ID) if isinstance(named, Mapping) else named
    if isinstance(name, str):
        return name
    # The type alone: the text of a value may have a body.
    raise TypeError(f"messages are named by themselves or by their ids, not by {_kind(named)}")


def shown_id(message_id: str) -> str:
    """Return an id for an error or a log. Any other text is left out: it may be a body."""
    if _MESSAGE_ID.fullmatch(message_id):
        return message_id
    return f"a text of {len(message_id)} characters that is not a message's id"


class MessageFailed(Exception):  # noqa: N818 - named by what happened, like AirflowFailException
    """A failure of some messages; the other messages of the work count as done.

    For example, in a task, asset or ``with lease(...)`` over the whole batch::

        failed = [message_id for message_id in ids if not load(message_id)]
        if failed:
            raise MessageFailed(failed)

    An ``ExceptionGroup`` of several, as an ``asyncio.TaskGroup`` raises it, fails the messages that they name; with any
    other exception in the group, all messages fail.

    Unlike a return value with ``batchItemFailures``, it makes the task (step, run) fail visibly. While an orchestrator
    holds the messages and has retries left, it simply tries again, with all of them held. When the work failed for
    good, only the messages named are settled by ``on_failure``.

    Args:
        message_ids: The id of each message that failed (or just one), or the messages themselves. An empty list, or an
            id that is not of the work's messages, fails all of its messages.

    Raises:
        TypeError: An argument is neither a message nor an id.
    """

    def __init__(self, message_ids: NamedMessage | Iterable[NamedMessage]) -> None:
        self.message_ids = ids_of(message_ids)
        failed = count_of(len(self.message_ids))
        super().__init__(f"{failed} failed: {', '.join(map(shown_id, self.message_ids[:10]))}")


def named_message_ids(error: BaseException) -> tuple[str, ...] | None:
    """Return the ids that a ``MessageFailed`` names, or an exception group that contains nothing else at any depth.

    Args:
        error: The exception that ended the work.

    Returns:
        The ids; empty if one ``MessageFailed`` of several names no ids, because that fails all messages.
        None for other exceptions.
    """
    leaves = tuple(_leaves(error))
    named = [leaf.message_ids for leaf in leaves if isinstance(leaf, MessageFailed)]
    if len(named) < len(leaves):
        return None
    return tuple(name for names in named for name in names) if all(named) else ()


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group that are not groups themselves; any other exception is its only leaf."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def failed_items(returned: object, message_ids: Collection[str]) -> frozenset[str]:
    """Return the messages that a task's return value names as failed.

    Args:
        returned: The return value of a task that succeeded.
        message_ids: The messages that the task worked on.

    Returns:
        A subset of ``message_ids``: all of them if the list is malformed.
    """
    if not isinstance(returned, Mapping) or returned.get("batchItemFailures") is None:
        return frozenset()
    items = returned["batchItemFailures"]
    if not isinstance(items, list | tuple):
        return frozenset(message_ids)
    everything = frozenset(message_ids)
    named = [item.get("itemIdentifier") if isinstance(item, Mapping) else None for item in items]
    known = [name for name in named if isinstance(name, str) and name in everything]
    return frozenset(known) if len(known) == len(named) else everything


def failure_reasons(returned: object, failed_ids: Collection[str]) -> dict[str, str]:
    """Return the reasons that a task's return value gives for failed messages, cut to 500 characters each.

    They are the ``reason`` beside ``itemIdentifier``.

    Args:
        returned: The return value of a task that succeeded.
        failed_ids: The result of :func:`failed_items`.
    """
    items = returned.get("batchItemFailures") if isinstance(returned, Mapping) else None
    reasons: dict[str, str] = {}
    for item in items if isinstance(items, list | tuple) else ():
        if isinstance(item, Mapping) and isinstance(reason := item.get("reason"), str):
            name = item.get("itemIdentifier")
            if isinstance(name, str) and name in failed_ids:
                reasons[name] = printable(reason[:_MAX_REASON])
    return reasons


def printable(reason: str) -> str:
    """Return a reason that fits a message attribute: SQS refuses control characters in one."""
    return "".join(character if character.isprintable() else " " for character in reason).strip()


def failed_by_exception(named: Collection[str] | None, message_ids: Collection[str]) -> frozenset[str]:
    """Return the messages that a task failed which itself failed for good.

    Args:
        named: The result of :func:`named_message_ids` for its exception; None if no exception is known.
        message_ids: The messages that the task worked on.

    Returns:
        A subset of ``message_ids``: all of them unless the exception named some of them and nothing else.
    """
    everything = frozenset(message_ids)
    return frozenset(named) if named and everything.issuperset(named) else everything
