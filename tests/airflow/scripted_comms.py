"""A stand-in for Airflow's supervisor that answers triggers from tables, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import greenback
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import (
    DeleteVariable,
    ErrorResponse,
    GetTaskStates,
    GetVariableKeys,
    GetXCom,
    OKResponse,
    SetXCom,
    TaskStatesResult,
    VariableKeysResult,
    XComResult,
)


class ScriptedComms:
    """Answers like the triggerer's supervisor.

    Attributes:
        states: States by run id, then by task id or ``task_id_mapindex``.
        xcoms: Values by run id, task id, map index and key.
        variables: The keys of the variables there are.
        mapped_lengths: The mapped length that each XCom was set with.
        asked: The requests so far.
        silent: While set, no request is answered.
        refusing: While set, every request is answered by an error.
        deletes_variables: Unset, variables stay although each deletion is confirmed, as with those of a team.
        answer_seconds: How long an answer takes.
    """

    def __init__(self) -> None:
        self.states: dict[str, dict[str, str | None]] = {}
        self.xcoms: dict[tuple[str, str, int, str], Any] = {}
        self.variables: set[str] = set()
        self.mapped_lengths: dict[tuple[str, str, int, str], int | None] = {}
        self.asked: list[Any] = []
        self.silent = False
        self.refusing = False
        self.deletes_variables = True
        self.answer_seconds = 0.02
        self.on_request: Callable[[Any], None] | None = None

    def send(self, request: Any) -> Any:
        """Wait for the answer within a portal of the event loop, as in the triggerer; without a loop as in a worker."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.asend(request))
        return greenback.await_(self.asend(request))

    async def asend(self, request: Any) -> Any:
        self.asked.append(request)
        if self.on_request is not None:
            self.on_request(request)
        if self.silent:
            await asyncio.Event().wait()
        if self.refusing:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 500}))
        await asyncio.sleep(self.answer_seconds)
        match request:
            case GetTaskStates(run_ids=run_ids, task_ids=task_ids):
                states = {run_id: self._states_of(run_id, task_ids or []) for run_id in run_ids or []}
                return TaskStatesResult(task_states={run_id: found for run_id, found in states.items() if found})
            case GetXCom(run_id=run_id, task_id=task_id, map_index=map_index, key=key):
                index = -1 if map_index is None else map_index
                return XComResult(key=key, value=self.xcoms.get((run_id, task_id, index, key)))
            case SetXCom(run_id=run_id, task_id=task_id, map_index=map_index, key=key):
                place = (run_id, task_id, -1 if map_index is None else map_index, key)
                self.xcoms[place] = request.value
                self.mapped_lengths[place] = request.mapped_length
                return None
            case GetVariableKeys(prefix=prefix):
                keys = sorted(key for key in self.variables if key.startswith(prefix or ""))
                return VariableKeysResult(keys=keys, total_entries=len(keys))
            case DeleteVariable(key=key):
                if self.deletes_variables:
                    self.variables.discard(key)
                return OKResponse(ok=True)
        raise AssertionError(f"the supervisor does not answer {request!r}")

    def count(self, kind: type) -> int:
        """How many requests of a kind there were."""
        return sum(isinstance(request, kind) for request in self.asked)

    def _states_of(self, run_id: str, task_ids: list[str]) -> dict[str, str | None]:
        def asked_for(key: str) -> bool:
            task_id, _, index = key.rpartition("_")
            return key in task_ids or (index.isdecimal() and task_id in task_ids)

        return {key: state for key, state in self.states.get(run_id, {}).items() if asked_for(key)}


_Comms = TypeVar("_Comms")


@contextmanager
def supervised_by(comms: _Comms) -> Iterator[_Comms]:
    """Let triggers talk to ``comms`` instead of a supervisor."""
    absent = object()
    before = getattr(task_runner, "SUPERVISOR_COMMS", absent)
    task_runner.SUPERVISOR_COMMS = comms  # type: ignore[assignment]
    try:
        yield comms
    finally:
        if before is absent:
            del task_runner.SUPERVISOR_COMMS
        else:
            task_runner.SUPERVISOR_COMMS = before  # type: ignore[assignment]
