"""The time between two triggers: a received batch goes on being extended until the keeper's trigger takes it over.

The keeper's task may take seconds (or, when no worker is free, minutes) to be started and deferred, and its trigger may
run in another triggerer, which then takes over by itself. What this process does about a batch that it still owns:

    the keeper's task                                 the batch
    not yet started, queued, running, to be retried   is extended up to the hand-off timeout, then released
    deferred                                          is left to its trigger; forgotten if that runs elsewhere
    success                                           is forgotten: it was settled elsewhere
    failed, skipped, removed                          is released at once: nobody will take it over
    running, when the timeout ends                    is forgotten, and its messages come back by themselves
    unknown, when the timeout ends                    is extended until Airflow answers, for half a minute at most,
                                                      and is then forgotten as well

A batch whose keeper was ever seen deferred is never released here: the leases may be another process's by then, and
releasing them would give messages away that it holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Final

from sqs_lease.airflow.comms.instances import TaskStates
from sqs_lease.airflow.comms.state_poller import POLL_SECONDS, StateWatch
from sqs_lease.airflow.comms.supervisor import CommsError, RunOfTask, publish
from sqs_lease.airflow.handover.progress import PROGRESS_KEY, Certainty, Progress
from sqs_lease.airflow.shared_keeper import SharedBatch, TriggererKeepers
from sqs_lease.keeper.keeper import Leaving
from sqs_lease.keeper.lease_log import LeaseLog

logger = logging.getLogger(__name__)

ADOPTION_SECONDS: Final = 3.0
"""How long a deferred keeper's trigger is waited for in this process; a new trigger is started within about 2 s."""

TAKEOVER_SECONDS: Final = ADOPTION_SECONDS + 2.0
"""How long a trigger that took a batch over from another process waits before it settles anything.

By then the other process has seen that the keeper is deferred, and extends no more what is released here.
"""

_FRESH_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 30.0
"""How long after the hand-off timeout Airflow's answer is waited for: on a busy machine one takes 15 s now and then."""

_NOBODY_WILL_COME: Final = frozenset({"failed", "upstream_failed", "skipped", "removed"})


class HandOff:
    """Holds one batch of this process until it is claimed, or until it is known that it will not be.

    Args:
        keepers: What the triggers of this process share.
        batch_id: The name by which the keeper's trigger claims the batch.
        shared: The batch; whoever made it gives it away by this.
        keeper_task: The task whose trigger is to take the batch.
        timeout_seconds: The hand-off timeout.
        released: Called after the batch was released, when nobody needs anything that was stored with it.
        deferred: Called when the keeper's task is seen deferred: to leave word for its trigger, wherever that runs.
        receive_task: The task that received, as whose XCom it is noted how long the leases last meanwhile.
    """

    def __init__(
        self,
        keepers: TriggererKeepers,
        batch_id: str,
        shared: SharedBatch,
        keeper_task: RunOfTask,
        timeout_seconds: float,
        released: Callable[[], Awaitable[None]] | None = None,
        deferred: Callable[[], Awaitable[None]] | None = None,
        receive_task: RunOfTask | None = None,
    ) -> None:
        self._keepers = keepers
        self._batch_id = batch_id
        self._shared = shared
        self._keeper_task = keeper_task
        self._timeout_seconds = timeout_seconds
        self._released = released
        self._deferred = deferred
        self._receive_task = receive_task
        self._certainty = Certainty(shared.batch, keepers.clock)
        self._lease_log = LeaseLog(shared.batch.queue_url)

    def start(self) -> asyncio.Task[None]:
        """Begin to hold the batch, from the event loop."""
        self._shared.listener = self._lease_log.happened
        self._keepers.enter(self._batch_id, self._shared, self)
        # Counted before whoever received the batch gives up its own use of the keeper.
        self._shared.shared_keeper.users += 1
        return self._keepers.loop.create_task(
            self._run(), name=f"sqs-lease hand-off to {self._keeper_task}", context=Context()
        )

    async def _run(self) -> None:
        try:
            await self._hold()
        except asyncio.CancelledError:
            # The triggerer stops. Whoever takes over needs time: this is the most that can be given.
            if self._is_ours():
                await self._keepers.leave(self._batch_id, self._shared, Leaving.EXTEND)
            raise
        finally:
            await self._keepers.release(self._shared.shared_keeper)

    async def _hold(self) -> None:
        clock = self._keepers.clock
        ends_at = clock.now() + self._timeout_seconds
        state: str | None = None
        answered_at: float | None = None
        deferred_at: float | None = None
        task = self._keeper_task
        with self._keepers.poller.watch(task.dag_id, task.run_id, [task.task_id]) as watch:
            while self._is_ours():
                states = await _next_states(watch)
                if not self._is_ours():
                    return  # Claimed while the answer was on its way, so it says nothing about this process.
                now = clock.now()
                if states is not None:
                    state, answered_at = states.get(task.task_id), now
                if state == "deferred":
                    if deferred_at is None:
                        deferred_at = now
                        if self._deferred is not None:
                            await self._deferred()
                    if now - deferred_at >= ADOPTION_SECONDS:
                        self._forget("its keeper runs in another triggerer")
                elif state == "success":
                    self._forget("its keeper settled it in another triggerer")
                elif state in _NOBODY_WILL_COME or now >= ends_at:
                    known = answered_at is not None and now - answered_at <= _FRESH_SECONDS
                    may_have_taken_over = deferred_at is not None or state == "running"
                    if known and not may_have_taken_over:
                        await self._release(state)
                    elif may_have_taken_over or now >= ends_at + _ANSWER_SECONDS:
                        self._forget("nothing is known of its keeper, or it is about to take over")
                else:
                    await self._note_certainty()

    async def _note_certainty(self) -> None:
        """After extensions, leave word of how long the leases last: a keeper elsewhere may then release them."""
        if self._receive_task is None or not self._certainty.is_news():
            return
        progress = Progress(certain_until=self._certainty.until())
        try:
            await publish(self._receive_task, PROGRESS_KEY, progress.encode(), patience_seconds=0)
        except CommsError as error:
            logger.warning("How long the leases of %s last cannot be written down: %s", self._keeper_task, error)

    def _is_ours(self) -> bool:
        return self._shared.owner is self

    def _forget(self, why: str) -> None:
        logger.info("Batch %s of %s is held here no longer: %s", self._batch_id, self._keeper_task, why)
        self._keepers.remove(self._batch_id, self._shared)
        self._shared.owner = None

    async def _release(self, state: str | None) -> None:
        logger.error(
            "%s did not take over its messages of %s (its state is %s): they are released. "
            "Check that workers and pool slots are free for it, or raise handoff_timeout",
            self._keeper_task,
            self._shared.batch.queue_url,
            state,
        )
        # From here on nobody may claim what is being given back.
        self._keepers.batches.pop(self._batch_id, None)
        await self._shared.batch.release_all()
        self._forget("it was released")
        if self._released is not None:
            await self._released()


async def _next_states(watch: StateWatch) -> TaskStates | None:
    """The next answer, or None after a while without one: time passes, and claims are made, meanwhile."""
    try:
        async with asyncio.timeout(POLL_SECONDS * 2):
            return await watch.next()
    except TimeoutError:
        return None
