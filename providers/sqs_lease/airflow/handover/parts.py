"""Takes the parts of a merged batch from the triggers of this process that hold them, so that one keeper has them all.

Parts that no trigger of this process holds are taken over from the keeper's arguments, as any batch is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqs_lease.airflow.shared_keeper import TriggererKeepers
from sqs_lease.core.events import LeaseEvent
from sqs_lease.core.messages import Lease, Message, Receipt


@dataclass(frozen=True, slots=True)
class GatheredParts:
    """What this process held of a merged batch.

    Attributes:
        leases: The leases still held, with the deadlines confirmed so far, in times of the keeper's clock.
        messages: The messages still held, as far as their content is known.
        ended: Leases that ended while the parts were held, lost most likely: nobody may hold them again.
    """

    leases: Mapping[Receipt, Lease]
    messages: Sequence[Message]
    ended: frozenset[Receipt]

    def newest(self, leases: Iterable[Lease]) -> list[Lease]:
        """The leases with the deadlines that this process knows, where it knows better; in the same order."""
        return [self.leases.get(lease.receipt, lease) for lease in leases]


async def gather_parts(keepers: TriggererKeepers, part_ids: Sequence[str], owner: object) -> GatheredParts:
    """Become the owner of the parts that are held in this process, and dissolve them.

    Whoever held a part sees that it owns it no more. The leases are held by nobody afterwards: the caller must
    put them into a batch of its own before it awaits anything but its turn.

    Args:
        keepers: What the triggers of this process share.
        part_ids: The parts.
        owner: The new owner.
    """
    leases: dict[Receipt, Lease] = {}
    messages: list[Message] = []
    ended: set[Receipt] = set()
    for part_id in part_ids:
        shared = keepers.claim(part_id, owner, _ignore)
        if shared is None:
            continue
        await keepers.slices.take(shared.batch.count_held())
        leases.update((lease.receipt, lease) for lease in shared.batch.leases())
        messages += shared.batch.messages()
        ended.update(shared.batch.outcomes())
        keepers.remove(part_id, shared)
    return GatheredParts(leases, messages, frozenset(ended))


def _ignore(event: LeaseEvent) -> None:
    """A part that is being dissolved has nobody to tell."""
