"""What the triggers of one triggerer process share: keepers, one for each AWS connection, and the state poller.

This module is the only place with state in the triggerer process. The first user of a keeper opens it and the last one
closes it, so a changed Airflow connection takes effect as soon as nothing uses the old client.

:func:`shielded` runs a trigger's cleanup to completion. After a user acts on the task, or its deferral times out, the
triggerer cancels the trigger again every second until it has ended. That would cut off anything that takes longer: a
long poll that must come back, calls about thousands of messages, an answer from a busy supervisor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Final, TypeAlias, TypeVar

from sqs_lease.airflow.airflow_api.polling import StatePoller
from sqs_lease.airflow.airflow_api.requests import request_limiter
from sqs_lease.airflow.connection import AwsConnection, load_client_code, open_transport
from sqs_lease.airflow.metrics import MEASURE_SECONDS, AirflowMeter, Gauges
from sqs_lease.airflow.threads import CLIENTS
from sqs_lease.clock import Clock, SystemClock
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.keeper.batch import Batch, EventListener, MessageSource
from sqs_lease.keeper.endings import end_of
from sqs_lease.keeper.event_loop_rounds import RoundLimiter
from sqs_lease.keeper.keeper import Holding, Keeper, Leaving
from sqs_lease.sqs.transport import Transport

logger = logging.getLogger(__name__)

LAST_CALL_SECONDS: Final = 4.0
"""How long the last calls may take: a stopping triggerer is killed after 10 s."""

QUIET_AFTER_STALL_SECONDS: Final = 3.0
"""How long a triggerer that stood still calls nothing.

Airflow tells it within about a second which of its triggers now run elsewhere. The new holder may have released a lease
meanwhile; extending it would hide the message again.
"""

OpenTransport: TypeAlias = Callable[[AwsConnection], Awaitable[Transport]]
GetReady: TypeAlias = Callable[[], Awaitable[None]]


@dataclass(slots=True, eq=False)
class SharedKeeper:
    """A keeper, its transport, and the number of its users. Made by :meth:`TriggererKeepers.acquire`."""

    connection: AwsConnection
    keeper: Keeper
    transport: Transport
    users: int = 0

    def open_batch(
        self,
        queue_url: str,
        policy: RenewalPolicy,
        listener: EventListener,
        source: MessageSource,
        batch_id: str | None = None,
    ) -> Batch:
        """Open a batch.

        In a separate context: the keeper's calls serve many triggers, and their log lines belong to no single one.
        """
        opened = partial(
            self.keeper.open_batch,
            queue_url,
            policy=policy,
            on_event=listener,
            message_source=source,
            batch_id=batch_id,
        )
        return Context().run(opened)


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
        """Shares the rounds of the event loop among triggers that look through large batches."""
        self._open_transport = open_transport
        self._get_ready = get_ready
        self._beginning = asyncio.Lock()
        self._keepers: dict[AwsConnection, SharedKeeper] = {}
        self._opening = asyncio.Lock()
        self._meter = AirflowMeter()
        self._measuring: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Wait until there is time to begin; each trigger does this first."""
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
                    )
                    self._keepers[connection] = SharedKeeper(connection, keeper, transport)
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
            await shared.transport.aclose()

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
    """Return what the triggers of this process share.

    Raises:
        RuntimeError: Another event loop, still open, uses it: all triggers run in one loop.
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
