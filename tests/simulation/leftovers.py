"""The check that keepers keep nothing of leases that ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import Context

from sqs_lease.core.ledger import Ledger
from sqs_lease.keeper.driver import QueueDriver
from sqs_lease.keeper.keeper import Keeper


def leftovers(keeper: Keeper, *, at_end: bool) -> Iterator[str]:
    """Name the containers of drivers and ledgers that hold something although no lease is held.

    Args:
        keeper: The keeper.
        at_end: Whether nothing will happen any more. Before that, calls may be under way, and leases may be left to
            forget.
    """
    for driver in keeper._drivers.values():
        ledger = driver._ledger
        if not at_end and (len(ledger) or driver._calls or driver._leaving):
            continue
        due = ledger.next_due()  # each look at what is due drops what is stale
        for owner in (driver, ledger):
            yield from (f"{type(owner).__name__}.{name} of {driver._queue_url}" for name in _filled(owner))
        if due is not None:
            yield f"calls are due on {driver._queue_url}"


def _filled(owner: QueueDriver | Ledger) -> Iterator[str]:
    for name, kept in vars(owner).items():
        # By the method, because this is asked some million times: a check of the type Sized takes five times as long.
        if not hasattr(kept, "__len__") or isinstance(kept, str | Context) or not kept:
            continue
        inner = list(kept.values()) if isinstance(kept, dict) else []
        # A table of containers has a fixed set of keys; what counts is in them.
        if not inner or not all(hasattr(one, "__len__") for one in inner) or any(map(len, inner)):
            yield name
