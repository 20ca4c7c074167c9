"""What triggers ask of Airflow about tasks and XComs beyond its public interface: pinned by tests to one minor version.

A trigger talks to the metadata database through the triggerer's supervisor, which answers one request after the
other (about 45 a second) and some requests never. So every request here has a time limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

# Not the SDK's module of the same name: in the process that runs triggers, Airflow sets up this one.
from airflow._shared.observability.metrics import stats
from airflow.models.crypto import get_fernet
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import GetTaskStates, GetXCom, SetXCom, TaskStatesResult, XComResult
from airflow.sdk.execution_time.xcom import XCom

from sqs_lease.airflow.comms.instances import UNMAPPED, InstanceKey, TaskStates
from sqs_lease.airflow.comms.turns import turns

__all__ = [
    "RETURN_VALUE_KEY",
    "CommsError",
    "NoAnswerError",
    "RunOfTask",
    "publish",
    "pull",
    "pull_plain_mapping",
    "run_of",
    "seal",
    "stats",
    "task_states",
    "triggers_are_supported",
    "unseal",
]

logger = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 10.0
"""How long to wait for an answer of the supervisor; it gives fifty requests at once theirs within about a second."""

BACKEND_SECONDS: Final = 60.0
"""How long an XCom backend of the user's own may take to read one value."""

RETURN_VALUE_KEY: Final = BaseXCom.XCOM_RETURN_KEY


PATIENCE_SECONDS: Final = 120.0
"""How long a value that must be published is offered again while no answer comes.

A triggerer's first answer can take half a minute on a busy machine: its supervisor loads the API server's code for it.
"""


class CommsError(RuntimeError):
    """Airflow gave no usable answer, or refused: the request may or may not have been carried out."""


class NoAnswerError(CommsError):
    """Airflow gave no answer in time."""


@dataclass(frozen=True, slots=True)
class RunOfTask:
    """A task in one DAG run; the tasks that hold a lease are never mapped."""

    dag_id: str
    run_id: str
    task_id: str

    def __str__(self) -> str:
        return f"task {self.task_id!r} of DAG {self.dag_id!r}, run {self.run_id!r}"


def triggers_are_supported() -> bool:
    """Whether a triggerer takes over a task that defers now: ``dag.test()`` runs triggers in line instead."""
    return hasattr(getattr(task_runner, "SUPERVISOR_COMMS", None), "asend")


def run_of(task_instance: Any) -> RunOfTask:
    """Which task a trigger runs for.

    Args:
        task_instance: What the triggerer set as the trigger's ``task_instance``.

    Raises:
        RuntimeError: The trigger runs for no task.
    """
    if task_instance is None:
        raise RuntimeError(
            "this trigger was started without a task instance: dag.test() and asset watchers cannot run it"
        )
    return RunOfTask(task_instance.dag_id, task_instance.run_id, task_instance.task_id)


async def task_states(dag_id: str, run_ids: Sequence[str], task_ids: Collection[str]) -> Mapping[str, TaskStates]:
    """Read the states of some tasks in some runs of a DAG by one request.

    Returns:
        The states by run id; a run without such tasks is missing.

    Raises:
        CommsError: There was no usable answer.
    """
    answer = await ask(GetTaskStates(dag_id=dag_id, run_ids=list(run_ids), task_ids=sorted(task_ids)))
    if not isinstance(answer, TaskStatesResult):
        _refuse("the states of tasks", answer)
    return answer.task_states


async def publish(
    task: RunOfTask,
    key: str,
    value: Any,
    *,
    mapped_length: int | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> None:
    """Set an XCom of the trigger's own task, as the task itself would.

    Setting it twice does no harm, so it is set again while no answer comes.

    Args:
        task: The trigger's own task: Airflow allows no other.
        key: The XCom's key.
        value: The value, before serialisation.
        mapped_length: How many instances a task mapped over the value is expanded to; None where none is.
        patience_seconds: How long it is set again while no answer comes; 0 sets it once.

    Raises:
        CommsError: There was no usable answer.
    """
    ends_at = asyncio.get_running_loop().time() + patience_seconds
    place: dict[str, Any] = {
        "dag_id": task.dag_id,
        "run_id": task.run_id,
        "task_id": task.task_id,
        "map_index": UNMAPPED,
    }
    if XCom is BaseXCom:
        serialised = BaseXCom.serialize_value(value, key=key, **place)
    else:
        # A backend of the user's own may write to another service, and blocks while it does.
        serialised = await asyncio.to_thread(XCom.serialize_value, value, key=key, **place)
    request = SetXCom(key=key, value=serialised, mapped_length=mapped_length, **place)
    while True:
        try:
            await ask(request)
        except NoAnswerError as error:
            if asyncio.get_running_loop().time() >= ends_at:
                raise
            logger.warning("Trying again to publish the XCom %r of %s: %s", key, task, error)
        else:
            return


async def pull(task: RunOfTask, key: str, *, map_index: int = UNMAPPED) -> Any:
    """Read an XCom of any task of the DAG; None where there is none.

    Raises:
        CommsError: There was no usable answer.
    """
    answer = await _get_xcom(task, key, map_index)
    if answer.value is None:
        return None
    if XCom is BaseXCom:
        return BaseXCom.deserialize_value(answer)
    return await _deserialised_by_backend(answer)


async def pull_plain_mapping(task: RunOfTask, instance: InstanceKey) -> Mapping[str, Any] | None:
    """Read a work task's return value if it is a plain mapping, as a report of failed items is; else None.

    Other values are left as they are: they may be large, or of classes that the triggerer does not have.

    Args:
        task: Any task of the same DAG run.
        instance: Whose return value.

    Raises:
        CommsError: There was no usable answer.
    """
    task_id, map_index = instance
    answer = await _get_xcom(RunOfTask(task.dag_id, task.run_id, task_id), RETURN_VALUE_KEY, map_index)
    value = answer.value
    if XCom is not BaseXCom and value is not None:
        value = await _deserialised_by_backend(answer)
    return value if isinstance(value, Mapping) else None


def seal(text: str) -> str:
    """Encrypt a text with Airflow's Fernet key, as Airflow does with the arguments of triggers.

    Without a key configured the text stays as it is, again as Airflow does.
    """
    return get_fernet().encrypt(text.encode()).decode()


def unseal(sealed: str) -> str:
    """Decrypt what :func:`seal` returned, in this triggerer or another one of the same deployment."""
    return get_fernet().decrypt(sealed.encode()).decode()


async def _get_xcom(task: RunOfTask, key: str, map_index: int) -> XComResult:
    answer = await ask(
        GetXCom(key=key, dag_id=task.dag_id, run_id=task.run_id, task_id=task.task_id, map_index=map_index)
    )
    if not isinstance(answer, XComResult):
        _refuse(f"the XCom {key!r} of {task}", answer)
    return answer


async def _deserialised_by_backend(answer: XComResult) -> Any:
    """What a backend of the user's own makes of a stored value; it may read it from another service."""
    try:
        async with asyncio.timeout(BACKEND_SECONDS):
            return await asyncio.to_thread(XCom.deserialize_value, answer)
    except Exception as error:
        # What it raises is its own affair; to the trigger it is one answer that cannot be had now.
        raise CommsError(f"the XCom backend {XCom.__name__} cannot read {answer.key!r}: {error!r}") from error


async def ask(request: Any) -> Any:
    """Make one request and return its answer.

    Raises:
        NoAnswerError: No answer came in time.
        CommsError: Airflow refused, or its answer cannot be read.
    """
    try:
        async with turns().turn_for(request), asyncio.timeout(ANSWER_SECONDS):
            if triggers_are_supported():
                return await task_runner.SUPERVISOR_COMMS.asend(request)
            # dag.test(): the task's own thread waits meanwhile, so nobody else is asking.
            return task_runner.SUPERVISOR_COMMS.send(request)
    except TimeoutError:
        raise NoAnswerError(f"Airflow gave no answer to {request.type} within {ANSWER_SECONDS:g} s") from None
    except AirflowRuntimeError as error:
        raise CommsError(f"Airflow refused {request.type}: {error}") from error
    except Exception as error:
        # The connection to the supervisor broke, or its answer is none that this Airflow should give.
        raise CommsError(f"asking Airflow for {request.type} failed: {error!r}") from error


def _refuse(what: str, answer: Any) -> NoReturn:
    raise CommsError(f"Airflow answered a question for {what} with {type(answer).__name__}")
