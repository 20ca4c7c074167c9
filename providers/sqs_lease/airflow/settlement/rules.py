"""Translates the states of Airflow's task instances into units of work, for :mod:`sqs_lease.core.verdict`. Pure.

:func:`work_tasks` finds in a DAG the tasks that work on the messages of a lease, and the messages that each of them
concerns; :class:`Judgement` decides by their states.

The messages that a task instance concerns:

- All of the batch, unless its task works on the messages one by one: then map index ``i`` concerns message ``i`` alone.
  Such a task is mapped over the messages themselves, or it is *chained*: mapped over the results of another such task.
- If a task returns nothing for a message, Airflow makes no instance of the chained task for it, and the indexes shift.
  So a chained task counts as one by one only if it has as many instances as there are messages.

The meaning of its state:

    success                    done with all but the messages that its return value names in ``batchItemFailures``
    failed                     failed what it concerns; with ``MessageFailed(ids)`` those only, and done with the others
    skipped                    there was nothing to do; or, as below, it was not done
    upstream_failed, removed   blocked
    any other, or no state     open; with retries left a task that failed is ``up_for_retry``

A success or failure is unknown until its report was read: the return value, or the worker's report of the exception.
Some need no reading: a task that leaves no return value, and a failed instance that concerns one message, if the
exception does not matter.

Airflow also gives the state ``skipped`` to work that had not begun when a user marked its run. That work was not done,
and no message is at fault. The two can be told apart, because a DAG skips a task for few reasons: the task skips itself
while it runs, which its worker reports; tasks before it were skipped; a task before it chooses what runs, or it runs
when others fail; or it is mapped over an empty list. If one of these may be the reason, there was nothing to do.

If all instances of a mapped task are ``removed``, its work was not done, and no message is at fault: in a cleared run
the list that it is mapped over became empty, or the task was taken out of the DAG.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

from airflow.sdk import BranchMixIn
from airflow.sdk.definitions.taskgroup import MappedTaskGroup

from sqs_lease.airflow.airflow_api.requests import (
    RETURN_VALUE_KEY,
    UNMAPPED,
    InstanceKey,
    RunOfTask,
    TaskStates,
    mapped_over,
    state_key,
)
from sqs_lease.core.verdict import Action, Decision, End, Failure, Tally, Unit

SUCCESS: Final = "success"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"
_REMOVED: Final = "removed"
_OVER_NOTHING: Final = "removed, all instances"
"""The state, not one of Airflow's, of a task that had instances before its run was cleared, and now has no more."""

_ENDS: Final[Mapping[str | None, End]] = {
    SUCCESS: End.DONE,
    FAILED: End.FAILED,
    SKIPPED: End.SKIPPED,
    "upstream_failed": End.BLOCKED,
    _REMOVED: End.BLOCKED,
    _OVER_NOTHING: End.NOT_DONE,
}
"""Every other state is open."""

ENDED: Final = frozenset({SUCCESS, FAILED, "upstream_failed", SKIPPED, _REMOVED})
"""The states in which a task, and its trigger with it, has come to its end."""

_BEGINS_AGAIN: Final = frozenset({None, "scheduled", "queued", "running", "restarting", "up_for_retry", "deferred"})

InstanceReport = Mapping[str, Failure]
"""The messages that a task instance failed, by id, and why."""


@dataclass(frozen=True, slots=True)
class WorkTask:
    """A task that works on the messages.

    Attributes:
        task_id: Its id in the DAG.
        mapped: Whether its instances have map indexes, its own or those of a mapped task group.
        per_message: Whether map index ``i`` works on message ``i`` alone.
        chained: Whether that requires a result for each message: it is mapped over the results of a task that works on
            the messages one by one.
        returns: Whether it leaves a return value that may name failed messages.
        skipped_behind: The work tasks that make the DAG skip this one when they are skipped. None if the DAG may skip
            it for other reasons that its states do not show.
        skipped_behind_all: Whether it is skipped only if all of these were; otherwise one is enough.
    """

    task_id: str
    mapped: bool = False
    per_message: bool = False
    chained: bool = False
    returns: bool = True
    skipped_behind: tuple[str, ...] | None = ()
    skipped_behind_all: bool = False


@dataclass(frozen=True, slots=True)
class _Skip:
    """The meaning of a skipped instance.

    Attributes:
        end: SKIPPED or NOT_DONE.
        unread: The instances whose reports must be read to know that it is SKIPPED.
    """

    end: End = End.SKIPPED
    unread: tuple[InstanceKey, ...] = ()


def ended_as(instance: InstanceKey, state: str | None) -> Failure:
    """Return why messages failed, for an instance of which only the state is known."""
    return Failure(f"task {_shown(instance)} ended as {state}")


def returned_as_failed(instance: InstanceKey) -> Failure:
    """Return why messages failed that an instance named in its return value."""
    return Failure(f"task {_shown(instance)} returned it in batchItemFailures")


def unreadable(instance: InstanceKey) -> Failure:
    """Return why messages failed of which it is not known whether an instance that succeeded named them."""
    return Failure(f"the result of task {_shown(instance)} cannot be read")


def failed_with(instance: InstanceKey, errors: tuple[str, ...]) -> Failure:
    """Return why messages failed that an instance failed by an exception; ``errors`` as in :class:`Failure`."""
    return Failure(f"task {_shown(instance)} failed with {errors[0]}", errors) if errors else ended_as(instance, FAILED)


def concerned(task: WorkTask, map_index: int, message_ids: Sequence[str], states: TaskStates) -> Sequence[str]:
    """Return the ids of the messages that an instance of a task concerns."""
    if map_index != UNMAPPED and _is_one_by_one(task, len(message_ids), states):
        return message_ids[map_index : map_index + 1]
    return message_ids


class Judgement:
    """The states and reports of the work at one moment, and the decisions on messages that follow from them.

    Args:
        work: The tasks that work on the messages.
        states: The states of their instances in the run.
        reports: The reports of instances that were read so far.
        message_ids: The messages of the batch, in the order of the batch.
        read_failures: Whether instances that fail leave a report; otherwise they fail all messages that they concern.
        by_exception: Whether it matters by which exception a message failed.
        skipped_themselves: Whether instances that were skipped did it themselves, as far as their reports were read.
        returned: The tasks of which an instance returned something, as far as that was read.

    Attributes:
        unread: Ended instances with reports that must be read, as far as decisions needed them so far.
    """

    def __init__(
        self,
        work: Sequence[WorkTask],
        states: TaskStates,
        reports: Mapping[InstanceKey, InstanceReport],
        message_ids: Sequence[str],
        *,
        read_failures: bool = True,
        by_exception: bool = False,
        skipped_themselves: Mapping[InstanceKey, bool] = MappingProxyType({}),
        returned: Collection[str] = (),
    ) -> None:
        self.unread: dict[InstanceKey, None] = {}
        self._tasks = {task.task_id: task for task in work}
        self._states = states
        self._reports = reports
        self._message_ids = message_ids
        self._read_failures = read_failures
        self._by_exception = by_exception
        self._skipped_themselves = skipped_themselves
        self._returned = returned
        self._skips: dict[InstanceKey, _Skip] = {}
        self._one_by_one = tasks_one_by_one(work, len(message_ids), states)
        self._missing: dict[str, str | None] = {}  # the states of instances that do not exist, by task
        self._tally = Tally()
        self._unread_skips: dict[InstanceKey, None] = {}  # of instances that concern all messages
        for task in work:
            if task not in self._one_by_one:
                for instance, state in _instances(task, states):
                    self._unread_skips |= dict.fromkeys(self._take(task, instance, state))

    def holds_all(self) -> bool:
        """Whether every message of the batch is still held."""
        return not self._one_by_one and self._tally.holds_all()

    def on(self, held: Iterable[int]) -> dict[int, Decision]:
        """Decide on the messages at some positions; the cost depends on these positions only.

        Returns:
            The decisions on those that are no longer held, by position.
        """
        decisions: dict[int, Decision] = {}
        in_doubt = False
        for position in held:
            message_id = self._message_ids[position]
            unread: list[InstanceKey] = []
            for task in self._one_by_one:
                instance, state = self._instance_of_message(task, position)
                unread += self._take(task, instance, state, message_id)
            decision = self._tally.decision(message_id)
            if decision is Action.DELETE and (unread or self._unread_skips):
                # For other decisions the reason of a skip does not matter.
                self.unread |= dict.fromkeys(unread)
                in_doubt = True
            elif decision is not Action.HOLD:
                decisions[position] = decision
        if in_doubt:
            self.unread |= self._unread_skips
        return decisions

    def _take(
        self, task: WorkTask, instance: InstanceKey, state: str | None, message_id: str | None = None
    ) -> Iterable[InstanceKey]:
        """Take in one instance, for all messages or for one.

        Returns:
            The instances whose reports must be read to know why it was skipped. Until then it counts as SKIPPED.
        """
        if state != SKIPPED:
            self._tally.take(self._unit(task, instance, state, message_id))
            return ()
        skip = self._skip(task, instance)
        self._tally.take(Unit(skip.end, None if message_id is None else (message_id,)))
        return skip.unread

    def _skip(self, task: WorkTask, instance: InstanceKey) -> _Skip:
        """Find out whether a skipped instance had nothing to do, or was not done."""
        if instance not in self._skips:
            self._skips[instance] = self._skip_by_reports(task, instance)
        return self._skips[instance]

    def _skip_by_reports(self, task: WorkTask, instance: InstanceKey) -> _Skip:
        if not self._read_failures or task.skipped_behind is None:
            return _Skip()
        if reasons := self._skipped_before(task, instance):
            # It was skipped for the same reason as these. If they were not done, a user marked the run.
            skips = [self._skip(*reason) for reason in reasons]
            if any(skip.end is End.NOT_DONE for skip in skips):
                return _Skip(End.NOT_DONE)
            return _Skip(unread=tuple(dict.fromkeys(chain.from_iterable(skip.unread for skip in skips))))
        if task.mapped and instance[1] == UNMAPPED:
            # Not expanded, so it did not run: it is mapped over nothing, or it was not done.
            return _Skip(End.NOT_DONE if self._is_over_something(task) else End.SKIPPED)
        if instance not in self._skipped_themselves:
            return _Skip(unread=(instance,))
        return _Skip(End.SKIPPED if self._skipped_themselves[instance] else End.NOT_DONE)

    def _is_over_something(self, task: WorkTask) -> bool:
        """Whether a task is certainly not mapped over an empty list; the messages are never empty.

        The result for a message was read before the message is deleted, so a chained task is known to have work for it.
        """
        if not task.chained:
            return task.per_message
        before = (self._tasks[task_id] for task_id in task.skipped_behind or ())
        return any(other.per_message and other.task_id in self._returned for other in before)

    def _skipped_before(self, task: WorkTask, instance: InstanceKey) -> Sequence[tuple[WorkTask, InstanceKey]]:
        """Return the skipped instances that made the DAG skip another one as well."""
        if state_key(instance) not in self._states:
            # It is missing because its task was not expanded again; it was skipped for the same reason as the others.
            return [(task, other) for other, state in _instances(task, self._states) if state == SKIPPED]
        before: list[tuple[WorkTask, InstanceKey, str | None]] = []
        for other in (self._tasks[task_id] for task_id in task.skipped_behind or ()):
            if instance[1] != UNMAPPED and task in self._one_by_one and other in self._one_by_one:
                before.append((other, *self._instance_of_message(other, instance[1])))
            else:
                before += [(other, *found) for found in _instances(other, self._states)]
        if task.skipped_behind_all and any(state != SKIPPED for _, _, state in before):
            return []
        return [(other, found) for other, found, state in before if state == SKIPPED]

    def _unit(self, task: WorkTask, instance: InstanceKey, state: str | None, message_id: str | None = None) -> Unit:
        """Make the unit of work of one instance, for all messages or for one."""
        concerns = None if message_id is None else (message_id,)
        end = _ENDS.get(state, End.OPEN)
        if not self._has_report(task, instance, end, is_alone=concerns is not None and instance[1] != UNMAPPED):
            return Unit(end, concerns, ended_as(instance, state))
        report = self._reports.get(instance)
        if report is None:
            self.unread[instance] = None
            return Unit(End.UNKNOWN, concerns)
        if message_id is not None:
            report = {message_id: report[message_id]} if message_id in report else {}
        return Unit(End.DONE, concerns, failed=report)

    def _has_report(self, task: WorkTask, instance: InstanceKey, end: End, *, is_alone: bool) -> bool:
        """Whether a report says how an instance ended; ``is_alone``: it concerns one message."""
        if end is End.FAILED:
            return self._read_failures and (not is_alone or self._by_exception or instance in self._reports)
        return end is End.DONE and task.returns

    def _instance_of_message(self, task: WorkTask, position: int) -> tuple[InstanceKey, str | None]:
        """Return the instance that works on one message; before the task was expanded, the task itself."""
        own = (task.task_id, position)
        if (key := state_key(own)) in self._states:
            return own, self._states[key]
        if task.task_id in self._states:
            return (task.task_id, UNMAPPED), self._states[task.task_id]
        if task.task_id not in self._missing:
            self._missing[task.task_id] = _state_of_missing(task, self._states)
        return own, self._missing[task.task_id]


def tasks_one_by_one(work: Iterable[WorkTask], messages: int, states: TaskStates) -> Sequence[WorkTask]:
    """Return the tasks of which map index ``i`` works on message ``i`` alone, judging by their instances so far."""
    return [task for task in work if _is_one_by_one(task, messages, states)]


def affected(work: Sequence[WorkTask], messages: int, before: TaskStates, states: TaskStates) -> frozenset[int] | None:
    """Return the positions of the messages that new states may change; None: all messages."""
    one_by_one = tasks_one_by_one(work, messages, states)
    if one_by_one != tasks_one_by_one(work, messages, before):
        return None
    if not all(task.task_id in states or _has_all_instances(task, messages, states) for task in one_by_one):
        # The outcome of a message without an instance of its own follows from the instances of others.
        return None
    prefixes = {task.task_id for task in one_by_one}
    positions = set()
    changed = [key for key, state in states.items() if key not in before or before[key] != state]
    if len(before) + sum(key not in before for key in changed) > len(states):
        changed += [key for key in before if key not in states]
    others = {task.task_id for task in work} - prefixes
    for key in changed:
        task_id, _, index = key.rpartition("_")
        if task_id in prefixes and index.isdecimal():
            positions.add(int(index))
        elif key in prefixes or key in others or (task_id in others and index.isdecimal()):
            return None
    return frozenset(positions)


def _is_one_by_one(task: WorkTask, messages: int, states: TaskStates) -> bool:
    """Whether map index ``i`` of a task is message ``i``, judging by its instances so far."""
    if not task.per_message:
        return False
    # Before the task was expanded, the answer has it under its own name, and it concerns all in the same way.
    return not task.chained or task.task_id in states or _has_all_instances(task, messages, states)


def _has_all_instances(task: WorkTask, messages: int, states: TaskStates) -> bool:
    """Whether a task has an instance for each message; those left over from a longer batch do not count."""
    return states.get(f"{task.task_id}_{messages - 1}", _REMOVED) != _REMOVED


def _instances(task: WorkTask, states: TaskStates) -> Iterable[tuple[InstanceKey, str | None]]:
    """Yield all instances of a task in Airflow's answer; a task without any is no longer part of the run.

    Removed instances are left out, unless there are no others. Then a cleared run mapped the task over an empty list,
    which cannot happen over the messages themselves; or the task was taken out of the DAG.
    """
    found: dict[InstanceKey, str | None] = {}
    if task.task_id in states:
        found[task.task_id, UNMAPPED] = states[task.task_id]
    if task.mapped:
        prefix = f"{task.task_id}_"
        for key, state in states.items():
            if key.startswith(prefix) and key[len(prefix) :].isdecimal():
                found[task.task_id, int(key[len(prefix) :])] = state
    there = {key: state for key, state in found.items() if state != _REMOVED}
    may_be_over_nothing = bool(found) and task.task_id not in states and (task.chained or not task.per_message)
    return (there or {(task.task_id, UNMAPPED): _OVER_NOTHING if may_be_over_nothing else _REMOVED}).items()


def _state_of_missing(task: WorkTask, states: TaskStates) -> str | None:
    """Return the state to assume for an instance of an expanded task that Airflow's answer does not have.

    In a cleared run Airflow makes it just before the first of the others runs, so it may still be made while one of
    them has not ended. If they were all skipped, it would have been skipped as well.
    """
    others = {state for _, state in _instances(task, states)}
    if others <= {SKIPPED}:
        return SKIPPED
    return _REMOVED if others <= _ENDS.keys() else None


def _shown(key: InstanceKey) -> str:
    task_id, map_index = key
    return task_id if map_index == UNMAPPED else f"{task_id}[{map_index}]"


_SKIPS_BEHIND_ONE: Final = frozenset({"all_success", "none_skipped", "all_done_min_one_success"})
"""The trigger rules by which Airflow skips a task when one of those before it was skipped."""

_SKIPS_BEHIND_ALL: Final = frozenset({"one_success", "one_done", "none_failed_min_one_success"})
"""The trigger rules by which Airflow skips a task when all of those before it were skipped."""

_SKIPS_NOTHING: Final = frozenset({"none_failed", "all_done", "always"})
"""The trigger rules by which Airflow never skips a task because others were skipped."""


def begins_again(receiving: RunOfTask, states: TaskStates) -> bool:
    """Whether the task that received a batch was cleared, so that it receives again; or its run was deleted."""
    return states.get(receiving.task_id) in _BEGINS_AGAIN


def work_tasks(dag: Any, task_ids: Iterable[str], receive_task_id: str, keeper_task_id: str) -> list[WorkTask]:
    """Describe the work tasks of a lease.

    Args:
        dag: The DAG, as parsed.
        task_ids: The work tasks.
        receive_task_id: The sensor whose messages they work on.
        keeper_task_id: The keeper of the lease.

    Raises:
        ValueError: No task is named; one is not in the DAG, does not come after the sensor, or would not run its
            function; or the states of two tasks of the lease cannot be told apart.
    """
    work = []
    ids = list(task_ids)
    behind = dag.task_dict[receive_task_id].get_flat_relative_ids(upstream=False) - {keeper_task_id}
    for task_id in ids:
        if task_id not in dag.task_dict:
            raise ValueError(f"work task {task_id!r} of the lease {receive_task_id!r} is not in DAG {dag.dag_id!r}")
        if task_id not in behind:
            raise ValueError(
                f"work task {task_id!r} of the lease {receive_task_id!r} in DAG {dag.dag_id!r} does not come after "
                f"{receive_task_id!r}: its success would delete messages that it has not seen. Name tasks that work on "
                "them, and set them behind it"
            )
        task = dag.task_dict[task_id]
        if _never_runs(task):
            raise ValueError(
                f"the function of work task {task_id!r} of DAG {dag.dag_id!r} has a yield, and with do_xcom_push=False "
                f"Airflow does not run such a function: the messages of the lease {receive_task_id!r} would be deleted "
                "without any work. Write it without yield"
            )
        work.append(_work_task(task, receive_task_id, ids))
    if not work:
        raise ValueError(
            f"the lease {receive_task_id!r} of DAG {dag.dag_id!r} has no work tasks: "
            "its messages would never be settled"
        )
    if (pair := ambiguous_names(work, (receive_task_id, keeper_task_id))) is not None:
        mapped, other = pair
        raise ValueError(
            f"in DAG {dag.dag_id!r} the task {other!r} is named like an instance of the mapped task {mapped!r}, "
            "so Airflow does not tell their states apart: rename one of them"
        )
    return work


def result_is_dropped(task: Any) -> bool:
    """Whether Airflow drops what a task's Python function returns, although it may name failed messages."""
    runs_python = hasattr(_class(task), "execute_callable")  # of Airflow's PythonOperator
    return runs_python and not (_do_xcom_push(task) or _chooses(task) or _returns_nothing(task))


def ambiguous_names(work: Iterable[WorkTask], others: Iterable[str] = ()) -> tuple[str, str] | None:
    """Return a mapped task and another whose id reads like one of its instances (``check`` and ``check_1``), if any.

    The other one may be of the work or of ``others``. Airflow's answer has one key for both, so that their states
    cannot be told apart.
    """
    tasks = list(work)
    ids = [*others, *(task.task_id for task in tasks)]
    for task in tasks:
        if task.mapped:
            for other in ids:
                if other.startswith(f"{task.task_id}_") and other[len(task.task_id) + 1 :].isdecimal():
                    return task.task_id, other
    return None


def maps_over_messages(task: Any, receive_task_id: str) -> bool:
    """Whether a task is expanded over the sensor's messages themselves, so that map index ``i`` gets message ``i``."""
    source = _one_source(task)
    return source is not None and source.task_id == receive_task_id


def continues_messages(task: Any, receive_task_id: str) -> bool:
    """Whether a task is expanded over the results of a task that works on the messages one by one."""
    source = _one_source(task)
    return source is not None and (
        maps_over_messages(source, receive_task_id) or continues_messages(source, receive_task_id)
    )


def _one_source(task: Any) -> Any:
    """Return the task with the return value that another one is expanded over, item by item; None for others."""
    # Airflow has no mapped tasks in mapped groups (yet), so only one of the two is mapped.
    expanded = task if task.is_mapped else _mapped_group(task)
    source = None if expanded is None else mapped_over(expanded)
    if source is None:
        return None
    operator, key = source
    return operator if key == RETURN_VALUE_KEY else None


def _mapped_group(task: Any) -> MappedTaskGroup | None:
    """Return the closest mapped group around a task."""
    group = task.task_group
    while group is not None and not isinstance(group, MappedTaskGroup):
        group = group.parent_group
    return group


def _work_task(task: Any, receive_task_id: str, work_task_ids: Collection[str]) -> WorkTask:
    chained = continues_messages(task, receive_task_id)
    return WorkTask(
        task.task_id,
        mapped=task.is_mapped or _mapped_group(task) is not None,
        per_message=chained or maps_over_messages(task, receive_task_id),
        chained=chained,
        returns=bool(_do_xcom_push(task)) and not (_is_branch(task) or _returns_nothing(task)),
        skipped_behind=_skipped_behind(task, receive_task_id, work_task_ids),
        skipped_behind_all=task.trigger_rule in _SKIPS_BEHIND_ALL,
    )


def _skipped_behind(task: Any, receive_task_id: str, work_task_ids: Collection[str]) -> tuple[str, ...] | None:
    """Return the work tasks that make a task skipped when they are; None if there may be further reasons.

    A skip by the task itself is not among these reasons: its worker reports it.
    """
    others = task.upstream_task_ids - {receive_task_id}
    setups = {setup.task_id for setup in task.get_upstreams_only_setups()} - {receive_task_id}
    rule = task.trigger_rule
    if setups or any(_chooses(before) for before in task.upstream_list):
        return None
    if rule in _SKIPS_NOTHING:
        return ()
    if rule not in _SKIPS_BEHIND_ONE | _SKIPS_BEHIND_ALL or not others <= set(work_task_ids):
        return None
    # The sensor succeeded.
    is_behind_sensor = receive_task_id in task.upstream_task_ids
    return () if is_behind_sensor and rule in _SKIPS_BEHIND_ALL else tuple(sorted(others))


def _chooses(task: Any) -> bool:
    """Whether a task may skip tasks behind it, as branches and short circuits do."""
    return hasattr(_class(task), "skip_all_except")  # of a SkipMixin, which providers may have a copy of


def _is_branch(task: Any) -> bool:
    """Whether a task chooses a branch: its return value is task ids."""
    return issubclass(_class(task), BranchMixIn)


def _class(task: Any) -> type:
    """Return the operator's class; a mapped task is not an instance of it."""
    found: type = task.operator_class if task.is_mapped else type(task)
    return found


def _returns_nothing(task: Any) -> bool:
    """Whether a task's function is annotated as one that returns nothing.

    The annotation says nothing about the return value of a decorator around it.
    """
    function = _function(task)
    annotations = getattr(function, "__annotations__", {})
    # "None" in a module with postponed annotations, else None.
    return annotations.get("return", "") in ("None", None) and not hasattr(function, "__wrapped__")


def _never_runs(task: Any) -> bool:
    """Whether Airflow calls a task's function without running it: a generator runs only while its values are stored."""
    function = _function(task)
    return not _do_xcom_push(task) and (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function))


def _function(task: Any) -> Any:
    """Return the function of a task; None if it has another kind of work."""
    function = getattr(task, "python_callable", None)
    return task.partial_kwargs.get("python_callable") if function is None and task.is_mapped else function


def _do_xcom_push(task: Any) -> Any:
    if task.is_mapped:
        return task.partial_kwargs.get("do_xcom_push", True)
    return task.do_xcom_push
