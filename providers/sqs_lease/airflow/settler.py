"""Settles the messages of a held batch as the work tasks that concern them end."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from random import Random
from typing import Any, Final

from sqs_lease.airflow.comms import CommsError, RunOfTask, publish, pull_plain_mapping
from sqs_lease.airflow.handoff import TAKEOVER_SECONDS
from sqs_lease.airflow.progress import PROGRESS_KEY, Progress
from sqs_lease.airflow.settling import (
    Decision,
    InstanceKey,
    TaskStates,
    WorkTask,
    concerned,
    decide,
    failed_items,
)
from sqs_lease.airflow.state_poller import StateWatch
from sqs_lease.clock import Clock
from sqs_lease.core.events import Outcome, Settled
from sqs_lease.core.group_order import hold_back
from sqs_lease.core.leases import Lease
from sqs_lease.core.messages import Receipt
from sqs_lease.core.settlements import DeadLetter, Delete, Expire, FailureRule, Release, Settlement
from sqs_lease.keeper import HeldBatch, KeeperClosedError

logger = logging.getLogger(__name__)

READS_AT_ONCE: Final = 20
"""Return values read before the states are looked at again; each read takes the supervisor about 20 ms."""

STALL_SECONDS: Final = 10.0
"""A longer gap between two answers may mean that this process stood still and another one took over meanwhile."""

CERTAINTY_SECONDS: Final = 15.0
"""Shortest time between two notes of how long the leases last: a takeover needs one that is newer than the lease."""

MAX_LISTED_MESSAGES: Final = 100
"""Up to this many messages the report lists their ids by outcome."""

_OUTCOMES: Final[Mapping[type, Outcome]] = {
    Delete: Outcome.DELETED,
    Release: Outcome.RELEASED,
    Expire: Outcome.EXPIRED,
    DeadLetter: Outcome.DEAD_LETTERED,
}


class Settler:
    """Decides on one batch and carries it out, until nothing of it is held any more.

    Args:
        task: The keeper's task.
        batch: The batch, which goes on being extended by its keeper.
        leases: All leases of the batch in the order of the messages, those settled earlier included.
        work: The tasks that work on the messages.
        on_failure: What becomes of failed messages.
        clock: Source of time.
        inherited: What another process settled before, by position.
        settle_after: Nothing is settled before this time of the clock.
    """

    def __init__(
        self,
        task: RunOfTask,
        batch: HeldBatch,
        leases: Sequence[Lease],
        work: Sequence[WorkTask],
        on_failure: FailureRule,
        *,
        clock: Clock,
        inherited: Mapping[int, Outcome],
        settle_after: float,
    ) -> None:
        self._task = task
        self._batch = batch
        self._leases = leases
        self._message_ids = [lease.receipt.message_id for lease in leases]
        self._positions = {lease.receipt: position for position, lease in enumerate(leases)}
        self._work = work
        self._on_failure = on_failure
        self._clock = clock
        self._inherited = inherited
        self._settle_after = settle_after
        self._random = Random()
        self._asked_at = clock.now()
        self._open = [position for position in range(len(leases)) if position not in inherited]
        self._progress = dict(inherited)
        self._certain_until: float | None = None
        self._noted_extensions = 0
        self._noted_at = -math.inf
        self._failures: dict[InstanceKey, frozenset[str]] = {}
        self._settling: set[asyncio.Task[None]] = set()

    def watched_tasks(self) -> list[str]:
        """The tasks whose states must be watched: the work, and the keeper itself."""
        return [self._task.task_id, *(task.task_id for task in self._work)]

    async def run(self, watch: StateWatch) -> None:
        """Settle as the work ends; returns when each message was settled or lost."""
        try:
            while self._still_open():
                states = await watch.next()
                if self._may_settle(states):
                    await self._settle_what_is_decided(states)
                    await self._note_certainty()
            if self._settling:
                await asyncio.gather(*self._settling)
        finally:
            for settling in self._settling:
                settling.cancel()

    def report(self) -> dict[str, Any]:
        """Counts of the batch and, where they are not too many, the message ids by outcome."""
        counts = asdict(self._batch.report())
        counts["received"] = len(self._leases)
        by_outcome: dict[str, list[str]] = {}
        for position, outcome in self._inherited.items():
            counts[_field(outcome)] += 1
            by_outcome.setdefault(_field(outcome), []).append(self._message_ids[position])
        for receipt, settled in self._batch.outcomes().items():
            by_outcome.setdefault(_field(settled.outcome), []).append(receipt.message_id)
        listed = len(self._leases) <= MAX_LISTED_MESSAGES
        return {**counts, "messages": by_outcome} if listed else counts

    def _still_open(self) -> bool:
        self._open = [position for position in self._open if self._batch.holds(self._leases[position].receipt)]
        return bool(self._open)

    def _may_settle(self, states: TaskStates) -> bool:
        """Whether this process is certainly the one that holds the batch.

        A keeper that is not deferred any more was cleared or marked, or ended in another triggerer while this
        one stood still.
        """
        now = self._clock.now()
        if now - self._asked_at > STALL_SECONDS:
            self._settle_after = max(self._settle_after, now + TAKEOVER_SECONDS)
        self._asked_at = now
        return now >= self._settle_after and states.get(self._task.task_id) == "deferred"

    async def _settle_what_is_decided(self, states: TaskStates) -> None:
        while self._still_open():
            decision = decide(self._work, states, self._failures, self._message_ids, self._open)
            await self._begin(decision)
            for instance in decision.unread[:READS_AT_ONCE]:
                try:
                    returned = await pull_plain_mapping(self._task, instance)
                except CommsError as error:
                    logger.warning("The return value of %s[%d] cannot be read yet: %s", *instance, error)
                    return
                self._failures[instance] = failed_items(returned, self._concerned(instance))
            if not decision.unread:
                return

    def _concerned(self, instance: InstanceKey) -> Sequence[str]:
        task_id, map_index = instance
        task = next(task for task in self._work if task.task_id == task_id)
        return concerned(task, map_index, self._message_ids)

    async def _begin(self, decision: Decision) -> None:
        settlements: dict[int, Settlement] = dict.fromkeys(decision.delete, Delete())
        settlements |= dict.fromkeys(decision.release, Release())
        for position, reason in decision.fail.items():
            settlements[position] = self._on_failure.settlement(
                receive_count=self._leases[position].receive_count,
                reason=f"{reason} in run {self._task.run_id} of DAG {self._task.dag_id}",
                random=self._random,
            )
            logger.warning("Message %s failed: %s", self._message_ids[position], reason)
        if not settlements:
            return
        by_receipt = {self._leases[position].receipt: value for position, value in settlements.items()}
        if self._batch.queue_url.endswith(".fifo"):
            by_receipt = hold_back(by_receipt, self._leases, self._outcome_of)
        await self._write_ahead(by_receipt)
        self._open = [position for position in self._open if position not in settlements]
        settling = asyncio.get_running_loop().create_task(self._settle(by_receipt))
        self._settling.add(settling)

    async def _write_ahead(self, settlements: Mapping[Receipt, Settlement]) -> None:
        """Leave word of what is about to be settled: whoever resumes the keeper must not extend it again."""
        for receipt, settlement in settlements.items():
            self._progress[self._positions[receipt]] = _OUTCOMES[type(settlement)]
        try:
            await self._publish_progress()
        except CommsError as error:
            logger.warning("The keeper's progress cannot be written down; settling all the same: %s", error)

    async def _note_certainty(self) -> None:
        """After extensions, leave word of how long the leases last now: whoever takes over may then release them."""
        extensions, now = self._batch.extensions, self._clock.now()
        if extensions == self._noted_extensions or now - self._noted_at < CERTAINTY_SECONDS:
            return
        certain_until = self._batch.certain_until()
        ahead = self._clock.wall() - now
        self._certain_until = None if certain_until is None else certain_until + ahead
        self._noted_extensions, self._noted_at = extensions, now
        try:
            await self._publish_progress()
        except CommsError as error:
            logger.warning("How long the leases last cannot be written down; they are extended all the same: %s", error)

    async def _publish_progress(self) -> None:
        progress = Progress(self._progress, self._certain_until)
        await publish(self._task, PROGRESS_KEY, progress.encode(), patience_seconds=0)

    async def _settle(self, settlements: Mapping[Receipt, Settlement]) -> None:
        try:
            outcomes = await self._batch.settle(settlements)
        except KeeperClosedError as error:
            logger.warning("%d messages could not be settled here: %s", len(settlements), error)
            return
        counts: dict[str, int] = {}
        for settled in outcomes.values():
            counts[settled.outcome.value] = counts.get(settled.outcome.value, 0) + 1
            _log_if_not_as_asked(settled)
        logger.info("Settled: %s", ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))

    def _outcome_of(self, receipt: Receipt) -> Outcome | None:
        settled = self._batch.outcomes().get(receipt)
        return self._inherited.get(self._positions[receipt]) if settled is None else settled.outcome


def _log_if_not_as_asked(settled: Settled) -> None:
    if settled.outcome in (Outcome.LOST, Outcome.FAILED):
        logger.error(
            "Message %s could not be settled (%s), so it comes, or came, back to the queue: %s",
            settled.receipt,
            settled.outcome.value,
            settled.detail,
        )


def _field(outcome: Outcome) -> str:
    return outcome.value.replace("-", "_")
