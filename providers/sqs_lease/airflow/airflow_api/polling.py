"""Reads task states for all triggers of a triggerer: one question a second for each lease of a DAG, about all its runs.

The supervisor that answers serves one request at a time. If each trigger asked for itself, about 40 triggers that ask
once a second would fill its time. The questions for several leases are asked side by side, a few at once, so that a DAG
with states that take long to read does not delay the others. Three rules set how often a lease's tasks are asked for:

- after an answer, at least as long as the answer took passes before the next question;
- the longer the states stay the same, the less often they are read;
- runs whose states take too long to read together are asked for in smaller groups.

Each lease of a DAG has a question of its own, because Airflow's answer has one key, ``check_1``, for the second
instance of ``check`` and for a task of that name. Where they are work of different leases, the end of one would be
taken for the end of the other. Within a lease such names are refused (``settlement/rules.py``).

Signals of failed tasks come in by a request of their own, one for all triggers (:class:`SignalPoller`). Triggers take
turns in reading the reports of single tasks, so that the reports do not delay the states. :class:`StallWatch` tells
when the whole process stood still.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from airflow.sdk.configuration import conf

from sqs_lease.airflow.airflow_api.requests import (
    CommsError,
    NoAnswerError,
    TaskStates,
    delete_variable,
    task_states,
    variable_keys,
)
from sqs_lease.airflow.provider_info import CONFIG_SECTION, REPORT_FAILURES_OPTION
from sqs_lease.clock import Clock, SystemClock

logger = logging.getLogger(__name__)

FetchStates: TypeAlias = Callable[[str, Sequence[str], Collection[str]], Awaitable[Mapping[str, TaskStates]]]
"""Function that reads states by DAG id, run ids and task ids, see :func:`~.requests.task_states`."""

POLL_SECONDS: Final = 1.0
"""Shortest pause between two questions for a lease."""

LONGEST_POLL_SECONDS: Final = 7.0
"""Longest pause of this kind.

The messages of a cleared run are held for this pause and one more question (:data:`POLL_SECONDS`) at most, because only
a second answer that says so is believed.
"""

LONGEST_UNSIGNALLED_SECONDS: Final = 2.0
"""The same for a run that has no failure signals."""

QUIET_SHARE: Final = 0.1
"""The pause as a share of the time without a change: the end of work is seen after a tenth of its time, at most.

Failures do not wait for it: they are signalled.
"""

QUESTIONS_AT_ONCE: Final = 4
"""Questions under way at the same time, for all leases together."""

MAX_RUNS_IN_REQUEST: Final = 100
"""Runs named in one request: they are part of a URL, whose length is limited."""

READERS_AT_ONCE: Final = 4
"""Reports of single tasks that are read at once. Another request waits for at most that many, about 0.1 s."""


class StateWatch:
    """One trigger's view of some tasks of one run. Made by :meth:`StatePoller.watch`.

    Attributes:
        answers: How many answers there were so far.
        asked_at: The time of the question that the newest answer belongs to, by the poller's clock.
        signals: The signals there are, by the newest answer.
        turn: Hold it during any other request to Airflow about a task.
        stalls: When this process stood still.
        longest_pause_seconds: Longest pause between two questions, unless answers are slow.
    """

    def __init__(
        self,
        turn: asyncio.Semaphore,
        stalls: StallWatch,
        signal_poller: SignalPoller,
        signals_prefix: str | None,
    ) -> None:
        self.longest_pause_seconds = LONGEST_UNSIGNALLED_SECONDS if signals_prefix is None else LONGEST_POLL_SECONDS
        self.answers = 0
        self.asked_at = 0.0
        self.signals: frozenset[str] = frozenset()
        self.turn = turn
        self.stalls = stalls
        self._signal_poller = signal_poller
        self._signals_prefix = signals_prefix
        self._changed = asyncio.Event()
        self._states: TaskStates = {}

    async def next(self) -> TaskStates:
        """Wait for the next answer, or for signals, and return the states. Keep waiting while no answer comes."""
        await self._changed.wait()
        self._changed.clear()
        return self._states

    def answered(self, states: TaskStates, asked_at: float) -> bool:
        """Take in an answer, and return whether it says anything new. The poller calls this."""
        is_news = self.answers == 0 or states != self._states
        self.answers += 1
        self.asked_at = asked_at
        self._states = states
        self._changed.set()
        return is_news

    def signalled(self, signals: frozenset[str]) -> None:
        """Take in the signals there are. The poller of signals calls this."""
        self.signals = signals
        if self.answers:
            self._changed.set()

    def acted_on(self, signals: Iterable[str]) -> None:
        """Have signals removed after their content was taken in."""
        self._signal_poller.done_with(signals)

    def finished(self) -> None:
        """Have all further signals removed: all work has ended."""
        if self._signals_prefix is not None:
            self._signal_poller.finished(self._signals_prefix)


class StatePoller:
    """Asks for states while there are watches, and passes the answers to them.

    Args:
        fetch: How to ask; by default Airflow's supervisor is asked.
        signal_poller: Asks for signals.
        clock: Source of time for stalls, and for when a question was asked; the machine's by default.

    Attributes:
        clock: The same.
        asking: Hold it during a question.
    """

    def __init__(
        self,
        fetch: FetchStates = task_states,
        signal_poller: SignalPoller | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._signal_poller = SignalPoller() if signal_poller is None else signal_poller
        self.clock: Clock = SystemClock() if clock is None else clock
        self.asking = asyncio.Semaphore(QUESTIONS_AT_ONCE)
        self._fetch = fetch
        self._unanswered: set[_WatchedTasks] = set()
        self._stalls = StallWatch(self.clock)
        self._turn = asyncio.Semaphore(READERS_AT_ONCE)
        self._watched: dict[tuple[str, frozenset[str]], _WatchedTasks] = {}

    def stalled_until(self) -> float:
        """Return when this process stood still last, see :meth:`StallWatch.last_ended_at`."""
        return self._stalls.last_ended_at()

    @contextmanager
    def watch(
        self,
        dag_id: str,
        run_id: str,
        task_ids: Collection[str],
        *,
        signals: str | None = None,
    ) -> Iterator[StateWatch]:
        """Watch the states of some tasks of a run, from the event loop, until the context ends.

        Args:
            dag_id: The DAG.
            run_id: The run.
            task_ids: The tasks.
            signals: The prefix of the keys of the signals to watch as well; None watches no signals, so the states are
                asked for more often.
        """
        watch = StateWatch(self._turn, self._stalls, self._signal_poller, signals)
        key = dag_id, frozenset(task_ids)
        if (watched := self._watched.get(key)) is None:
            watched = self._watched[key] = _WatchedTasks(*key, self)
        watched.add(run_id, watch)
        try:
            with ExitStack() as listening:
                listening.enter_context(self._stalls.running())
                if signals is not None:
                    listening.enter_context(self._signal_poller.listen(signals, watch.signalled))
                yield watch
        finally:
            if not watched.remove(run_id, watch):
                del self._watched[key]

    async def ask(self, tasks: _WatchedTasks, run_ids: Sequence[str]) -> Mapping[str, TaskStates]:
        """Ask one question.

        Raises:
            CommsError: There was no usable answer. The first such error is logged.
        """
        try:
            answer = await self._fetch(tasks.dag_id, run_ids, tasks.task_ids)
        except CommsError as error:
            if not self._unanswered:
                text = "Task states of DAG %r cannot be read; leases are extended meanwhile: %s"
                logger.warning(text, tasks.dag_id, error)
            self._unanswered.add(tasks)
            raise
        if tasks in self._unanswered:
            self.forget(tasks)
            if not self._unanswered:
                logger.info("Task states can be read again")
        return answer

    def forget(self, tasks: _WatchedTasks) -> None:
        """Stop tracking some tasks: nothing reads their states any longer."""
        self._unanswered.discard(tasks)


class _WatchedTasks:
    """The questions about the tasks of one lease, while some runs of it are watched."""

    def __init__(self, dag_id: str, task_ids: frozenset[str], poller: StatePoller) -> None:
        self.dag_id = dag_id
        self.task_ids = task_ids
        self._poller = poller
        self._runs: dict[str, set[StateWatch]] = {}
        self._newly_watched = asyncio.Event()
        self._news_at = asyncio.get_running_loop().time()
        self._runs_at_once = MAX_RUNS_IN_REQUEST
        # In a separate context: its log lines belong to no single trigger.
        self._task = asyncio.get_running_loop().create_task(
            self._poll(), name=f"sqs-lease task states of {dag_id}", context=Context()
        )

    def add(self, run_id: str, watch: StateWatch) -> None:
        """Start asking for the watch's states as well."""
        self._runs.setdefault(run_id, set()).add(watch)
        self._newly_watched.set()

    def remove(self, run_id: str, watch: StateWatch) -> bool:
        """Stop asking for the watch's states, and return whether anything is left to ask for."""
        self._runs[run_id].discard(watch)
        if not self._runs[run_id]:
            del self._runs[run_id]
        return bool(self._runs)

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        while self._runs:
            self._newly_watched.clear()
            began_at = loop.time()
            answered = await self._ask_all(list(self._runs))
            ended_at = loop.time()
            pause_seconds = POLL_SECONDS
            if answered:
                quiet_seconds = ended_at - self._news_at
                pause_seconds = max(pause_seconds, min(QUIET_SHARE * quiet_seconds, self._longest_pause_seconds()))
                pause_seconds = max(pause_seconds, ended_at - began_at)
            while self._runs and (left := ended_at + pause_seconds - loop.time()) > 0:
                # A new watch does not wait for the next round.
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._newly_watched.wait()
                    self._newly_watched.clear()
                    await self._ask_all([run_id for run_id, watches in self._runs.items() if _is_new(watches)])
        self._poller.forget(self)

    def _longest_pause_seconds(self) -> float:
        watches = (watch for of_run in self._runs.values() for watch in of_run)
        return min((watch.longest_pause_seconds for watch in watches), default=LONGEST_POLL_SECONDS)

    async def _ask_all(self, run_ids: Sequence[str]) -> bool:
        """Ask for some runs, and return whether all questions were answered."""
        size = self._runs_at_once
        groups = [run_ids[start : start + size] for start in range(0, len(run_ids), size)]
        return all(await asyncio.gather(*(self._ask(group) for group in groups)))

    async def _ask(self, run_ids: Sequence[str]) -> bool:
        async with self._poller.asking:
            # Read again, because time passed: a watch that begins during the question does not get its answer.
            watched = {run_id: tuple(self._runs[run_id]) for run_id in run_ids if run_id in self._runs}
            if not watched:
                return True
            asked_at = self._poller.clock.now()
            try:
                answer = await self._poller.ask(self, list(watched))
            except NoAnswerError:
                self._runs_at_once = max(1, min(self._runs_at_once, len(watched)) // 2)
                return False
            except CommsError:
                return False
            if self._poller.clock.now() - asked_at < POLL_SECONDS:
                self._runs_at_once = min(max(self._runs_at_once, 2 * len(watched)), MAX_RUNS_IN_REQUEST)
        for run_id, watches in watched.items():
            # A run that was deleted is missing in the answer, and none of its tasks has a state.
            states = answer.get(run_id, {})
            for watch in watches:
                if watch.answered(states, asked_at):
                    self._news_at = asyncio.get_running_loop().time()
                # A hundred triggers that settle at once would block the event loop: one in each of its rounds.
                await asyncio.sleep(0)
        return True


def _is_new(watches: Iterable[StateWatch]) -> bool:
    """Whether one of them has had no answer yet."""
    return any(watch.answers == 0 for watch in watches)


SIGNALS_PREFIX: Final = "sqs_lease_failure."
"""The prefix of the keys of all variables that are signals."""

SIGNAL_DESCRIPTION: Final = "A work task of an SQS lease failed; its keeper deletes this variable at once."


def are_reported() -> bool:
    """Whether workers report failures, by signals and by what they leave, as Airflow's configuration says."""
    wanted: bool = conf.getboolean(CONFIG_SECTION, REPORT_FAILURES_OPTION, fallback=True)
    return wanted


@dataclass(frozen=True, slots=True)
class FailureSignals:
    """The signals to one keeper in one run.

    Attributes:
        prefix: The prefix of their keys.
        work_task_ids: The keeper's work tasks; a signal names one by its place among them.
    """

    prefix: str
    work_task_ids: tuple[str, ...]

    @classmethod
    def to(cls, dag_id: str, run_id: str, keeper_task_id: str, work_task_ids: Sequence[str]) -> Self:
        """Make the signals to the keeper of a run."""
        # Ids may be longer than a variable's key; 160 bits of a hash keep them apart.
        digest = hashlib.sha256("\0".join((dag_id, run_id, keeper_task_id)).encode()).hexdigest()[:40]
        return cls(f"{SIGNALS_PREFIX}{digest}.", tuple(work_task_ids))

    def key(self, task_id: str, map_index: int) -> str:
        """Return the key by which the failure of a task instance is signalled."""
        return f"{self.prefix}{self.work_task_ids.index(task_id)}.{map_index}"

    def instance(self, key: str) -> tuple[str, int] | None:
        """Return the task instance that a key signals; None if the key is not one of these signals."""
        index, _, map_index = key.removeprefix(self.prefix).partition(".")
        if not key.startswith(self.prefix) or not index.isdecimal() or int(index) >= len(self.work_task_ids):
            return None
        try:
            return self.work_task_ids[int(index)], int(map_index)
        except ValueError:
            return None


SIGNAL_SECONDS: Final = 0.4
"""Pause between two requests while tasks fail: a failure is then known here after 0.2 s on average."""

QUIET_SIGNAL_SECONDS: Final = 1.0
"""The same while no task fails: each request costs Airflow's database two statements, even if nothing ever fails."""

FAILURES_END_SECONDS: Final = 60.0
"""Time without a new signal after which no task counts as failing.

Failures seldom come alone, so only the first one waits for the longer pause.
"""

ORPHANED_SECONDS: Final = 3600.0
"""Age at which a signal is deleted although no keeper of this triggerer took it: it came after its keeper had ended."""

DELETES_AT_ONCE: Final = 10
"""Signals deleted between two requests for new ones; each takes the supervisor about 20 ms."""

DELETE_AGAIN_SECONDS: Final = 60.0
"""When a signal that is still there is deleted again."""

FetchKeys: TypeAlias = Callable[[str], Awaitable[Iterable[str]]]
DeleteKey: TypeAlias = Callable[[str], Awaitable[None]]
Listener: TypeAlias = Callable[[frozenset[str]], None]


class SignalPoller:
    """The poller of signals: asks for them while there are listeners, and tells each listener about its own.

    Signals that were acted upon are deleted. One counts as deleted when a request no longer finds it.

    Args:
        fetch: How to ask for the keys with a prefix; by default Airflow's supervisor is asked.
        delete: How to delete one.
    """

    def __init__(self, fetch: FetchKeys = variable_keys, delete: DeleteKey = delete_variable) -> None:
        self._fetch = fetch
        self._delete = delete
        self._listeners: dict[str, list[Listener]] = {}
        self._finished: dict[str, float] = {}
        self._newly_finished = False
        self._deletions: dict[str, float] = {}  # when a signal is deleted, by the loop's clock; 0: not tried yet
        self._seen_at: dict[str, float] = {}
        self._news_at = -math.inf
        self._task: asyncio.Task[None] | None = None
        self._answered = True

    @contextmanager
    def listen(self, prefix: str, listener: Listener) -> Iterator[None]:
        """Listen to the signals whose keys begin with a prefix, which ends with a full stop, until the context ends."""
        self._listeners.setdefault(prefix, []).append(listener)
        self._finished.pop(prefix, None)
        if self._task is None or self._task.done():
            # In a separate context: its log lines belong to no single trigger.
            self._task = asyncio.get_running_loop().create_task(
                self._poll(), name="sqs-lease failure signals", context=Context()
            )
        try:
            yield
        finally:
            self._listeners[prefix].remove(listener)
            if not self._listeners[prefix]:
                del self._listeners[prefix]

    def done_with(self, keys: Iterable[str]) -> None:
        """Have signals deleted that were acted upon."""
        for key in keys:
            self._deletions.setdefault(key, 0.0)

    def finished(self, prefix: str) -> None:
        """Have all further signals with a prefix deleted: their keeper settled everything."""
        self._finished[prefix] = asyncio.get_running_loop().time()
        self._newly_finished = True

    async def _poll(self) -> None:
        while self._listeners or self._newly_finished or 0.0 in self._deletions.values():
            self._newly_finished = False
            await self._ask()
            now = asyncio.get_running_loop().time()
            for key in [key for key, due_at in self._deletions.items() if due_at <= now][:DELETES_AT_ONCE]:
                self._deletions[key] = now + DELETE_AGAIN_SECONDS
                try:
                    await self._delete(key)
                except CommsError as error:
                    logger.info("The signal %s cannot be deleted yet: %s", key, error)
            quiet = asyncio.get_running_loop().time() - self._news_at >= FAILURES_END_SECONDS
            await asyncio.sleep(QUIET_SIGNAL_SECONDS if quiet else SIGNAL_SECONDS)

    async def _ask(self) -> None:
        try:
            keys = frozenset(await self._fetch(SIGNALS_PREFIX))
        except CommsError as error:
            if self._answered:
                logger.warning("Signals of failed tasks cannot be read; their states are still looked at: %s", error)
            self._answered = False
            return
        self._answered = True
        by_prefix: dict[str, set[str]] = {}
        now = asyncio.get_running_loop().time()
        if not keys <= self._seen_at.keys():
            self._news_at = now
        self._seen_at = {key: self._seen_at.get(key, now) for key in keys}
        self._finished = {prefix: at for prefix, at in self._finished.items() if now - at < ORPHANED_SECONDS}
        self._deletions = {key: due_at for key, due_at in self._deletions.items() if key in keys}
        for key in keys - self._deletions.keys():
            prefix = key[: key.index(".", len(SIGNALS_PREFIX)) + 1] if "." in key[len(SIGNALS_PREFIX) :] else ""
            if prefix in self._listeners:
                by_prefix.setdefault(prefix, set()).add(key)
            elif prefix in self._finished or now - self._seen_at[key] > ORPHANED_SECONDS:
                self._deletions[key] = 0.0
        for prefix, found in by_prefix.items():
            for listener in self._listeners[prefix]:
                listener(frozenset(found))


STALL_SECONDS: Final = 10.0
"""A longer gap is a stall. Airflow takes a triggerer for dead after 30 s by default."""

BEAT_SECONDS: Final = 1.0
"""How often the event loop shows that it runs."""


class StallWatch:
    """Watch over the event loop's time: after a stall, another triggerer may have taken over the triggers.

    A stall is a gap in the event loop's time (the process was stopped, or its machine was suspended), never a slow
    answer of Airflow's: while the event loop runs, Airflow tells this process within about a second which triggers run
    elsewhere. It looks at the clock once a second while it is used.

    Args:
        clock: Source of time. It must go on counting while the machine is suspended.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._users = 0
        self._beat_at = clock.now()
        self._last_ended_at = -math.inf
        self._beating: asyncio.Task[None] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch until the context ends, from the event loop."""
        if self._users == 0:
            self._beat_at = self._clock.now()
        self._users += 1
        if self._beating is None or self._beating.done():
            # In a separate context: it belongs to no single trigger.
            self._beating = asyncio.get_running_loop().create_task(
                self._beat(), name="sqs-lease stalls", context=Context()
            )
        try:
            yield
        finally:
            self._users -= 1

    def last_ended_at(self) -> float:
        """Return when the last stall ended, by the clock; minus infinity if this process never stalled.

        The first caller after a stall learns of it here, even before the next beat.
        """
        now = self._clock.now()
        if now - self._beat_at > STALL_SECONDS:
            self._last_ended_at = now
        self._beat_at = now
        return self._last_ended_at

    async def _beat(self) -> None:
        while self._users:
            self.last_ended_at()
            await asyncio.sleep(BEAT_SECONDS)
