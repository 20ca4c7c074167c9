"""Which Airflow variables signal the failure of a work task, to which keeper, and of which instance. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

SIGNALS_PREFIX: Final = "sqs_lease_failure."
"""With this begin the keys of all variables that are signals."""

SIGNAL_DESCRIPTION: Final = "A work task of an SQS lease failed; its keeper deletes this variable at once."


@dataclass(frozen=True, slots=True)
class FailureSignals:
    """The signals to one keeper in one run.

    Attributes:
        prefix: With this begin their keys.
        work_task_ids: The keeper's work tasks; a signal names one by its place among them.
    """

    prefix: str
    work_task_ids: tuple[str, ...]

    @classmethod
    def to(cls, dag_id: str, run_id: str, keeper_task_id: str, work_task_ids: Sequence[str]) -> Self:
        """The signals to the keeper of a run."""
        # Ids may be longer than a variable's key; 160 bits of a hash keep them apart.
        digest = hashlib.sha256("\0".join((dag_id, run_id, keeper_task_id)).encode()).hexdigest()[:40]
        return cls(f"{SIGNALS_PREFIX}{digest}.", tuple(work_task_ids))

    def key(self, task_id: str, map_index: int) -> str:
        """The key by which the failure of a task instance is signalled."""
        return f"{self.prefix}{self.work_task_ids.index(task_id)}.{map_index}"

    def instance(self, key: str) -> tuple[str, int] | None:
        """Which task instance a key signals; None where it is none of these signals."""
        index, _, map_index = key.removeprefix(self.prefix).partition(".")
        if not key.startswith(self.prefix) or not index.isdecimal() or int(index) >= len(self.work_task_ids):
            return None
        try:
            return self.work_task_ids[int(index)], int(map_index)
        except ValueError:
            return None
