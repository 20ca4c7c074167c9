"""Reads task states for all triggers of a triggerer: per second one request a DAG and set of tasks, for many runs.

The supervisor that answers serves one request at a time, so triggers that asked each for itself would fill its time.
Between two rounds the signals of failed tasks come in, by one request more for all triggers (``signal_poller``), and
triggers take turns in reading the reports of single tasks, so that these do not keep the states waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import Context
from typing import Final, TypeAlias

from sqs_lease.airflow.comms.instances import TaskStates
from sqs_lease.airflow.comms.signal_poller import SignalPoller
from sqs_lease.airflow.comms.supervisor import CommsError, task_states

logger = logging.getLogger(__name__)

FetchStates: TypeAlias = Callable[[str, Sequence[str], Collection[str]], Awaitable[Mapping[str, TaskStates]]]
"""Reads states by DAG id, run ids and task ids, see :func:`sqs_lease.airflow.comms.supervisor.task_states`."""

POLL_SECONDS: Final = 1.0
"""Pause between two rounds of requests."""

MAX_RUNS_IN_REQUEST: Final = 100
"""Runs named in one request: they travel in an address, whose length is limited."""

READERS_AT_ONCE: Final = 4
"""Reports of single tasks being read at once; what else is asked waits for no more of them, about 0.1 s."""


class StateWatch:
    """One trigger's view of the tasks of one run. Made by :meth:`StatePoller.watch`.

    Attributes:
        answers: How many answers there were so far.
        signals: The signals there are, by the newest answer.
        turn: To be held while something else is asked of Airflow about a task.
    """

    def __init__(self, turn: asyncio.Semaphore, signal_poller: SignalPoller, signals_prefix: str | None) -> None:
        self.answers = 0
        self.signals: frozenset[str] = frozenset()
        self.turn = turn
        self._signal_poller = signal_poller
        self._signals_prefix = signals_prefix
        self._changed = asyncio.Event()
        self._states: TaskStates = {}

    async def next(self) -> TaskStates:
        """Wait for the next answer, or for signals, and return the states. Without an answer this waits on."""
        await self._changed.wait()
        self._changed.clear()
        return self._states

    def answered(self, states: TaskStates) -> None:
        """Take in an answer. The poller calls this."""
        self.answers += 1
        self._states = states
        self._changed.set()

    def signalled(self, signals: frozenset[str]) -> None:
        """Take in the signals there are. The poller of signals calls this."""
        self.signals = signals
        if self.answers:
            self._changed.set()

    def acted_on(self, signals: Iterable[str]) -> None:
        """Have signals removed, because what they say was taken in."""
        self._signal_poller.done_with(signals)

    def finished(self) -> None:
        """Have all further signals removed: there is nothing left that they could be about."""
        if self._signals_prefix is not None:
            self._signal_poller.finished(self._signals_prefix)


class StatePoller:
    """Asks for states while anybody watches, and tells each who watches.

    Args:
        fetch: How to ask; by default Airflow's supervisor is asked.
        signal_poller: Who asks for signals.
    """

    def __init__(self, fetch: FetchStates = task_states, signal_poller: SignalPoller | None = None) -> None:
        self._fetch = fetch
        self._signal_poller = SignalPoller() if signal_poller is None else signal_poller
        self._turn = asyncio.Semaphore(READERS_AT_ONCE)
        self._watches: dict[tuple[str, frozenset[str]], dict[str, set[StateWatch]]] = defaultdict(
            lambda: defaultdict(set)
        )
        self._newly_watched = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._answered = True

    @contextmanager
    def watch(
        self, dag_id: str, run_id: str, task_ids: Collection[str], *, signals: str | None = None
    ) -> Iterator[StateWatch]:
        """Watch the states of some tasks of a run, from the event loop, until the context ends.

        Args:
            dag_id: The DAG.
            run_id: The run.
            task_ids: The tasks.
            signals: With what the keys of signals begin that are to be watched as well; None: there are none.
        """
        question = (dag_id, frozenset(task_ids))
        watch = StateWatch(self._turn, self._signal_poller, signals)
        self._watches[question][run_id].add(watch)
        self._newly_watched.set()
        if self._task is None or self._task.done():
            # In a context of its own: what it logs belongs to no single trigger.
            self._task = asyncio.get_running_loop().create_task(
                self._poll(), name="sqs-lease task states", context=Context()
            )
        try:
            with ExitStack() as listening:
                if signals is not None:
                    listening.enter_context(self._signal_poller.listen(signals, watch.signalled))
                yield watch
        finally:
            runs = self._watches[question]
            runs[run_id].discard(watch)
            if not runs[run_id]:
                del runs[run_id]
            if not runs:
                del self._watches[question]

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        while self._watches:
            self._newly_watched.clear()
            await self._ask_all(unanswered_only=False)
            next_round_at = loop.time() + POLL_SECONDS
            while (left := next_round_at - loop.time()) > 0:
                # Who begins to watch does not wait for the next round.
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._newly_watched.wait()
                    self._newly_watched.clear()
                    await self._ask_all(unanswered_only=True)

    async def _ask_all(self, *, unanswered_only: bool) -> None:
        for dag_id, task_ids in list(self._watches):
            runs = self._watches.get((dag_id, task_ids), {})
            run_ids = [
                run_id
                for run_id, watches in runs.items()
                if not unanswered_only or any(watch.answers == 0 for watch in watches)
            ]
            for start in range(0, len(run_ids), MAX_RUNS_IN_REQUEST):
                await self._ask(dag_id, run_ids[start : start + MAX_RUNS_IN_REQUEST], task_ids)

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
            # A run that was deleted is missing in the answer, and none of its tasks has a state.
            for watch in tuple(watches.get(run_id, ())):
                watch.answered(answer.get(run_id, {}))
                # A hundred triggers that settle at once would block the event loop: one in each of its rounds.
                await asyncio.sleep(0)
