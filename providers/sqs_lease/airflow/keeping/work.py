"""Finds out from a DAG which tasks work on the messages of a lease, and which messages each of them concerns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow.sdk.bases.branch import BranchMixIn
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.definitions.taskgroup import MappedTaskGroup
from airflow.sdk.definitions.xcom_arg import MapXComArg, PlainXComArg

from sqs_lease.airflow.comms.supervisor import RETURN_VALUE_KEY
from sqs_lease.airflow.keeping.settling import WorkTask, ambiguous_names


def work_tasks(dag: Any, task_ids: Iterable[str], receive_task_id: str) -> list[WorkTask]:
    """Describe the work tasks of a lease.

    Args:
        dag: The DAG, as parsed.
        task_ids: The work tasks.
        receive_task_id: The sensor whose messages they work on.

    Raises:
        ValueError: There are none, one is not in the DAG, or two could not be told apart by their states.
    """
    work = []
    for task_id in task_ids:
        if task_id not in dag.task_dict:
            raise ValueError(f"work task {task_id!r} of the lease {receive_task_id!r} is not in DAG {dag.dag_id!r}")
        work.append(_work_task(dag.task_dict[task_id], receive_task_id))
    if not work:
        raise ValueError(
            f"the lease {receive_task_id!r} of DAG {dag.dag_id!r} has no work tasks: "
            "its messages would never be settled"
        )
    if (pair := ambiguous_names(work)) is not None:
        mapped, other = pair
        raise ValueError(
            f"in DAG {dag.dag_id!r} the task {other!r} is named like an instance of the mapped task {mapped!r}, "
            "so Airflow does not tell their states apart: rename one of them"
        )
    return work


def maps_over_messages(task: Any, receive_task_id: str) -> bool:
    """Whether a task is expanded over the sensor's messages themselves, so that map index ``i`` gets message ``i``."""
    source = _one_source(task)
    return source is not None and source.task_id == receive_task_id


def continues_messages(task: Any, receive_task_id: str) -> bool:
    """Whether a task is expanded over the results of one that works on the messages one by one."""
    source = _one_source(task)
    return source is not None and (
        maps_over_messages(source, receive_task_id) or continues_messages(source, receive_task_id)
    )


def _one_source(task: Any) -> Any:
    """The task whose return value another one is expanded over, item by item; None where that is not so simple."""
    group = task.get_closest_mapped_task_group()
    if isinstance(task, MappedOperator):
        # A mapped task in a mapped group does not exist (yet), so one of the two is all there is.
        expand_input = task._get_specified_expand_input()  # noqa: SLF001 - there is no public name for it
    elif isinstance(group, MappedTaskGroup):
        expand_input = group._expand_input  # noqa: SLF001 - nor for this
    else:
        return None
    value: Any = expand_input.value
    if isinstance(value, dict):
        # expand(message=messages): further arguments would multiply the indexes.
        if len(value) != 1:
            return None
        (value,) = value.values()
    while isinstance(value, MapXComArg):
        # messages.map(function) keeps length and order.
        value = value.arg
    if not isinstance(value, PlainXComArg) or value.key != RETURN_VALUE_KEY:
        # zip() and concat() have other lengths than what they are made of.
        return None
    return value.operator


def _work_task(task: Any, receive_task_id: str) -> WorkTask:
    chained = continues_messages(task, receive_task_id)
    return WorkTask(
        task.task_id,
        mapped=task.is_mapped or task.get_closest_mapped_task_group() is not None,
        per_message=chained or maps_over_messages(task, receive_task_id),
        chained=chained,
        returns=bool(_do_xcom_push(task)) and not (_is_branch(task) or _returns_nothing(task)),
    )


def _is_branch(task: Any) -> bool:
    """Whether a task chooses a branch: what it returns are task ids."""
    return issubclass(task.operator_class if isinstance(task, MappedOperator) else type(task), BranchMixIn)


def _returns_nothing(task: Any) -> bool:
    """Whether a task's function is annotated to return None, so that there is no return value to read.

    What a decorator around it returns is not known by its annotation, so that is read.
    """
    function = getattr(task, "python_callable", None)
    if function is None and isinstance(task, MappedOperator):
        function = task.partial_kwargs.get("python_callable")
    annotations = getattr(function, "__annotations__", {})
    # As it stands in a module with postponed annotations, or as it is.
    return annotations.get("return", "") in ("None", None) and not hasattr(function, "__wrapped__")


def _do_xcom_push(task: Any) -> Any:
    if isinstance(task, MappedOperator):
        return task.partial_kwargs.get("do_xcom_push", True)
    return task.do_xcom_push
