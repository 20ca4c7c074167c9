"""FIFO queues: nothing is deleted ahead of an earlier message of its message group that goes back to the queue.

Deleting message k + 1 while k goes back would have k processed after it. So three rules hold within a group:

- A delete waits until all earlier messages have *ended*, each confirmed by the service. Until then the lease is held
  and extended: nothing is certain about message k while its work goes on, or while its own delete can still fail.
- When a message ended other than by a delete or in the dead-letter queue, those behind it are released instead of
  deleted, although their own work succeeded, and come again after it, in order.
- A message that went to the dead-letter queue holds nothing back: it is out of the way.

:class:`GroupOrder` keeps these rules within a ledger, for what is pending. :func:`hold_back` and :func:`ready` say the
same beforehand, for hosts that write down what they are about to settle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar

from sqs_lease.core.events import Outcome
from sqs_lease.core.failure_rules import DeadLetter, Delete, Release, Settlement
from sqs_lease.core.messages import Lease, Receipt


class Member(Protocol):
    """A message of a group, as far as its order is concerned."""

    sequence: int
    """A unique number."""
    rank: int
    """Its place within its group: a higher number than that of the members before it. The order sets it."""
    group: str | None
    """The group that it is a member of now."""
    behind: bool
    """Whether its delete waits for earlier members."""

    @property
    def is_undecided(self) -> bool:
        """Whether its work goes on."""

    @property
    def has_ended(self) -> bool:
        """Whether the lease has ended."""


_Member = TypeVar("_Member", bound=Member)


class _Group(Generic[_Member]):
    """The members of one group. Those that moved on are dropped when they come up."""

    __slots__ = ("members", "returned_from", "undecided", "waiting")

    def __init__(self) -> None:
        self.members: deque[_Member] = deque()
        self.undecided: list[tuple[int, int, _Member]] = []  # a heap by rank
        self.waiting: list[tuple[int, int, _Member]] = []  # a heap by rank, the latest first: ranks are negative here
        self.returned_from: int | None = None  # what is behind this place goes back


class GroupOrder(Generic[_Member]):
    """The order within the message groups of one queue. Each operation costs O(log n)."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group[_Member]] = {}
        self._joined = 0

    def join(self, group: str, member: _Member) -> None:
        """A message is held, behind those of its group that are held already."""
        if (held := self._groups.get(group)) is None:
            held = self._groups[group] = _Group()
        self._joined += 1
        member.rank = self._joined
        held.members.append(member)
        heappush(held.undecided, (member.rank, member.sequence, member))

    def dissolve(self, group: str) -> Iterator[_Member]:
        """Yield the members of a group in their order; the caller puts each into another group."""
        held = self._groups[group]
        while (member := self.first(group)) is not None:
            yield member
            held.members.popleft()

    def replace(self, group: str, older: _Member, newer: _Member) -> None:
        """A message was received again: its newer reception takes the place of the older one."""
        held = self._groups[group]
        newer.rank = older.rank
        held.members[held.members.index(older)] = newer
        heappush(held.undecided, (newer.rank, newer.sequence, newer))

    def first(self, group: str) -> _Member | None:
        """The earliest message of a group that has not ended."""
        held = self._groups.get(group)
        while held is not None and held.members:
            if _is_member(held.members[0], group):
                return held.members[0]
            held.members.popleft()
        return None

    def leave(self, group: str) -> _Member | None:
        """A message of the group has ended; return the earliest that has not."""
        first = self.first(group)
        if first is None:
            self._groups.pop(group, None)
        return first

    def wait(self, group: str, member: _Member) -> None:
        """A delete waits for the earlier messages of its group."""
        heappush(self._groups[group].waiting, (-member.rank, member.sequence, member))

    def return_from(self, group: str, member: _Member) -> Iterator[_Member]:
        """A message goes back to the queue; give out the waiting deletes behind it, which are not to happen."""
        held = self._groups[group]
        if held.returned_from is None or member.rank < held.returned_from:
            held.returned_from = member.rank
        while held.waiting and -held.waiting[0][0] > member.rank:
            _, _, later = heappop(held.waiting)
            if later.behind and _is_member(later, group):
                yield later

    def is_behind_returned(self, group: str, member: _Member) -> bool:
        """Whether an earlier message of its group went back to the queue, or is about to."""
        returned_from = self._groups[group].returned_from
        return returned_from is not None and returned_from < member.rank

    def is_behind_undecided(self, group: str, member: _Member) -> bool:
        """Whether the work on an earlier message of its group goes on."""
        undecided = self._groups[group].undecided
        while undecided and not (undecided[0][2].is_undecided and _is_member(undecided[0][2], group)):
            heappop(undecided)
        return bool(undecided) and undecided[0][0] < member.rank


def _is_member(member: Member, group: str) -> bool:
    return not member.has_ended and member.group == group


def hold_back(
    settlements: Mapping[Receipt, Settlement],
    leases: Iterable[Lease],
    outcome_of: Callable[[Receipt], Outcome | None],
) -> dict[Receipt, Settlement]:
    """Turn deletes behind a message that was not done into releases.

    Args:
        settlements: What is asked for.
        leases: All leases of the batch, settled ones included, in the order they were received.
        outcome_of: How a lease ended; None while it is held.

    Returns:
        The settlements to carry out, for the same receipts. Messages that are held and have no settlement yet
        hold nothing back, and neither do messages without a group.
    """
    blocked: set[str] = set()
    carried_out = dict(settlements)
    for lease in leases:
        group = lease.message_group_id
        if group is None:
            continue
        settlement = settlements.get(lease.receipt)
        outcome = outcome_of(lease.receipt)
        if outcome is None and isinstance(settlement, Delete) and group in blocked:
            carried_out[lease.receipt] = Release()
        if outcome is None:
            not_done = settlement is not None and not isinstance(settlement, Delete | DeadLetter)
        else:
            not_done = outcome not in (Outcome.DELETED, Outcome.DEAD_LETTERED)
        if not_done:
            blocked.add(group)
    return carried_out


def ready(
    settlements: Mapping[Receipt, Settlement],
    leases: Iterable[Lease],
    outcome_of: Callable[[Receipt], Outcome | None],
) -> dict[Receipt, Settlement]:
    """Leave out deletes behind a message of the same group that is still worked on.

    Args:
        settlements: What is asked for.
        leases: All leases of the batch, settled ones included, in the order they were received.
        outcome_of: How a lease ended, or is being ended; None while it is only held.

    Returns:
        The settlements that need not wait, in the order of the leases: the earliest of a group first.
    """
    undecided: set[str] = set()
    at_once: dict[Receipt, Settlement] = {}
    for lease in leases:
        group = lease.message_group_id
        settlement = settlements.get(lease.receipt)
        if settlement is not None and not (isinstance(settlement, Delete) and group in undecided):
            at_once[lease.receipt] = settlement
        elif group is not None and outcome_of(lease.receipt) is None:
            undecided.add(group)
    return at_once
