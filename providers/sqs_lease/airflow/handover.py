"""How a batch changes hands on Airflow, by the one rule.

    A batch has one holder, known by its deadline. Who stops holding it extends it once, writes it down, and forgets
    it. Who starts holding it reads what is written, and relies only on what has not passed its deadline.

Who stops holding, and what it does:

    the receiving task, as its last act          extends by ``handoff_timeout``, publishes the sealed lease, forgets
    a keeper whose triggerer stops               extends by ``handoff_timeout``, forgets
    a keeper that was cleared                    extends by ``handoff_timeout``, notes that, forgets
    a keeper whose work has begun elsewhere      forgets
    a keeper that was marked, or whose sensor    notes that the batch has ended, releases
    begins again
    a triggerer that is killed                   nothing: what it noted last says how long the leases last

Who starts holding is always the keeper's trigger (:mod:`sqs_lease.airflow.triggers.keep`), and always in the same way:
it adopts the leases in its arguments, less what the progress note says. A first start, a restart after a crash and a
keeper that was cleared are the same path.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from sqs_lease.airflow.airflow_api.requests import CommsError, RunOfTask, TaskStates, publish
from sqs_lease.airflow.settlement.progress import PROGRESS_KEY, Progress
from sqs_lease.clock import Clock
from sqs_lease.core.events import Outcome
from sqs_lease.core.messages import Lease
from sqs_lease.core.policies import Never, RenewalPolicy
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.event_loop_rounds import LEASES_IN_A_ROUND, RoundLimiter
from sqs_lease.keeper.plain_leases import WrittenBatch

logger = logging.getLogger(__name__)

ENDED: Final = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})
"""The states in which a task, and its trigger with it, has come to its end."""

_BEGINS_AGAIN: Final = frozenset({None, "scheduled", "queued", "running", "restarting", "up_for_retry"})

_ENOUGH_SHARE: Final = 0.5
"""A lease that lasts for less than this share of what it was to be extended by was not extended."""


def begins_again(task: RunOfTask, states: TaskStates) -> bool:
    """Whether a task that had deferred or ended was cleared, so that its next try begins; or its run was deleted."""
    return states.get(task.task_id) in _BEGINS_AGAIN


async def hand_on(batch: Batch, policy: RenewalPolicy, seconds: float, clock: Clock) -> WrittenBatch:
    """Stop holding a batch for its keeper: extend it once, and say until when its messages stay invisible.

    Args:
        batch: The batch.
        policy: Its policy.
        seconds: The hand-off timeout: how long each lease lasts at least, where SQS extends it.
        clock: The batch's clock.

    Returns:
        What its keeper adopts.
    """
    written = await batch.pass_on(seconds)
    if not written.leases:
        return written
    until = min(lease.deadline for lease in written.leases)
    logger.info(
        "%d messages of %s stay invisible until %s if no keeper takes them over",
        len(written.leases),
        batch.queue_url,
        datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
    )
    enough = clock.wall() + seconds * _ENOUGH_SHARE
    is_extended = not isinstance(policy, Never) and policy.max_lease_seconds > 0
    if is_extended and (short := sum(lease.deadline < enough for lease in written.leases)):
        logger.warning(
            "%d of %d leases of %s could not be extended by %g s: others may receive their messages before the keeper "
            "takes over",
            short,
            len(written.leases),
            batch.queue_url,
            seconds,
        )
    return written


async def adopt(batch: Batch, leases: Sequence[Lease], rounds: RoundLimiter) -> None:
    """Let a batch hold leases that were held elsewhere, see :meth:`Batch.adopt`, a slice at a time.

    The event loop serves all triggers: Airflow warns when it stands still for 0.2 s, and 50 000 leases that are taken
    over at once take several times as long. If the caller is cancelled meanwhile, the batch holds all of them all the
    same.

    Args:
        batch: The batch.
        leases: The leases, in times of the keeper's clock.
        rounds: Shares the rounds of the event loop among slices of work.

    Raises:
        KeeperClosedError: The keeper was closed, or the batch dropped: nobody would extend them.
    """
    adopted = 0
    try:
        while adopted < len(leases):
            some = leases[adopted : adopted + LEASES_IN_A_ROUND]
            await rounds.take(len(some))
            adopted += len(some)
            batch.adopt(some)
    except BaseException:
        batch.adopt(leases[adopted:])
        raise


async def note_end(receiving: RunOfTask, batch_id: str, messages: int, progress: Progress) -> None:
    """Write down that a batch was settled or is about to be given back, for a try of its keeper that begins later.

    That try has the receipt handles still, and by what was written before they would seem to hold: it would extend and
    settle the leases of other consumers. What is held now counts as lost to it.

    Args:
        receiving: The task that received; what the keeper's own task wrote is deleted when it begins again.
        batch_id: The batch.
        messages: How many it has.
        progress: What was settled before.
    """
    settled = {**dict.fromkeys(range(messages), Outcome.LOST), **progress.settled}
    note = replace(progress, settled=settled, certain_until=None, batch_id=batch_id)
    try:
        await publish(receiving, PROGRESS_KEY, note.encode(), patience_seconds=0)
    except CommsError as error:
        logger.warning("It cannot be written that the batch of %s has ended: %s", receiving, error)
