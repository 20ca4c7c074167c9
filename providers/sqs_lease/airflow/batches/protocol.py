"""What an event trigger and the runs that it starts tell each other through the asset state store, as values.

For each queue there are these keys in the state store of the asset:

    sqs_lease/<queue>/registry        the open batches, and which run has which: written by the trigger alone
    sqs_lease/<queue>/claim           the last run that asked for batches: written by runs, read by the trigger
    sqs_lease/<queue>/messages/<id>   the messages of an open batch, until its keeper has it
    sqs_lease/<queue>/lease/<id>      its leases, sealed, with their latest deadlines

The store has no compare-and-set, so the trigger decides who gets a batch: it names a run in the registry, and the run
that asked waits for that. Two runs that ask at the same time overwrite each other's claim, so a run whose batches are
still unassigned asks again. An event itself says no more than where to ask: messages and receipts are never part of
it, because Airflow logs the events of triggers and keeps those of assets for good.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Final, Self, TypeVar

import msgspec

from sqs_lease.airflow.airflow_api.requests import RunOfTask

EVENT_KIND: Final = "sqs-lease batch"
"""What the payloads of our events are known by, among other events of the asset."""

REGISTERED_AT: Final = "registered_at"
"""The key of a lease as plain values that says where the registry is that has its batch until that has ended."""

_READABLE_CHARACTERS: Final = 80

_T = TypeVar("_T")


class Stage(Enum):
    """How far an open batch has come."""

    WAITING = "waiting"
    """No run has asked for it."""

    CLAIMED = "claimed"
    """It was given to a run, whose keeper does not have it yet."""

    AT_WORK = "at work"
    """The run's keeper has it, or had it: the trigger only waits for its end."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """A run that asks for batches, with the task that is to keep them."""

    dag_id: str
    run_id: str
    keeper_task_id: str

    @property
    def keeper(self) -> RunOfTask:
        """The keeper's task."""
        return RunOfTask(self.dag_id, self.run_id, self.keeper_task_id)

    def __str__(self) -> str:
        return f"run {self.run_id!r} of DAG {self.dag_id!r}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the state store of which asset the trigger and the runs meet."""

    asset: str
    prefix: str

    @classmethod
    def of_queue(cls, asset: str, queue: str) -> Self:
        """Return the place of a queue, given as the user named it: URL, name or ARN."""
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", re.split(r"[/:]", queue)[-1])[:_READABLE_CHARACTERS]
        digest = hashlib.sha256(queue.encode()).hexdigest()[:12]
        return cls(asset, f"sqs_lease/{name}-{digest}")

    @property
    def registry(self) -> str:
        """The key of the registry."""
        return f"{self.prefix}/registry"

    @property
    def claim(self) -> str:
        """The key of the last claim."""
        return f"{self.prefix}/claim"

    def messages(self, batch_id: str) -> str:
        """The key of a batch's messages."""
        return f"{self.prefix}/messages/{batch_id}"

    def lease(self, batch_id: str) -> str:
        """The key of a batch's leases."""
        return f"{self.prefix}/lease/{batch_id}"


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """The payload of an event: a batch waits to be claimed."""

    batch_id: str
    queue_url: str
    messages: int
    place: Place

    def encode(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"kind": EVENT_KIND, **asdict(self)}

    @classmethod
    def decode(cls, extra: Mapping[str, Any] | None) -> Self | None:
        """Build it from an asset event's ``extra``; None if the event is not one of this package, or unreadable."""
        payload = (extra or {}).get("payload")
        if not isinstance(payload, Mapping) or payload.get("kind") != EVENT_KIND:
            return None
        return _read(payload, cls)


@dataclass(frozen=True, slots=True)
class RegisteredBatch:
    """An open batch, as the registry shows it.

    Attributes:
        batch_id: Names the batch.
        messages: How many messages it was received with.
        received_at: When its event was fired first, in seconds since the epoch.
        stage: How far it has come.
        claimant: The run that has it; None while it waits.
    """

    batch_id: str
    messages: int
    received_at: float
    stage: Stage = Stage.WAITING
    claimant: Claimant | None = None


@dataclass(frozen=True, slots=True)
class BatchRegistry:
    """What the trigger shows to runs, and to the trigger that takes over from it.

    Attributes:
        owner: A name that each start of a trigger gives itself: a trigger that finds another name was replaced.
        queue_url: The queue.
        entries: The open batches by their ids, in the order of arrival.
    """

    owner: str
    queue_url: str
    entries: Mapping[str, RegisteredBatch] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        """Return it as plain values."""
        entries = [{**asdict(entry), "stage": entry.stage.value} for entry in self.entries.values()]
        return {"owner": self.owner, "queue_url": self.queue_url, "batches": entries}

    @classmethod
    def decode(cls, plain: Mapping[str, Any] | None) -> Self | None:
        """Build it from what :meth:`encode` returned; return None for None, and for what cannot be read.

        A person or another release may have written it. Without a registry no batch is open: nobody is given one, and
        what nobody holds comes back to the queue by itself.
        """
        stored = None if plain is None else _read(plain, _StoredRegistry)
        if stored is None:
            return None
        return cls(stored.owner, stored.queue_url, {entry.batch_id: entry for entry in stored.batches})


@dataclass(frozen=True, slots=True)
class Claim:
    """A run asks for batches."""

    claimant: Claimant
    batch_ids: Sequence[str]

    def encode(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"claimant": asdict(self.claimant), "batch_ids": list(self.batch_ids)}

    @classmethod
    def decode(cls, plain: Mapping[str, Any] | None) -> Self | None:
        """Build it from what :meth:`encode` returned; return None for None, an empty mapping, or what is unreadable.

        A run that is not answered asks again.
        """
        asked = _read(plain, cls) if plain else None
        return None if asked is None else cls(asked.claimant, tuple(asked.batch_ids))


class _StoredRegistry(msgspec.Struct):
    """What :meth:`BatchRegistry.encode` returns."""

    owner: str
    queue_url: str
    batches: list[RegisteredBatch]


def _read(plain: object, kind: type[_T]) -> _T | None:
    try:
        return msgspec.convert(plain, kind)
    except (msgspec.ValidationError, UnicodeError, RecursionError):
        return None
