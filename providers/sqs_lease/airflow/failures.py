"""A listener in the process of each task: it tells the keeper at once that work of a lease failed for good, and why.

It also reports that work skipped itself, because Airflow has the same state for work that a user's mark on the run
skips.

Airflow's own record of the failure follows up to five seconds later, when the task's supervisor notices that its
process ended; and it does not have the exception. The listener is the fast way, not the only one: its errors are
logged, the task is not disturbed, and the keeper sees the state in the end. A process that is killed reports nothing;
its keeper waits for Airflow's record.

A report has two parts. The details (:class:`FailureReport`) are an XCom of the task instance. The signal is an Airflow
variable; its key alone names the keeper (by a hash), the work task and the map index. So one request for the keys with
a common prefix tells a triggerer about the failures of all of its keepers. The keeper deletes the variable.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Self

from airflow.listeners import hookimpl

from sqs_lease.airflow.airflow_api.polling import SIGNAL_DESCRIPTION, FailureSignals, are_reported
from sqs_lease.core.failure_rules import exception_names, named_message_ids

if TYPE_CHECKING:
    from sqs_lease.airflow.operators import SqsLeaseKeeperOperator

logger = logging.getLogger(__name__)

REPORT_SECONDS: Final = 10.0
"""How long the report may delay a task's end; Airflow would repeat requests for minutes."""


FAILURE_KEY: Final = "sqs_lease_failure"
"""The XCom key of a failed task instance's report."""

SKIP_KEY: Final = "sqs_lease_skip"
"""The XCom key of the note that a task instance skipped itself while it ran."""


@dataclass(frozen=True, slots=True)
class FailureReport:
    """The reason why a task instance failed for good; never the exception's text, which may contain anything.

    Attributes:
        errors: The qualified names of the exception's class and those it derives from; empty without one.
        message_ids: The messages that ``MessageFailed`` named, alone or in groups; empty if it failed all of them, None
            for other exceptions.
    """

    errors: tuple[str, ...] = ()
    message_ids: tuple[str, ...] | None = None

    @classmethod
    def of(cls, error: object) -> Self:
        """Make the report from the error that Airflow gives a listener: an exception, a string, or None."""
        if not isinstance(error, BaseException):
            return cls()
        return cls(exception_names(error), named_message_ids(error))

    def encode(self) -> dict[str, Any]:
        """Return it as plain values."""
        ids = None if self.message_ids is None else list(self.message_ids)
        return {"errors": list(self.errors), "message_ids": ids}

    @classmethod
    def decode(cls, plain: object) -> Self | None:
        """Build it from what :meth:`encode` returned; None from anything else."""
        if not isinstance(plain, Mapping):
            return None
        errors, ids = _texts(plain.get("errors")), plain.get("message_ids")
        # An id that is not a string names a message that cannot be told apart: then all have failed, not the others.
        return None if errors is None else cls(errors, None if ids is None else _texts(ids) or ())


def _texts(value: object) -> tuple[str, ...] | None:
    """Return a list of strings as a tuple; None for anything else."""
    is_list = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    return tuple(value) if is_list else None  # type: ignore[arg-type]


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: object) -> None:
    """Report a failure; Airflow calls this after each, also of tasks to be retried, and also in other processes."""
    _report(task_instance, "failed", FAILURE_KEY, lambda: FailureReport.of(error).encode())


@hookimpl
def on_task_instance_skipped(previous_state: Any, task_instance: Any) -> None:
    """Report a skip; Airflow calls this when a task skips itself while it runs."""
    _report(task_instance, "skipped", SKIP_KEY, lambda: True)


def _wanted() -> bool:
    # If that module was not imported, the DAG of this task has no lease. This check imports nothing more.
    return "sqs_lease.airflow.operators" in sys.modules and are_reported()


def _report(task_instance: Any, state: str, key: str, report: Callable[[], Any]) -> None:
    if not _wanted():
        return
    try:
        _report_of_work(task_instance, state, key, report)
    except Exception:
        logger.exception("The end of this task could not be reported to the keeper of its messages")


def _report_of_work(task_instance: Any, state: str, key: str, report: Callable[[], Any]) -> None:
    from sqs_lease.airflow.airflow_api.requests import running_task_ended_as
    from sqs_lease.airflow.operators import keepers_of

    if not running_task_ended_as(task_instance, state):
        return
    task = task_instance.task
    keepers = [keeper for keeper in keepers_of(task.dag) if task.task_id in keeper.work_task_ids]
    if not keepers:
        return
    # A thread, because a request of a task process cannot be given a time limit.
    reporting = Thread(target=_tell, args=(task_instance, keepers, key, report()), name="sqs-lease report", daemon=True)
    reporting.start()
    reporting.join(REPORT_SECONDS)
    if reporting.is_alive():
        logger.warning("Airflow did not take the report of this task's end within %g s", REPORT_SECONDS)


def _counts_as_running(task_instance: Any) -> bool:
    """Whether the task counts as running. Airflow also ends the process of a task that a user cleared or marked."""
    map_index = task_instance.map_index
    states = task_instance.get_task_states(
        dag_id=task_instance.dag_id,
        map_index=None if map_index in (None, -1) else map_index,
        task_ids=[task_instance.task_id],
        run_ids=[task_instance.run_id],
    )
    return set(states.get(task_instance.run_id, {}).values()) == {"running"}


def _tell(task_instance: Any, keepers: list[SqsLeaseKeeperOperator], key: str, report: Any) -> None:
    from airflow.sdk import Variable

    from sqs_lease.airflow.airflow_api.requests import triggerer_deletes_variables, triggers_are_supported

    try:
        if not _counts_as_running(task_instance):
            return
        # The report comes first: a keeper that sees the signal must find it.
        task_instance.xcom_push(key=key, value=report)
        if key != FAILURE_KEY or not (triggers_are_supported() and triggerer_deletes_variables()):
            return  # Triggerers do not look for signals: the keeper sees the task's state, and finds the report then.
        map_index = -1 if task_instance.map_index is None else task_instance.map_index
        for keeper in keepers:
            signals = FailureSignals.to(
                task_instance.dag_id, task_instance.run_id, keeper.task_id, keeper.work_task_ids
            )
            Variable.set(signals.key(task_instance.task_id, map_index), "", SIGNAL_DESCRIPTION)
    except Exception:
        logger.exception("The end of this task could not be reported to the keeper of its messages")
