"""Finds out from a DAG which tasks work on the messages of a lease, and which messages each of them concerns."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from airflow.sdk import BranchMixIn
from airflow.sdk.definitions.taskgroup import MappedTaskGroup

from sqs_lease.airflow.airflow_api.requests import RETURN_VALUE_KEY, mapped_over
from sqs_lease.airflow.settlement.rules import WorkTask

_SKIPS_BEHIND_ONE: Final = frozenset({"all_success", "none_skipped", "all_done_min_one_success"})
"""The trigger rules by which Airflow skips a task when one of those before it was skipped."""

_SKIPS_BEHIND_ALL: Final = frozenset({"one_success", "one_done", "none_failed_min_one_success"})
"""The trigger rules by which Airflow skips a task when all of those before it were skipped."""

_SKIPS_NOTHING: Final = frozenset({"none_failed", "all_done", "always"})
"""The trigger rules by which Airflow never skips a task."""


def work_tasks(dag: Any, task_ids: Iterable[str], receive_task_id: str, keeper_task_id: str) -> list[WorkTask]:
    """Describe the work tasks of a lease.

    Args:
        dag: The DAG, as parsed.
        task_ids: The work tasks.
        receive_task_id: The sensor whose messages they work on.
        keeper_task_id: The keeper of the lease.

    Raises:
        ValueError: No task is named, one is not in the DAG, or the states of two tasks of the lease cannot be told
            apart.
    """
    work = []
    ids = list(task_ids)
    for task_id in ids:
        if task_id not in dag.task_dict:
            raise ValueError(f"work task {task_id!r} of the lease {receive_task_id!r} is not in DAG {dag.dag_id!r}")
        work.append(_work_task(dag.task_dict[task_id], receive_task_id, ids))
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
    """Whether a task is expanded over the results of one that works on the messages one by one."""
    source = _one_source(task)
    return source is not None and (
        maps_over_messages(source, receive_task_id) or continues_messages(source, receive_task_id)
    )


def _one_source(task: Any) -> Any:
    """The task whose return value another one is expanded over, item by item; None for any other expansion."""
    # A mapped task in a mapped group does not exist (yet), so one of the two is all there is.
    expanded = task if task.is_mapped else _mapped_group(task)
    source = None if expanded is None else mapped_over(expanded)
    if source is None:
        return None
    operator, key = source
    return operator if key == RETURN_VALUE_KEY else None


def _mapped_group(task: Any) -> MappedTaskGroup | None:
    """The closest mapped group around a task."""
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
    """The work tasks for whose skip a task is skipped; None if that may have other reasons, but for itself."""
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
    """Whether a task may skip those behind it, as branches and short circuits do."""
    return hasattr(_class(task), "skip_all_except")  # of a SkipMixin, which providers may have a copy of


def _is_branch(task: Any) -> bool:
    """Whether a task chooses a branch: what it returns are task ids."""
    return issubclass(_class(task), BranchMixIn)


def _class(task: Any) -> type:
    """The operator's class, which a mapped task is not an instance of."""
    found: type = task.operator_class if task.is_mapped else type(task)
    return found


def _returns_nothing(task: Any) -> bool:
    """Whether a task's function is annotated as one that returns nothing.

    What a decorator around it returns is not known by its annotation.
    """
    function = getattr(task, "python_callable", None)
    if function is None and task.is_mapped:
        function = task.partial_kwargs.get("python_callable")
    annotations = getattr(function, "__annotations__", {})
    # As it stands in a module with postponed annotations, or as it is.
    return annotations.get("return", "") in ("None", None) and not hasattr(function, "__wrapped__")


def _do_xcom_push(task: Any) -> Any:
    if task.is_mapped:
        return task.partial_kwargs.get("do_xcom_push", True)
    return task.do_xcom_push
