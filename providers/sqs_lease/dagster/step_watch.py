"""Sees how a step ends that leases: what it left open is given back, and what it deleted too early is told.

Dagster reports a step's events to listeners in the process of the step. Three things can only be seen there:

- The step failed while its generator was suspended in the block of a lease, because what it yielded was not stored.
  Dagster keeps a step's exception in the step's context. From Python 3.12 on, the exception's traceback leads to the
  frames of all callers, from there to the suspended generator, and from its frame to the context again. So nothing
  closes the generator before the garbage collector finds that circle, and that may take until the process ends.
- The step failed after the block of its lease had raised, and Dagster tries it again or not: the exception may have
  become a ``RetryRequested`` outside of the block.
- The step stored a value, or failed, after its lease had ended and its messages were deleted.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import MutableMapping
from typing import Final, Protocol

import dagster as dg

from sqs_lease.dagster._internals import Context, listen, step_key, warn_in_log

logger = logging.getLogger(__name__)

_FAILED: Final = (dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.STEP_UP_FOR_RETRY)

_watches: MutableMapping[object, StepWatch] = weakref.WeakKeyDictionary()
"""The watch of each attempt at a step, by the attempt's context."""


class OpenLease(Protocol):
    """A lease whose block may be open."""

    def give_back(self) -> bool:
        """Give it back if its block is open; return whether it was."""

    def settle(self, *, is_tried_again: bool) -> None:
        """Settle what its block left, which raised."""


class StepWatch:
    """Watches one attempt at a step, in the process that makes it.

    Args:
        key: The step's key.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        # Weakly, because Dagster keeps the listener as long as the instance.
        self._leases: weakref.WeakSet[OpenLease] = weakref.WeakSet()
        # Strongly: nobody else refers to these, and what is garbage is given back.
        self._deferred: list[OpenLease] = []
        self._deleted = 0
        self._has_warned = False
        self._is_over = False

    def add(self, lease: OpenLease) -> None:
        """Give a lease back if the step fails while the block is open."""
        # The step goes on, so what an earlier block raised is no reason to try it again.
        self._settle(is_tried_again=False)
        self._leases.add(lease)

    def defer(self, lease: OpenLease) -> None:
        """Settle a lease whose block raised when the step has ended, or leases again."""
        self._deferred.append(lease)

    def ended(self, deleted: int) -> None:
        """Take note of a block that ended well.

        Args:
            deleted: How many of its messages were deleted.
        """
        self._deleted += deleted

    def raised(self) -> None:
        """Take note of a block that raised: a failure of the step is no surprise then."""
        self._deleted = 0

    def see(self, instance: dg.DagsterInstance, entry: dg.EventLogEntry) -> None:
        """Take an event of the run."""
        event = entry.dagster_event
        if self._is_over or event is None or event.step_key != self._key:
            return
        if event.event_type is dg.DagsterEventType.HANDLED_OUTPUT:
            self._warn(instance, entry, "stored a value when the block of its lease had ended")
        elif event.event_type is dg.DagsterEventType.STEP_SUCCESS:
            self._settle(is_tried_again=False)
        elif event.event_type in _FAILED:
            self._is_over = True
            self._settle(is_tried_again=event.event_type is dg.DagsterEventType.STEP_UP_FOR_RETRY)
            if not self._give_back():
                self._warn(instance, entry, "failed when the block of its lease had ended")

    def _settle(self, *, is_tried_again: bool) -> None:
        deferred, self._deferred = self._deferred, []
        for lease in deferred:
            try:
                lease.settle(is_tried_again=is_tried_again)
            except Exception:
                # The end of the step is reported whatever becomes of its messages.
                logger.exception("The lease of step %s could not be settled", self._key)

    def _give_back(self) -> bool:
        was_open = False
        for lease in list(self._leases):
            try:
                was_open |= lease.give_back()
            except Exception:
                # The step's failure is reported whatever becomes of its messages.
                logger.exception("The lease of step %s could not be given back", self._key)
        if was_open:
            logger.info(
                "Step %s failed while it was suspended in the block of its lease, which is given back", self._key
            )
        return was_open

    def _warn(self, instance: dg.DagsterInstance, entry: dg.EventLogEntry, what: str) -> None:
        if self._has_warned or not self._deleted:
            return
        self._has_warned = True
        text = (
            f"Step {self._key!r} {what}: its {self._deleted} messages were deleted by then, and are lost if the value "
            "is not stored. Decorate the function with leased(), which has what it returns stored first; or yield the "
            "value within the block; or annotate the function with -> None if it has no value"
        )
        warn_in_log(instance, entry, text)


def watch_of(context: Context) -> StepWatch | None:
    """Return the watch of the attempt at a step that a context belongs to; None where its function is called directly.

    Args:
        context: The context of the op or asset.
    """
    key = step_key(context)
    if key is None:
        return None
    attempt = context.op_execution_context
    watch = _watches.get(attempt)
    if watch is None:
        watch = _watches[attempt] = StepWatch(key)
        listen(context, watch.see)
    return watch
