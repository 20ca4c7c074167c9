"""Requests about Airflow variables, which carry the signals of failed tasks."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Variable
from airflow.sdk.configuration import conf
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from sqs_lease.airflow.airflow_api.requests import ask, end_was_reported


def triggerer_deletes_variables() -> bool:
    """Whether a triggerer may delete what a worker sets: with several teams, variables belong to the worker's team."""
    return not conf.getboolean("core", "multi_team", fallback=False)


async def variable_keys(prefix: str) -> list[str]:
    """Read the keys with a prefix.

    Raises:
        CommsError: There was no usable answer.
    """
    # The SDK asks when the keys are first looked at.
    return await ask("the keys of variables", lambda: list(Variable.keys(prefix=prefix)), for_all_triggers=True)


async def delete_variable(key: str) -> None:
    """Delete a variable; deleting one that is not there does no harm.

    Raises:
        CommsError: There was no usable answer.
    """
    await ask(f"the variable {key!r}", Variable.delete, key=key)


def running_task_failed_for_good(task_instance: Any) -> bool:
    """Whether a listener was called in the process that runs a task, because that failed with no retry left.

    It is called as well for tasks to be retried, and in the scheduler and the API server, with other objects.
    """
    if not isinstance(task_instance, RuntimeTaskInstance):
        return False
    # Airflow sets the first once the try is over; the second says that its end could not be reported, so that it
    # may count as something else (a user marked the task meanwhile).
    state = getattr(task_instance.state, "value", task_instance.state)
    return state == "failed" and end_was_reported(task_instance)
