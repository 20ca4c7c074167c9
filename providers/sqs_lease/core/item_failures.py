"""Which messages a piece of work failed, as it says so itself: by what it returns, or by the exception that ends it.

The return value has the shape that AWS Lambda defines for SQS event sources, and Lambda's reading: a missing,
null or empty list means that everything succeeded; a list with an entry that is malformed, empty, null or not
one of the messages means that everything the work was concerned with failed. An entry may have a ``reason``, which
AWS's have not: it goes with a message that is dead-lettered. The ids of :class:`MessageFailed` are read in the same
way, except that none at all means everything: the work did fail.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

_MAX_REASON: Final = 500


class MessageFailed(Exception):  # noqa: N818 - named by what happened, like AirflowFailException
    """Some messages failed; the others that the work was concerned with count as done by it.

    For example, in a task, asset or ``with lease(...)`` over the whole batch::

        failed = [message_id for message_id in ids if not load(message_id)]
        if failed:
            raise MessageFailed(failed)

    Unlike a return value with ``batchItemFailures``, it makes the task (step, run) fail visibly. While an orchestrator
    holds the messages and has retries left, it simply tries again, with all of them held. When the work failed for
    good, only the messages named are settled by ``on_failure``.

    Args:
        message_ids: The id of each message that failed (or just one). Naming none, or one that the work
            was not concerned with, fails all of its messages.
    """

    def __init__(self, message_ids: str | Iterable[str]) -> None:
        self.message_ids = (message_ids,) if isinstance(message_ids, str) else tuple(message_ids)
        super().__init__(f"{len(self.message_ids)} messages failed: {', '.join(map(str, self.message_ids[:10]))}")


def failed_items(returned: object, message_ids: Collection[str]) -> frozenset[str]:
    """Return which messages a task's return value names as failed.

    Args:
        returned: The return value of a task that succeeded.
        message_ids: The messages that the task concerned.

    Returns:
        A subset of ``message_ids``: all of them where the list is malformed.
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
    """Return why messages failed, as far as a task's return value says so: the ``reason`` beside ``itemIdentifier``.

    Of each the first 500 characters count.

    Args:
        returned: The return value of a task that succeeded.
        failed_ids: What :func:`failed_items` made of it.
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
    """Return a reason as it can be a message attribute: SQS refuses a message with control characters in one."""
    return "".join(character if character.isprintable() else " " for character in reason).strip()


def failed_by_exception(named: Collection[str] | None, message_ids: Collection[str]) -> frozenset[str]:
    """Return which messages a task failed that failed for good itself.

    Args:
        named: The ids of its ``MessageFailed``; None for another exception, or where none is known.
        message_ids: The messages that the task concerned.

    Returns:
        A subset of ``message_ids``: all of them unless the exception named some of them and nothing else.
    """
    everything = frozenset(message_ids)
    return frozenset(named) if named and everything.issuperset(named) else everything
