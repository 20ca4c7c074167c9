"""How a run gets the batches of the events that started it: it asks the trigger, and waits to be named.

Asked for are all batches whose events came to the run. Left out are those that another run has, those that a keeper
has or had already (this task was cleared, or the batch came in two events), and those that are no longer open: settled,
released, or lapsed while no triggerer ran.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from sqs_lease.airflow.batches.protocol import REGISTERED_AT, BatchEvent, BatchRegistry, Claim, Claimant, Stage
from sqs_lease.airflow.transfer.payload import BatchValue
from sqs_lease.clock import Clock

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Pause between two looks at the registry; the trigger looks for claims as often."""

PATIENCE_SECONDS: Final = 120.0
"""How long to wait for the trigger: triggers of a triggerer that died go on elsewhere after 20 to 40 s, or later."""


class NotAnsweredError(RuntimeError):
    """The trigger named nobody in time: it does not run."""


class Store(Protocol):
    """What runs need of the asset state store, see :class:`~sqs_lease.airflow.airflow_api.assets.TaskAssetState`."""

    def get(self, key: str) -> Any:
        """Return the value of a key; None if the key does not exist."""

    def put(self, key: str, value: Any) -> None:
        """Set the value of a key."""


@dataclass(frozen=True, slots=True)
class ClaimedBatch:
    """A batch that is this run's.

    Attributes:
        messages: Its messages, or what stands for them (``transfer/payload.py``), without those lost meanwhile.
        lease: Its leases, as plain values.
    """

    messages: BatchValue
    lease: dict[str, Any]


class Claiming:
    """One run's claim to the batches of its events, all of one queue.

    Args:
        store: The asset's state store.
        events: The run's events, at least one; the same batch may be in several.
        claimant: The run.
        clock: Source of time.
    """

    def __init__(self, store: Store, events: Sequence[BatchEvent], claimant: Claimant, *, clock: Clock) -> None:
        self._store = store
        self._place = events[0].place
        self._claimant = claimant
        self._clock = clock
        self._undecided = list(dict.fromkeys(event.batch_id for event in events))
        self._order = tuple(self._undecided)
        self._taken: dict[str, ClaimedBatch] = {}

    def steps(self) -> Iterator[float]:
        """Claim; each step gives the seconds to wait before the next.

        Raises:
            NotAnsweredError: The trigger did not answer in time.
            sqs_lease.airflow.airflow_api.requests.CommsError: Airflow gave no usable answer.
        """
        ends_at = self._clock.now() + PATIENCE_SECONDS
        while self._look():
            if self._clock.now() >= ends_at:
                raise NotAnsweredError(
                    f"the trigger of asset {self._place.asset!r} did not answer for {PATIENCE_SECONDS:g} s; "
                    "check that a triggerer runs. Its messages are received again, or this task is tried again"
                )
            asked = Claim(self._claimant, self._undecided).encode()
            if self._store.get(self._place.claim) != asked:
                self._store.put(self._place.claim, asked)
            yield LOOK_SECONDS

    def taken(self) -> list[ClaimedBatch]:
        """The batches that are this run's, in the order of their events."""
        return [self._taken[batch_id] for batch_id in self._order if batch_id in self._taken]

    def _look(self) -> bool:
        """Take in what the registry says; return whether anything is undecided."""
        registry = BatchRegistry.decode(self._store.get(self._place.registry))
        for batch_id in tuple(self._undecided):
            entry = None if registry is None else registry.entries.get(batch_id)
            if entry is not None and entry.stage is Stage.WAITING:
                continue
            self._undecided.remove(batch_id)
            if entry is None:
                logger.warning("Leaving out batch %s: it was settled or given back already", batch_id)
            elif entry.claimant != self._claimant:
                logger.warning("Leaving out batch %s: it belongs to %s", batch_id, entry.claimant)
            elif entry.stage is Stage.AT_WORK:
                logger.warning(
                    "Leaving out batch %s: the keeper of this run has, or had, it already. Messages of it that were "
                    "not settled come back to the queue, and with another event",
                    batch_id,
                )
            else:
                self._take(batch_id)
        return bool(self._undecided)

    def _take(self, batch_id: str) -> None:
        messages = self._store.get(self._place.messages(batch_id))
        lease = self._store.get(self._place.lease(batch_id))
        if messages is None or lease is None:
            logger.warning("Leaving out batch %s: it was given back just now", batch_id)
            return
        self._taken[batch_id] = ClaimedBatch(messages, {**lease, REGISTERED_AT: asdict(self._place)})
