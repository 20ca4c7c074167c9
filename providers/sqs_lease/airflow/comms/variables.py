"""Requests about Airflow variables, which carry the signals of failed tasks."""

from __future__ import annotations

from typing import Any

from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import DeleteVariable, GetVariableKeys, PutVariable, VariableKeysResult
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from sqs_lease.airflow.comms.supervisor import CommsError, ask


async def variable_keys(prefix: str) -> list[str]:
    """Read the keys with a prefix, the first thousand of them.

    Raises:
        CommsError: There was no usable answer.
    """
    answer = await ask(GetVariableKeys(prefix=prefix))
    if not isinstance(answer, VariableKeysResult):
        raise CommsError(f"Airflow answered a question for the keys of variables with {type(answer).__name__}")
    return answer.keys


async def delete_variable(key: str) -> None:
    """Delete a variable; deleting one that is not there does no harm.

    Raises:
        CommsError: There was no usable answer.
    """
    await ask(DeleteVariable(key=key))


def put_variable_of_worker(key: str, value: str, description: str) -> None:
    """Set a variable from the process that runs a task, whatever secrets backends are configured; this blocks.

    Raises:
        AirflowRuntimeError: Airflow refused.
    """
    task_runner.SUPERVISOR_COMMS.send(PutVariable(key=key, value=value, description=description))


def running_task_failed_for_good(task_instance: Any) -> bool:
    """Whether a listener was called in the process that runs a task, because that failed with no retry left.

    It is called as well for tasks to be retried, and in the scheduler and the API server, with other objects.
    """
    if not isinstance(task_instance, RuntimeTaskInstance):
        return False
    # Airflow sets the first once the try is over; the second says that its end could not be reported, so that it
    # may count as something else (a user marked the task meanwhile).
    state = getattr(task_instance.state, "value", task_instance.state)
    return state == "failed" and not getattr(task_instance, "_terminal_state_send_failed", False)
