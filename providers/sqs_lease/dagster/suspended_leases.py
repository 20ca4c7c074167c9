"""Gives back a lease whose step failed while its generator was suspended in the block.

Dagster keeps a step's exception in the step's context. From Python 3.12 on, the exception's traceback leads to the
frames of all callers, from there to the suspended generator, and from its frame to the context again. So nothing closes
the generator before the garbage collector finds that circle, and that may take until the process ends. The step's
failure is reported before, and that report is what this module waits for.
"""

from __future__ import annotations

import logging
import weakref

import dagster as dg

from sqs_lease.blocking import LeaseBlock
from sqs_lease.dagster.step import Context, step_key

logger = logging.getLogger(__name__)

_ENDS = (dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.STEP_UP_FOR_RETRY)


def give_back_if_step_fails(context: Context, block: LeaseBlock) -> None:
    """Have a lease given back when its step is reported as failed, or as to be tried again.

    A block that has ended by then is left alone. Where the function is called directly, nothing is done.

    Args:
        context: The context of the op or asset.
        block: The lease.
    """
    key = step_key(context)
    if key is None:
        return
    # Dagster keeps the listener as long as the instance.
    listening = weakref.ref(block)

    def see(entry: dg.EventLogEntry) -> None:
        event, suspended = entry.dagster_event, listening()
        if suspended is None or event is None or event.step_key != key or event.event_type not in _ENDS:
            return
        try:
            if suspended.give_back():
                logger.info("Step %s failed while it was suspended in the block of its lease, which is given back", key)
        except Exception:
            # The step's failure is reported whatever becomes of its messages.
            logger.exception("The lease of step %s could not be given back", key)

    context.instance.add_event_listener(context.run.run_id, see)
