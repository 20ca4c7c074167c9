"""What the work on a batch says of its messages: the states of its tasks, failure signals, and reports, read as needed.

A report is the return value of an instance that succeeded, or what a worker left of the exception of one that failed,
or its word that one skipped itself.
A signal says that an instance failed before Airflow's own state does (:mod:`sqs_lease.airflow.failures`).

With thousands of mapped instances most answers of Airflow say something new of a few messages, so only those are
decided on again. Each report costs Airflow's supervisor about 20 ms: a few are read before the states are looked at
again, and none whose content changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from sqs_lease.airflow.airflow_api.polling import FailureSignals, StateWatch
from sqs_lease.airflow.airflow_api.requests import (
    UNMAPPED,
    CommsError,
    InstanceKey,
    RunOfTask,
    TaskStates,
    pull,
    pull_plain_mapping,
    state_key,
)
from sqs_lease.airflow.failures.report import FAILURE_KEY, SKIP_KEY, FailureReport
from sqs_lease.airflow.settlement.rules import (
    FAILED,
    SKIPPED,
    SUCCESS,
    InstanceReport,
    Judgement,
    WorkTask,
    affected,
    concerned,
    failed_with,
    returned_as_failed,
    tasks_one_by_one,
)
from sqs_lease.core.failure_rules import failed_by_exception, failed_items, failure_reasons
from sqs_lease.core.verdict import Decision
from sqs_lease.keeper.event_loop_rounds import LEASES_IN_A_ROUND

logger = logging.getLogger(__name__)

READS_AT_ONCE: Final = 20
"""Reports read before the states are looked at again; each read takes the supervisor about 20 ms."""

NOTHING: Final[frozenset[int]] = frozenset()

_DONE: Final = frozenset({SUCCESS, SKIPPED})

_LEAVES_REPORT: Final = frozenset({SUCCESS, FAILED, SKIPPED})


class Work:
    """The work on one batch, as far as it is known.

    Args:
        task: Any task of the run.
        tasks: The tasks that work on the messages.
        message_ids: The messages of the batch, in its order.
        signals: The signals by which workers report failures; None if they do not report them.
        by_exception: Whether it matters by which exception a message failed.
    """

    def __init__(
        self,
        task: RunOfTask,
        tasks: Sequence[WorkTask],
        message_ids: Sequence[str],
        *,
        signals: FailureSignals | None = None,
        by_exception: bool = False,
    ) -> None:
        self.tasks = tasks
        self._task = task
        self._message_ids = message_ids
        self._signals = signals
        self._by_exception = by_exception
        self._reports: dict[InstanceKey, InstanceReport] = {}
        self._skipped_themselves: dict[InstanceKey, bool] = {}  # the skipped instances whose reports were read
        self._returned: set[str] = set()  # the tasks of which an instance returned something
        self._unread: dict[InstanceKey, None] = {}
        self._signalled: set[str] = set()  # instances that failed before their state says so
        self._taken_signals: set[str] = set()
        self._looked_at: TaskStates | None = None  # the states as Airflow answered them
        self._judged: TaskStates | None = None  # the same with what signals say

    def has_news(self, states: TaskStates, signals: frozenset[str]) -> bool:
        """Whether an answer says anything new, or a report is still to be read."""
        return states != self._looked_at or not signals <= self._taken_signals or bool(self._unread)

    async def with_signals(self, states: TaskStates, signals: frozenset[str], watch: StateWatch) -> TaskStates:
        """Take in an answer, and return the states with those of the instances whose failure was signalled."""
        if self._signals is not None:
            await self._take_signals(self._signals, signals, states, watch)
        self._looked_at = states
        failed = {key: FAILED for key in self._signalled if states.get(key) not in _DONE}
        return {**states, **failed} if failed else states

    def acted_on(self, signals: frozenset[str], watch: StateWatch) -> None:
        """Have signals removed that were taken in."""
        watch.acted_on(self._taken_signals & signals)

    def news_in(self, states: TaskStates) -> frozenset[int] | None:
        """Return the positions of the messages of which states say something new since the last call; None: of all."""
        before, self._judged = self._judged, states
        return None if before is None else affected(self.tasks, len(self._message_ids), before, states)

    async def decide(self, positions: Sequence[int], states: TaskStates) -> dict[int, Decision]:
        """Decide on the messages at some positions; those that are held are left out."""
        judgement = Judgement(
            self.tasks,
            states,
            self._reports,
            self._message_ids,
            read_failures=self._signals is not None,
            by_exception=self._by_exception,
            skipped_themselves=self._skipped_themselves,
            returned=self._returned,
        )
        decisions: dict[int, Decision] = {}
        if not judgement.holds_all():
            for start in range(0, len(positions), LEASES_IN_A_ROUND):
                decisions |= judgement.on(positions[start : start + LEASES_IN_A_ROUND])
                await asyncio.sleep(0)
        self._unread |= judgement.unread
        return decisions

    async def read_more(self, states: TaskStates, turn: asyncio.Semaphore) -> frozenset[int] | None:
        """Read some of the reports that decisions need.

        Args:
            states: The states.
            turn: Held during each request.

        Returns:
            The positions of the messages of which they may say something; None: of all. Empty where there is nothing
            to read, or where nothing can be read now.
        """
        instances = self._next_unread(states)
        for number, instance in enumerate(instances):
            try:
                async with turn:
                    await self.read(instance, states)
            except CommsError as error:
                logger.warning("The report of %s[%d] cannot be read yet: %s", *instance, error)
                self._unread |= dict.fromkeys(instances[number:])
                # Those that were read are decided on now: no other news would bring them back here.
                return self._positions(instances[:number], states)
        return self._positions(instances, states)

    async def read(self, instance: InstanceKey, states: TaskStates) -> None:
        """Read the report of an instance that ended.

        Raises:
            CommsError: There was no usable answer.
        """
        state = states.get(state_key(instance))
        if state == FAILED:
            self._take_failure(instance, states, await self._failure(instance) or FailureReport())
        elif state == SKIPPED:
            report = await pull(self._run_of(instance), SKIP_KEY, map_index=instance[1])
            self._skipped_themselves[instance] = report is not None
        else:
            returned = await pull_plain_mapping(self._task, instance)
            if returned is not None:
                self._returned.add(instance[0])
            failed = failed_items(returned, self._concerned(instance, states))
            why = returned_as_failed(instance)
            self._reports[instance] = dict.fromkeys(failed, why) | {
                message_id: replace(why, detail=reason)
                for message_id, reason in failure_reasons(returned, failed).items()
            }

    async def _take_signals(
        self, known: FailureSignals, signals: frozenset[str], states: TaskStates, watch: StateWatch
    ) -> None:
        for key in sorted(signals - self._taken_signals)[:READS_AT_ONCE]:
            instance = known.instance(key)
            try:
                async with watch.turn:
                    report = None if instance is None else await self._failure(instance)
            except CommsError as error:
                logger.warning("The report of a failed task cannot be read yet: %s", error)
                return
            # Airflow removes the report when the task starts again, so without it the signal is old.
            if instance is not None and report is not None:
                self._take_failure(instance, states, report)
                self._signalled.add(state_key(instance))
            self._taken_signals.add(key)

    async def _failure(self, instance: InstanceKey) -> FailureReport | None:
        return FailureReport.decode(await pull(self._run_of(instance), FAILURE_KEY, map_index=instance[1]))

    def _take_failure(self, instance: InstanceKey, states: TaskStates, report: FailureReport) -> None:
        failed = failed_by_exception(report.message_ids, self._concerned(instance, states))
        self._reports[instance] = dict.fromkeys(failed, failed_with(instance, report.errors))

    def _concerned(self, instance: InstanceKey, states: TaskStates) -> Sequence[str]:
        task_id, map_index = instance
        (task,) = (task for task in self.tasks if task.task_id == task_id)
        return concerned(task, map_index, self._message_ids, states)

    def _run_of(self, instance: InstanceKey) -> RunOfTask:
        return RunOfTask(self._task.dag_id, self._task.run_id, instance[0])

    def _next_unread(self, states: TaskStates) -> Sequence[InstanceKey]:
        instances: list[InstanceKey] = []
        while self._unread and len(instances) < READS_AT_ONCE:
            instance, _ = self._unread.popitem()
            # One that was cleared meanwhile leaves another report.
            if states.get(state_key(instance)) in _LEAVES_REPORT:
                instances.append(instance)
        return instances

    def _positions(self, instances: Iterable[InstanceKey], states: TaskStates) -> frozenset[int] | None:
        """The messages that the reports of some instances may be about; None: all."""
        one_by_one = {task.task_id for task in tasks_one_by_one(self.tasks, len(self._message_ids), states)}
        positions = set()
        for task_id, map_index in instances:
            # Why one was skipped may be why others were, that work on other messages.
            is_skipped = states.get(state_key((task_id, map_index))) == SKIPPED
            if task_id not in one_by_one or map_index == UNMAPPED or is_skipped:
                return None
            positions.add(map_index)
        return frozenset(positions)
