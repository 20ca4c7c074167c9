"""Plays a service to one ledger that allows so many calls a second, answers late, and is sometimes away."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from sqs_lease.core.calls import Call, DeleteCall, EntryAnswer, ExtendCall, ReleaseCall, Verdict
from sqs_lease.core.events import Lapsed, LeaseEvent, Outcome, Settled
from sqs_lease.core.ledger import Ledger
from sqs_lease.core.messages import Receipt

Judge = Callable[[Call, Receipt, float], Verdict]


def well(call: Call, receipt: Receipt, now: float) -> Verdict:
    """Every entry is carried out."""
    return Verdict.DONE


@dataclass(slots=True)
class BusyService:
    """Performs what a ledger asks for, as its driver does.

    Attributes:
        ledger: The ledger.
        calls_per_second: A token bucket: whole calls beyond it are throttled. As many may come at once.
        answer_seconds: How long a call takes.
        judge: The verdict on each entry of a call that is not throttled, at the time it is carried out.
        now: The time.
        calls: The calls, and their times.
        throttled: How many calls were throttled.
        events: The events of the ledger.
    """

    ledger: Ledger
    calls_per_second: float = math.inf
    answer_seconds: Callable[[Call], float] = lambda _: 0.02
    judge: Judge = well
    now: float = 0.0
    calls: list[tuple[float, Call]] = field(default_factory=list)
    throttled: int = 0
    events: list[LeaseEvent] = field(default_factory=list)
    _tokens: float = math.inf
    _filled_at: float = 0.0
    _answers: list[tuple[float, int, Call, Sequence[EntryAnswer]]] = field(default_factory=list)
    _numbers: Iterable[int] = field(default_factory=count)

    def run_until(self, end: float) -> None:
        """Perform what falls due up to ``end``."""
        while (moment := self._next_moment()) <= end:
            self.now = max(self.now, moment)
            while self._answers and self._answers[0][0] <= self.now:
                _, _, call, answers = heapq.heappop(self._answers)
                self.ledger.report(call, answers, self.now)
            for call in self.ledger.due(self.now, 1):
                self._take(call)
            self.events += self.ledger.take_events()
        self.now = end

    def _next_moment(self) -> float:
        due = self.ledger.next_due()
        answer = self._answers[0][0] if self._answers else math.inf
        return max(min(math.inf if due is None else due, answer), self.now)

    def _take(self, call: Call) -> None:
        self.calls.append((self.now, call))
        seconds = self.answer_seconds(call)
        timeout = self.ledger.timeout_seconds(call)
        if not self._admits():
            self.throttled += 1
            answers = [EntryAnswer(receipt, Verdict.THROTTLED) for receipt in call.receipts]
            seconds = 0.02
        else:
            answers = [EntryAnswer(receipt, self.judge(call, receipt, self.now)) for receipt in call.receipts]
        late = seconds > timeout
        answered_at = self.now + (timeout if late else seconds)
        heapq.heappush(self._answers, (answered_at, next(iter(self._numbers)), call, [] if late else answers))

    def _admits(self) -> bool:
        if self.calls_per_second == math.inf:
            return True
        filled = self._tokens + (self.now - self._filled_at) * self.calls_per_second
        self._tokens = min(filled, max(self.calls_per_second, 1.0))
        self._filled_at = self.now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    # Results

    def lapses(self) -> int:
        return sum(isinstance(event, Lapsed) for event in self.events)

    def outcomes(self) -> dict[Outcome, int]:
        counts: dict[Outcome, int] = {}
        for event in self.events:
            if isinstance(event, Settled):
                counts[event.outcome] = counts.get(event.outcome, 0) + 1
        return counts

    def called(self, kind: type[DeleteCall | ExtendCall | ReleaseCall]) -> list[tuple[float, Call]]:
        return [(at, call) for at, call in self.calls if isinstance(call, kind)]


def heavy_tailed_seconds(random: Random) -> float:
    """From 10 ms to 10 s: most answers are quick, one in twenty takes seconds."""
    return float(min(0.01 * random.paretovariate(0.7), 10.0))
