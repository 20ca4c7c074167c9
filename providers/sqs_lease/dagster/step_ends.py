"""How the steps of a run ended, gathered from the events of its executor."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import dagster as dg

from sqs_lease.dagster.batch_verdict import StepEnd
from sqs_lease.dagster.run_batch.leased_batch import attempt_name

_MAPPING_KEY: Final = re.compile(r"\[[^]]*\]")


class StepEnds:
    """What is seen of a run's steps.

    Args:
        run_id: The run.
        upstream: The steps that each step waits for, by key; those of dynamic outputs as ``load[?]``.
    """

    def __init__(self, run_id: str, upstream: Mapping[str, Collection[str]]) -> None:
        self._run_id = run_id
        self._awaited = {before for steps in upstream.values() for before in steps}
        self._retries: dict[str, int] = {}
        self._ends: dict[str, StepEnd] = {}
        self.is_interrupted = False

    def see(self, event: dg.DagsterEvent) -> None:
        """Take in an event of the run."""
        key = event.step_key
        if event.event_type == dg.DagsterEventType.ENGINE_EVENT:
            # What the multiprocess executor says when it was told to terminate.
            self.is_interrupted |= "steps_interrupted" in event.engine_event_data.metadata
        elif key is None:
            return
        elif event.is_step_up_for_retry:
            self._retries[key] = self._retries.get(key, 0) + 1
        elif event.is_step_success:
            self._ends[key] = StepEnd(self._attempt(key))
        elif event.is_step_failure:
            holds_up = _MAPPING_KEY.sub("[?]", key) in self._awaited
            errors = _error_names(event.step_failure_data.error)
            self._ends[key] = StepEnd(self._attempt(key), failed=True, errors=errors, holds_up=holds_up)

    def ends(self) -> Mapping[str, StepEnd]:
        """How the steps that came to an end did so, by key; skipped ones are not among them."""
        return self._ends

    def _attempt(self, key: str) -> str:
        return attempt_name(self._run_id, self._retries.get(key, 0))


def _error_names(error: Any) -> frozenset[str]:
    names = set()
    while error is not None:
        names.add(error.cls_name)
        error = error.cause
    return frozenset(names)
