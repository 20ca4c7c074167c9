"""Reads task states for all triggers of a triggerer: per second one request a DAG and set of tasks, for many runs.

The supervisor that answers serves one request at a time, so triggers that asked each for itself would fill its time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import Final, TypeAlias

from sqs_lease.airflow.comms import CommsError, task_states
from sqs_lease.airflow.settling import TaskStates

logger = logging.getLogger(__name__)

FetchStates: TypeAlias = Callable[[str, Sequence[str], Collection[str]], Awaitable[Mapping[str, TaskStates]]]
"""Reads states by DAG id, run ids and task ids, see :func:`sqs_lease.airflow.comms.task_states`."""

POLL_SECONDS: Final = 1.0
"""Pause between two rounds of requests."""

MAX_RUNS_IN_REQUEST: Final = 100
"""Runs named in one request: they travel in an address, whose length is limited."""


class StateWatch:
    """One trigger's view of the tasks of one run. Made by :meth:`StatePoller.watch`."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._states: TaskStates = {}

    async def next(self) -> TaskStates:
        """Wait for the next answer and return it. Without an answer of Airflow's this waits on."""
        await self._changed.wait()
        self._changed.clear()
        return self._states

    def answered(self, states: TaskStates) -> None:
        """Take in an answer. The poller calls this."""
        self._states = states
        self._changed.set()


class StatePoller:
    """Asks for states while anybody watches, and tells each who watches.

    Args:
        fetch: How to ask; by default Airflow's supervisor is asked.
    """

    def __init__(self, fetch: FetchStates = task_states) -> None:
        self._fetch = fetch
        self._watches: dict[tuple[str, frozenset[str]], dict[str, set[StateWatch]]] = defaultdict(
            lambda: defaultdict(set)
        )
        self._task: asyncio.Task[None] | None = None
        self._answered = True

    @contextmanager
    def watch(self, dag_id: str, run_id: str, task_ids: Collection[str]) -> Iterator[StateWatch]:
        """Watch the states of some tasks of a run, from the event loop, until the context ends."""
        question = (dag_id, frozenset(task_ids))
        watch = StateWatch()
        self._watches[question][run_id].add(watch)
        if self._task is None or self._task.done():
            # In a context of its own: what it logs belongs to no single trigger.
            self._task = asyncio.get_running_loop().create_task(
                self._poll(), name="sqs-lease task states", context=Context()
            )
        try:
            yield watch
        finally:
            runs = self._watches[question]
            runs[run_id].discard(watch)
            if not runs[run_id]:
                del runs[run_id]
            if not runs:
                del self._watches[question]

    async def _poll(self) -> None:
        while self._watches:
            for dag_id, task_ids in list(self._watches):
                run_ids = list(self._watches.get((dag_id, task_ids), ()))
                for start in range(0, len(run_ids), MAX_RUNS_IN_REQUEST):
                    await self._ask(dag_id, run_ids[start : start + MAX_RUNS_IN_REQUEST], task_ids)
            await asyncio.sleep(POLL_SECONDS)

    async def _ask(self, dag_id: str, run_ids: Sequence[str], task_ids: frozenset[str]) -> None:
        try:
            answer = await self._fetch(dag_id, run_ids, task_ids)
        except CommsError as error:
            if self._answered:
                logger.warning("Task states cannot be read; leases are extended meanwhile: %s", error)
            self._answered = False
            return
        if not self._answered:
            logger.info("Task states can be read again")
        self._answered = True
        watches = self._watches.get((dag_id, task_ids), {})
        for run_id in run_ids:
            if run_id in answer:
                for watch in tuple(watches.get(run_id, ())):
                    watch.answered(answer[run_id])
