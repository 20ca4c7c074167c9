"""Order in FIFO queues: no message is deleted before an earlier one of its message group that goes back to the queue.

If message k + 1 were deleted while k goes back, k would be processed after it. So three rules hold within a group:

- A delete waits until all earlier messages have *ended*, each confirmed by the service. Until then the lease is held
  and extended: nothing is certain about message k while its work goes on, or while its own delete can still fail.
- When a message ends other than by a delete or in the dead-letter queue, those behind it are released instead of
  deleted, although their own work succeeded, and come again after it, in order.
- A message that went to the dead-letter queue delays no other: it has left the group.

The price: two deletes of one group never share a call, since one entry of a batch call can fail while the next one
succeeds. A queue with one group pays 500 deletes for a batch of 500, instead of 50.

A message that is received again takes its former place, even if it had gone back: the queue gives out a message only
when no other of its group is in flight, so all messages held from before are behind it. For the same reason, a return
affects only the members that had joined by then.

:class:`GroupOrder` keeps these rules within a ledger, for pending settlements. :func:`hold_back` and :func:`ready` give
the same results in advance, for hosts that write down what they are about to settle.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from sqs_lease.core.events import Outcome
from sqs_lease.core.failure_rules import DeadLetter, Delete, Expire, Release, Settlement
from sqs_lease.core.messages import Lease, Receipt


class Member(Protocol):
    """A message of a group, as far as its order is concerned."""

    sequence: int
    """A unique number."""
    joined: int
    """The number of its joining the group, higher than those of earlier joins. The order sets it."""
    rank: int
    """Its place within its group, a higher number than those of the members before it. The order sets it."""
    group: str | None
    """The group that it is a member of now; None for a message without order."""
    settlement: Settlement | None
    """The settlement that was decided for it. The order may turn a delete into a release."""
    behind: bool
    """Whether its delete waits for earlier members. The order sets it."""
    goes_back: bool
    """Whether an earlier member went back to the queue while both were in another group. The order sets it."""

    @property
    def receipt(self) -> Receipt:
        """The reception of the message."""

    @property
    def is_undecided(self) -> bool:
        """Whether its work goes on."""

    @property
    def has_ended(self) -> bool:
        """Whether the lease has ended."""


_Member = TypeVar("_Member", bound=Member)


class _Group(Generic[_Member]):
    """The members of one group. Those that moved on are dropped when they come up."""

    __slots__ = ("members", "places", "returned", "undecided", "waiting")

    def __init__(self) -> None:
        self.members: list[tuple[int, int, _Member]] = []  # a heap by rank
        self.undecided: list[tuple[int, int, _Member]] = []  # a heap by rank
        self.waiting: list[tuple[int, int, _Member]] = []  # a heap by rank, the latest first: ranks are negative here
        self.places: dict[str, _Member] = {}  # by message: the member that has its place, or had it last
        self.returned: list[tuple[int, int]] = []  # members of a higher rank that joined by then go back; both rise


class GroupOrder(Generic[_Member]):
    """The order within the message groups of one queue. Each operation costs O(log n).

    The ledger reports each decision (:meth:`decide`) and each end (:meth:`end`), and gets the members whose settlement
    may begin now. Only this class knows why a member waits, or goes back.
    """

    def __init__(self) -> None:
        self._groups: dict[str, _Group[_Member]] = {}
        self._joined = 0

    def __len__(self) -> int:
        """Count the groups with members that have not ended."""
        return len(self._groups)

    def join(self, member: _Member) -> None:
        """Add a message behind those of its group that are held already, or in the place that it had before."""
        if member.group is None:
            return
        if (held := self._groups.get(member.group)) is None:
            held = self._groups[member.group] = _Group()
        self._joined += 1
        former = held.places.get(member.receipt.message_id)
        member.joined = self._joined
        member.rank = self._joined if former is None else former.rank
        held.places[member.receipt.message_id] = member
        heappush(held.members, (member.rank, member.sequence, member))
        heappush(held.undecided, (member.rank, member.sequence, member))

    def decide(self, member: _Member) -> list[_Member]:
        """Take in that a settlement was decided for a member; return those whose settlements may begin now.

        A delete behind a message that went back becomes a release; one behind a message that is held waits.
        """
        if member.group is None:
            return [member]
        held = self._groups[member.group]
        match member.settlement:
            case Release() | Expire():
                return [member, *self._return_from(held, member)]
            case Delete():
                if member.goes_back or self._is_behind_returned(held, member):
                    member.settlement = Release()
                elif self._first(member.group) is not member:
                    member.behind = True
                    heappush(held.waiting, (-member.rank, member.sequence, member))
                    return []
        return [member]

    def end(self, member: _Member, *, done: bool) -> list[_Member]:
        """Take in that a member ended; return those whose settlements may begin now.

        Args:
            member: The member.
            done: Whether its message has left the group: deleted, or in the dead-letter queue.
        """
        if member.group is None:
            return []
        freed = [] if done else self._return_from(self._groups[member.group], member)
        first = self._first(member.group)
        if first is None:
            self._groups.pop(member.group, None)
        elif first.behind:
            first.behind = False
            freed.append(first)
        return freed

    def move(self, member: _Member, group: str | None) -> list[_Member]:
        """Move a member's whole group to another group, with its order and decisions.

        Returns:
            The members whose settlements may begin now.
        """
        left = member.group
        if group is None or left is None or group == left:
            return []
        freed: list[_Member] = []
        former = self._groups[left]
        while (each := self._first(left)) is not None:
            heappop(former.members)
            each.goes_back = each.goes_back or self._is_behind_returned(former, each)
            each.group = group
            self.join(each)
            if isinstance(each.settlement, Release | Expire):
                freed += self._return_from(self._groups[group], each)
            elif each.behind:
                each.behind = False
                freed += self.decide(each)
        del self._groups[left]
        return freed

    def waits_for_work(self, member: _Member) -> bool:
        """Return whether a member's delete waits for an earlier member whose work goes on."""
        if member.group is None or not member.behind:
            return False
        undecided = self._groups[member.group].undecided
        while undecided and not (undecided[0][2].is_undecided and _is_member(undecided[0][2], member.group)):
            heappop(undecided)
        return bool(undecided) and undecided[0][0] < member.rank

    def _first(self, group: str) -> _Member | None:
        """Return the earliest member of a group that has not ended."""
        held = self._groups.get(group)
        while held is not None and held.members:
            if _is_member(held.members[0][2], group):
                return held.members[0][2]
            heappop(held.members)
        return None

    def _return_from(self, held: _Group[_Member], member: _Member) -> list[_Member]:
        """Turn the deletes that wait behind a member that goes back into releases, which may begin."""
        while held.returned and held.returned[-1][0] >= member.rank:
            held.returned.pop()
        held.returned.append((member.rank, self._joined))
        freed: list[_Member] = []
        while held.waiting and -held.waiting[0][0] > member.rank:
            _, _, later = heappop(held.waiting)
            if later.behind and later.group == member.group and not later.has_ended:
                later.behind = False
                later.settlement = Release()
                freed.append(later)
        return freed

    @staticmethod
    def _is_behind_returned(held: _Group[_Member], member: _Member) -> bool:
        since = bisect_left(held.returned, member.joined, key=itemgetter(1))
        return since < len(held.returned) and held.returned[since][0] < member.rank


def _is_member(member: Member, group: str) -> bool:
    return not member.has_ended and member.group == group


def hold_back(
    settlements: Mapping[Receipt, Settlement],
    leases: Iterable[Lease],
    outcome_of: Callable[[Receipt], Outcome | None],
) -> dict[Receipt, Settlement]:
    """Turn deletes behind a message that was not done into releases.

    Args:
        settlements: The settlements that were requested.
        leases: All leases of the batch, settled ones included, in the order they were received.
        outcome_of: Returns how a lease ended; None while it is held.

    Returns:
        The settlements to carry out, for the same receipts. Messages that are held and have no settlement yet
        delay no other, and neither do messages without a group.
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
        settlements: The settlements that were requested.
        leases: All leases of the batch, settled ones included, in the order they were received.
        outcome_of: Returns how a lease ended, or is being ended; None while it is only held.

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
