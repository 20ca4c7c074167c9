"""What holding a batch takes, by renewal policy: the ledger itself, driven in virtual time. No I/O, no clock.

Nothing here knows a policy's rule. The messages are held by the same :class:`~sqs_lease.core.ledger.Ledger` that holds
them in a triggerer, a step or a ``with lease(...)`` block. It is asked when a call is due and told that SQS carried it
out; time jumps from one such moment to the next. So whatever the ledger does is counted: that calls are filled up to
ten, that no more than so many are under way, and that the last extension is cut to fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Final

from sqs_lease.core.calls import Call, DeleteCall, EntryAnswer, ExtendCall, Verdict
from sqs_lease.core.events import Lapsed
from sqs_lease.core.failure_rules import Delete
from sqs_lease.core.ledger import Ledger
from sqs_lease.core.limits import MAX_BATCH_ENTRIES
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import RenewalPolicy

ANSWER_SECONDS: Final = 0.02
"""How long SQS takes for an answer here."""

MOST_EXTENSIONS: Final = 20_000
"""Most calls that extend, by one policy; to count them takes some seconds.

Twelve hours at a visibility timeout of 10 s take fewer.
"""


class TooManyExtensionsError(Exception):
    """A policy makes more calls than are counted here.

    Attributes:
        counted_seconds: After how much work it had made :data:`MOST_EXTENSIONS`.
    """

    def __init__(self, counted_seconds: float) -> None:
        super().__init__(f"more than {MOST_EXTENSIONS:,} calls that extend, after {counted_seconds:g} s of work")
        self.counted_seconds = counted_seconds


@dataclass(frozen=True, slots=True)
class Renewal:
    """One extension of the batch's first message.

    Attributes:
        at_seconds: When it was asked for, counted from the receive.
        left_seconds: What was left of the lease then.
        visible_at_seconds: When the message would be visible by itself from then on, counted from the receive.
    """

    at_seconds: float
    left_seconds: float
    visible_at_seconds: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the ledger did to hold a batch from its receive to the end of the work.

    Attributes:
        policy: The renewal policy, with its visibility timeout.
        receives: Calls of ``ReceiveMessage``, each of which brought ten messages.
        extends: Calls of ``ChangeMessageVisibilityBatch``.
        deletes: Calls of ``DeleteMessageBatch``.
        extended_at: When each extension was called, in seconds from the receive.
        renewals: The extensions of the first message.
        longest_wait_seconds: The most that was left of any lease at any moment. If all that could extend it dies just
            then, the message is visible again so much later.
        least_left_seconds: The least that was left of any lease when it was about to be extended: a process that dies
            just then leaves so much time for another one to take over. None if nothing was extended.
        visible_after_seconds: When the first lease ended although the work went on, in seconds from the receive;
            None if the batch was held to its end.
    """

    policy: RenewalPolicy
    receives: int
    extends: int
    deletes: int
    extended_at: tuple[float, ...]
    renewals: tuple[Renewal, ...]
    longest_wait_seconds: float
    least_left_seconds: float | None
    visible_after_seconds: float | None

    @property
    def calls(self) -> int:
        """All API calls of the batch."""
        return self.receives + self.extends + self.deletes


def forecast(policy: RenewalPolicy, *, messages: int, work_seconds: float) -> Forecast:
    """Hold a batch in virtual time until its work has succeeded, and say what that took.

    All messages are received at one moment, by calls of ten. Each later call is answered after 20 ms, and each does
    what was asked.

    Args:
        policy: The renewal policy, with a visibility timeout.
        messages: How many messages the batch has.
        work_seconds: How long the work on it takes.

    Raises:
        TooManyExtensionsError: That takes more than :data:`MOST_EXTENSIONS` calls that extend.
    """
    return _Run(policy, messages, work_seconds).forecast()


class _Run:
    def __init__(self, policy: RenewalPolicy, messages: int, work_seconds: float) -> None:
        self._policy = policy
        self._work_seconds = work_seconds
        self._receipts = [Receipt(str(number), "") for number in range(messages)]
        self._ledger = Ledger(Random(0))  # random are the pauses after failures only, and here nothing fails
        self._answers: list[tuple[float, int, Call]] = []
        self._deadlines = dict.fromkeys(self._receipts, float(policy.visibility_seconds))
        self._extended_at: list[float] = []
        self._deletes = 0
        self._renewals: list[Renewal] = []
        self._longest_wait = float(policy.visibility_seconds)
        self._least_left = math.inf
        self._visible_after: float | None = None

    def forecast(self) -> Forecast:
        for receipt in self._receipts:
            self._ledger.hold(Lease(receipt, 0.0, self._deadlines[receipt]), self._policy)
        self._go_on_until(self._work_seconds)
        for receipt in self._receipts:
            self._ledger.settle(receipt, Delete(), self._work_seconds)
        self._go_on_until(math.inf)
        return Forecast(
            policy=self._policy,
            receives=math.ceil(len(self._receipts) / MAX_BATCH_ENTRIES),
            extends=len(self._extended_at),
            deletes=self._deletes,
            extended_at=tuple(self._extended_at),
            renewals=tuple(self._renewals),
            longest_wait_seconds=self._longest_wait,
            least_left_seconds=None if self._least_left == math.inf else self._least_left,
            visible_after_seconds=self._visible_after,
        )

    def _go_on_until(self, end: float) -> None:
        while (now := self._next_moment()) < end:
            while self._answers and self._answers[0][0] <= now:
                _, _, call = heappop(self._answers)
                self._ledger.report(call, [EntryAnswer(receipt, Verdict.DONE) for receipt in call.receipts], now)
            for call in self._ledger.due(now):
                self._carry_out(call, now)
            self._note_lapses(now)

    def _next_moment(self) -> float:
        due = self._ledger.next_due()
        answered = self._answers[0][0] if self._answers else math.inf
        return answered if due is None else min(due, answered)

    def _carry_out(self, call: Call, now: float) -> None:
        heappush(self._answers, (now + ANSWER_SECONDS, len(self._extended_at) + self._deletes, call))
        if isinstance(call, DeleteCall):
            self._deletes += 1
        elif isinstance(call, ExtendCall):
            if len(self._extended_at) == MOST_EXTENSIONS:
                raise TooManyExtensionsError(now)
            self._extended_at.append(now)
            for change in call.changes:
                left = self._deadlines[change.receipt] - now
                self._deadlines[change.receipt] = now + change.seconds
                self._least_left = min(self._least_left, left)
                self._longest_wait = max(self._longest_wait, float(change.seconds))
                if change.receipt is self._receipts[0]:
                    self._renewals.append(Renewal(now, left, now + change.seconds))

    def _note_lapses(self, now: float) -> None:
        for event in self._ledger.take_events():
            if isinstance(event, Lapsed) and self._visible_after is None:
                self._visible_after = now - event.overdue_seconds
