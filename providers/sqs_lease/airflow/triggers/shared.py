"""Objects that all triggers of a triggerer process share: a keeper for each AWS connection, the state poller, metrics.

This module is the only place with state in the triggerer process. The first user of a keeper opens it and the last one
closes it, so a changed Airflow connection takes effect as soon as nothing uses the old client.

:class:`LeaseTrigger` is what the triggers that hold messages have in common.

:func:`shielded` runs a trigger's cleanup to completion. After a user acts on the task, or its deferral times out, the
triggerer cancels the trigger again every second until it has ended. That would cut off everything that takes longer: a
long poll that must come back, calls about thousands of messages, an answer from a busy supervisor.

The keepers' work is published as Airflow's own metrics (StatsD, Datadog or OpenTelemetry). All carry the tag ``queue``,
the queue's name; a StatsD server without tags gets the sums over all queues.

    sqs_lease.held                 gauge    leases held now
    sqs_lease.batches              gauge    batches with leases that are held now
    sqs_lease.oldest_lease         gauge    age of the oldest lease held, in seconds since its receive
    sqs_lease.extended             counter  confirmed extensions, one for each message
    sqs_lease.late                 counter  deadlines that passed before an extension was confirmed
    sqs_lease.lost                 counter  leases that the service refused to extend, or to settle
    sqs_lease.settled.<outcome>    counter  settlements: deleted, released, dead_lettered, expired, failed, uncertain
    sqs_lease.release_latency      timer    from the decision that a message failed to its being visible again
    sqs_lease.watcher.poll_age     gauge    seconds since the queue was last counted for its watchers without an error
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any, Final, TypeAlias, TypeVar

from airflow.triggers.base import BaseTrigger

from sqs_lease.airflow.airflow_api.polling import StatePoller
from sqs_lease.airflow.airflow_api.requests import RunOfTask, request_limiter, run_of, stats
from sqs_lease.airflow.connection import CLIENTS, AwsConnection, load_client_code, open_transport
from sqs_lease.clock import Clock, SystemClock
from sqs_lease.core.calls import Verdict
from sqs_lease.core.events import LeaseEvent, Outcome
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.endings import end_of
from sqs_lease.keeper.event_loop_rounds import RoundLimiter
from sqs_lease.keeper.keeper import Holding, Keeper, Leaving
from sqs_lease.keeper.lease_log import LeaseLog
from sqs_lease.sqs.classification import translate_client_errors
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import Transport

logger = logging.getLogger(__name__)

LAST_CALL_SECONDS: Final = 4.0
"""How long the last calls may take: a stopping triggerer is killed after 10 s."""

QUIET_AFTER_STALL_SECONDS: Final = 3.0
"""How long a triggerer that stood still makes no calls.

Airflow tells it within about a second which of its triggers now run elsewhere. The new holder may have released a lease
meanwhile; extending it would hide the message again.
"""

OpenTransport: TypeAlias = Callable[[AwsConnection], Awaitable[Transport]]
GetReady: TypeAlias = Callable[[], Awaitable[None]]


@dataclass(slots=True, eq=False)
class SharedKeeper:
    """A keeper and the number of its users. Made by :meth:`TriggererKeepers.acquire`."""

    connection: AwsConnection
    keeper: Keeper
    users: int = 0


class TriggererKeepers:
    """The keepers and the poller of one triggerer process.

    Args:
        open_transport: How to reach AWS.
        get_ready: What to do before the first trigger begins; nothing by default.
        poller: Reads task states.
        clock: Source of time; the machine's by default.
    """

    def __init__(
        self,
        *,
        open_transport: OpenTransport = open_transport,
        get_ready: GetReady | None = None,
        poller: StatePoller | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock: Clock = SystemClock() if clock is None else clock
        self.poller = StatePoller(clock=self.clock) if poller is None else poller
        self.rounds = RoundLimiter()
        """Limits the work of one round of the event loop, among triggers that look through large batches."""
        self._open_transport = open_transport
        self._get_ready = get_ready
        self._beginning = asyncio.Lock()
        self._keepers: dict[AwsConnection, SharedKeeper] = {}
        self._opening = asyncio.Lock()
        self._meter = AirflowMeter()
        self._measuring: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Wait until this trigger may begin; each trigger does this first."""
        limiter = request_limiter()
        limiter.trigger_started()
        # One after the other: hundreds of triggers that start at once would block the event loop.
        async with self._beginning:
            if self._get_ready is not None:
                await self._get_ready()
                self._get_ready = None
            await limiter.calm()

    async def acquire(self, connection: AwsConnection) -> SharedKeeper:
        """Use the keeper of a connection; each call must be followed by one of :meth:`release`."""
        if connection not in self._keepers:
            async with self._opening:
                if connection not in self._keepers:
                    transport = await self._open_transport(connection)
                    keeper = Keeper(
                        transport,
                        clock=self.clock,
                        meter=self._meter,
                        quiet_after_stall_seconds=QUIET_AFTER_STALL_SECONDS,
                        # Its calls serve many triggers, so their log lines must not go to one.
                        context=Context(),
                    )
                    self._keepers[connection] = SharedKeeper(connection, keeper)
                    if self._measuring is None or self._measuring.done():
                        self._measuring = self.loop.create_task(
                            self._measure(), name="sqs-lease metrics", context=Context()
                        )
        shared = self._keepers[connection]
        shared.users += 1
        return shared

    async def release(self, shared: SharedKeeper) -> None:
        """Give up one use of the keeper; the last user closes it."""
        shared.users -= 1
        if shared.users == 0:
            del self._keepers[shared.connection]
            await shared.keeper.close(Leaving.NOTHING)
            await shared.keeper.transport.aclose()

    async def _measure(self) -> None:
        gauges = Gauges()
        while self._keepers:
            gauges.show(self._holdings(), self.clock.now())
            await asyncio.sleep(MEASURE_SECONDS)
        gauges.show((), self.clock.now())

    def _holdings(self) -> list[Holding]:
        return [holding for shared in self._keepers.values() for holding in shared.keeper.holdings()]


async def last_calls(batch: Batch, calls: Awaitable[object]) -> None:
    """Make the last calls about a batch, once and within a few seconds; then stop tracking it.

    Args:
        batch: The batch.
        calls: The calls.
    """
    try:
        async with asyncio.timeout(LAST_CALL_SECONDS):
            await calls
    except TimeoutError:
        logger.warning("The last calls about a batch of %s got no answer in time", batch.queue_url)
    finally:
        batch.forget()


_keepers: TriggererKeepers | None = None


def triggerer_keepers() -> TriggererKeepers:
    """Return the keepers that the triggers of this process share.

    Raises:
        RuntimeError: Another event loop, still open, uses them: all triggers run in one loop.
    """
    global _keepers  # noqa: PLW0603 - the one place that a process has for it
    loop = asyncio.get_running_loop()
    if _keepers is None or _keepers.loop.is_closed():
        _keepers = TriggererKeepers(get_ready=_load_client_code)
    if _keepers.loop is not loop:
        raise RuntimeError("the shared keeper belongs to another event loop of this process; triggers run in one loop")
    return _keepers


async def _load_client_code() -> None:
    await CLIENTS.run(load_client_code)


def install(keepers: TriggererKeepers) -> None:
    """Use other keepers in this process from now on, as tests do."""
    global _keepers  # noqa: PLW0603 - see above
    _keepers = keepers


DEFERRAL_SECONDS: Final = 6.0
"""Shortest time from a task's deferral until its trigger lets a worker resume it.

A worker's supervisor may notice 5 s late that the deferring process ended. If the task is already queued again, the
scheduler takes the old process's end for a failure of the new one.
"""

FIRST_CLIENT_PAUSE_SECONDS: Final = 3.0
LONGEST_CLIENT_PAUSE_SECONDS: Final = 30.0
"""Pauses before a client is made again that could not be made: the first, doubled each time up to the longest."""

_UNDER_WAY: Final = "_shielded_method_under_way"

Trigger = TypeVar("Trigger")
Ending: TypeAlias = Callable[[Trigger], Coroutine[Any, Any, None]]


def shielded(method: Ending[Trigger]) -> Ending[Trigger]:
    """Run a trigger's method to completion, even when its caller is cancelled, once or many times.

    Methods of one trigger run one after the other: on Python 3.11 Airflow's second cancellation ends its wait for
    ``on_kill()``, so that it calls ``cleanup()`` while that is under way.

    An event loop that ends cancels the method itself as well, but only once.
    """

    @wraps(method)
    async def shielded_method(trigger: Trigger) -> None:
        before: asyncio.Task[None] | None = getattr(trigger, _UNDER_WAY, None)
        running = method(trigger)
        task = asyncio.get_running_loop().create_task(running if before is None else _after(before, running))
        setattr(trigger, _UNDER_WAY, task)
        await end_of(task)
        if not task.cancelled():
            task.result()

    return shielded_method


async def _after(before: asyncio.Task[None], running: Coroutine[Any, Any, None]) -> None:
    await end_of(before)
    await running


class LeaseTrigger(BaseTrigger):
    """A trigger that holds the messages of one task: its keeper, its log, and its end."""

    _task: RunOfTask  # from _begin() on

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._keepers: TriggererKeepers | None = None
        self._shared_keeper: SharedKeeper | None = None
        self._lease_log: LeaseLog | None = None
        self._log_context = copy_context()
        self._began_at = 0.0

    async def _begin(self) -> TriggererKeepers:
        """Wait until this trigger may begin; return what the triggers of this process share."""
        self._task = run_of(self.task_instance)
        self._log_context = copy_context()
        self._keepers = keepers = triggerer_keepers()
        self._began_at = asyncio.get_running_loop().time()
        await keepers.ready()
        return keepers

    async def _use(self, keepers: TriggererKeepers, connection: AwsConnection, queue: str) -> Keeper:
        """Return the keeper of a connection, which this trigger uses until its end.

        Raises:
            SqsError: The client cannot be made.
        """
        if self._shared_keeper is None:
            with translate_client_errors(queue):
                self._shared_keeper = await keepers.acquire(connection)
            self._lease_log = LeaseLog(queue)
        return self._shared_keeper.keeper

    async def _use_until(
        self, ends_at: float, keepers: TriggererKeepers, connection: AwsConnection, queue: str
    ) -> Keeper:
        """Return the keeper of a connection; while Airflow does not give the connection, ask again.

        Args:
            ends_at: Until when, in seconds since the epoch.
            keepers: The keepers of this process.
            connection: The connection.
            queue: The queue's URL, name or ARN.

        Raises:
            SqsError: The client cannot be made, and another try would not help, or it would come too late.
        """
        pause_seconds = FIRST_CLIENT_PAUSE_SECONDS
        while True:
            try:
                return await self._use(keepers, connection, queue)
            except SqsError as error:
                if error.verdict is Verdict.REFUSED or keepers.clock.wall() >= ends_at:
                    raise
                text = "%s. Messages are neither received nor extended before; trying again in %g s"
                logger.warning(text, error, pause_seconds)
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, LONGEST_CLIENT_PAUSE_SECONDS)

    async def _deferral_was_noticed(self) -> None:
        """Wait until Airflow has noticed the end of the process that deferred, see :data:`DEFERRAL_SECONDS`."""
        await asyncio.sleep(max(0.0, self._began_at + DEFERRAL_SECONDS - asyncio.get_running_loop().time()))

    def _happened(self, event: LeaseEvent) -> None:
        """Log what happened to one of the leases."""
        # The keeper's calls serve many triggers: a line reaches this task's log only in this trigger's context.
        if self._lease_log is not None:
            self._log_context.run(self._lease_log.happened, event)

    async def _let_go(self) -> None:
        """Stop holding the messages, at the end of the trigger."""
        raise NotImplementedError

    @shielded
    async def cleanup(self) -> None:
        """Stop holding the messages, and using the keeper."""
        if self._lease_log is not None:
            self._lease_log.flush()
        shared_keeper, self._shared_keeper = self._shared_keeper, None
        try:
            await self._let_go()
            if self._keepers is not None and shared_keeper is not None:
                await self._keepers.release(shared_keeper)
        except Exception:
            # Airflow drops what cleanup() raises.
            logger.exception("The trigger could not be ended properly")


MEASURE_SECONDS: Final = 10.0
"""Pause between two readings of the gauges."""


class AirflowMeter:
    """A meter that publishes a keeper's counts as Airflow's metrics."""

    def held(self, queue_url: str, change: int) -> None:
        """Ignore it: :class:`Gauges` reads the number."""

    def batches(self, queue_url: str, change: int) -> None:
        """Ignore it, for the same reason."""

    def extended(self, queue_url: str, leases: int) -> None:
        """Count ``sqs_lease.extended``."""
        stats.incr("sqs_lease.extended", leases, tags=_tags(queue_url))

    def late(self, queue_url: str) -> None:
        """Count ``sqs_lease.late``."""
        stats.incr("sqs_lease.late", 1, tags=_tags(queue_url))

    def ended(self, queue_url: str, outcome: Outcome, settling_seconds: float | None) -> None:
        """Count ``sqs_lease.lost``, ``sqs_lease.settled`` and ``sqs_lease.release_latency``."""
        tags = _tags(queue_url)
        if outcome is Outcome.LOST:
            stats.incr("sqs_lease.lost", 1, tags=tags)
            return
        stats.incr(f"sqs_lease.settled.{outcome.value.replace('-', '_')}", 1, tags=tags)
        if outcome is Outcome.RELEASED and settling_seconds is not None:
            stats.timing("sqs_lease.release_latency", timedelta(seconds=settling_seconds), tags=tags)


class Gauges:
    """The gauges of held leases and batches; a queue with nothing left is set to 0 once."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def show(self, holdings: Iterable[Holding], now: float) -> None:
        """Publish the gauges.

        Args:
            holdings: The leases and batches of all keepers of the triggerer, each queue of a keeper once.
            now: The time of the keepers' clock.
        """
        leases: dict[str, int] = dict.fromkeys(self._shown, 0)
        batches: dict[str, int] = dict.fromkeys(self._shown, 0)
        ages: dict[str, float] = dict.fromkeys(self._shown, 0.0)
        for holding in holdings:
            leases[holding.queue_url] = leases.get(holding.queue_url, 0) + holding.leases
            batches[holding.queue_url] = batches.get(holding.queue_url, 0) + holding.batches
            ages[holding.queue_url] = max(ages.get(holding.queue_url, 0.0), now - holding.oldest_received_at)
        for queue_url, count in leases.items():
            stats.gauge("sqs_lease.held", count, tags=_tags(queue_url))
            stats.gauge("sqs_lease.batches", batches[queue_url], tags=_tags(queue_url))
            stats.gauge("sqs_lease.oldest_lease", ages[queue_url], tags=_tags(queue_url))
        self._shown = {queue_url for queue_url, count in leases.items() if count}


class PollAge:
    """The time since a queue was last counted for its watchers.

    Without errors it stays below the time between two counts.

    Args:
        queue: The queue's URL, name or ARN.
        clock: The source of time.
    """

    def __init__(self, queue: str, clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._answered_at = clock.now()

    def answered(self) -> None:
        """Take in that a count was answered just now."""
        self._answered_at = self._clock.now()

    async def show(self) -> None:
        """Publish the gauge again and again, until cancelled."""
        while True:
            age = self._clock.now() - self._answered_at
            stats.gauge("sqs_lease.watcher.poll_age", age, tags=_tags(self._queue))
            await asyncio.sleep(MEASURE_SECONDS)


def _tags(queue: str) -> dict[str, str]:
    # The name is the end of a URL, and of an ARN.
    return {"queue": queue.rpartition("/")[2].rpartition(":")[2]}
