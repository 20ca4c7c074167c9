"""Decides from the states of the work tasks which messages to delete, to give back and to go on holding. Pure.

The rules:

- A task concerns every message, unless it works on the messages one by one: then map index ``i`` concerns message
  ``i`` alone. Such a task is mapped over the messages themselves, or it is *chained*: mapped over what another such
  task returned. Airflow leaves out of a chained task the messages for which that one returned nothing, so that the
  indexes shift; it counts as one by one only where it has as many instances as there are messages, and otherwise
  each of them concerns every message.
- A message *fails* as soon as one task instance that concerns it ``failed`` for good, or succeeded and named the
  message in its return value, ``{"batchItemFailures": [{"itemIdentifier": message_id}]}``. An instance that failed
  with ``MessageFailed(ids)`` failed those messages only: the others count as done by it. A task with retries left is
  ``up_for_retry``, which is not for good.
- A message whose work can never be completed (a task instance is ``upstream_failed`` or ``removed``) fails too,
  but not before everything else that concerns it came to its end: until then somebody may be working on it.
- A message is *deleted* when every task instance that concerns it is done (``success`` or ``skipped``), at
  least one of them with success, and none failed it. So a task that runs whatever happened (``all_done``,
  ``one_failed``) never turns a failed message into a successful one.
- A message whose work was skipped altogether is *released*: nothing failed, and nothing was done either. So it is
  where all instances of a mapped task are ``removed``: a cleared run had nothing to map over after it had something
  before, or the task was taken out of the DAG, and then its work was not done.
- Everything else is held.

How the return value and the ids of ``MessageFailed`` are read says :mod:`sqs_lease.core.failure_rules`.

Whether a batch whose leases have all ended fails its keeper, is decided here too (:func:`why_it_fails`):

- Messages that could not be settled always fail it: their work may be done, and they come back to the queue all the
  same.
- Leases that were lost or have lapsed fail it with ``on_lost="raise"``. So do deletes after a lapse (``uncertain``):
  SQS confirms such a delete also where another consumer received the message since, and then it is not gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqs_lease.airflow.airflow_api.requests import UNMAPPED, InstanceKey, TaskStates, state_key
from sqs_lease.airflow.settlement.lost_leases import RAISE

SUCCESS: Final = "success"
FAILED: Final = "failed"
_SKIPPED: Final = "skipped"
_REMOVED: Final = "removed"
_OVER_NOTHING: Final = "removed, all instances"
"""Not a state of Airflow's: of a task that had instances before its run was cleared, and has none now."""
_NEVER_TO_BE_DONE: Final = frozenset({"upstream_failed", _REMOVED})
_ENDED_STATES: Final = _NEVER_TO_BE_DONE | {SUCCESS, FAILED, _SKIPPED}


@dataclass(frozen=True, slots=True)
class WorkTask:
    """A task that works on the messages.

    Attributes:
        task_id: Its id in the DAG.
        mapped: Whether its instances have map indexes, its own or those of a mapped task group.
        per_message: Whether map index ``i`` works on message ``i`` alone.
        chained: Whether that hangs on a result for each message: it is mapped over what a task that works on the
            messages one by one returned.
        returns: Whether it leaves a return value that may name failed messages.
    """

    task_id: str
    mapped: bool = False
    per_message: bool = False
    chained: bool = False
    returns: bool = True


@dataclass(frozen=True, slots=True)
class InstanceReport:
    """What a task instance that ended said of the messages, beyond its state.

    Attributes:
        failed_ids: The messages that it failed.
        errors: The qualified names of the class of the exception that it failed with, and of those that this
            derives from; empty if no exception is known.
        reasons: Why it failed single messages, as far as it said so.
    """

    failed_ids: frozenset[str] = frozenset()
    errors: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message failed.

    Attributes:
        reason: For people, the same for all messages that failed in the same way.
        errors: As in :class:`InstanceReport`.
        detail: What the work said of this message alone; empty if it said nothing.
    """

    reason: str
    errors: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to become of messages, by their position in the batch.

    Attributes:
        delete: Their work succeeded.
        release: All of their work was skipped.
        fail: Their work failed for good.
        unread: Task instances that ended and whose report must be read before more can be said.
    """

    delete: tuple[int, ...]
    release: tuple[int, ...]
    fail: Mapping[int, Failure]
    unread: tuple[InstanceKey, ...]


def concerned(task: WorkTask, map_index: int, message_ids: Sequence[str], states: TaskStates) -> Sequence[str]:
    """Return the ids of the messages that an instance of a task concerns."""
    if map_index != UNMAPPED and _is_one_by_one(task, len(message_ids), states):
        return message_ids[map_index : map_index + 1]
    return message_ids


def ambiguous_names(work: Iterable[WorkTask], others: Iterable[str] = ()) -> tuple[str, str] | None:
    """Return a mapped task and another whose id reads like one of its instances (``check`` and ``check_1``), if any.

    The other one may be of the work or of ``others``.
    Airflow's answer has one key for both, so nobody could tell their states apart.
    """
    tasks = list(work)
    ids = [*others, *(task.task_id for task in tasks)]
    for task in tasks:
        if task.mapped:
            for other in ids:
                if other.startswith(f"{task.task_id}_") and other[len(task.task_id) + 1 :].isdecimal():
                    return task.task_id, other
    return None


class Judgement:
    """What the work's states and reports say at one moment; decisions on any of the messages follow from it.

    Args:
        work: The tasks that work on the messages.
        states: The states of their instances in the run.
        reports: The reports of instances that were read so far.
        message_ids: The messages of the batch, in the order of the batch.
        read_failures: Whether instances that fail leave a report; otherwise they fail whatever they concern.
        by_exception: Whether it matters by which exception a message failed. If not, the report of a failed
            instance that concerns one message has nothing to say, and is not asked for.
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
    ) -> None:
        self._states = states
        self._message_ids = message_ids
        self._one_by_one = tasks_one_by_one(work, len(message_ids), states)
        self._missing: dict[str, str | None] = {}  # the states of instances that there are not, by task
        self._ended = _Ended(reports, read_failures=read_failures, by_exception=by_exception)
        self._common = _Standing()
        for task in work:
            if task not in self._one_by_one:
                for key, state in _instances(task, states):
                    self._ended.take(key, state, self._common, returns=task.returns, alone=False)

    @property
    def unread(self) -> Iterable[InstanceKey]:
        """Instances that ended and whose report must be read, as far as decisions needed them so far."""
        return self._ended.unread

    @property
    def holds_all(self) -> bool:
        """Whether every message goes on being held, whatever it is."""
        common = self._common
        return not self._one_by_one and common.pending and common.failed is None and not self._ended.named

    def on(self, held: Iterable[int]) -> Decision:
        """Decide on the messages at some positions; the cost depends on these positions only."""
        delete: list[int] = []
        release: list[int] = []
        fail: dict[int, Failure] = {}
        for position in held:
            standing = self._standing(position)
            failure = standing.failed or self._ended.named.get(self._message_ids[position])
            if failure is None and not standing.pending:
                failure = standing.never_done
            if failure is not None:
                fail[position] = failure
            elif standing.pending:
                continue
            elif standing.succeeded and not standing.over_nothing:
                delete.append(position)
            else:
                release.append(position)
        return Decision(tuple(delete), tuple(release), fail, tuple(self._ended.unread))

    def _standing(self, position: int) -> _Standing:
        if not self._one_by_one:
            return self._common
        standing = replace(self._common)
        for task in self._one_by_one:
            key, state = self._instance_of_message(task, position)
            self._ended.take(key, state, standing, returns=task.returns, alone=key[1] != UNMAPPED)
        return standing

    def _instance_of_message(self, task: WorkTask, position: int) -> tuple[InstanceKey, str | None]:
        """The instance that works on one message; before the task was expanded, the task itself."""
        own = (task.task_id, position)
        if (key := state_key(own)) in self._states:
            return own, self._states[key]
        if task.task_id in self._states:
            return (task.task_id, UNMAPPED), self._states[task.task_id]
        if task.task_id not in self._missing:
            self._missing[task.task_id] = _state_of_missing(task, self._states)
        return own, self._missing[task.task_id]


def tasks_one_by_one(work: Iterable[WorkTask], messages: int, states: TaskStates) -> Sequence[WorkTask]:
    """The tasks whose map index ``i`` works on message ``i`` alone, as far as their instances show so far."""
    return [task for task in work if _is_one_by_one(task, messages, states)]


def affected(work: Sequence[WorkTask], messages: int, before: TaskStates, states: TaskStates) -> frozenset[int] | None:
    """Return the positions of the messages about which new states may say something new; None: of all messages."""
    one_by_one = tasks_one_by_one(work, messages, states)
    if one_by_one != tasks_one_by_one(work, messages, before):
        return None
    if not all(task.task_id in states or _has_all_instances(task, messages, states) for task in one_by_one):
        # What becomes of a message without an instance of its own follows from those of others.
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


@dataclass(slots=True)
class _Standing:
    """What several task instances together say about their messages."""

    failed: Failure | None = None
    never_done: Failure | None = None
    pending: bool = False
    succeeded: bool = False
    over_nothing: bool = False


class _Ended:
    """Takes in the states and reports of task instances, one after the other."""

    def __init__(
        self, reports: Mapping[InstanceKey, InstanceReport], *, read_failures: bool, by_exception: bool
    ) -> None:
        self.named: dict[str, Failure] = {}
        self.unread: dict[InstanceKey, None] = {}
        self._reports = reports
        self._read_failures = read_failures
        self._by_exception = by_exception

    def take(self, key: InstanceKey, state: str | None, standing: _Standing, *, returns: bool, alone: bool) -> None:
        """Take in one instance; ``alone``: it concerns one message."""
        if state in _NEVER_TO_BE_DONE:
            standing.never_done = standing.never_done or Failure(f"task {_shown(key)} ended as {state}")
        elif state == _OVER_NOTHING:
            standing.over_nothing = True
        elif state == FAILED:
            self._failed(key, standing, alone=alone)
        elif state == SUCCESS:
            if not returns:
                standing.succeeded = True
            elif (report := self._report(key, standing)) is not None:
                standing.succeeded = True
                self._name(report, Failure(f"task {_shown(key)} returned it in batchItemFailures"))
        elif state != _SKIPPED:
            standing.pending = True

    def _failed(self, key: InstanceKey, standing: _Standing, *, alone: bool) -> None:
        if not self._read_failures or (alone and not self._by_exception and key not in self._reports):
            standing.failed = standing.failed or Failure(f"task {_shown(key)} ended as failed")
        elif (report := self._report(key, standing)) is not None:
            # The messages that it did not fail count as done by it.
            standing.succeeded = True
            how = f"failed with {report.errors[0]}" if report.errors else "ended as failed"
            self._name(report, Failure(f"task {_shown(key)} {how}", report.errors))

    def _report(self, key: InstanceKey, standing: _Standing) -> InstanceReport | None:
        report = self._reports.get(key)
        if report is None:
            self.unread[key] = None
            standing.pending = True
        return report

    def _name(self, report: InstanceReport, failure: Failure) -> None:
        for message_id in report.failed_ids:
            detail = report.reasons.get(message_id)
            self.named.setdefault(message_id, replace(failure, detail=detail) if detail else failure)


def _is_one_by_one(task: WorkTask, messages: int, states: TaskStates) -> bool:
    """Whether map index ``i`` of a task is message ``i``, as far as its instances show so far."""
    if not task.per_message:
        return False
    # Before it was expanded it stands under its own name, and concerns all in the same way.
    return not task.chained or task.task_id in states or _has_all_instances(task, messages, states)


def _has_all_instances(task: WorkTask, messages: int, states: TaskStates) -> bool:
    """Whether a task has an instance for each message; those left over from a longer batch do not count."""
    return states.get(f"{task.task_id}_{messages - 1}", _REMOVED) != _REMOVED


def _instances(task: WorkTask, states: TaskStates) -> Iterable[tuple[InstanceKey, str | None]]:
    """All instances of a task that the answer knows; a task without any is no longer part of the run.

    Removed instances are left out, unless there are no others. Then a cleared run mapped the task over nothing, which a
    task that is mapped over the messages themselves never is; or the task was taken out of the DAG.
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
    """What counts as the state of an instance that the answer does not know, of a task that was expanded.

    In a cleared run Airflow makes it just before the first of the others runs, so it may still be made while one of
    them has not ended. Where they were all skipped it would have been skipped as well.
    """
    others = {state for _, state in _instances(task, states)}
    if others <= {_SKIPPED}:
        return _SKIPPED
    return _REMOVED if others <= _ENDED_STATES else None


def _shown(key: InstanceKey) -> str:
    task_id, map_index = key
    return task_id if map_index == UNMAPPED else f"{task_id}[{map_index}]"


REFUSALS: Final = "refusals"
"""The report's field with what SQS said when it refused to settle messages: how many, by what it said."""


def why_it_fails(report: Mapping[str, Any], on_lost: object, queue_url: str) -> str | None:
    """Return why the keeper of a batch fails, for people; None if it does not.

    Args:
        report: The lease report.
        on_lost: What :func:`~sqs_lease.airflow.settlement.lost_leases.encode_on_lost` returned.
        queue_url: The queue.
    """
    reasons = []
    if report["failed"]:
        refusals = report.get(REFUSALS, {})
        said = "".join(f" SQS said {count} times: {text}." for text, count in refusals.items())
        reasons.append(
            f"{report['failed']} of {report['received']} messages of {queue_url} could not be settled, so they come "
            f"back to the queue, although their work may be done.{said} Check that the queue exists, that the AWS "
            "connection may sqs:DeleteMessage and sqs:ChangeMessageVisibility on it, and for dead_letter() that it "
            "has a dead-letter queue to which the connection may sqs:SendMessage"
        )
    if on_lost == RAISE and (report["lost"] or report["late"] or report["uncertain"]):
        reasons.append(
            f"{report['lost']} leases of {queue_url} were lost and {report['late']} lapsed, and {report['uncertain']} "
            "messages were deleted only after their lease had lapsed. This fails the task, as on_lost says: other "
            "consumers may have worked on their messages as well. Make the work idempotent, or raise the visibility "
            "timeout"
        )
    return ". ".join(reasons) or None
