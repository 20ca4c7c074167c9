"""Sees how a step ends that leases: what it left open is given back, and what it deleted too early is told.

Dagster reports a step's events to listeners in the process of the step. Five things can only be seen there:

- The step failed while its generator was suspended in the block of a lease, because what it yielded was not stored.
  Dagster keeps a step's exception in the step's context. From Python 3.12 on, the exception's traceback leads to the
  frames of all callers, from there to the suspended generator, and from its frame to the context again. So nothing
  closes the generator before the garbage collector finds that circle, and that may take until the process ends.
- The step ended after the block of its lease had raised, and Dagster tries it again or not: the step may have survived
  the exception, or made a ``RetryRequested`` or another ``Failure`` of it outside of the block.
- A blocking check that the step yielded before or within the block failed, so that Dagster fails the step when it has
  ended.
- The step stored a value, or failed, after its lease had ended and its messages were deleted.
- What a lease could not settle when the step had ended: no exception is left to say it.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Final, Protocol

import dagster as dg

from sqs_lease.dagster._internals import (
    Context,
    failed_blocking_check,
    failed_blocking_checks,
    is_run_tried_again,
    listen,
    may_have_failed_by,
    step_key,
    stores_values,
    warn_in_log,
)

logger = logging.getLogger(__name__)

_FAILED: Final = (dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.STEP_UP_FOR_RETRY)

MOST_DEFERRED: Final = 20
"""So many leases whose blocks raised wait at once for the end of their step; each has a thread."""

_watches: MutableMapping[object, StepWatch] = weakref.WeakKeyDictionary()
"""The watch of each attempt at a step, by the attempt's context."""


class OpenLease(Protocol):
    """A lease whose block may be open."""

    def give_back(self) -> bool:
        """Give it back if its block is open; return whether it was."""

    def settle(self, *, is_tried_again: bool) -> None:
        """Settle what its block left, which raised."""

    def unsettled(self) -> str | None:
        """Say what the service did not settle as asked; None where there is nothing to say, or no more."""


class StepWatch:
    """Watches one attempt at a step, in the process that makes it.

    Args:
        key: The step's key.
        run: Its run.
        stores_values: Whether the step has outputs with values.
        failed_checks: The blocking checks of the step that failed already.

    Attributes:
        sees_the_end: Whether it is told how the step ends, so that leases may wait for that.
    """

    def __init__(self, key: str, run: dg.DagsterRun, *, stores_values: bool, failed_checks: Iterable[str] = ()) -> None:
        self.sees_the_end = True
        self._key = key
        self._run = run
        self.stores_values: Final = stores_values
        # Weakly, because Dagster keeps the listener as long as the instance.
        self._leases: weakref.WeakSet[OpenLease] = weakref.WeakSet()
        # Strongly: nobody else refers to these, and what is garbage is given back.
        self._deferred: deque[OpenLease] = deque()
        self._deleted = 0
        self._failed_checks = list(failed_checks)
        self._last_raised: str | None = None
        self._has_warned = False
        self._is_over = False

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """The blocking checks that failed so far: Dagster fails the step when it has ended."""
        return tuple(self._failed_checks)

    def add(self, lease: OpenLease) -> None:
        """Give a lease back if the step fails while the block is open."""
        self._leases.add(lease)

    def defer(self, lease: OpenLease) -> Iterator[str]:
        """Settle a lease whose block raised when the step has ended.

        Where too many wait already, the oldest is settled at once: the step went on for long after that.

        Yields:
            What the service did not settle as asked.
        """
        self._deferred.append(lease)
        while len(self._deferred) > MOST_DEFERRED:
            yield from self._settle(self._deferred.popleft(), is_tried_again=False)

    def ended(self, deleted: int) -> None:
        """Take note of a block that ended well.

        Args:
            deleted: How many of its messages were deleted.
        """
        self._deleted += deleted
        self._last_raised = None

    def raised(self, error: str) -> None:
        """Take note of a block that raised.

        Args:
            error: The name of the exception's class.
        """
        self._last_raised = error

    def see(self, instance: dg.DagsterInstance, entry: dg.EventLogEntry) -> None:
        """Take an event of the run."""
        event = entry.dagster_event
        if self._is_over or event is None or event.step_key != self._key:
            return
        if event.event_type is dg.DagsterEventType.HANDLED_OUTPUT:
            self._warn(instance, entry, "stored a value when the block of its lease had ended")
        elif (check := failed_blocking_check(event)) is not None:
            self._failed_checks.append(check)
        elif event.event_type is dg.DagsterEventType.STEP_SUCCESS:
            self._settle_all(instance, entry, is_tried_again=False)
        elif event.event_type in _FAILED:
            self._is_over = True
            is_retried = event.event_type is dg.DagsterEventType.STEP_UP_FOR_RETRY
            if self._deferred:
                self._settle_all(instance, entry, is_tried_again=is_retried or self._is_run_repeated(instance))
            # What a step without values did with earlier leases, it did before it began the one that failed.
            is_by_lease = self._last_raised is not None and may_have_failed_by(event, self._last_raised)
            is_explained = is_by_lease and not self.stores_values
            if not self._give_back(instance, entry) and not is_explained:
                self._warn(instance, entry, "failed when the block of its lease had ended")

    def _is_run_repeated(self, instance: dg.DagsterInstance) -> bool:
        try:
            return is_run_tried_again(instance, self._run)
        except Exception:
            # A message that is given back can still be dead-lettered later.
            logger.exception("Whether run %s is repeated is not known: messages are given back", self._run.run_id)
            return True

    def _settle_all(self, instance: dg.DagsterInstance, entry: dg.EventLogEntry, *, is_tried_again: bool) -> None:
        while self._deferred:
            for problem in self._settle(self._deferred.popleft(), is_tried_again=is_tried_again):
                warn_in_log(instance, entry, problem)

    def _settle(self, lease: OpenLease, *, is_tried_again: bool) -> Iterator[str]:
        try:
            lease.settle(is_tried_again=is_tried_again)
        except Exception as error:
            # The end of the step is reported whatever becomes of its messages.
            logger.exception("The lease of step %s could not be settled", self._key)
            yield f"A lease of step {self._key!r} could not be settled ({type(error).__name__}): {error}"
        if (problem := lease.unsettled()) is not None:
            yield problem

    def _give_back(self, instance: dg.DagsterInstance, entry: dg.EventLogEntry) -> bool:
        was_open = False
        for lease in list(self._leases):
            try:
                was_open |= lease.give_back()
            except Exception:
                # The step's failure is reported whatever becomes of its messages.
                logger.exception("The lease of step %s could not be given back", self._key)
            if (problem := lease.unsettled()) is not None:
                warn_in_log(instance, entry, problem)
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
            "is not stored, or what else the step does with them is not done. Decorate the function with leased(), "
            "which has what it returns stored first; or yield the value within the block; or annotate the function "
            "with -> None if it has no value"
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
        # It sees what comes after the step's first lease; a check may have failed before that.
        failed_checks = failed_blocking_checks(context)
        watch = StepWatch(key, context.run, stores_values=stores_values(context), failed_checks=failed_checks)
        _watches[attempt] = watch
        watch.sees_the_end = listen(context, watch.see)
    return watch
