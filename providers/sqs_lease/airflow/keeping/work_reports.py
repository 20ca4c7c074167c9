"""Reads what ended work tasks say of single messages: return values of those that succeeded, reports of the others."""

from __future__ import annotations

from collections.abc import Sequence

from sqs_lease.airflow.airflow_api.requests import (
    InstanceKey,
    RunOfTask,
    TaskStates,
    pull,
    pull_plain_mapping,
    state_key,
)
from sqs_lease.airflow.failures.report import FAILURE_KEY, FailureReport
from sqs_lease.airflow.keeping.settling import (
    FAILED,
    InstanceReport,
    WorkTask,
    concerned,
)
from sqs_lease.core.failure_rules import failed_by_exception, failed_items, failure_reasons


class WorkReports:
    """The reports read so far.

    Args:
        task: Any task of the run.
        work: The work tasks.
        message_ids: The messages of the batch, in its order.
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
            self._take_failure(instance, states, await self._failure(instance))
        else:
            returned = await pull_plain_mapping(self._task, instance)
            failed = failed_items(returned, self._concerned(instance, states))
            self.known[instance] = InstanceReport(failed, reasons=failure_reasons(returned, failed))

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

    def _take_failure(self, instance: InstanceKey, states: TaskStates, report: FailureReport | None) -> None:
        report = report or FailureReport()
        failed = failed_by_exception(report.message_ids, self._concerned(instance, states))
        self.known[instance] = InstanceReport(failed, report.errors)

    def _concerned(self, instance: InstanceKey, states: TaskStates) -> Sequence[str]:
        task_id, map_index = instance
        return concerned(self._work[task_id], map_index, self._message_ids, states)
