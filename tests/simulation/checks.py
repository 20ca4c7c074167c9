"""The invariants of the design, and exactly what each allows.

The service's audit trail says what happened to every message; the store, what was worked on; the journal,
what each process sent and heard. A rule that is broken is a :class:`tests.simulation.journal.Violation`.

Each lease, as one process holds it, begins with the receive or with ``adopt``, and ends when it is lost, settled,
passed on or forgotten, or when the process dies. This is checked of each in every schedule.

1. **Nothing is deleted unless its work succeeded; nothing is forgotten.**
   A message that a consumer deleted has a row in the table, committed before, or a copy in the dead-letter queue.
   Once things are calm, every message ends: its queue is empty within ``DRAIN_SECONDS``, no process
   holds anything, and each message is in the table or in the dead-letter queue (or in both: its work
   succeeded, but it could not be deleted before it was received too often).

   Every lease comes to an end. A settlement that was begun ends within the longer of its lease and 60 s; later only by
   the answer to its last try (the longest pause, the time-out and the spacing of calls), while settlements of the queue
   go through, while one that began later is ahead of it in line, or where the process stood still. When nothing is
   held, no container of a ledger or a driver holds anything after the next look at what is due
   (:mod:`tests.simulation.leftovers`).

   Messages of a FIFO group keep their order: once a message was deleted because its work succeeded, no worker gets an
   earlier one of its group any more. There is no exception.

2. **Two workers hold one message at once only if the service or all who hold it were away for too long.**
   The service gives a message out again only if it became visible. The check is stronger: *a lease that is held,
   and is not being settled, is extended as the documentation says* (:mod:`tests.simulation.lease_checks`): when its
   policy says so, and after a failed call within a quarter of what is left. So where a message becomes visible while
   its lease is held, each of these calls failed: the service was away for it. Or its process was (killed, frozen, or
   not yet the one that holds it). Or the queue's call rate could not carry the calls that were due, which shows in the
   calls that were made instead.

   A message is invisible while its holder is sure of it: when its visibility timeout ends, its holder knows that the
   deadline has passed. The exceptions: the holder stood still; its calendar was behind by more than the margin; a
   superseded handle changed the visibility; a call arrived after its sender had stopped waiting for it. Two processes
   hold one lease at once only if the first stood still when the second took it over, and until it notices.

   An extension never shortens a lease. The text of a batch, and the beliefs from it, are checked each time
   (:mod:`tests.simulation.passing_checks`).

   A lease is given up as lost only if its message did become visible, or went, before. An extension that the service
   carried out, and whose answer comes within the time-out, counts.

3. **Nothing is extended after it was settled; nothing lost is released.** Seen from the wire, for each process, with no
   exception: no call about a lease that was lost, settled or handed over; no extension after its settlement
   began (one decided in the same instant is under way; a delete that waits for earlier messages of its group has not
   begun); no delete or release that was not asked for, and none again after the service refused it. Seen from the
   service: a message is released by a superseded handle only by a process that took the lease over with a calendar that
   is behind that of who wrote it down by more than the margin, or by a request that took longer than
   ``RELEASE_MARGIN_SECONDS`` to reach the service.

4. **The table holds each message once**, whatever was redelivered, crashed or taken over.

5. **What is told is true, and counted so.** The counts of a report are what the batch's listener heard, and each of
   them is what the service did. A lease counts as deleted only if that process deleted the message by that handle. The
   exceptions: those that rule 2 makes, and a FIFO queue from which the message was gone, where the service says
   that the delete was done. It counts as uncertain if a delete of it was confirmed too late, or was refused after one
   without an answer, and not as lost then. A message deleted or released with an answer is counted as nothing else. A
   message that was reported as deleted, or as dead-lettered, is gone. A settlement ends as failed only where the
   service refused it, or failed to carry out every one of its tries for as long as the documentation says.

A calendar that is wrong, or a superseded handle that another process may still use, can make a message visible
although its holder did all this; so it is not asked what became visible, but what the holder did. A process that took a
lease over, and got no extension through since, knows no better than the calendar when it ends: what it tells may be
wrong.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from sqs_lease.core.calls import Verdict
from sqs_lease.core.events import Outcome
from sqs_lease.core.failure_rules import DeadLetter, Delete
from sqs_lease.core.ledger import RELEASE_MARGIN_SECONDS
from sqs_lease.core.messages import Receipt
from sqs_lease.testing import AuditEntry, AuditKind, AuditTrail
from tests.simulation.journal import ROUNDING_SECONDS, Holding, Journal, Kind, LeaseRecord
from tests.simulation.lease_checks import LeaseChecker
from tests.simulation.store import Store

DRAIN_SECONDS = 3600.0

_ENDS = (AuditKind.EXPIRED, AuditKind.RELEASED, AuditKind.DELETED, AuditKind.DEAD_LETTERED)
"""After these a message is not invisible for its holder any more."""

_COUNTED_AS_GONE = (Outcome.DELETED, Outcome.UNCERTAIN, Outcome.DEAD_LETTERED)

_GONE = (AuditKind.DELETED, AuditKind.DEAD_LETTERED)
"""After these a message is not in its queue any more."""


class Checker:
    """Checks one schedule after its end.

    Args:
        trail: The service's audit trail.
        leases: Checks what each process did about each lease.
        dead_letter_urls: The dead-letter queues.
        away: By process: from when until when it was dead or frozen.
        notices_within_seconds: How soon a process that stood still notices that another one holds what it held.
    """

    def __init__(
        self,
        trail: AuditTrail,
        store: Store,
        journal: Journal,
        leases: LeaseChecker,
        *,
        dead_letter_urls: Collection[str],
        away: Mapping[str, Collection[tuple[float, float]]],
        notices_within_seconds: float,
    ) -> None:
        self._trail = trail
        self._away = away
        self._notices_within_seconds = notices_within_seconds
        self._store = store
        self._journal = journal
        self._leases = leases
        self._dead_letter_urls = dead_letter_urls

    def check(
        self, bodies: Mapping[str, str], dead_bodies: Collection[str], groups: Mapping[str, Sequence[str]]
    ) -> None:
        """Check all messages.

        Args:
            bodies: By message id: the body, as it was sent.
            dead_bodies: The bodies that are in dead-letter queues at the end.
            groups: By FIFO group: its messages, in the order in which they were sent.
        """
        committed = self._store.table.committed_at
        for message_id, body in bodies.items():
            if message_id not in committed and body not in dead_bodies:
                self._journal.violated("1 nothing is forgotten", f"{message_id} ({body}) is nowhere")
            self._check_events(message_id, in_dead_letter_queue=body in dead_bodies)
        for ids in groups.values():
            self._check_order(ids)
        for (process, receipt), record in tuple(self._journal.leases().items()):
            self._check_loss(process, receipt, record)
            self._check_what_was_told(process, record, in_dead_letter_queue=bodies[receipt.message_id] in dead_bodies)
            self._check_count(process, record)
            self._check_certainty(process, record)
        self._check_holders()
        self._leases.check()
        rows = self._store.table.rows
        if len(rows) != len(set(rows)):
            self._journal.violated("4 the table holds each message once", f"{len(rows)} rows")

    def _events(self, message_id: str) -> list[AuditEntry]:
        """The events of a message before it came to a dead-letter queue."""
        return [entry for entry in self._trail.of(message_id) if entry.queue_url not in self._dead_letter_urls]

    def _check_events(self, message_id: str, *, in_dead_letter_queue: bool) -> None:
        newest = ""
        meddled_with: set[str] = set()  # handles under which it was held when an earlier holder acted
        for entry in self._events(message_id):
            match entry.kind:
                case AuditKind.RECEIVED:
                    newest = entry.handle
                case AuditKind.RELEASED if entry.stale and entry.handle not in meddled_with:
                    self._check_stale_release(entry)
                case AuditKind.DELETED:
                    self._check_delete(entry, in_dead_letter_queue=in_dead_letter_queue)
            if self._is_meddled_with(entry):
                meddled_with.add(newest)

    def _check_delete(self, entry: AuditEntry, *, in_dead_letter_queue: bool) -> None:
        committed_at = self._store.table.committed_at.get(entry.message_id)
        if (committed_at is None or committed_at > entry.at) and not in_dead_letter_queue:
            self._journal.violated("1 nothing is deleted unless its work succeeded", str(entry), at=entry.at)

    def _check_order(self, message_ids: Sequence[str]) -> None:
        received_last = received = -1.0
        for message_id in message_ids:
            # Its copy is out of the way then; that it comes again, when its delete was lost, holds nothing back.
            dead_lettered_at = self._dead_lettered_at(message_id)
            for entry in self._events(message_id):
                if entry.kind is AuditKind.RECEIVED and entry.at < dead_lettered_at:
                    received = entry.at
                elif entry.kind is AuditKind.DELETED and entry.at < received_last:
                    record = self._journal.lease(entry.caller, Receipt(message_id, entry.handle))
                    if isinstance(record.began, Delete):
                        detail = f"{entry}; an earlier one of its group was received at {received_last:.3f}"
                        self._journal.violated("1 a message group keeps its order", detail, at=entry.at)
            received_last = max(received_last, received)

    def _dead_lettered_at(self, message_id: str) -> float:
        """When a process first heard that a message is in the dead-letter queue."""
        return min(
            (
                record.settled_at
                for (_, receipt), record in self._journal.leases().items()
                if receipt.message_id == message_id and record.settled_at is not None and record.settled is not None
                if record.settled.outcome is Outcome.DEAD_LETTERED
            ),
            default=math.inf,
        )

    def _check_stale_release(self, entry: AuditEntry) -> None:
        run = self._store.by_handle.get(entry.handle)
        if run is not None and run.optimism > 0:
            return
        record = self._journal.lease(entry.caller, Receipt(entry.message_id, entry.handle))
        slow = any(
            call.arrives_at - call.sent_at > RELEASE_MARGIN_SECONDS and abs(call.arrives_at - entry.at) < 0.001
            for call in record.calls
        )
        if not slow:
            self._journal.violated("3 nothing lost is released", str(entry), at=entry.at)

    def _check_loss(self, process: str, receipt: Receipt, record: LeaseRecord) -> None:
        lost_at = record.lost_at
        if record.settled is not None and record.settled.outcome is Outcome.LOST:
            lost_at = record.settled_at
        if lost_at is None:
            return
        received = False
        for entry in self._trail.of(receipt.message_id):
            received = received or entry.handle == receipt.handle
            if received and entry.kind in _ENDS and entry.at <= lost_at:
                return
        self._journal.violated("2 what is held is not given up", f"{receipt} by {process}", at=lost_at)

    def _check_count(self, process: str, record: LeaseRecord) -> None:
        """Check that an outcome is counted only if the service did it with that handle for that process."""
        if record.settled is None or record.settled_at is None:
            return
        receipt, outcome, settled_at = record.receipt, record.settled.outcome, record.settled_at
        what = f"{receipt} by {process}: {record.settled}"
        done = {
            entry.kind
            for entry in self._events(receipt.message_id)
            if entry.handle == receipt.handle and entry.caller == process and entry.at <= settled_at
        }
        heard = [
            call.verdict(receipt)
            for call in record.calls
            if call.kind is Kind.DELETE and call.ended_at is not None and call.ended_at <= settled_at
        ]
        unanswered = Verdict.TRANSIENT in heard
        was_gone = record.queue_url.endswith(".fifo") and AuditKind.IGNORED in done
        match outcome:
            case Outcome.DELETED if AuditKind.DELETED not in done and not was_gone and not self._may_be_wrong(record):
                self._journal.violated("5 what is counted as deleted was deleted by its handle", what, at=settled_at)
            case Outcome.UNCERTAIN if not (Verdict.DONE in heard or (unanswered and heard[-1] is Verdict.LOST)):
                self._journal.violated("5 what is counted as uncertain was deleted, or probably", what, at=settled_at)
            case Outcome.LOST if unanswered and heard[-1] is Verdict.LOST and isinstance(record.began, Delete):
                self._journal.violated("5 an unanswered delete is uncertain and not lost", what, at=settled_at)
        if AuditKind.DELETED in done and outcome not in _COUNTED_AS_GONE and not unanswered:
            self._journal.violated("5 what was deleted is counted so", what, at=settled_at)
        # One that is received again at once may be lost by that before the answer is heard.
        released = any(
            call.kind is Kind.RELEASE
            and call.verdict(receipt) is Verdict.DONE
            and call.ended_at is not None
            and (call.ended_at < settled_at or outcome is not Outcome.LOST)
            for call in record.calls
        )
        # A message that the dead-letter queue refuses is released, and has failed all the same.
        counted = {Outcome.RELEASED, Outcome.FAILED} if isinstance(record.began, DeadLetter) else {Outcome.RELEASED}
        if released and outcome not in counted:
            self._journal.violated("5 what was released is counted so", what, at=settled_at)

    def _may_be_wrong(self, record: LeaseRecord) -> bool:
        """Whether the process may have been sure of a lease that had ended: its calendar, or a stale handle."""
        events = self._events(record.receipt.message_id)
        return self._store.by_handle[record.receipt.handle].optimism > 0 or any(map(self._is_meddled_with, events))

    def _check_certainty(self, process: str, record: LeaseRecord) -> None:
        """A message becomes visible only when its holder is not sure of it any more."""
        if self._may_be_wrong(record):
            return
        set_by: AuditEntry | None = None
        for entry in self._events(record.receipt.message_id):
            if entry.handle != record.receipt.handle:
                continue
            if entry.until is not None:
                set_by = entry
            if entry.kind is not AuditKind.EXPIRED or set_by is None:
                continue
            holding = next((one for one in reversed(record.holdings) if one.at <= entry.at), None)
            if holding is None or holding.doubtful or any(at <= entry.at for at in record.lapsed_at):
                continue
            is_held = entry.at < self._held_until(process, record, holding) and not self._is_away(process, entry.at)
            sure_until = record.deadline_at(entry.at)
            # It released the message itself, and has not heard that yet; or its call came late.
            is_its_own = set_by.caller == process and self._journal.did(set_by, Kind.RELEASE)
            excused = is_its_own or self._journal.was_given_up(set_by)
            if is_held and sure_until > entry.at + ROUNDING_SECONDS and not excused:
                detail = f"{record.receipt} by {process}: sure until {sure_until:.3f}; {set_by}"
                self._journal.violated("2 what a holder is sure of is invisible", detail, at=entry.at)

    def _check_holders(self) -> None:
        """One process holds a lease at a time, but for one that stood still and was taken for dead."""
        by_receipt: dict[Receipt, list[tuple[float, float, str]]] = {}
        for (process, receipt), record in self._journal.leases().items():
            starts = {one.forgotten_before: one for one in reversed(record.holdings)}
            for holding in starts.values():
                until = self._held_until(process, record, holding)
                by_receipt.setdefault(receipt, []).append((holding.at, until, process))
        for receipt, held in by_receipt.items():
            for (_, until, first), (since, _, second) in combinations(sorted(held), 2):
                if first == second or until <= since:
                    continue
                back_at = next((end for start, end in self._away.get(first, ()) if start <= since < end), None)
                if back_at is None or until > max(back_at, since) + self._notices_within_seconds:
                    detail = f"{receipt} by {first} until {until:.3f} and by {second} from {since:.3f}"
                    self._journal.violated("2 a lease has one holder", detail, at=since)

    def _held_until(self, process: str, record: LeaseRecord, holding: Holding) -> float:
        ends = [at for at in (record.lost_at, record.settled_at) if at is not None and at >= holding.at]
        gone_at = (start for start, end in self._away.get(process, ()) if end == math.inf)
        return min([*ends, *record.forgotten_after(holding), *gone_at], default=math.inf)

    def _is_away(self, process: str, at: float) -> bool:
        away = self._away.get(process, ())
        return any(start <= at <= end + self._notices_within_seconds for start, end in away)

    def _check_what_was_told(self, process: str, record: LeaseRecord, *, in_dead_letter_queue: bool) -> None:
        if record.settled is None or record.settled_at is None:
            return
        what = f"{record.receipt} by {process}"
        settled_at = record.settled_at
        events = [entry for entry in self._events(record.receipt.message_id) if entry.at <= settled_at]
        if record.goes_by_calendar and self._store.by_handle[record.receipt.handle].optimism > 0:
            return
        match record.settled.outcome:
            case Outcome.DELETED if not any(entry.kind in _GONE or self._is_meddled_with(entry) for entry in events):
                self._journal.violated("5 what is deleted is gone", what, at=settled_at)
            case Outcome.DEAD_LETTERED if not in_dead_letter_queue:
                self._journal.violated("5 what is dead-lettered is in the dead-letter queue", what, at=settled_at)
            case Outcome.RELEASED if not any(call.kind is Kind.RELEASE for call in record.calls):
                self._journal.violated("5 what is released was released", what, at=record.settled_at)

    def _is_meddled_with(self, entry: AuditEntry) -> bool:
        """Whether a call that the holder does not know of changed the message's visibility.

        Of one who held the message before, which a standard queue allows, or one that arrived after its sender had
        stopped waiting: it may shorten what a later call gave, also for the next holder.
        """
        changed = entry.kind in (AuditKind.CHANGED, AuditKind.RELEASED)
        return changed and (entry.stale or self._journal.arrived_late(entry))
