"""Ledgers that break a rule on purpose: the simulator must notice each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from sqs_lease.core.calls import Call, EntryAnswer, ExtendCall, ReleaseCall, Verdict, VisibilityChange
from sqs_lease.core.entries import Entry
from sqs_lease.core.failure_rules import Release, Settlement
from sqs_lease.core.ledger import Ledger
from sqs_lease.core.messages import Receipt


class ExtendsAfterSettling(Ledger):
    """A heartbeat that does not know that the settlement began."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._still_beating: list[Receipt] = []

    def settle(self, receipt: Receipt, settlement: Settlement, now: float) -> bool:
        self._still_beating.append(receipt)
        return super().settle(receipt, settlement, now)

    def due(self, now: float, limit: int | None = None) -> list[Call]:
        calls = super().due(now, limit)
        if not calls and self._still_beating:
            calls.append(ExtendCall(now, (VisibilityChange(self._still_beating.pop(0), 30),)))
        return calls


class ReleasesWhatIsLost(Ledger):
    """Gives back what it does not have."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._lost: list[Receipt] = []

    def _lose(self, entry: Entry, detail: str) -> None:
        self._lost.append(entry.receipt)
        super()._lose(entry, detail)

    def due(self, now: float, limit: int | None = None) -> list[Call]:
        calls = super().due(now, limit)
        if self._lost:
            calls.append(ReleaseCall(now, (VisibilityChange(self._lost.pop(0), 0),)))
        return calls


class MovesDeadlinesUnconfirmed(Ledger):
    """Takes an extension for granted once it was sent."""

    def report(self, call: Call, answers: Sequence[EntryAnswer], now: float) -> None:
        if isinstance(call, ExtendCall):
            answers = [EntryAnswer(receipt, Verdict.DONE) for receipt in call.receipts]
        super().report(call, answers, now)


class GivesUpWithoutAnswer(Ledger):
    """Takes a call without an answer for a lost lease."""

    def report(self, call: Call, answers: Sequence[EntryAnswer], now: float) -> None:
        answers = [
            replace(answer, verdict=Verdict.LOST) if answer.verdict is Verdict.TRANSIENT else answer
            for answer in answers
        ]
        super().report(call, answers, now)


class RetriesTooLate(Ledger):
    """Waits half a visibility timeout after each failure, however near the deadline is."""

    def _extension_answered(
        self, entry: Entry, deadline: float, answer: EntryAnswer, asked_at: float, now: float
    ) -> None:
        super()._extension_answered(entry, deadline, answer, asked_at, now)
        if answer.verdict is Verdict.TRANSIENT and entry.settlement is None:
            self._waiting.push(now + entry.policy.visibility_seconds / 2, entry)


class ReleasesTooLate(Ledger):
    """Releases what may be somebody else's by now."""

    def _releases_to_send(self, now: float) -> Iterator[VisibilityChange]:
        for entry in self._to_send(Release):
            yield VisibilityChange(entry.receipt, 0)
