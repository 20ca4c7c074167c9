"""Decides from the states of the work tasks which messages to delete, to give back and to go on holding. Pure.

The rules:

- A task concerns every message, unless it is mapped over the messages themselves: then map index ``i``
  concerns message ``i`` alone.
- A message *fails* as soon as one task instance that concerns it failed for good (``failed``,
  ``upstream_failed``, ``removed``), or succeeded and named the message in its return value,
  ``{"batchItemFailures": [{"itemIdentifier": message_id}]}``. A task with retries left is ``up_for_retry``,
  which is not for good.
- A message is *deleted* when every task instance that concerns it is done (``success`` or ``skipped``), at
  least one of them with success, and none named it.
- A message whose work was skipped altogether is *released*: nothing failed, and nothing was done either.
- Everything else is held.

The return value has the shape that AWS Lambda defines for SQS event sources, and Lambda's reading: a missing,
null or empty list means that everything succeeded; a list with an entry that is malformed, empty, null or not
one of the messages means that everything the task was concerned with failed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

InstanceKey: TypeAlias = tuple[str, int]
"""A task instance of one run: the task's id and the map index, -1 where the task is not (or not yet) mapped."""

TaskStates: TypeAlias = Mapping[str, str | None]
"""States by ``task_id``, or ``task_id_mapindex`` for instances of mapped tasks: the shape of Airflow's answer."""

UNMAPPED: Final = -1
"""The map index of a task instance that is not mapped."""

_SUCCESS: Final = "success"
_SKIPPED: Final = "skipped"
_REMOVED: Final = "removed"
_FAILED_FOR_GOOD: Final = frozenset({"failed", "upstream_failed", _REMOVED})


@dataclass(frozen=True, slots=True)
class WorkTask:
    """A task that works on the messages.

    Attributes:
        task_id: Its id in the DAG.
        mapped: Whether its instances have map indexes, its own or those of a mapped task group.
        per_message: Whether map index ``i`` works on message ``i`` alone.
        returns: Whether it leaves a return value that may name failed messages.
    """

    task_id: str
    mapped: bool = False
    per_message: bool = False
    returns: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to become of messages, by their position in the batch.

    Attributes:
        delete: Their work succeeded.
        release: All of their work was skipped.
        fail: Their work failed for good; with the reason, for people.
        unread: Task instances that succeeded and whose return value must be read before more can be said.
    """

    delete: tuple[int, ...]
    release: tuple[int, ...]
    fail: Mapping[int, str]
    unread: tuple[InstanceKey, ...]


@dataclass(slots=True)
class _Standing:
    """What a number of task instances say together of the messages that they concern."""

    failure: str | None = None
    pending: bool = False
    succeeded: bool = False

    def take(self, key: InstanceKey, state: str | None) -> None:
        if state in _FAILED_FOR_GOOD:
            self.failure = self.failure or f"task {_shown(key)} ended as {state}"
        elif state == _SUCCESS:
            self.succeeded = True
        elif state != _SKIPPED:
            self.pending = True


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


def concerned(task: WorkTask, map_index: int, message_ids: Sequence[str]) -> Sequence[str]:
    """Return the ids of the messages that an instance of a task concerns."""
    if task.per_message and map_index != UNMAPPED:
        return message_ids[map_index : map_index + 1]
    return message_ids


def ambiguous_names(work: Iterable[WorkTask]) -> tuple[str, str] | None:
    """Return a mapped task and another whose id reads like one of its instances (``check`` and ``check_1``), if any.

    Airflow's answer gives both the same key, so their states could not be told apart.
    """
    tasks = list(work)
    ids = {task.task_id for task in tasks}
    for task in tasks:
        if task.mapped:
            for other in ids:
                if other.startswith(f"{task.task_id}_") and other[len(task.task_id) + 1 :].isdecimal():
                    return task.task_id, other
    return None


def decide(
    work: Sequence[WorkTask],
    states: TaskStates,
    failures: Mapping[InstanceKey, frozenset[str]],
    message_ids: Sequence[str],
    held: Iterable[int],
) -> Decision:
    """Decide what is to become of the messages that are still held.

    Args:
        work: The tasks that work on the messages.
        states: The states of their instances in the run.
        failures: What :func:`failed_items` said of the return values read so far.
        message_ids: The messages of the batch, in the order of the batch.
        held: Positions of the messages to decide on.
    """
    common = _Standing()
    unread: dict[InstanceKey, None] = {}
    named: dict[str, str] = {}
    for task in work:
        if task.per_message:
            continue
        for key, state in _instances(task, states):
            common.take(key, state)
            _take_return_value(task, key, state, failures, common, unread, named)

    delete: list[int] = []
    release: list[int] = []
    fail: dict[int, str] = {}
    for position in held:
        standing = _Standing(common.failure, common.pending, common.succeeded)
        for task in work:
            if task.per_message:
                key, state = _instance_of_message(task, position, states)
                standing.take(key, state)
                _take_return_value(task, key, state, failures, standing, unread, named)
        failure = standing.failure or named.get(message_ids[position])
        if failure is not None:
            fail[position] = failure
        elif standing.pending:
            continue
        elif standing.succeeded:
            delete.append(position)
        else:
            release.append(position)
    return Decision(tuple(delete), tuple(release), fail, tuple(unread))


def _take_return_value(
    task: WorkTask,
    key: InstanceKey,
    state: str | None,
    failures: Mapping[InstanceKey, frozenset[str]],
    standing: _Standing,
    unread: dict[InstanceKey, None],
    named: dict[str, str],
) -> None:
    if state != _SUCCESS or not task.returns:
        return
    if key not in failures:
        unread[key] = None
        standing.pending = True
        return
    for message_id in failures[key]:
        named.setdefault(message_id, f"task {_shown(key)} returned it in batchItemFailures")


def _instances(task: WorkTask, states: TaskStates) -> Iterator[tuple[InstanceKey, str | None]]:
    """All instances of a task that the answer knows; a task without any is no longer part of the run."""
    found = False
    if task.task_id in states:
        found = True
        yield (task.task_id, UNMAPPED), states[task.task_id]
    if task.mapped:
        prefix = f"{task.task_id}_"
        for key, state in states.items():
            if key.startswith(prefix) and key[len(prefix) :].isdecimal():
                found = True
                yield (task.task_id, int(key[len(prefix) :])), state
    if not found:
        yield (task.task_id, UNMAPPED), _REMOVED


def _instance_of_message(task: WorkTask, position: int, states: TaskStates) -> tuple[InstanceKey, str | None]:
    """The instance that works on one message; before the task was expanded, the task itself."""
    own = f"{task.task_id}_{position}"
    if own in states:
        return (task.task_id, position), states[own]
    if task.task_id in states:
        return (task.task_id, UNMAPPED), states[task.task_id]
    return (task.task_id, position), _REMOVED


def _shown(key: InstanceKey) -> str:
    task_id, map_index = key
    return task_id if map_index == UNMAPPED else f"{task_id}[{map_index}]"
