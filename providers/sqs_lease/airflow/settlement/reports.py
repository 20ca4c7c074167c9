"""Reads what task instances that ended said of single messages: return values, and the reports that workers left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqs_lease.airflow.airflow_api.requests import (
    InstanceKey,
    RunOfTask,
    TaskStates,
    pull,
    pull_plain_mapping,
    state_key,
)
from sqs_lease.airflow.failures.report import FAILURE_KEY, FailureReport
from sqs_lease.airflow.settlement.rules import (
    FAILED,
    InstanceReport,
    WorkTask,
    concerned,
    failed_with,
    returned_as_failed,
)
from sqs_lease.core.failure_rules import failed_by_exception, failed_items, failure_reasons


class WorkReports:
    """The reports read so far.

    Args:
        task: Any task of the run.
        work: The work tasks.
        message_ids: The messages of the batch, in its order.

    Attributes:
        known: The reports, by instance.
    """

    def __init__(self, task: RunOfTask, work: Sequence[WorkTask], message_ids: Sequence[str]) -> None:
        self.known: dict[InstanceKey, InstanceReport] = {}
        self._task = task
        self._work = {task.task_id: task for task in work}
        self._message_ids = message_ids

    async def read(self, instance: InstanceKey, states: TaskStates) -> None:
        """Read the report of an instance that ended.

        Raises:
            CommsError: There was no usable answer.
        """
        if states.get(state_key(instance)) == FAILED:
            self._take_failure(instance, states, await self._failure(instance) or FailureReport())
        else:
            returned = await pull_plain_mapping(self._task, instance)
            failed = failed_items(returned, self._concerned(instance, states))
            why = returned_as_failed(instance)
            self.known[instance] = dict.fromkeys(failed, why) | {
                message_id: replace(why, detail=reason)
                for message_id, reason in failure_reasons(returned, failed).items()
            }

    async def read_signalled(self, instance: InstanceKey, states: TaskStates) -> bool:
        """Read the report of an instance whose failure was signalled before its state says so.

        Returns:
            Whether there is one. Airflow removes it when the task starts again, so without it the signal is old.

        Raises:
            CommsError: There was no usable answer.
        """
        report = await self._failure(instance)
        if report is not None:
            self._take_failure(instance, states, report)
        return report is not None

    async def _failure(self, instance: InstanceKey) -> FailureReport | None:
        task_id, map_index = instance
        task = RunOfTask(self._task.dag_id, self._task.run_id, task_id)
        return FailureReport.decode(await pull(task, FAILURE_KEY, map_index=map_index))

    def _take_failure(self, instance: InstanceKey, states: TaskStates, report: FailureReport) -> None:
        failed = failed_by_exception(report.message_ids, self._concerned(instance, states))
        self.known[instance] = dict.fromkeys(failed, failed_with(instance, report.errors))

    def _concerned(self, instance: InstanceKey, states: TaskStates) -> Sequence[str]:
        task_id, map_index = instance
        return concerned(self._work[task_id], map_index, self._message_ids, states)
