"""How Airflow names the task instances of one run, and answers with their states. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

InstanceKey: TypeAlias = tuple[str, int]
"""A task instance of one run: the task's id and the map index, -1 where the task is not (or not yet) mapped."""

TaskStates: TypeAlias = Mapping[str, str | None]
"""States by ``task_id``, or ``task_id_mapindex`` for instances of mapped tasks: the shape of Airflow's answer."""

UNMAPPED: Final = -1
"""The map index of a task instance that is not mapped."""


def state_key(instance: InstanceKey) -> str:
    """Return by which key a task instance stands in :data:`TaskStates`."""
    task_id, map_index = instance
    return task_id if map_index == UNMAPPED else f"{task_id}_{map_index}"
