"""Settles the batches of a lease sensor: looks up their runs, and when these are over, does what the messages are due.

The order in which a batch is settled makes it safe to be killed anywhere (``lease_files.py``), and to lose the
ownership of the batch to another process meanwhile: first a file says so, then it is asked whether that still holds,
then SQS is called, and at last the directory is removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import dagster as dg

from sqs_lease.clock import Clock
from sqs_lease.core.events import Outcome
from sqs_lease.core.failure_rules import Delete, Release, Settlement
from sqs_lease.core.group_order import hold_back
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.dagster._internals import (
    materialized_by,
    observe,
    report_run_event,
    run_retries_enabled,
    upstream_steps,
)
from sqs_lease.dagster.lease_sensor.dispatch import Destination
from sqs_lease.dagster.lease_sensor.runs import Decision, Fate, decide
from sqs_lease.dagster.metadata import lease_metadata, lease_summary
from sqs_lease.dagster.run_batch.folder import BatchFolder
from sqs_lease.dagster.run_batch.lease_files import begin_settling, stop_settling
from sqs_lease.dagster.run_batch.leased_batch import BATCH_TAG
from sqs_lease.dagster.run_batch.ownership import Ownership
from sqs_lease.dagster.verdict import Verdict, WorkDone, failed, verdict
from sqs_lease.keeper.batch import Batch

logger = logging.getLogger(__name__)

UNKNOWN: Final = Decision(Fate.REQUESTED, "its runs were not looked up yet")


@dataclass(slots=True, eq=False)
class KeptBatch:
    """A batch that is held while runs work on it.

    Attributes:
        batch_id: Names it; also the run key of its first run.
        uri: Its directory, which the runs have as a tag.
        folder: The same to read and write.
        held: Its leases.
        changed_at: When it was received or taken over, or its runs were last seen to go on or to change.
        states: The states of its runs by their ids.
        decision: What becomes of it, as far as is known.
        saved_until: Until when its directory says that the leases last.
        lost: How many of its messages were lost, as far as was told.
        settling: What settles it; None while it is held.
        destination: The run that it goes to; None for what the sensor says of all runs.
        after: The batches that have earlier messages of the same message groups: no run is asked for before they are
            done.
        waits: Whether one of those is held still.
        received: The ids of its messages, until it has their leases.
        refused: Why no run can be asked for; empty where one can.
        asked: How often a run was asked for.
        is_partial: Whether some of its messages came back although the rest is deleted.
    """

    batch_id: str
    uri: str
    folder: BatchFolder
    held: Batch
    changed_at: float
    states: Mapping[str, str] = field(default_factory=dict)
    decision: Decision = UNKNOWN
    saved_until: float = 0.0
    lost: int = 0
    settling: asyncio.Task[None] | None = None
    destination: Destination | None = None
    after: frozenset[str] = frozenset()
    waits: bool = False
    received: Sequence[str] = ()
    refused: str = ""
    asked: int = 0
    is_partial: bool = False

    def is_done(self) -> bool:
        """Whether all of its messages are out of the queue, once it is settled."""
        ends = {end.outcome for end in self.held.outcomes().values()}
        return not self.is_partial and not self.held.count_held() and ends <= {Outcome.DELETED, Outcome.DEAD_LETTERED}


class BatchSettler:
    """Decides and does what batches are due.

    Args:
        instance: The instance that has the runs.
        ownership: Whether this process may settle.
        clock: Source of time, the keeper's.
        run_deadline_seconds: How long a run is waited for that does not appear.
    """

    def __init__(
        self, instance: dg.DagsterInstance, ownership: Ownership, clock: Clock, *, run_deadline_seconds: float
    ) -> None:
        self._instance = instance
        self._ownership = ownership
        self._clock = clock
        self._run_deadline_seconds = run_deadline_seconds

    async def decision(self, batch: KeptBatch) -> Decision:
        """Look up a batch's runs and decide what becomes of it."""
        runs = await asyncio.to_thread(self._runs, batch)
        now = self._clock.now()
        states = {run.run_id: run.status.value for run in runs}
        if states != batch.states:
            batch.states, batch.changed_at = states, now
        if not runs and not batch.held.count_held():
            return Decision(Fate.GIVEN_BACK, "none of its messages is held any more, and no run was made")
        if not runs and batch.refused:
            return Decision(Fate.GIVEN_BACK, batch.refused)
        decision = await asyncio.to_thread(
            decide,
            batch.batch_id,
            runs,
            quiet_seconds=now - batch.changed_at,
            run_deadline_seconds=self._run_deadline_seconds,
            retries_enabled=run_retries_enabled(self._instance),
            leaves_out=partial(leaves_out, self._instance),
        )
        if decision.fate is Fate.WORKING and any(not run.is_finished for run in runs):
            batch.changed_at = now
        return decision

    def _runs(self, batch: KeptBatch) -> list[dg.DagsterRun]:
        records = self._instance.get_run_records(dg.RunsFilter(tags={BATCH_TAG: batch.uri}))
        return [record.dagster_run for record in records]

    async def settle(self, batch: KeptBatch, decision: Decision) -> bool:
        """Settle a batch.

        Returns:
            Whether it is settled. If not, its owner at that time looks at it again.
        """
        ids = list(batch.held.message_ids())
        found = await asyncio.to_thread(self._verdict, batch, decision, ids)
        receipts = {lease.receipt.message_id: lease.receipt for lease in batch.held.leases()}
        settlements = _settlements(found, receipts)
        deleting = _deletes(settlements, batch.held.leases())
        await asyncio.to_thread(begin_settling, batch.folder, deleting)
        # Looked at after that file is there: a new owner that did not find it is found here, and so is a run that
        # began before. One that begins from now on finds that it is too late.
        ours = await asyncio.to_thread(self._ownership.is_ours)
        if not ours or (await self.decision(batch)).fate is not decision.fate:
            await asyncio.to_thread(stop_settling, batch.folder)
            return False
        for failure, failed_ids in found.failed.items():
            chosen = [receipts[message_id] for message_id in failed_ids if message_id in receipts]
            await batch.held.fail(failure.reason, chosen, errors=failure.errors)
        await batch.held.settle({receipt: one for receipt, one in settlements.items() if one == Release()})
        await batch.held.settle({receipt: one for receipt, one in settlements.items() if one == Delete()})
        await asyncio.to_thread(self._tell, batch, decision)
        return True

    def _verdict(self, batch: KeptBatch, decision: Decision, ids: Sequence[str]) -> Verdict:
        if decision.fate is Fate.GIVEN_BACK:
            return Verdict({}, ids)
        runs = self._runs(batch)[::-1]
        work, pieces = WorkDone(self._instance, runs), batch.folder.pieces()
        if decision.fate is Fate.SUCCEEDED:
            return verdict(ids, work.steps, pieces)
        return failed(ids, work.steps, pieces, is_whole=work.is_whole(), reason=decision.reason)

    def _tell(self, batch: KeptBatch, decision: Decision) -> None:
        """Say among the events of the run what became of its batch, and with the assets that were made of it."""
        run = None if decision.run_id is None else self._instance.get_run_by_id(decision.run_id)
        if run is not None:
            report_run_event(self._instance, run, lease_summary(batch.held))
        try:
            steps, metadata = batch.folder.pieces().keys(), lease_metadata(batch.held)
            for each in self._runs(batch):
                observe(self._instance, each, materialized_by(self._instance, each, steps), metadata)
        except Exception:
            # The messages are settled, which numbers are no reason to do again.
            logger.exception("The assets of batch %s have no numbers", batch.batch_id)


def leaves_out(instance: dg.DagsterInstance, run: dg.DagsterRun, before: Sequence[dg.DagsterRun]) -> bool:
    """Whether a run leaves out work on its batch that was not done before it.

    Args:
        instance: The instance that has the runs.
        run: A run that repeats another one.
        before: The runs on the batch before it, the oldest first.
    """
    planned = upstream_steps(instance, run)
    return planned is None or not WorkDone(instance, before).is_done_but_for(run, planned.keys())


def _settlements(found: Verdict, receipts: Mapping[str, Receipt]) -> dict[Receipt, Settlement]:
    """What becomes of the messages that did not fail."""
    failed_ids = {each for several in found.failed.values() for each in several}
    released = set(found.released)
    return {
        receipt: Release() if message_id in released else Delete()
        for message_id, receipt in receipts.items()
        if message_id not in failed_ids
    }


def _deletes(settlements: Mapping[Receipt, Settlement], leases: Sequence[Lease]) -> list[str]:
    """The ids of what is deleted for certain, also where one that failed holds back others of its group."""
    whole = {lease.receipt: settlements.get(lease.receipt, Release()) for lease in leases}
    carried_out = hold_back(whole, leases, lambda _: None)
    return [receipt.message_id for receipt, one in carried_out.items() if one == Delete()]
